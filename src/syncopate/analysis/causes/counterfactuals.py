"""Counterfactuals: the durations of a replay with something in them removed.

:mod:`syncopate.analysis.causes.explanation` says what to remove. The time of a rank in an iteration
has disjoint parts, so that several things can be removed at once, in any combination:

    forward, backward, update    its tasks of that lane, with the rank's own time between them
    input                        its own time before the first of them, and pauses of that name
    pauses                       what wait spans of other names of PAUSES cover of these
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from syncopate.analysis.causes.beside import Beside, with_same_data
from syncopate.analysis.causes.late_messages import LateMessages
from syncopate.analysis.causes.leads import Leads, covered
from syncopate.analysis.causes.pace import paces
from syncopate.analysis.causes.shapes import Shapes
from syncopate.analysis.causes.stages import Stages
from syncopate.analysis.causes.unusual import UNUSUAL, in_common, unusual, usual
from syncopate.analysis.evidence.links import SlowLinks
from syncopate.analysis.evidence.noise import outstanding
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.replay import Changed, Durations, Replay
from syncopate.analysis.replay.rank import PUSH
from syncopate.analysis.replay.shares import Shares
from syncopate.analysis.work import INPUT, SEVERAL
from syncopate.artifacts.timeline import PAUSES
from syncopate.artifacts.timelines.spans import LANES, Mask, Numbers, Times

WORTH = 0.02
"""What is less of an iteration than this part is not worth doing."""

_STRETCHED = 1.5
"""A transfer that is unusual also takes so many times as long as usual."""

_TOGETHER, _VARIED, _EVERYWHERE = 0.5, 0.02, 0.5
"""Batches differ where half of the ranks vary by this part, and forward and backward of the median
rank go together, by this correlation."""

_MOST = 0.75
"""What so many of the ranks do, all do."""

_WIDELY = 0.08
"""They also differ where most iterations differ by this part, regardless of what goes together."""

_PARTS = ("forward", "backward", "update", INPUT)
_FORWARD, _BACKWARD, _UPDATE, _INPUT = range(4)
_COMPUTING, _PASSES = slice(0, 3), slice(0, 2)
_PART_OF = np.array([_PARTS.index(lane) if lane in _PARTS else -1 for lane in LANES])


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
        stages: of its pipelines.
        uneven: whether batches are of unequal length.
        pausing: the ranks whose unusual iterations are their own; None: they are anywhere.
        slower: place of a rank -> the parts in which it computes longer than the others.
        starved: the places of ranks that wait longer for input than the others.
        messages: which ranks have their messages later than the others.
    """

    def __init__(self, replay: Replay, slow: SlowLinks, servers: Servers) -> None:
        self._replay = replay
        self.slow, self.servers = slow, servers
        tasks = replay.tasks
        ranks, self._rank = np.unique(tasks.rank, return_inverse=True)
        self.ranks = tuple(ranks.tolist())
        self.stages = Stages(replay.timeline, self.ranks)
        numbers, self._at = np.unique(tasks.iteration, return_inverse=True)
        self._numbers = numbers
        self._counted = np.flatnonzero(np.isin(numbers, replay.iterations))
        self._lane = _PART_OF[tasks.lane]
        self._before = np.where(tasks.opens, _INPUT, self._lane)
        self._leads = leads = Leads.of(replay)
        self._pauses = {
            name: found for name in PAUSES if (found := covered(replay, leads, name)) is not None
        }
        self._tasks_s, self._gaps_s = replay.recorded.tasks_s.copy(), tasks.gap_s.copy()
        self._input_s, self._leads_s = np.zeros(len(self._rank)), leads.lead_s.copy()
        for name, (inside_s, before_s, after_s) in self._pauses.items():
            self._tasks_s -= inside_s
            if name == INPUT:
                self._input_s += inside_s
            else:
                self._gaps_s -= before_s
                self._leads_s -= after_s
        self._lead_at = np.where(leads.crosses, self._at[leads.next], self._at)
        self._lead_part = np.where(leads.crosses, _INPUT, self._lane)
        self.messages = LateMessages(replay, self.ranks)
        self._parts_s = self._summed()
        self._find()

    def _summed(self) -> Times:
        """Return seconds by rank, iteration and part."""
        parts_s = np.zeros((len(self.ranks), len(self._numbers), len(_PARTS)))
        np.add.at(parts_s, (self._rank, self._at, self._lane), self._tasks_s)
        # Where forward was not recorded, the gap before backward is not for input.
        there = np.asarray((parts_s[..., _FORWARD] > 0).any(axis=1))
        self._known = ~self._replay.tasks.opens | there[self._rank] | (not there.any())
        gaps_s = np.where(self._known, self._gaps_s, 0.0)
        np.add.at(parts_s, (self._rank, self._at, self._before), gaps_s)
        np.add.at(parts_s[..., _INPUT], (self._rank, self._at), self._input_s)
        np.add.at(parts_s, (self._rank, self._lead_at, self._lead_part), self._leads_s)
        return parts_s

    # -- what is unusual -----------------------------------------------------------------------

    def _find(self) -> None:
        self._usual_s = usual(self._parts_s, self._counted)
        self._pace, self._slowed = paces(self._parts_s, self._usual_s, self.stages.pipelines)
        self.uneven = self._is_uneven()
        level = self._parts_s.copy()
        if self.uneven:
            level[..., _PASSES] /= self._pace[..., None]
        self._unusual = unusual(level, self._counted, _COMPUTING)
        self._common = in_common(self._unusual, self._counted)
        self.pausing = self._found_pausing(level)
        # Batches that differ by chance shall not look like ranks that surely differ.
        usual_s = np.broadcast_to(self._usual_s[:, None], level.shape).copy()
        if self.uneven:
            usual_s[..., _PASSES] *= self._pace[..., None]
        self._level = np.where(self._unusual, usual_s, self._parts_s)
        self._there = np.asarray((self._parts_s > 0).any(axis=1))
        self._there[:, _INPUT] = True
        self.computing_s = statistics.median(self._usual_s[:, _COMPUTING].sum(axis=1).tolist())
        self._mates = with_same_data(self._pace[:, self._counted]) if self.uneven else []
        if self.stages.pipelines:
            self._mates = []
        alike = [*self.stages.alike, *self._mates]
        self._beside = Beside(self._level, self._counted, alike)
        self.slower = self._beside.slower(
            range(3), usual(self._level, self._counted), self._there, WORTH / 2 * self.computing_s
        )
        self._even_pace = self._found_even_pace()
        self.starved = self._found_starved()
        self._shares = Shares(self._replay, self.ranks)
        self._shapes = Shapes(self._rank, self._at, self._lane, self._tasks_s)

    @property
    def apart(self) -> float:
        """The standard deviation of batches, relative to their length."""
        return float(np.median(self._pace[:, self._counted].std(axis=1)))

    def _found_even_pace(self) -> Times:
        """Return the same, relative to the ranks of its stage that are not known to be slower."""
        passes_s = self._level[..., _PASSES].sum(axis=2)
        own_s = passes_s[:, self._counted].mean(axis=1)
        slower = {at for at, parts in self.slower.items() if set(parts) & {_FORWARD, _BACKWARD}}
        for stage in self.stages.alike:
            alike = [at for at in stage if at not in slower]
            own_s[alike] = own_s[alike].mean() if alike else 1.0
        own_s = own_s[:, None]
        return np.where((own_s > 0) & (passes_s > 0), passes_s / np.maximum(own_s, 1e-30), 1.0)

    def _is_uneven(self) -> bool:
        """Say whether batches are of unequal length: passes vary, and on most of the ranks."""
        if len(self._counted) < SEVERAL or len(self.ranks) < 2:
            return False
        pace = self._pace[:, self._counted]
        least = max(2, _EVERYWHERE * len(pace))
        if (pace.std(axis=1) >= _VARIED).sum() < least:
            return False
        sums_s = self._parts_s[:, self._counted, _PASSES].sum(axis=2)
        middle_s = np.median(sums_s, axis=1, keepdims=True)
        far_s = 1.4826 * np.median(np.abs(sums_s - middle_s), axis=1)
        if (far_s >= _WIDELY * middle_s[:, 0]).sum() >= least:
            return True
        both = np.where(self._slowed[..., None], np.nan, self._parts_s[..., _PASSES])
        both = both[:, self._counted]
        both = np.nan_to_num(both - np.nanmean(both, axis=1, keepdims=True))
        spread_s = np.sqrt((both**2).sum(axis=1))
        product_s = (both[..., 0] * both[..., 1]).sum(axis=1)
        together = product_s / np.maximum(spread_s.prod(axis=1), 1e-30)
        return bool(np.median(together) >= _TOGETHER)

    def _found_pausing(self, level: Times) -> tuple[int, ...] | None:
        own = self._unusual & ~self._common
        over_s = np.where(own, level - self._usual_s[:, None], 0.0).sum(axis=2)
        when = np.asarray(own.any(axis=2))
        return outstanding(
            dict(zip(self.ranks, over_s.sum(axis=1).tolist(), strict=True)),
            {rank: self._numbers[when[at]].tolist() for at, rank in enumerate(self.ranks)},
        )

    @property
    def common(self) -> tuple[int, ...]:
        """The iterations in which all ranks took too long at once."""
        return tuple(self._numbers[self._common.any(axis=1)].tolist())

    def unusual(self, rank: int) -> list[tuple[int, str]]:
        """Return the iterations and lanes, input among them, in which a rank took too long."""
        at, part = np.nonzero(self._unusual[self.ranks.index(rank)])
        return [
            (self._numbers[i].item(), _PARTS[p])
            for i, p in zip(at.tolist(), part.tolist(), strict=True)
        ]

    def _found_starved(self) -> list[int]:
        """Find the ranks that wait for input longer than all of their stage.

        All wait as long as the rank that waits least. Where weights come while ranks wait for
        input, some are held up by these instead: then what three quarters do, all do.
        """
        waits_s = self._level[..., _INPUT]
        self._common_s = waits_s.copy()
        return sorted(
            at for alike in self.stages.alike for at in self._starved_among(alike, waits_s)
        )

    def _starved_among(self, alike: list[int], waits_s: Times) -> list[int]:
        mine = waits_s[alike]
        by_wait = mine[:, self._counted].mean(axis=1).argsort(kind="stable").tolist()
        order = [alike[at] for at in by_wait]
        for least in (order[0], order[(len(order) - 1) // 2]):
            self._common_s[alike] = np.minimum(waits_s[least], mine)
            least_s = float(waits_s[least, self._counted].mean())
            least_s = WORTH / 2 * (self.computing_s + least_s)
            exceeds = partial(self._beside.exceeds, part=_INPUT, least_s=least_s, alike=alike)
            found = [at for at in order if exceeds((at, least))]
            if len(found) < _MOST * len(order) or not self._replay.pulls:
                break
        if least == order[0]:
            self._common_s[alike] = mine.min(axis=0)
        else:
            others = [at for at in order if at not in found]
            self._common_s[others] = waits_s[others]
        return found

    def paused(self, rank: int, name: str) -> list[int]:
        """Return the iterations in which a rank had a recorded pause."""
        if name not in self._pauses:
            return []
        had = sum(self._pauses[name]) > 0
        mine = self._replay.tasks.iteration[had & (self._replay.tasks.rank == rank)]
        return [number for number in np.unique(mine).tolist() if number in self._replay.iterations]

    def own_unusual(self, rank: int) -> set[tuple[int, bool]]:
        """Return the iterations in which a rank alone took too long, and whether for input."""
        at = self.ranks.index(rank)
        where = np.argwhere(self._unusual[at] & ~self._common)
        return {(self._numbers[i].item(), p == _INPUT) for i, p in where.tolist()}

    def longest(self, rank: int) -> tuple[str, float, float]:
        """Return the lane in which a rank exceeds the others most, its time and theirs there."""
        at = self.ranks.index(rank)
        found = []
        for part in self.slower[at]:
            theirs_s = np.median(self._usual_s[self._healthy(part, at), part])
            found.append((_PARTS[part], float(self._usual_s[at, part]), float(theirs_s)))
        return max(found, key=lambda row: (row[1] - row[2], row[0]))

    def longer(self, rank: int, kind: str) -> Times:
        """Return by how much a rank exceeds the others, by iteration that counts and part.

        That is relative to the others; of input, which they may not wait for at all, in seconds.
        """
        at = self.ranks.index(rank)
        level = self._level[:, self._counted]
        if kind == INPUT:
            return np.asarray(level[at, :, [_INPUT]] - self._common_s[at, self._counted]).T
        others_s = [np.median(level[self._healthy(p, at) or [at], :, p]) for p in range(3)]
        whole_s = max(sum(others_s), 1e-30)
        return np.asarray((level[at, :, _COMPUTING] - np.array(others_s)) / whole_s)

    def _healthy(self, part: int, of: int) -> list[int]:
        """Return those that compute the same as a rank, by places, and are not slower in a part.

        Of the same data, where there are such.
        """
        for alike in (*self._mates, *self.stages.alike):
            if of in alike:
                there = [at for at in alike if self._there[at, part]]
                healthy = [at for at in there if part not in self.slower.get(at, ())]
                if healthy:
                    return healthy
        return []

    # -- one thing different -------------------------------------------------------------------

    def begin(self) -> Changed:
        """Return everything as recorded, to change."""
        return Changed(self._parts_s, self._replay.recorded)

    def durations(self, changed: Changed, *, gaps: bool = True) -> Durations:
        """Return the durations that a change comes to, where wanted without what is left idle."""
        before_s, after_s = self._parts_s, changed.parts_s
        factors = np.where(before_s > 0, after_s / np.where(before_s > 0, before_s, 1.0), 1.0)
        found, rank, at = changed.durations, self._rank, self._at
        tasks_s = self._micro_batches_s() if changed.even_tasks else self._tasks_s.copy()
        for (place, part), others in changed.shaped.items():
            self._shapes.like(tasks_s, place, part, others)
        found.tasks_s = tasks_s * factors[rank, at, self._lane]
        found.tasks_s += self._input_s * factors[rank, at, _INPUT]
        left = np.where(self._known, factors[rank, at, self._before], 1.0)
        found.gaps_s = self._gaps_s * left * gaps
        leads_s = self._leads_s * factors[rank, self._lead_at, self._lead_part] * gaps
        for name, (inside_s, before_s, after_s) in self._pauses.items():
            if name != INPUT:
                kept = ~np.isin(rank, list(changed.without[name]))
                found.tasks_s += inside_s * kept
                found.gaps_s += before_s * kept
                leads_s += after_s * kept
        self._leads.come(found, leads_s, self._replay)
        if not gaps:  # what follows no computation has its delay from the beginning of the run
            parts = self._replay.parts
            found.delays_s[(parts.task >= 0) & (parts.lane == PUSH)] = 0.0
        return found

    def _micro_batches_s(self) -> Times:
        """Return what each task takes when the micro-batches of an iteration are equally long."""
        turn = (self._rank * len(self._numbers) + self._at) * len(_PARTS) + self._lane
        even_s = (np.bincount(turn, self._tasks_s) / np.maximum(np.bincount(turn), 1))[turn]
        return np.where(self._lane <= _BACKWARD, even_s, self._tasks_s)

    def evenly_s(self, changed: Changed) -> tuple[float, float]:
        """Return what a stage takes, were all even, and the longest: of a change."""
        return self.stages.evenly_s(changed.parts_s[:, self._counted])

    def balanced(self, changed: Changed) -> None:
        """Let all ranks have equal batches in each iteration, and stages equal micro-batches."""
        even = self._even_pace.mean(axis=0) / self._even_pace
        changed.parts_s[..., _PASSES] *= even[..., None]
        changed.even_tasks = bool(self.stages.pipelines)

    def evened(self, changed: Changed) -> None:
        """Let the stages of each pipeline usually compute equally long."""
        usual_s = usual(self._level, self._counted)[:, _PASSES]
        changed.parts_s[..., _PASSES] *= self.stages.factors(usual_s, self.slower)[:, None]

    def as_usual(self, changed: Changed, rank: int) -> None:
        """Let no iteration of a rank take unusually long, but with all others."""
        at = self.ranks.index(rank)
        self._as_usual(changed, rank, self._unusual[at] & ~self._common)

    def all_as_usual(self, changed: Changed) -> None:
        """Let no iteration take unusually long on all ranks at once."""
        for at, rank in enumerate(self.ranks):
            self._as_usual(changed, rank, self._unusual[at] & self._common)

    def _as_usual(self, changed: Changed, rank: int, where: Mask) -> None:
        at = self.ranks.index(rank)
        level = self._parts_s[at].copy()
        if self.uneven:
            level[:, _PASSES] /= self._pace[at, :, None]
        factor = self._usual_s[at] / np.where(level > 0, level, 1.0)
        changed.parts_s[at] *= np.where(where, factor, 1.0)
        mine = self._driven(rank)
        task = self._replay.parts.task[mine]
        mine = mine[where[self._at[task], self._lane[task]]]
        self._start_like(changed, mine, [at])

    def as_fast(self, changed: Changed, rank: int) -> None:
        """Let a rank compute no longer than the others do in that iteration, in their median."""
        at = self.ranks.index(rank)
        mine = self._driven(rank)
        lane = self._lane[self._replay.parts.task[mine]]
        for part in self.slower.get(at, ()):
            others = self._healthy(part, at)
            most_s = np.median(changed.parts_s[others, :, part], axis=0)
            changed.parts_s[at, :, part] = np.minimum(changed.parts_s[at, :, part], most_s)
            self._start_like(changed, mine[lane == part], others)
            changed.shaped[at, part] = others
        if {_FORWARD, _BACKWARD} <= set(self.slower.get(at, ())):
            self.messages.handled_on_time(changed, rank)

    def _driven(self, rank: int) -> Numbers:
        """Return the parts of messages of a rank that follow its computation."""
        mine = self.messages.of[rank]
        return mine[self._replay.parts.task[mine] >= 0]

    def like_others(self, changed: Changed, rank: int) -> None:
        """Let a rank wait for input no longer than all do."""
        at = self.ranks.index(rank)
        more_s = self._level[at, :, _INPUT] - self._common_s[at]
        left_s = changed.parts_s[at, :, _INPUT] - more_s
        changed.parts_s[at, :, _INPUT] = np.maximum(left_s, 0.0)

    def without_input(self, changed: Changed) -> None:
        """Let no rank wait for input as long as all do."""
        left_s = changed.parts_s[..., _INPUT] - self._common_s
        changed.parts_s[..., _INPUT] = np.maximum(left_s, 0.0)

    def without_pause(self, changed: Changed, rank: int, name: str) -> None:
        """Let a recorded pause not happen."""
        changed.without[name].add(self.ranks.index(rank))

    def with_good_links(self, changed: Changed) -> None:
        """Let messages of links that are known to be slow take as long as those of the others."""
        changed.durations.transfers_s *= self.slow.bytes_per_s / self.slow.expected_bytes_per_s

    def flowing(self, changed: Changed) -> tuple[int, ...]:
        """Shorten transfers of iterations that have unusually long ones; return these."""
        moved_s = changed.durations.transfers_s
        rows, (ranks, rank), (numbers, at) = self._moving
        if len(numbers) < SEVERAL:
            return ()
        whose = rank * len(numbers) + at
        every_s = np.bincount(whose, moved_s[rows], len(ranks) * len(numbers))
        totals_s = every_s.astype(np.float64).reshape(len(ranks), len(numbers))
        usual_s = usual(totals_s[..., None], np.arange(len(numbers)))
        own_s = self._usual_s[:, _COMPUTING].sum(axis=1)
        computing_s = dict(zip(self.ranks, own_s.tolist(), strict=True))
        least_s = np.array([[UNUSUAL * computing_s.get(one, 0.0)] for one in ranks.tolist()])
        long = totals_s > np.maximum(_STRETCHED * usual_s, usual_s + least_s)
        factors = np.where(long, usual_s / np.where(long, totals_s, 1.0), 1.0)
        moved_s[rows] *= factors.ravel()[whose]
        return tuple(numbers[long.any(axis=0)].tolist())

    @cached_property
    def _moving(self) -> tuple[Numbers, tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Parts of messages of iterations that count; their ranks and iterations, and which each.

        Each has a place in ranks, and one in iterations.
        """
        parts = self._replay.parts
        rows = np.flatnonzero(np.isin(parts.iteration, self._replay.iterations))
        ranks, rank = np.unique(parts.rank[rows], return_inverse=True)
        numbers, at = np.unique(parts.iteration[rows], return_inverse=True)
        return rows, (ranks, rank), (numbers, at)

    def _start_like(self, changed: Changed, rows: Numbers, ranks: Sequence[int]) -> None:
        """Let messages start as far into computation as those like them do on some ranks."""
        mine, usual = self._shares.like(rows, ranks)
        changed.durations.shares[mine] = usual


def free(changed: Changed) -> None:
    """Let transfers take no time."""
    moved_s = changed.durations.transfers_s
    np.minimum(moved_s, 0.0, out=moved_s)
