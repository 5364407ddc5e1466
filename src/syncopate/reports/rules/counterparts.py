"""Counterparts: decisions by another library's names, and those that it cannot express.

Another library has some of our algorithms and not others. Where the best of ours has a counterpart
there, that is the rule. Where it has none, the best of those with a counterpart is, if there are at
least two to choose from; else no rule is made and the library decides as it always did. Each
departure from the decisions is a note, none is silent.

That the fastest algorithm here is the fastest there too is an assumption: sizes at which one
overtakes another depend on the network, which is the same, and on the code, which is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from syncopate.artifacts.results.decision_table import CollectiveDecisions, DecisionTable, SizeRange
from syncopate.units import format_bytes

How = TypeVar("How")

Restrict = Callable[[str, tuple[str, ...]], CollectiveDecisions | None]
"""A collective and some of its algorithms -> the decisions among those alone; None if not one of
them has a cost on the cluster."""


@dataclass(frozen=True)
class Counterparts:
    """The algorithms of another library for one of our collectives.

    Attributes:
        collective: our name.
        theirs: its name there.
        algorithms: our name of an algorithm -> its name there.
        remark: why there is nothing to choose; empty where there is.
    """

    collective: str
    theirs: str
    algorithms: Mapping[str, str]
    remark: str = ""


@dataclass(frozen=True)
class Rule:
    """One rule, by the other library's names.

    Attributes:
        collective: its name there.
        algorithm: its name there.
        range: sizes, the size that stands for them, and our algorithm with its options.
    """

    collective: str
    algorithm: str
    range: SizeRange


@dataclass(frozen=True)
class RuleFile:
    """A file of rules.

    Attributes:
        text: what the library reads.
        notes: where it departs from the decisions, and why; one line each.
    """

    text: str
    notes: tuple[str, ...]


def rules_and_notes(
    library: str, table: DecisionTable, known: Iterable[Counterparts], restrict: Restrict
) -> tuple[list[Rule], list[str]]:
    """Translate decisions into rules by a library's names.

    Args:
        library: its name, for the notes.
        table: our decisions.
        known: what the library has.
        restrict: how to decide among some algorithms alone.
    """
    if table.world_size == 1:
        return [], ["no rules: one rank alone has nothing to choose"]
    rules: list[Rule] = []
    notes: list[str] = []
    decided = {each.collective: each for each in table.collectives}
    for theirs in known:
        if theirs.collective not in decided:
            continue
        ours = decided[theirs.collective]
        among = None
        if not theirs.remark:
            among = restrict(theirs.collective, tuple(theirs.algorithms))
        made, said = _translated(library, ours, theirs, among)
        rules += made
        notes += said
    return rules, notes


def merged(rules: Iterable[tuple[int, int | None, How]]) -> list[tuple[int, int | None, How]]:
    """Join neighbours that differ in their sizes alone, where one begins as the other ends.

    Args:
        rules: the first and the last size of each, None for no limit, and what it says of these.
    """
    found: list[tuple[int, int | None, How]] = []
    for low, high, how in rules:
        first, last, before = found[-1] if found else (0, None, None)
        if before == how and last is not None and last + 1 == low:
            found[-1] = first, high, how
        else:
            found.append((low, high, how))
    return found


def sizes_text(low: int, high: int | None) -> str:
    """Return a range of sizes for people: ``"4.0 KiB to 1.0 MiB"``, ``"up to 1.0 MiB"``."""
    if high is None:
        return "all sizes" if low == 0 else f"from {format_bytes(low)}"
    return (
        f"up to {format_bytes(high)}"
        if low == 0
        else f"{format_bytes(low)} to {format_bytes(high)}"
    )


def _translated(
    library: str, ours: CollectiveDecisions, theirs: Counterparts, among: CollectiveDecisions | None
) -> tuple[list[Rule], list[str]]:
    if theirs.remark:
        return [], [f"{theirs.theirs}: no rules; {theirs.remark}"]
    if among is None:
        return [], [f"{theirs.theirs}: no rules; {library} has none of the algorithms known here"]
    offered = {each.chosen.algorithm for each in among.ranges}
    alone = len({*offered, *(o.algorithm for each in among.ranges for o in each.others)}) == 1
    ranges = among.ranges
    if alone:
        ranges = tuple(r for r in ours.ranges if r.chosen.algorithm in theirs.algorithms)
    rules = [Rule(theirs.theirs, theirs.algorithms[r.chosen.algorithm], r) for r in ranges]
    notes = [
        f"{theirs.theirs} {sizes_text(run[0].min_bytes, run[-1].max_bytes)}: "
        f"{_missing(library, theirs, run, among, alone)}"
        for run in _runs(ours.ranges)
        if run[0].chosen.algorithm not in theirs.algorithms
    ]
    return rules, notes


def _missing(
    library: str,
    theirs: Counterparts,
    run: Sequence[SizeRange],
    among: CollectiveDecisions,
    alone: bool,
) -> str:
    """Return the notes on ranges whose algorithm the library does not have."""
    best = run[0].chosen.algorithm
    has_none = f"{best} is the fastest here, and {library} has no counterpart"
    if alone:
        return f"{has_none}; no rule, {library} decides"
    middle = run[len(run) // 2]
    there = (r for r in among.ranges if r.max_bytes is None or middle.at_bytes <= r.max_bytes)
    instead = next(there).chosen.algorithm
    word = theirs.algorithms[instead]
    times = {other.algorithm: other.expected_s for other in middle.others}
    if instead not in times or middle.chosen.expected_s <= 0:
        return f"{has_none}; {word} is the fastest of what it has"
    factor = times[instead] / middle.chosen.expected_s
    at = format_bytes(middle.at_bytes)
    return f"{has_none}; {word}, the fastest of what it has, takes {factor:.2f}x as long at {at}"


def _runs(ranges: Sequence[SizeRange]) -> list[list[SizeRange]]:
    """Return neighbours of one algorithm together, with any options."""
    return [list(run) for _, run in groupby(ranges, key=lambda each: each.chosen.algorithm)]
