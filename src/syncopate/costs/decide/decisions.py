"""Decisions: which algorithm carries a collective of a given size on a cluster.

Where the cluster has measured curves of the collective, they decide, else the prices of the
registry's schedules. The backend's own algorithm has a curve and no price, so it can be chosen only
where it was measured.

[Note: ties] Among the algorithms that only noise (``noise``) separates from
the fastest, the one that was chosen for the next smaller size stays; else the simplest is taken:
the backend's own, then those without options, then as the registry lists them. Otherwise two
calibrations of one cluster would hardly ever agree, and neighbouring sizes would change algorithms
for nothing. Nothing is chosen that was measured slower than the backend's own by more than noise,
and nothing beyond the sizes at which it was measured.

Prices know no scatter, but they are no more exact than that: the algorithm of the next smaller
sizes stays as long as it costs no more than ``NOISE`` above the cheapest. One that works at several
levels does not stay where a flat one is the cheapest.

By curves, a decision is taken at every measured size. Between two sizes it changes where the curves
cross, or half-way (by ratio) where they do not, or where one of the two was not measured at both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.decision_table import MEASURED, PRICED
from syncopate.costs.decide.noise import NOISE, beyond_noise
from syncopate.costs.model.collective import collective_costs
from syncopate.costs.model.functions import CostFunction, CurveCost, Envelope
from syncopate.costs.model.remembered import remembered
from syncopate.errors import InvalidValueError
from syncopate.recipe import Recipe
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import ALGORITHMS, NATIVE, has

LARGEST_BYTES = 2.0**50
"""Beyond it nothing changes: prices that cross there differ by rounding alone."""


@dataclass(frozen=True)
class Decision:
    """The algorithm and options for a range of sizes.

    Attributes:
        min_bytes: the smallest, counted as nccl-tests counts it (the total buffer).
        max_bytes: the largest, itself included; None where there is no limit.
        recipe: what carries them, its root and channel the first.
        basis: one of :data:`~syncopate.artifacts.results.decision_table.BASES`.
    """

    min_bytes: int
    max_bytes: int | None
    recipe: Recipe
    basis: str = PRICED


def choose(cluster: Cluster, collective: str, nbytes: int) -> Recipe:
    """Return what carries a collective of ``nbytes`` (the total buffer) on ``cluster``.

    Raises:
        UnknownNameError: no such collective.
        InvalidValueError: a negative size.
    """
    if nbytes < 0:
        raise InvalidValueError("nbytes", nbytes, "an integer >= 0")
    table = decisions(cluster, collective)
    return table[find(table, nbytes)].recipe


def find(table: Sequence[Decision], nbytes: int) -> int:
    """Return the index of the decision that ``nbytes`` (>= 0) falls into."""
    return bisect_left(table, float(nbytes), key=_last)


@remembered
def decisions(
    cluster: Cluster, collective: str, among: tuple[str, ...] | None = None
) -> tuple[Decision, ...]:
    """Return all decisions for a collective, by ascending size: from 0 bytes up, without gaps.

    Neighbours differ in algorithm or options. Worked out once for a cluster and remembered.

    Args:
        cluster: the machines.
        collective: such as ``"all_reduce"``.
        among: the algorithms to choose from; None for all that suit the cluster.

    Raises:
        UnknownNameError: no such collective, or an algorithm that has no cost on this cluster.
    """
    conditions(collective)
    if cluster.world_size == 1:
        return (Decision(0, None, Recipe(collective)),)
    measured = [c.algorithm for c in cluster.curves if c.collective == collective]
    if among is None:
        # A file may hold curves of algorithms that another process registered and this one did not.
        among = tuple(n for n in measured if n == NATIVE or has(collective, n)) or None
    costs = collective_costs(cluster, collective, among)
    ranges = _from_curves(costs) if measured else _from_prices(costs)
    table: list[Decision] = []
    for upper, recipe in _with_options(collective, ranges, costs):
        first = 0 if not table else _last(table[-1]) + 1
        last = None if upper >= LARGEST_BYTES else math.floor(upper)
        if last is not None and last < first:
            continue
        if table and table[-1].recipe == recipe:
            first = table.pop().min_bytes
        table.append(Decision(int(first), last, recipe, MEASURED if measured else PRICED))
        if last is None:
            break
    return tuple(table)


def _last(decision: Decision) -> float:
    return math.inf if decision.max_bytes is None else decision.max_bytes


_Ranges = list[tuple[float, str]]
"""``(largest size, algorithm)`` by ascending size, the last without limit."""


def _from_prices(costs: Envelope) -> _Ranges:
    pieces = costs.pieces
    ranges: _Ranges = []
    for (low, _), (high, owner) in pairwise(
        zip(pieces.upper_bytes.tolist(), pieces.owner.tolist(), strict=True)
    ):
        name = costs.names[owner]
        if ranges and ranges[-1][1] != name and _may_stay(ranges[-1][1], name):
            # Both costs are lines here, so their ratio is the largest at one of the ends.
            ends = [math.nextafter(low, math.inf), min(high, LARGEST_BYTES)]
            incumbent = costs.of(ranges[-1][1])
            if (incumbent(ends) <= (1 + NOISE) * costs(ends)).all():
                name = ranges[-1][1]
        ranges.append((high, name))
    return ranges


def _may_stay(incumbent: str, cheapest: str) -> bool:
    """Say whether prices that are about the same are a reason to keep the incumbent.

    What stages at several levels gain rests on levels that work at the same time, of which prices
    know least. So they do not stay where a flat algorithm is the cheapest.
    """
    staged = {row.name for row in ALGORITHMS.values() if row.hierarchical}
    return incumbent not in staged or cheapest in staged


def _from_curves(costs: Envelope) -> _Ranges:
    curves = {name: cost for name, cost in costs.costs.items() if isinstance(cost, CurveCost)}
    sizes = sorted({size for cost in curves.values() for size in cost.sizes})
    chosen: list[str] = []
    for size in sizes:
        here = {n: c for n, c in curves.items() if c.sizes[0] <= size <= c.sizes[-1]}
        chosen.append(_pick(here, size, chosen[-1] if chosen else ""))
    ranges: _Ranges = []
    for (low, name), (high, following) in pairwise(zip(sizes, chosen, strict=True)):
        if following != name:
            ranges.append((_handover(curves[name], curves[following], low, high), name))
    return [*ranges, (math.inf, chosen[-1])]


def _pick(curves: Mapping[str, CurveCost], size: float, incumbent: str) -> str:
    """Return the algorithm for one measured size; see [Note: ties]."""
    fastest = min(curves, key=lambda name: float(curves[name](size)))
    near = [n for n in curves if not _slower(curves[n], curves[fastest], size)]
    if NATIVE in curves:
        near = [n for n in near if not _slower(curves[n], curves[NATIVE], size)]
    if incumbent in near:
        return incumbent
    return min(near, key=lambda n: (n != NATIVE, bool(curves[n].options(size))))


def _slower(one: CurveCost, other: CurveCost, size: float) -> bool:
    """Say whether ``one`` was measured slower than ``other`` by more than noise."""
    samples = one.point(size).samples_s, other.point(size).samples_s
    return beyond_noise(float(one(size)), float(other(size)), *samples)


def tied(one: CostFunction, other: CostFunction, nbytes: float) -> bool:
    """Say whether noise alone separates two costs at a size; see [Note: ties].

    Prices, which know no scatter, are tied within ``NOISE`` of the smaller.
    """
    if isinstance(one, CurveCost) and isinstance(other, CurveCost):
        return not (_slower(one, other, nbytes) or _slower(other, one, nbytes))
    low_s, high_s = sorted((float(one(nbytes)), float(other(nbytes))))
    return high_s <= (1 + NOISE) * low_s


def _handover(one: CurveCost, other: CurveCost, low: float, high: float) -> float:
    """Return up to which size between two measured ones ``one`` is kept before ``other``."""
    behind, ahead = float(other(low) - one(low)), float(one(high) - other(high))
    both_measured = other.sizes[0] <= low and one.sizes[-1] >= high
    if both_measured and behind > 0 and ahead > 0:
        return low + (high - low) * behind / (behind + ahead)
    return math.sqrt(max(low, 1.0) * high)


def _with_options(collective: str, ranges: _Ranges, costs: Envelope) -> list[tuple[float, Recipe]]:
    """Cut the ranges where the options of their algorithm change."""
    found: list[tuple[float, Recipe]] = []
    low = 0.0
    for upper, name in ranges:
        for end, options in costs.of(name).option_ranges:
            if end > low:
                recipe = Recipe(collective, name, options=dict(options))
                found.append((min(end, upper), recipe))
            if end >= upper:
                break
        low = upper
    return found
