"""Difference: what changed from one run to another, beyond what changes between iterations.

Each figure is taken in every iteration but the first, in the mean over ranks; computation is that
of the median rank, so that it does not change with a straggler alone. Two means differ when
they are further apart than twice the standard error of their difference, and by at least 2%.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncopate.analysis.collectives import collectives, transferring
from syncopate.analysis.exposure import exposures
from syncopate.analysis.ranks.stragglers import Straggler, stragglers
from syncopate.analysis.work import SEVERAL, last_end_s, steady, works
from syncopate.artifacts.timeline import PAUSES, Timeline
from syncopate.errors import InvalidValueError
from syncopate.units import format_bytes, format_seconds

ITERATION, COMPUTATION = "iteration", "computation"
WAITING, TRANSFERRING = "waiting for the slowest", "transferring, exposed"
TRANSFERS, BYTES, RATE = "transfers, hidden ones too", "bytes", "bytes per second of transfer"

_ERRORS = 2.0
"""How many standard errors are no accident."""

_LEAST = 0.02
"""The smallest relative change that is worth a word."""


@dataclass(frozen=True)
class Figure:
    """One figure of one run, over iterations.

    Attributes:
        mean: over iterations.
        deviation: the standard deviation; 0 of a single one.
        count: how many iterations.
    """

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Change:
    """One figure of two runs.

    Attributes:
        what: which figure; times are in seconds of an iteration.
        before: of the first run.
        after: of the second.
        differs: whether they differ beyond the spread.
    """

    what: str
    before: Figure
    after: Figure
    differs: bool

    @property
    def ratio(self) -> float:
        """After over before; infinite where there was nothing before, 1 where nothing is."""
        if self.before.mean > 0:
            return self.after.mean / self.before.mean
        return math.inf if self.after.mean > 0 else 1.0

    @property
    def more(self) -> float:
        """After less before."""
        return self.after.mean - self.before.mean


@dataclass(frozen=True)
class Difference:
    """The change of every figure from one run to another.

    Attributes:
        changes: of every figure that either run has.
        verdict: what it comes to, in one sentence.
    """

    changes: tuple[Change, ...]
    verdict: str


def difference(before: Timeline, after: Timeline) -> Difference:
    """Return the change of every figure from one run to another.

    Raises:
        InvalidValueError: one of them has no iteration with computation.
    """
    figures = [_figures(timeline) for timeline in (before, after)]
    names = dict.fromkeys([*figures[0], *figures[1]])
    changes = []
    for name in names:
        one, other = (mine.get(name, Figure(0.0, 0.0, mine[ITERATION].count)) for mine in figures)
        if one.mean or other.mean or name in (ITERATION, COMPUTATION):  # of which the verdict is
            changes.append(Change(name, one, other, _differ(one, other)))
    return Difference(tuple(changes), _verdict(changes, before, after))


def _figures(timeline: Timeline) -> dict[str, Figure]:
    work = works(timeline)
    numbers = steady([one.iteration for one in work])
    if not numbers:
        rule = "a timeline with computation in at least one iteration"
        raise InvalidValueError(timeline.name, f"{len(timeline.spans)} spans", rule)
    ranks = len({one.rank for one in work})
    rows: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    begins_s = min(one.begins_s for one in work)
    for number, ends_s in sorted(last_end_s(work).items()):
        rows[ITERATION][number], begins_s = ends_s - begins_s, ends_s
    computed_s: dict[int, list[float]] = defaultdict(list)
    for one in work:
        computed_s[one.iteration].append(one.computation_s)
    for number, mine in computed_s.items():
        # The lower median, or a straggler of two ranks would be taken for a slower computation.
        rows[COMPUTATION][number] = statistics.median_low(mine)
    for one in work:
        for name, lasts_s in one.paused_s.items():
            rows[name][one.iteration] += lasts_s / ranks
    rows |= _of_messages(timeline, ranks)
    return {
        name: _figure([by_iteration.get(number, 0.0) for number in numbers])
        for name, by_iteration in rows.items()
    }


def _of_messages(timeline: Timeline, ranks: int) -> dict[str, dict[int, float]]:
    """Return the figures of messages by iteration, the mean over so many ranks."""
    exposed, messages = exposures(timeline), collectives(timeline)
    spans = messages.spans.take(messages.rows)
    one, _, lasts_s = transferring(messages, spans.iteration, spans.rank)
    of_each = (
        (WAITING, exposed.spans.iteration, exposed.waiting_s),
        (TRANSFERRING, exposed.spans.iteration, exposed.transferring_s),
        (BYTES, spans.iteration, spans.nbytes),
        (TRANSFERS, spans.iteration[one], lasts_s),
    )
    found: dict[str, dict[int, float]] = {}
    for what, iterations, values in of_each:
        numbers, of = np.unique(iterations, return_inverse=True)
        means = np.bincount(of, values, len(numbers)) / ranks
        found[what] = dict(zip(numbers.tolist(), means.tolist(), strict=True))
    found[RATE] = {
        number: found[BYTES][number] / moving_s
        for number, moving_s in found[TRANSFERS].items()
        if moving_s > 0 and found[BYTES][number] > 0
    }
    return found


def _figure(values: Sequence[float]) -> Figure:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Figure(statistics.fmean(values), deviation, len(values))


def _differ(one: Figure, other: Figure) -> bool:
    error = math.hypot(
        one.deviation / math.sqrt(one.count), other.deviation / math.sqrt(other.count)
    )
    apart = abs(other.mean - one.mean)
    return apart > _ERRORS * error and apart > _LEAST * max(one.mean, other.mean)


def _verdict(changes: Sequence[Change], before: Timeline, after: Timeline) -> str:
    by_name = {change.what: change for change in changes}
    whole = by_name[ITERATION]
    least = min(whole.before.count, whole.after.count)
    if least < SEVERAL and "measured" in (before.source, after.source):
        return (
            f"no verdict: {least} iterations have no spread to tell a change from an accident; "
            f"record at least {SEVERAL + 1} in both runs"
        )
    times = f"{format_seconds(whole.before.mean)}, now {format_seconds(whole.after.mean)}"
    ratios = {name: change.ratio if change.differs else 1.0 for name, change in by_name.items()}
    # A change of a part counts when it is felt in the whole.
    felt_s = _LEAST * max(whole.before.mean, whole.after.mean)
    said = [] if by_name[COMPUTATION].differs else ["computing is the same"]
    causes: list[tuple[float, str]] = []
    for what in (COMPUTATION, WAITING, TRANSFERRING, *PAUSES):
        change = by_name.get(what)
        if change is not None and change.differs and abs(change.more) > felt_s:
            words, cause = _said(what, change, ratios, by_name, (before, after))
            said.append(words)
            causes.append((abs(change.more), cause))
    if not causes and ratios.get(RATE, 1.0) != 1.0:
        said.append(f"transfers run at {ratios[RATE]:.2f}x the rate, and are hidden")
        causes.append((0.0, "the network, which costs nothing here"))
    cause = f": {max(causes)[1]}" if causes else ""
    if not whole.differs:
        if not causes:
            return f"nothing changed beyond the spread: an iteration takes {times}"
        return f"an iteration takes as long ({times}); {', '.join(said)}{cause}"
    if not causes:
        said.append("none of its parts changed enough to explain it")
    return f"an iteration takes {whole.ratio:.2f}x as long ({times}); {', '.join(said)}{cause}"


def _said(
    what: str,
    change: Change,
    ratios: dict[str, float],
    by_name: dict[str, Change],
    runs: tuple[Timeline, Timeline],
) -> tuple[str, str]:
    """Return the changes in words, and their causes."""
    more = f"{format_seconds(abs(change.more))} {'more' if change.more > 0 else 'less'}"
    if what == COMPUTATION:
        return f"computing takes {change.ratio:.2f}x as long", "the computation"
    if what == WAITING:
        late = _latest(runs[change.more > 0])
        who = f"rank {late.rank} ({late.cause})" if late else "the slowest rank"
        return f"ranks wait {more} for the slowest", who
    if what != TRANSFERRING:
        return f"{what} takes {more}", f"the {what}"
    return _of_transfers(f"{more} of transfers is exposed", ratios, by_name, runs)


def _of_transfers(
    exposed: str,
    ratios: dict[str, float],
    by_name: dict[str, Change],
    runs: tuple[Timeline, Timeline],
) -> tuple[str, str]:
    """Return the same of transfers, of which more or less is ``exposed``."""
    if runs[0].world_size != runs[1].world_size:
        return exposed, f"{runs[1].world_size} ranks instead of {runs[0].world_size}"
    if ratios.get(BYTES, 1.0) != 1.0:
        sent = by_name[BYTES]
        after, before = format_bytes(sent.after.mean), format_bytes(sent.before.mean)
        return f"{after} are sent instead of {before}", "the plan or the model"
    if ratios.get(TRANSFERS, 1.0) != 1.0:
        return f"transfers take {ratios[TRANSFERS]:.2f}x as long", "the network"
    return f"{exposed}, which take as long as before", "the overlap"


def _latest(timeline: Timeline) -> Straggler | None:
    return next(iter(stragglers(timeline)), None)
