"""Results: what explain said of every fault, against what the fault really cost."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import structs

from contest.conduct import reopened, with_command
from faults.named import FAULTS, Fault
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.shown import markdown_table
from syncopate.units import format_seconds

BOUND = 0.15
"""By how much a predicted gain may be off."""

NOBODY = ("transfers", "plan", "server", "batches")
"""Kinds of causes that blame no rank, link or moment."""


class Said(Record, frozen=True, kw_only=True):
    """One cause that explain named.

    Attributes:
        kind: of :mod:`syncopate.analysis.causes.explanation`.
        ranks: whose.
        gain_s: what an iteration would be shorter by without it.
        what: in words.
    """

    kind: str
    ranks: tuple[int, ...]
    gain_s: float
    what: str


class Round(Record, frozen=True, kw_only=True):
    """A block with the fault and one without, one behind the other.

    Attributes:
        with_s: an iteration with the fault, in the mean over the counted ones.
        without_s: the same without.
        others: which part of the machine other processes took, in the block where that was more.
        causes: what explain said of the first, in its order.
        together_s: what an iteration would be shorter by without all of them but transfers.
        abstains: why it explained nothing; empty where it did.
    """

    with_s: float
    without_s: float
    others: float = 0.0
    causes: tuple[Said, ...] = ()
    together_s: float = 0.0
    abstains: tuple[str, ...] = ()


class Results(Artifact, frozen=True, kw_only=True):
    """What is known so far.

    Attributes:
        quick: whether blocks were cut to see that it runs; then no figure counts.
        rate: of the links.
        cluster: the lab as calibrated; None before.
        rounds: fault -> its rounds.
        skipped: fault -> why this machine cannot have it.
        metadata: hardware, versions and date of the first round, and the commands.
    """

    KIND: ClassVar[str] = "explain-faults-benchmark"

    quick: bool
    rate: str
    cluster: Cluster | None = None
    rounds: dict[str, tuple[Round, ...]] = {}
    skipped: dict[str, str] = {}
    metadata: dict[str, str] = {}

    def with_rounds(self, fault: str, rounds: tuple[Round, ...]) -> Results:
        """Return the results with those of one fault put in place of what was there."""
        return structs.replace(self, rounds=self.rounds | {fault: rounds})


def resumed(path: Path | None, fresh: Results) -> Results:
    """Return what ``path`` holds, or ``fresh`` where there is no such file yet.

    Raises:
        ArtifactError: it is no such file, or was measured under another setting.
    """
    return with_command(reopened(path, fresh, "quick", "rate"), fresh.metadata)


def is_right(fault: Fault, one: Round) -> bool:
    """Say whether explain named the fault first; without one, whether it named no cause.

    Of several faults any may be first.
    """
    if not fault.kinds:
        return all(cause.kind in NOBODY for cause in one.causes)
    return bool(one.causes) and any(_names(one.causes[0], part) for part in fault.parts)


def _names(cause: Said, fault: Fault) -> bool:
    return cause.kind in fault.kinds and (not fault.ranks or cause.ranks == fault.ranks)


def wronged(fault: Fault, one: Round) -> tuple[Said, ...]:
    """Return what explain blamed on a rank that has nothing to do with the fault."""
    whose = [set(part.ranks) for part in fault.parts if part.kinds and not fault.is_transfers]
    return tuple(
        cause
        for cause in one.causes
        if cause.ranks and not any(not ranks or set(cause.ranks) <= ranks for ranks in whose)
    )


def measured_s(rounds: tuple[Round, ...]) -> float:
    """Return what the fault cost an iteration, in the median over rounds."""
    return statistics.median(one.with_s - one.without_s for one in rounds)


def predicted_s(fault: Fault, rounds: tuple[Round, ...]) -> float:
    """Return the gain of all causes together, of transfers their own, in the median over rounds."""
    if fault.is_transfers:
        return statistics.median(one.causes[0].gain_s if one.causes else 0.0 for one in rounds)
    return statistics.median(one.together_s for one in rounds)


def is_sound(fault: Fault, rounds: tuple[Round, ...]) -> bool:
    """Say whether a fault was named first every time, with a gain that is near enough.

    And nothing was blamed on a rank that has nothing to do with it.
    """
    if not all(is_right(fault, one) and not wronged(fault, one) for one in rounds):
        return False
    return not fault.kinds or abs(predicted_s(fault, rounds) / measured_s(rounds) - 1) <= BOUND


_HEAD = ("fault", "first cause named", "right", "without", "predicted", "measured", "error")
SHARE = 0.95
"""In how many rounds the first cause is right at least."""


def table(results: Results) -> str:
    """Return a row for each fault, as Markdown."""
    rows: list[Sequence[str]] = []
    for name, fault in FAULTS.items():
        rounds = results.rounds.get(name)
        if rounds:
            rows.append(_row(fault, rounds))
        elif name in results.skipped:
            rest = ["-"] * (len(_HEAD) - 2)
            rows.append((fault.title, f"skipped: {results.skipped[name]}", *rest))
    there = {name: rounds for name, rounds in results.rounds.items() if rounds}
    wrong = [name for name, rounds in there.items() if not is_sound(FAULTS[name], rounds)]
    said = f"not as they should be: {', '.join(wrong)}" if wrong else "all as they should be"
    right, count = first_right(results)
    return "\n".join(
        (
            markdown_table(_HEAD, rows),
            f"{len(there)} of {len(FAULTS)} faults, {said}.",
            f"The first cause is right in {right} of {count} rounds.",
        )
    )


def first_right(results: Results) -> tuple[int, int]:
    """Return in how many rounds with a fault the first cause is right, and how many there are."""
    found = [
        is_right(FAULTS[name], one)
        for name, rounds in results.rounds.items()
        for one in rounds
        if FAULTS[name].kinds
    ]
    return sum(found), len(found)


def _row(fault: Fault, rounds: tuple[Round, ...]) -> list[str]:
    said = Counter(_first(one) for one in rounds)
    right = sum(is_right(fault, one) for one in rounds)
    cells = [fault.title, said.most_common(1)[0][0], f"{right} of {len(rounds)}"]
    cells.append(format_seconds(statistics.median(one.without_s for one in rounds)))
    if not fault.kinds:
        return [*cells, "-", "-", "-"]
    predicted, measured = predicted_s(fault, rounds), measured_s(rounds)
    off = f"{predicted / measured - 1:+.0%}" if measured > 0 else "-"
    return [*cells, format_seconds(predicted), format_seconds(measured), off]


def _first(one: Round) -> str:
    if one.abstains:
        return f"none: {one.abstains[0].split(':')[0]}"
    return one.causes[0].what.split(":")[0] if one.causes else "nothing worth doing"
