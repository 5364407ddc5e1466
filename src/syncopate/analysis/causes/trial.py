"""Trial: what iterations take without some of what slows them down, and what each of it gains.

[Note: several causes] Causes hide each other: of two ranks that are late by as much, to mend one
gains nothing. So each is removed alone, and last, when all others are gone; what it gains of what
all gain together is the mean of the two, scaled so that the causes add up. Of two that hide each
other each has half. Ranks of one kind are causes of their own where, with all else mended, one of
them gives most of what all of them give; otherwise they are one cause, of those that matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from syncopate.analysis.causes.counterfactuals import WORTH, Counterfactuals, free
from syncopate.analysis.causes.faults import by_iteration, by_size
from syncopate.analysis.collectives import is_served
from syncopate.analysis.evidence.groups import slow_groups
from syncopate.analysis.evidence.noise import interval_s
from syncopate.analysis.ranks.arrivals import clock_error_s
from syncopate.analysis.ranks.stragglers import COMPUTE, LINK, PAUSE, SERVER
from syncopate.analysis.replay import Changed, Replay
from syncopate.analysis.replay.rank import PUSH
from syncopate.analysis.work import INPUT
from syncopate.artifacts.timeline import PAUSES
from syncopate.artifacts.timelines.spans import Times

BATCHES, CONGESTION, TRANSFERS, PLAN = "batches", "congestion", "transfers", "plan"
SLOW_SERVER, STAGES, PIPELINE = "slow server", "stages", "pipeline"
"""Kinds of causes beside those of a straggler."""

GROUP = "group"
"""The lane of a slow link by which the messages of a group differ from those of groups like it."""

TOGETHER = "together"
"""Pauses of all ranks at once are a group of their own."""

TRUSTED = 0.1
"""A replay that is further from the recorded iteration than this part explains nothing; nor one
with more noise or idle time than this that no cause explains."""

_TIMES = {PAUSE: 2.0}
"""Kinds of which this many times :data:`WORTH` has to be at stake: any rank pauses once."""

_BACKWARD, _BESIDE = "backward", 2.5
"""A rank that is longer in backward alone needs this many times the gain of another cause where
messages beside it may be the reason."""

_ALONE, _TRIED = 0.8, 16
"""A rank is a cause by itself with this part of the gain of all; as many are tried one by one."""


@dataclass(frozen=True)
class Cause:
    """One thing that costs time.

    Attributes:
        kind: see the module.
        ranks: whose; empty for all. Of a slow server, its rank among servers.
        gain_s: what an iteration would be shorter by without it: its part of what all causes gain
            together. [Note: several causes]
        iterations: where it happened once; empty where it is usual.
        lane: of a rank that computes longer, where most of that is; of a slow server, the stage of
            :data:`~syncopate.analysis.round_trips.STAGES`; of a slow link of a group :data:`GROUP`.
        own: how many seconds it usually computes there in an iteration, or a slice is in that
            stage; of a slow link, how many bytes per second it carries; of batches, by which part
            of them they usually differ; of stages, what the longest computes. 0: not known.
        others: the same of the median of the others; of links, what is expected of them; of
            stages, what one computes in the mean.
        alone_s: what an iteration would be shorter by without it, all other causes left.
        low_s: the 95% interval of ``gain_s``, by how iterations vary; from here
        high_s: to here.
    """

    kind: str
    ranks: tuple[int, ...]
    gain_s: float
    iterations: tuple[int, ...] = ()
    lane: str = ""
    own: float = 0.0
    others: float = 0.0
    alone_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0


class Part(NamedTuple):
    """Something that can be removed.

    Attributes:
        kind: of cause that it is, or is a part of.
        ranks: whose; empty: of all.
        change: removes it.
    """

    kind: str
    ranks: tuple[int, ...]
    change: Callable[[Changed], object]


class Trial:
    """Tries what an iteration would take without causes, by [Note: several causes].

    Args:
        replay: of a timeline.
        without: the changes.

    Attributes:
        played_s: what an iteration takes.
        even_s: the same with all removed but transfers.
        bound_s: also without these.
        left_s: what of that is idle.
        bubble_s: what of that stages of a pipeline lose to each other.
        computing_s: what the median rank computes.
    """

    def __init__(self, replay: Replay, without: Counterfactuals) -> None:
        self._replay, self._without = replay, without
        self.computing_s = without.computing_s
        self._slow = slow_groups(replay)
        self._parts = list(self._found())
        noise = [
            Part(PAUSE, (rank,), partial(without.as_usual, rank=rank))
            for rank in without.ranks
            if without.unusual(rank)
        ]
        named = {one.ranks for one in self._parts if one.kind == PAUSE}
        self._noise = [one for one in noise if one.ranks not in named]
        self._flow = Part(CONGESTION, (), without.flowing)
        self._noisy = Part(PAUSE, (), self._quiet)
        all_but = [*self._noise, *self._parts, self._flow]
        freed = Part(TRANSFERS, (), free)
        self._rows = self._lasting([(), all_but, (*all_but, freed), (freed,)])
        idle = without.durations(self._changed((*all_but, freed)), gaps=False)
        played_s, even_s, bound_s, self._freed_s = self._rows.mean(axis=1).tolist()
        # Where ranks hardly wait for each other, an earlier begin alone can make the mean longer.
        self.played_s, self.even_s = played_s, min(even_s, played_s)
        self.bound_s = min(bound_s, self.even_s)
        self.left_s = max(self.bound_s - replay.iteration_s(idle), 0.0)
        evenly_s, _ = without.evenly_s(self._changed(all_but))
        self.bubble_s = max(self.bound_s - self.left_s - evenly_s, 0.0) if evenly_s else 0.0

    def _found(self) -> Iterator[Part]:
        """Yield what differs, in the order in which it is removed."""
        without = self._without
        if without.uneven:
            yield Part(BATCHES, (), without.balanced)
        if without.common:
            yield Part(PAUSE, without.ranks, without.all_as_usual)
        for rank in without.pausing or ():
            yield Part(PAUSE, (rank,), partial(without.as_usual, rank=rank))
        for at in sorted(without.slower):
            rank = without.ranks[at]
            yield Part(COMPUTE, (rank,), partial(without.as_fast, rank=rank))
        if without.stages.pipelines:
            yield Part(STAGES, (), without.evened)
        for at in without.starved:
            rank = without.ranks[at]
            yield Part(INPUT, (rank,), partial(without.like_others, rank=rank))
        yield Part(INPUT, (), without.without_input)
        for rank, name in product(without.ranks, PAUSES):
            if name != INPUT and without.paused(rank, name):
                yield Part(name, (rank,), partial(without.without_pause, rank=rank, name=name))
        for server in without.servers.slow:
            change = partial(without.servers.like_others, server=server)
            yield Part(SLOW_SERVER, (server,), change)
        yield from self._links()
        if without.pausing is not None:  # else it is noise, and the network has its part
            yield Part(CONGESTION, (), without.flowing)

    def _links(self) -> Iterator[Part]:
        without = self._without
        if without.slow.ranks:
            yield Part(LINK, without.slow.ranks, without.with_good_links)
            return
        for rank in without.messages.linked:
            yield Part(LINK, (rank,), partial(without.messages.on_time, rank=rank))
        for one in self._slow:
            known = tuple(rank for rank in one.ranks if rank in without.messages.linked)
            yield Part(LINK, known or one.ranks, one.like_others)

    def causes(self) -> tuple[Cause, ...]:
        """Return the causes that are worth a word, the greatest gain first.

        Beside ranks that are to blame, what comes and goes on any rank is a cause of its own.
        """
        least_s = max(WORTH * self.played_s, clock_error_s(self._replay.timeline))
        groups, found = self._worth(self._groups(), least_s)
        if any(cause.ranks for cause in found):
            _, found = self._worth([(self._noisy,), *groups], least_s)
        lost_s = self.bubble_s
        pipeline = Cause(PIPELINE, (), lost_s, alone_s=lost_s, low_s=lost_s, high_s=lost_s)
        bounds = (self._transfers(), pipeline)
        found += [cause for cause in bounds if cause.gain_s > least_s]
        # Of what is left when all others are gone, only what it gives by itself counts before them.
        gains_s = {id(cause): min(cause.gain_s, cause.alone_s) for cause in bounds}
        return tuple(sorted(found, key=lambda cause: -gains_s.get(id(cause), cause.gain_s)))

    def _worth(
        self, groups: list[tuple[Part, ...]], least_s: float
    ) -> tuple[list[tuple[Part, ...]], list[Cause]]:
        """Return the groups that are worth a word beside each other, and their causes."""
        while True:
            tried = self._shared_out(groups)
            kept = [
                group
                for group, (cause, sure) in zip(groups, tried, strict=True)
                if cause.gain_s > self._least_s(cause, least_s) and (cause.kind != BATCHES or sure)
            ]
            if len(kept) == len(groups):
                return kept, [cause for cause, _ in tried]
            groups = kept

    def _least_s(self, cause: Cause, least_s: float) -> float:
        """Return by how much a cause gains more where it is worth a word."""
        if cause.kind == PAUSE and not cause.ranks:
            return TRUSTED * float(self.played_s)
        if cause.kind == COMPUTE and self._may_be_messages(cause):
            return _BESIDE * least_s
        return least_s * _TIMES.get(cause.kind, 1.0)

    def _may_be_messages(self, cause: Cause) -> bool:
        """Say whether backward alone is longer, by less than the messages beside it take.

        Messages take processor time of the rank that computes, and seldom as much on all ranks.
        """
        places = [self._without.ranks.index(rank) for rank in cause.ranks]
        if cause.lane != _BACKWARD or any(len(self._without.slower[at]) > 1 for at in places):
            return False
        parts, counted = self._replay.parts, self._replay.iterations
        mine = np.isin(parts.rank, cause.ranks) & (parts.task >= 0)
        mine &= (parts.lane == PUSH) & np.isin(parts.iteration, counted)
        moved_s = np.maximum(self._replay.recorded.transfers_s[mine], 0.0).sum()
        beside_s = float(moved_s) / max(len(counted) * len(places), 1)
        return cause.own - cause.others <= beside_s

    def noise_s(self) -> float:
        """Return the gain without pauses and congestion that come and go on any rank."""
        (quiet_s,) = self._lasting([[self._noisy]]).mean(axis=1).tolist()
        return float(self.played_s - quiet_s)

    def _quiet(self, changed: Changed) -> None:
        """Remove pauses that are no rank's own; where none are, what the network does then too."""
        for one in self._noise:
            one.change(changed)
        if self._without.pausing is None:
            self._flow.change(changed)

    def _changed(self, removed: Iterable[Part]) -> Changed:
        changed = self._without.begin()
        for one in removed:
            one.change(changed)
        return changed

    def _lasting(self, several: Iterable[Iterable[Part]]) -> Times:
        """Return how long iterations take without some things; a row for each."""
        return self._replay.lasting_s(
            self._without.durations(self._changed(removed)) for removed in several
        )

    def _but(self, left: Sequence[Part], of: Sequence[Part]) -> list[Part]:
        there = set(map(id, left))
        return [one for one in of if id(one) not in there]

    def _groups(self) -> list[tuple[Part, ...]]:
        """Return the causes: single ranks, or all ranks with the same fault together."""
        kinds: dict[tuple[str, bool, str], list[Part]] = defaultdict(list)
        for one in self._parts:
            lane = TOGETHER if one.kind == PAUSE and len(one.ranks) > 1 else ""
            kinds[one.kind, bool(one.ranks), lane].append(one)
        found: list[tuple[Part, ...]] = []
        (all_s,) = self._lasting([self._parts]).mean(axis=1).tolist()
        for same in (mine for every in kinds.values() for mine in self._by_fault(every)):
            if len(same) == 1 or len(same) > _TRIED:
                found.append(tuple(same))
                continue
            rest = self._but(same, self._parts)
            rows = [rest]
            rows += [self._but(self._but([one], same), self._parts) for one in same]
            rows += [self._but([one], self._parts) for one in same]
            none_s, *others_s = self._lasting(rows).mean(axis=1).tolist()
            alone_s, last_s = others_s[: len(same)], others_s[len(same) :]
            if max(none_s - one_s for one_s in alone_s) >= _ALONE * (none_s - all_s):
                found += [(one,) for one in same]
                continue
            least_s = WORTH / 2 * self.played_s
            matter = [one for one, s in zip(same, last_s, strict=True) if s - all_s >= least_s]
            rest += matter
            (left_s,) = self._lasting([rest]).mean(axis=1).tolist()
            most = none_s - left_s >= _ALONE * (none_s - all_s)
            found.append(tuple(matter if most and matter else same))
        return found

    def _by_fault(self, same: Sequence[Part]) -> list[list[Part]]:
        """Return parts of one kind by fault: :mod:`syncopate.analysis.causes.faults`."""
        kind, without = same[0].kind, self._without
        by_rank = {one.ranks[0]: one for one in same if len(one.ranks) == 1}
        if len(by_rank) < max(len(same), 2):
            return [list(same)]
        if kind == PAUSE:
            found = by_iteration({rank: without.own_unusual(rank) for rank in by_rank})
        elif kind in (COMPUTE, INPUT):
            found = by_size({rank: without.longer(rank, kind) for rank in by_rank})
        else:
            return [list(same)]
        if not 1 < len(found) <= _TRIED:
            return [list(same)]
        faults = [[by_rank[rank] for rank in ranks] for ranks in found]
        rows = [self._parts, *(self._but(one, self._parts) for one in faults)]
        all_s, *left_s = self._lasting(rows).mean(axis=1).tolist()
        least_s = WORTH * _TIMES.get(kind, 1.0) * self.played_s
        great = [one for one, s in zip(faults, left_s, strict=True) if s - all_s > least_s]
        small = [one for mine in faults if mine not in great for one in mine]
        return [*great, small] if small else great

    def _shared_out(self, groups: Sequence[tuple[Part, ...]]) -> list[tuple[Cause, bool]]:
        """Return causes with their parts of what they gain together, and whether each surely gains.

        What hides a cause makes what it gains alone uncertain: its gain without that is enough.
        """
        if not groups:
            return []
        parts = (self._noisy, *self._parts)
        every = [one for one in parts if any(one in group for group in groups)]
        rows = [every, *groups, *(self._but(group, every) for group in groups)]
        lasting_s = self._lasting(rows)
        none_s, all_s = self._rows[0], lasting_s[0]
        alone_s = none_s - lasting_s[1 : 1 + len(groups)]
        last_s = lasting_s[1 + len(groups) :] - all_s
        both_s = (alone_s + last_s) / 2
        sums_s = np.maximum(both_s.mean(axis=1), 0.0)
        together_s = max(float((none_s - all_s).mean()), 0.0)
        scale = together_s / float(sums_s.sum()) if sums_s.sum() > 0 else 0.0
        found = []
        for group, each_s, gain_s, by_itself_s, left_s in zip(
            groups, both_s * scale, sums_s * scale, alone_s.mean(axis=1), last_s, strict=True
        ):
            low_s, high_s = interval_s(each_s.tolist())
            sure = max(low_s, interval_s(left_s.tolist())[0]) > 0
            cause = self._cause(group, float(gain_s))
            cause = replace(cause, alone_s=float(by_itself_s), low_s=low_s, high_s=high_s)
            found.append((cause, sure))
        return found

    def _transfers(self) -> Cause:
        low_s, high_s = interval_s((self._rows[1] - self._rows[2]).tolist())
        return Cause(
            SERVER if is_served(self._replay.timeline) else TRANSFERS,
            (),
            self.even_s - self.bound_s,
            alone_s=self.played_s - self._freed_s,
            low_s=low_s,
            high_s=high_s,
        )

    def _cause(self, group: Sequence[Part], gain_s: float) -> Cause:
        kind, without = group[0].kind, self._without
        ranks = tuple(dict.fromkeys(rank for one in group for rank in one.ranks))
        where: set[int] = set()
        figures: tuple[str, float, float] = ("", 0.0, 0.0)
        if kind == PAUSE and not ranks:
            where = {i for rank in without.ranks for i, _ in without.own_unusual(rank)}
        elif kind == PAUSE:
            where = {i for rank in ranks for i, _ in without.unusual(rank)}
            common = set(without.common)
            where = common if len(group[0].ranks) > 1 else where - common
        elif kind in PAUSES and kind != INPUT:
            where = {i for rank in ranks for i in without.paused(rank, kind)}
        elif kind == CONGESTION:
            where = set(without.flowing(without.begin()))
        elif kind == BATCHES:
            figures = ("", without.apart, 0.0)
        elif kind == STAGES:
            evenly_s, longest_s = without.evenly_s(without.begin())
            figures = ("", longest_s, evenly_s)
        elif kind == COMPUTE:
            figures = max(map(without.longest, ranks), key=lambda row: row[1] - row[2])
        elif kind == SLOW_SERVER:
            figures = without.servers.stage(ranks[0])
        elif kind == LINK and any(ranks == one.ranks for one in self._slow):
            figures = (GROUP, 0.0, 0.0)
        elif kind == LINK and without.slow.ranks:
            figures = ("", without.slow.bytes_per_s, without.slow.expected_bytes_per_s)
        return Cause(kind, ranks, gain_s, tuple(sorted(where)), *figures)
