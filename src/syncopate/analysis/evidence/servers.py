"""Servers: which parameter server keeps workers waiting, and for how long.

[Note: as far as the others] The slices of a model are spread so that servers have about as many
bytes. So of equal servers each has, at any time of an iteration, taken in and given out as many
bytes of a worker's as the others. That is what a slow one is compared with: a slice of it would be
there when the other servers, in their median, had come as far in bytes with this worker, in this
iteration. Where a server has more bytes than they, it is given time for them at their pace. A
worker's own link may be what keeps the others from being faster still: then a gain is too small. It
is too large where they are fast only as long as the slow one leaves them that link.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from syncopate.analysis.evidence.noise import exceeds
from syncopate.analysis.replay import Changed, Durations, Replay
from syncopate.analysis.round_trips import mean_round_trips
from syncopate.artifacts.timelines.round_trip import STAGES, RoundTrip
from syncopate.artifacts.timelines.spans import LANES

_ITS_OWN = tuple(stage for stage in STAGES if stage not in ("other workers", "request"))
"""Stages of a trip that a server, or the way to it, can be blamed for."""

_LATER = 1.5
"""A server is slow that takes more than this many times as long as the others would."""

_Turn = tuple[int, int]
"""A rank and an iteration."""

_Message = tuple[str, str, int, int]
"""Lane and name, rank and iteration."""


class _Way(NamedTuple):
    """The arrival times of a server's slices at one worker in one iteration, in order.

    Attributes:
        at_s: when each was, since the first of any server set out.
        keys: of the slices.
        nbytes: of each and those before it.
    """

    at_s: tuple[float, ...]
    keys: tuple[int, ...]
    nbytes: tuple[int, ...]

    def reached_s(self, nbytes: int) -> float:
        """Return when so many bytes were there, or would have been."""
        place = bisect_left(self.nbytes, nbytes)
        if place < len(self.at_s):
            return self.at_s[place]
        return self.at_s[-1] * nbytes / max(self.nbytes[-1], 1)


def _ways(trips: Sequence[RoundTrip], begins: str, ends: str) -> dict[str, _Way]:
    """Return the way of each server's slices, between two moments of their trips."""
    began_s = min(getattr(trip, begins) for trip in trips)
    rows: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for trip in trips:
        rows[trip.server].append((getattr(trip, ends) - began_s, trip.key, trip.nbytes))
    found = {}
    for server, mine in rows.items():
        at_s, keys, nbytes = zip(*sorted(mine), strict=True)
        found[server] = _Way(at_s, keys, tuple(accumulate(nbytes)))
    return found


def _expected_s(ways: Mapping[str, _Way], server: str) -> dict[int, float]:
    """Return when the slices of a server would be there; nothing where no other tells."""
    others = [way for name, way in ways.items() if name != server]
    if not others or server not in ways:
        return {}
    mine = ways[server]
    return {
        key: statistics.median(other.reached_s(nbytes) for other in others)
        for key, nbytes in zip(mine.keys, mine.nbytes, strict=True)
    }


def _sooner_s(ways: Mapping[str, _Way], server: str) -> dict[int, float]:
    """Return how much sooner the slices of a server would be there."""
    expected_s = _expected_s(ways, server)
    if not expected_s:
        return {}
    mine = zip(ways[server].keys, ways[server].at_s, strict=True)
    return {key: max(at_s - expected_s[key], 0.0) for key, at_s in mine}


class Servers:
    """The parameter servers of a run, compared with each other.

    Args:
        trips: of slices; empty: nothing is known of servers.
        replay: of the timeline that they belong to.

    Attributes:
        slow: the servers that keep workers waiting, by rank among servers.
    """

    def __init__(self, trips: Sequence[RoundTrip], replay: Replay) -> None:
        counted = frozenset(replay.iterations)
        self._trips: dict[_Turn, list[RoundTrip]] = defaultdict(list)
        for trip in trips:
            self._trips[trip.rank, trip.iteration].append(trip)
        stages = mean_round_trips(trip for trip in trips if trip.iteration in counted)
        self._stages = {one.server: dict(zip(STAGES, one.stages_s, strict=True)) for one in stages}
        self._replay = replay
        self._parts: dict[_Message, list[int]] = defaultdict(list)
        parts, texts = replay.parts, replay.messages.spans.texts
        columns = (parts.lane, parts.name, parts.rank, parts.iteration)
        for part, (lane, text, rank, iteration) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True) if trips else ()
        ):
            self._parts[LANES[lane], texts[text], rank, iteration].append(part)
        self._came = {turn: _ways(its, "queued_s", "came_s") for turn, its in self._trips.items()}
        self._back = {turn: _ways(its, "pulled_s", "back_s") for turn, its in self._trips.items()}
        self.slow = tuple(self._found_slow(counted))

    def stage(self, server: int) -> tuple[str, float, float]:
        """Return the stage in which a server exceeds the others most, its time and theirs.

        A server does one update behind the other, and each slice waits for those before it, as a
        rule before it is taken in. So that stage counts as often as there are slices.
        """
        name = f"s{server}"
        every = (trip for its in self._trips.values() for trip in its)
        slices = len({trip.key for trip in every if trip.server == name})
        found = []
        for stage in _ITS_OWN:
            own_s = self._stages[name][stage]
            theirs = [its[stage] for other, its in self._stages.items() if other != name]
            others_s = statistics.median(theirs)
            more_s = (own_s - others_s) * (slices if stage == "update" else 1)
            found.append((more_s, stage, own_s, others_s))
        _, stage, own_s, others_s = max(found)
        return stage, own_s, others_s

    def like_others(self, changed: Changed, server: int) -> None:
        """End messages when they would end if a server were as fast as the others.

        Acknowledgements of its pushes come as soon after them as those of the others.
        """
        name = f"s{server}"
        for lane, moment, ways in (("push", "came_s", self._came), ("pull", "back_s", self._back)):
            for turn, trips in self._trips.items():
                sooner_s = _sooner_s(ways[turn], name)
                carried: dict[str, list[RoundTrip]] = defaultdict(list)
                for trip in trips:
                    carried[trip.name].append(trip)
                tails_s: dict[str, float] = {}
                less_s: dict[str, float] = {}
                for what, its in carried.items():
                    ends_s = [getattr(trip, moment) for trip in its]
                    then_s = [
                        s - sooner_s.get(t.key, 0.0) for s, t in zip(ends_s, its, strict=True)
                    ]
                    less_s[what] = max(ends_s) - max(then_s)
                    tails_s[what] = self._end_s((lane, what, *turn), max(ends_s)) - max(ends_s)
                own = {what for what, its in carried.items() if any(t.server == name for t in its)}
                theirs = [tail_s for what, tail_s in tails_s.items() if what not in own]
                for what in own:
                    tail_s = tails_s[what] - statistics.median(theirs) if theirs else 0.0
                    by_s = less_s[what] + max(tail_s, 0.0)
                    self._shorten(changed.durations, (lane, what, *turn), by_s)

    def _end_s(self, message: _Message, otherwise_s: float) -> float:
        ends_s = self._replay.parts.end_s[self._parts.get(message, [])]
        return float(ends_s.max()) if len(ends_s) else otherwise_s

    def _shorten(self, durations: Durations, message: _Message, by_s: float) -> None:
        """Shorten a message by a part of its recorded duration."""
        for part in self._parts.get(message, ()):
            lasted_s = self._replay.recorded.transfers_s[part]
            if lasted_s > 0:
                durations.transfers_s[part] *= max(1 - by_s / lasted_s, 0.0)

    def _found_slow(self, counted: Iterable[int]) -> Iterable[int]:
        """Yield the servers that surely have their slices there later than the others would."""
        for server in self._stages if len(self._stages) > 1 else ():
            own_s: dict[int, list[float]] = defaultdict(list)
            others_s: dict[int, list[float]] = defaultdict(list)
            for turn, ways in self._back.items():
                expected_s = _expected_s(ways, server)
                if expected_s and turn[1] in counted:
                    own_s[turn[1]].append(ways[server].at_s[-1])
                    others_s[turn[1]].append(max(expected_s.values()))
            if not own_s:
                continue
            mine = [statistics.fmean(each) for each in own_s.values()]
            theirs = [statistics.fmean(each) for each in others_s.values()]
            later = statistics.median(mine) > _LATER * statistics.median(theirs)
            if later and exceeds(mine, [theirs]):
                yield int(server[1:])
