"""Causes: what an iteration would gain, were one thing about it different.

Every cause is a counterfactual (:mod:`syncopate.analysis.replay`): the recorded iterations are
played again with it removed, and what that saves is the answer.

    compute         a rank computes as fast as the median of the other ranks
    input           nobody waits for input; of one rank: no longer than the median of the others
    pause           no iteration of a rank takes unusually long, by the rank's own median
    (by name)       a recorded pause did not happen
    link            a rank whose messages usually end later after the last arrival than those of
                    the others has them when the others have
    congestion      no iteration has transfers 1.5 times as long as usual
    transfers       other transfers than these take no time: the most that any plan can give
    server          the same of messages to and from parameter servers, their work included

Where several ranks are slow, to mend one of them alone gains little; then they are one cause.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.intervals import Interval, intersection, length_s, near, union
from syncopate.analysis.replay import Durations, Replay
from syncopate.analysis.stragglers import COMPUTE, LINK, PAUSE, SERVER
from syncopate.analysis.work import INPUT, SEVERAL, Work, usual, works
from syncopate.plan import SERVED
from syncopate.timeline import PAUSES, Timeline

CONGESTION, TRANSFERS, PLAN = "congestion", "transfers", "plan"
"""Kinds of causes beside those of a straggler."""

WORTH = 0.02
"""What is less of an iteration than this part is not worth doing."""

TRUSTED = 0.1
"""A replay that is further from the recorded iteration than this part explains nothing."""

_UNUSUAL, _STRETCHED = 0.1, 1.5
"""What is unusual exceeds the usual by this part of computation; a transfer also is as long."""

_LATER, _MOSTLY = 1.1, 0.75
"""A link is slow where more than this part of its transfers takes this many times the others'."""

_ALONE, _MOST = 0.8, 8
"""A rank is a cause by itself with this part of the gain of all; as many are tried."""


@dataclass(frozen=True)
class Cause:
    """One thing that costs time.

    Attributes:
        kind: see the module.
        ranks: whose; empty for all.
        gain_s: what an iteration would be shorter by without it.
        iterations: where it happened once; empty where it is usual.
    """

    kind: str
    ranks: tuple[int, ...]
    gain_s: float
    iterations: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why iterations take as long as they do.

    Attributes:
        iterations: how many were looked at.
        iteration_s: how long one took, in the mean.
        replayed_s: how long it takes when played again without a change.
        even_s: with all causes removed but transfers: what plans can be compared with.
        bound_s: with all causes removed: what computing alone takes.
        compute_s: what the median rank computes, in the median over iterations.
        causes: those worth a word, the greatest gain first.
        abstains: why nothing is explained, and what to record; empty where it is.
    """

    iterations: int
    iteration_s: float
    replayed_s: float
    even_s: float
    bound_s: float
    compute_s: float
    causes: tuple[Cause, ...]
    abstains: tuple[str, ...]

    @property
    def error(self) -> float:
        """By how much the replay is off, relative to the recorded iteration."""
        return abs(self.replayed_s / self.iteration_s - 1) if self.iteration_s > 0 else 0.0

    @property
    def of_bound(self) -> float:
        """The bound relative to the iteration, in [0, 1]."""
        return min(self.bound_s / self.iteration_s, 1.0) if self.iteration_s > 0 else 1.0


def explanation(timeline: Timeline) -> Explanation:
    """Return what iterations lose time to, by counterfactual replay.

    Raises:
        InvalidValueError: nothing was computed, or times contradict each other.
    """
    replay = Replay(timeline)
    played_s, recorded_s = replay.iteration_s(), replay.recorded_s
    lacks = tuple(_lacks(timeline, replay, played_s, recorded_s))
    counterfactuals = Counterfactuals(replay)
    even_s = replay.iteration_s(counterfactuals.even())
    bound_s = replay.iteration_s(counterfactuals.even(transfers=False))
    computing = [counterfactuals.usual_s(rank) for rank in counterfactuals.ranks]
    least_s = max(WORTH * played_s, float(timeline.metadata.get("clock_error_s", 0.0)))
    causes = [] if lacks else counterfactuals.causes(played_s)
    return Explanation(
        iterations=len(replay.iterations),
        iteration_s=recorded_s,
        replayed_s=played_s,
        even_s=even_s,
        bound_s=bound_s,
        compute_s=statistics.median(computing),
        causes=tuple(
            sorted((c for c in causes if c.gain_s > least_s), key=lambda cause: -cause.gain_s)
        ),
        abstains=lacks,
    )


def _lacks(timeline: Timeline, replay: Replay, played_s: float, recorded_s: float) -> Iterable[str]:
    """Yield what the evidence lacks."""
    count = len(replay.iterations)
    if timeline.source == "measured" and count < SEVERAL:
        yield (
            f"{count} iterations do not tell what is usual from what happened once: "
            f"record at least {SEVERAL + 1}, of which the first does not count"
        )
    there = {span.rank for span in timeline.spans}
    if missing := [str(rank) for rank in range(timeline.world_size) if rank not in there]:
        yield f"nothing is recorded of ranks {', '.join(missing)}: record all ranks"
    if timeline.world_size > 1 and not replay.messages:
        yield "no push or pull is recorded: record a training that exchanges gradients"
    if abs(played_s - recorded_s) > TRUSTED * recorded_s:
        yield (
            f"played again without a change, an iteration takes {played_s / recorded_s:.2f}x as "
            "long as recorded: computation of a rank overlaps itself, or a clock jumped; record "
            "one training of one model"
        )


_Change = Callable[[Durations, int], None]
"""Changes durations for one rank."""


class Counterfactuals:
    """Durations of a replay with causes removed.

    Args:
        replay: of a timeline.

    Attributes:
        ranks: those that computed.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
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
                self._without_pause(changed, rank, name)
            self._as_usual(changed, rank)
            self._without_input(changed, rank)
            self._as_fast(changed, rank)
        for rank in self._linked():
            self._on_time(changed, rank)
        self._flowing(changed)
        if not transfers:
            _free(changed)
        return changed

    def causes(self, played_s: float) -> list[Cause]:
        """Return every cause with its gain; an iteration takes ``played_s`` now."""
        found: list[Cause] = []
        others = {r: [o for o in self.ranks if o != r] for r in self.ranks}
        slow = [
            r
            for r in self.ranks
            if others[r]
            and self.usual_s(r) > (1 + WORTH / 2) * statistics.median(map(self.usual_s, others[r]))
        ]
        found += self._of_ranks(COMPUTE, slow, self._as_fast, played_s)
        found += self._of_input(played_s)
        for name in PAUSES:
            if name != INPUT:
                had = [r for r in self.ranks if self._paused(r, name)]

                def removed(durations: Durations, rank: int, name: str = name) -> None:
                    self._without_pause(durations, rank, name)

                found += self._of_ranks(name, had, removed, played_s)
        unusual = [r for r in self.ranks if self._unusual(r)]
        found += self._of_ranks(PAUSE, unusual, self._as_usual, played_s)
        found += self._of_ranks(LINK, self._linked(), self._on_time, played_s)
        changed = self._replay.recorded.copy()
        where = self._flowing(changed)
        found.append(Cause(CONGESTION, (), self._gain_s(changed, played_s), where))
        for rank in self._linked():
            self._on_time(changed, rank)
        flowing_s = self._replay.iteration_s(changed)
        _free(changed)
        served = self._replay.timeline.metadata.get(EXCHANGE) == SERVED
        found.append(Cause(SERVER if served else TRANSFERS, (), self._gain_s(changed, flowing_s)))
        return found

    def _gain_s(self, changed: Durations, played_s: float) -> float:
        return played_s - self._replay.iteration_s(changed)

    def _of_ranks(
        self, kind: str, ranks: Sequence[int], change: _Change, played_s: float
    ) -> list[Cause]:
        """Return a cause of each of some ranks, or one of all of them where one alone is not."""
        together = self._replay.recorded.copy()
        for rank in ranks:
            change(together, rank)
        whole_s = self._gain_s(together, played_s) if ranks else 0.0
        if whole_s <= 0:
            return []
        alone = []
        # The slowest are tried by themselves, not all of a thousand.
        for rank in sorted(ranks, key=lambda rank: -self.usual_s(rank))[:_MOST]:
            changed = self._replay.recorded.copy()
            change(changed, rank)
            alone.append(self._cause(kind, (rank,), self._gain_s(changed, played_s)))
        if max(cause.gain_s for cause in alone) >= _ALONE * whole_s:
            return alone
        return [self._cause(kind, tuple(ranks), whole_s)]

    def _cause(self, kind: str, ranks: tuple[int, ...], gain_s: float) -> Cause:
        where: tuple[int, ...] = ()
        if kind == PAUSE:
            where = tuple(sorted({i for rank in ranks for i, _ in self._unusual(rank)}))
        elif kind in PAUSES and kind != INPUT:
            where = tuple(sorted({i for rank in ranks for i in self._paused(rank, kind)}))
        return Cause(kind, ranks, gain_s, where)

    def _of_input(self, played_s: float) -> list[Cause]:
        nobody = self._replay.recorded.copy()
        for rank in self.ranks:
            self._without_input(nobody, rank)
        whole = Cause(INPUT, (), self._gain_s(nobody, played_s))
        late = self._of_ranks(INPUT, list(self.ranks), self._like_others, played_s)
        best_s = max((cause.gain_s for cause in late), default=0.0)
        return late if best_s >= _ALONE * whole.gain_s else [whole]

    def _counted(self, rank: int) -> list[Work]:
        return [w for i, w in self._work[rank].items() if i in self._replay.iterations]

    def _paused(self, rank: int, name: str) -> list[int]:
        return [w.iteration for w in self._counted(rank) if w.paused_s.get(name, 0.0) > 0]

    def _input_s(self, work: Work) -> float:
        """Return how long an iteration waited for input; what is unusual is a pause instead."""
        if (work.iteration, INPUT) in self._unusual(work.rank):
            return usual([one.input_s for one in self._counted(work.rank)])
        return work.input_s

    def _unusual(self, rank: int) -> list[tuple[int, str]]:
        """Return the iterations and lanes, input among them, in which a rank took too long."""
        if rank not in self._pausing:
            self._pausing[rank] = self._found_unusual(rank)
        return self._pausing[rank]

    def _found_unusual(self, rank: int) -> list[tuple[int, str]]:
        mine = self._counted(rank)
        if len(mine) < SEVERAL:
            return []
        least_s = _UNUSUAL * self.usual_s(rank)
        waited_s = usual([one.input_s for one in mine])
        found = [(w.iteration, INPUT) for w in mine if w.input_s > waited_s + least_s]
        for lane in {lane for one in mine for lane in one.computing_s}:
            most_s = self.usual_s(rank, lane) + least_s
            found += [(w.iteration, lane) for w in mine if w.computing_s.get(lane, 0.0) > most_s]
        return found

    # -- one thing different -------------------------------------------------------------------

    def _as_fast(self, durations: Durations, rank: int) -> None:
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

    def _as_usual(self, durations: Durations, rank: int) -> None:
        for iteration, lane in self._unusual(rank):
            work = self._work[rank][iteration]
            if lane == INPUT:
                over_s = work.input_s - usual([one.input_s for one in self._counted(rank)])
                self._shorten_gap(durations, rank, iteration, over_s)
                continue
            factor = self.usual_s(rank, lane) / work.computing_s[lane]
            for number in self._tasks[rank]:
                span = self._replay.tasks[number].span
                if (span.iteration, span.lane) == (iteration, lane):
                    durations.tasks_s[number] *= factor

    def _without_input(self, durations: Durations, rank: int) -> None:
        for work in self._work[rank].values():
            self._shorten_gap(durations, rank, work.iteration, self._input_s(work))

    def _like_others(self, durations: Durations, rank: int) -> None:
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

    def _without_pause(self, durations: Durations, rank: int, name: str) -> None:
        pauses = self._pauses.get((rank, name), [])
        for number in self._tasks[rank] if pauses else ():
            task = self._replay.tasks[number]
            start_s, end_s = task.span.start_s, task.span.end_s
            inside_s = _common_s(pauses, (start_s, end_s))
            before_s = _common_s(pauses, (start_s - task.gap_s, start_s))
            durations.tasks_s[number] = max(durations.tasks_s[number] - inside_s, 0.0)
            durations.gaps_s[number] = max(durations.gaps_s[number] - before_s, 0.0)

    def _on_time(self, durations: Durations, rank: int) -> None:
        for mine in durations.transfers_s:
            theirs = [lasts_s for other, lasts_s in mine.items() if other != rank]
            if rank in mine and theirs:
                mine[rank] = min(mine[rank], statistics.median(theirs))

    def _linked(self) -> list[int]:
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

    def _flowing(self, durations: Durations) -> tuple[int, ...]:
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


def _free(durations: Durations) -> None:
    for mine in durations.transfers_s:
        mine.update(dict.fromkeys(mine, 0.0))
