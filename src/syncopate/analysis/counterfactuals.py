"""Counterfactuals: the durations of a replay with something in them removed.

What is removed is said by :mod:`syncopate.analysis.causes`, which tries them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from syncopate.analysis.evidence.noise import outstanding, spread_s
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.intervals import Interval, intersection, length_s, near, union
from syncopate.analysis.replay import Durations, Replay, Start
from syncopate.analysis.work import INPUT, SEVERAL, Work, usual, works
from syncopate.timeline import PAUSES

WORTH = 0.02
"""What is less of an iteration than this part is not worth doing."""

_UNUSUAL, _STRETCHED = 0.1, 1.5
"""What is unusual exceeds the usual by this part of computation; a transfer also is as long."""

_FAR = 4.0
"""And by this many times the spread of a rank's iterations."""

_LATER, _MOSTLY = 1.1, 0.75
"""A link is slow where more than this part of its transfers takes this many times the others'."""


class SlowLinks(NamedTuple):
    """Ranks whose hosts have slow links.

    Attributes:
        ranks: which.
        bytes_per_s: what the slowest of these links carried.
        expected_bytes_per_s: what it should.
    """

    ranks: tuple[int, ...] = ()
    bytes_per_s: float = 1.0
    expected_bytes_per_s: float = 1.0


class Counterfactuals:
    """Durations of a replay with causes removed.

    Args:
        replay: of a timeline.
        slow: the links that are known to be slow.
        servers: the parameter servers.

    Attributes:
        ranks: those that computed.
        slow: as given.
        servers: as given.
    """

    def __init__(self, replay: Replay, slow: SlowLinks, servers: Servers) -> None:
        self._replay = replay
        self.slow, self.servers = slow, servers
        self._work: dict[int, dict[int, Work]] = defaultdict(dict)
        for one in works(replay.timeline):
            self._work[one.rank][one.iteration] = one
        self.ranks = tuple(sorted(self._work))
        self._late: list[int] | None = None
        self._pausing: dict[int, list[tuple[int, str]]] = {}
        self._usual_s: dict[tuple[int, str | None], float] = {}
        pauses: dict[tuple[int, str], list[Interval]] = defaultdict(list)
        for span in replay.timeline.spans:
            if span.lane == "wait" and span.name in PAUSES:
                pauses[span.rank, span.name].append((span.start_s, span.end_s))
        self._pauses = {key: union(found) for key, found in pauses.items()}
        self._alike: dict[tuple[str, str, int], list[Start]] = defaultdict(list)
        for message, starts in zip(replay.messages, replay.starts, strict=True):
            for rank, start in starts.items():
                self._alike[message.lane, message.name, rank].append(start)
        self._messages: dict[int, list[int]] = defaultdict(list)
        for index, message in enumerate(replay.messages):
            self._messages[message.iteration].append(index)
        self._tasks: dict[int, list[int]] = defaultdict(list)
        for number, task in enumerate(replay.tasks):
            self._tasks[task.span.rank].append(number)

    def usual_s(self, rank: int, lane: str | None = None) -> float:
        """Return what a rank usually computes in an iteration, in a lane or in all."""
        if (rank, lane) not in self._usual_s:
            self._usual_s[rank, lane] = usual(
                [
                    one.computation_s if lane is None else one.computing_s.get(lane, 0.0)
                    for one in self._counted(rank)
                ]
            )
        return self._usual_s[rank, lane]

    def even(self, *, transfers: bool = True) -> Durations:
        """Return durations without any cause but, where wanted, transfers."""
        changed = self._replay.recorded.copy()
        for rank in self.ranks:
            for name in PAUSES:
                self.without_pause(changed, rank, name)
            self.as_usual(changed, rank)
            self.without_input(changed, rank)
            self.as_fast(changed, rank)
        self.with_good_links(changed)
        self.with_good_servers(changed)
        self.flowing(changed)
        if not transfers:
            free(changed)
        return changed

    def pausing_ranks(self) -> tuple[int, ...] | None:
        """Return the ranks whose unusual iterations are their own; None: they are anywhere."""
        lost_s: dict[int, float] = {}
        when: dict[int, set[int]] = {}
        for rank in self.ranks:
            over_s = [self._over_s(rank, *where) for where in self.unusual(rank)]
            lost_s[rank], when[rank] = sum(over_s), {i for i, _ in self.unusual(rank)}
        return outstanding(lost_s, when)

    def _over_s(self, rank: int, iteration: int, lane: str) -> float:
        """Return by how much a rank's time in a lane of an iteration, or its input, is unusual."""
        work = self._work[rank][iteration]
        if lane == INPUT:
            return work.input_s - usual([one.input_s for one in self._counted(rank)])
        return work.computing_s[lane] - self.usual_s(rank, lane)

    def computing(self, rank: int) -> list[float]:
        """Return what a rank computed in each iteration that counts."""
        return [one.computation_s for one in self._counted(rank)]

    def with_good_links(self, durations: Durations) -> None:
        """Let messages of slow links take as long as those of the others."""
        if self.slow.ranks:
            factor = self.slow.bytes_per_s / self.slow.expected_bytes_per_s
            for mine in durations.transfers_s:
                for rank in mine:
                    mine[rank] *= factor
            return
        for rank in self.linked():
            self.on_time(durations, rank)

    def with_good_servers(self, durations: Durations) -> None:
        """Let messages of slow servers take as long as those of the others."""
        for server in self.servers.slow:
            self.servers.like_others(durations, server)

    def longest(self, rank: int) -> tuple[str, float, float]:
        """Return the lane in which a rank exceeds the others most, its time and theirs there."""
        found = []
        for lane in {lane for one in self._counted(rank) for lane in one.computing_s}:
            theirs_s = statistics.median(self.usual_s(r, lane) for r in self.ranks if r != rank)
            found.append((lane, self.usual_s(rank, lane), theirs_s))
        return max(found, key=lambda row: (row[1] - row[2], row[0]))

    def _counted(self, rank: int) -> list[Work]:
        return [w for i, w in self._work[rank].items() if i in self._replay.iterations]

    def paused(self, rank: int, name: str) -> list[int]:
        """Return the iterations in which a rank had a recorded pause."""
        return [w.iteration for w in self._counted(rank) if w.paused_s.get(name, 0.0) > 0]

    def _input_s(self, work: Work) -> float:
        """Return how long an iteration waited for input; what is unusual is a pause instead."""
        if (work.iteration, INPUT) in self.unusual(work.rank):
            return usual([one.input_s for one in self._counted(work.rank)])
        return work.input_s

    def unusual(self, rank: int) -> list[tuple[int, str]]:
        """Return the iterations and lanes, input among them, in which a rank took too long."""
        if rank not in self._pausing:
            self._pausing[rank] = self._found_unusual(rank)
        return self._pausing[rank]

    def _found_unusual(self, rank: int) -> list[tuple[int, str]]:
        mine = self._counted(rank)
        if len(mine) < SEVERAL:
            return []
        least_s = _UNUSUAL * self.usual_s(rank)
        inputs_s = [one.input_s for one in mine]
        most_s = usual(inputs_s) + max(least_s, _FAR * spread_s(inputs_s))
        found = [(w.iteration, INPUT) for w in mine if w.input_s > most_s]
        for lane in {lane for one in mine for lane in one.computing_s}:
            times_s = [one.computing_s.get(lane, 0.0) for one in mine]
            most_s = self.usual_s(rank, lane) + max(least_s, _FAR * spread_s(times_s))
            found += [(w.iteration, lane) for w in mine if w.computing_s.get(lane, 0.0) > most_s]
        return found

    # -- one thing different -------------------------------------------------------------------

    def as_fast(self, durations: Durations, rank: int) -> None:
        """Let a rank compute as fast as the median of the others."""
        others = [other for other in self.ranks if other != rank]
        if not others:
            return
        factors: dict[str, float] = {}
        for lane in {lane for one in self._counted(rank) for lane in one.computing_s}:
            own_s = self.usual_s(rank, lane)
            theirs_s = statistics.median(self.usual_s(other, lane) for other in others)
            factors[lane] = min(theirs_s / own_s, 1.0) if own_s > 0 else 1.0
        for number in self._tasks[rank]:
            lane = self._replay.tasks[number].span.lane
            durations.tasks_s[number] *= factors.get(lane, 1.0)
        for index, starts in enumerate(self._replay.starts):
            if rank in starts and factors.get(self._follows(starts[rank]), 1.0) < 1 - WORTH:
                theirs = [s for other, s in starts.items() if other != rank]
                self._start_like(durations, index, rank, theirs)

    def as_usual(self, durations: Durations, rank: int) -> None:
        """Let no iteration of a rank take unusually long."""
        for iteration, lane in self.unusual(rank):
            work = self._work[rank][iteration]
            if lane == INPUT:
                over_s = self._over_s(rank, iteration, lane)
                self._shorten_gap(durations, rank, iteration, over_s)
                continue
            factor = self.usual_s(rank, lane) / work.computing_s[lane]
            for number in self._tasks[rank]:
                span = self._replay.tasks[number].span
                if (span.iteration, span.lane) == (iteration, lane):
                    durations.tasks_s[number] *= factor
            for index in self._messages[iteration]:
                start = self._replay.starts[index].get(rank)
                if start is not None and self._follows(start) == lane:
                    message = self._replay.messages[index]
                    like = self._alike[message.lane, message.name, rank]
                    self._start_like(durations, index, rank, like)

    def _follows(self, start: Start) -> str:
        """Return the lane of the computation that a message follows; empty: none."""
        return self._replay.tasks[start.task].span.lane if start.task >= 0 else ""

    def _start_like(
        self, durations: Durations, index: int, rank: int, others: Iterable[Start]
    ) -> None:
        """Let a message start as far into its computation as others of its kind do."""
        lane = self._follows(self._replay.starts[index][rank])
        shares = [other.share for other in others if self._follows(other) == lane]
        if shares:
            durations.shares[index][rank] = statistics.median(shares)

    def without_input(self, durations: Durations, rank: int) -> None:
        """Let a rank wait for no input."""
        for work in self._work[rank].values():
            self._shorten_gap(durations, rank, work.iteration, self._input_s(work))

    def like_others(self, durations: Durations, rank: int) -> None:
        """Let a rank wait for input no longer than the median of the others."""
        for work in self._work[rank].values():
            theirs = [self._work[o].get(work.iteration) for o in self.ranks if o != rank]
            waited_s = [self._input_s(other) for other in theirs if other is not None]
            over_s = self._input_s(work) - statistics.median(waited_s) if waited_s else 0.0
            self._shorten_gap(durations, rank, work.iteration, max(over_s, 0.0))

    def _shorten_gap(self, durations: Durations, rank: int, iteration: int, by_s: float) -> None:
        for number in self._tasks[rank]:
            task = self._replay.tasks[number]
            if task.opens and task.span.iteration == iteration:
                durations.gaps_s[number] = max(durations.gaps_s[number] - by_s, 0.0)

    def without_pause(self, durations: Durations, rank: int, name: str) -> None:
        """Let a recorded pause not happen."""
        pauses = self._pauses.get((rank, name), [])
        for number in self._tasks[rank] if pauses else ():
            task = self._replay.tasks[number]
            start_s, end_s = task.span.start_s, task.span.end_s
            inside_s = _common_s(pauses, (start_s, end_s))
            before_s = _common_s(pauses, (start_s - task.gap_s, start_s))
            durations.tasks_s[number] = max(durations.tasks_s[number] - inside_s, 0.0)
            durations.gaps_s[number] = max(durations.gaps_s[number] - before_s, 0.0)

    def on_time(self, durations: Durations, rank: int) -> None:
        """Let a rank have its messages when the others have them."""
        for mine in durations.transfers_s:
            theirs = [lasts_s for other, lasts_s in mine.items() if other != rank]
            if rank in mine and theirs:
                mine[rank] = min(mine[rank], statistics.median(theirs))

    def linked(self) -> list[int]:
        """Return the ranks that usually have their messages later than the other ranks."""
        if self._late is None:
            later: dict[int, list[bool]] = defaultdict(list)
            for mine in self._replay.recorded.transfers_s:
                for rank, lasts_s in mine.items():
                    theirs = [other_s for other, other_s in mine.items() if other != rank]
                    if theirs:
                        later[rank].append(lasts_s > _LATER * statistics.median(theirs))
            self._late = [
                rank for rank in self.ranks if sum(later[rank]) > _MOSTLY * len(later[rank])
            ]
        return self._late

    def flowing(self, durations: Durations) -> tuple[int, ...]:
        """Shorten transfers of iterations that have unusually long ones; return these."""
        rows: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, message in enumerate(self._replay.messages):
            if message.iteration in self._replay.iterations:
                for rank in durations.transfers_s[index]:
                    rows[rank][message.iteration].append(index)
        where: set[int] = set()
        for rank, row in rows.items():
            totals_s = {
                iteration: sum(durations.transfers_s[index][rank] for index in indices)
                for iteration, indices in row.items()
            }
            usual_s = usual(list(totals_s.values()))
            least_s = _UNUSUAL * self.usual_s(rank) if rank in self._work else 0.0
            for iteration, total_s in totals_s.items() if len(row) >= SEVERAL else ():
                if total_s > max(_STRETCHED * usual_s, usual_s + least_s):
                    where.add(iteration)
                    for index in row[iteration]:
                        durations.transfers_s[index][rank] *= usual_s / total_s
        return tuple(sorted(where))


def _common_s(disjoint: list[Interval], stretch: Interval) -> float:
    return length_s(intersection(near(disjoint, *stretch), [stretch]))


def free(durations: Durations) -> None:
    """Let transfers take no time."""
    for mine in durations.transfers_s:
        mine.update(dict.fromkeys(mine, 0.0))
