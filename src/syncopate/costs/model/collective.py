"""Model: the costs of a collective on a cluster, one per algorithm, and their envelope.

A calibrated cluster is believed: where it has measured curves of a collective, they are its costs.
A cluster written by hand has none, and its costs are the prices of the registry's schedules, each
with the options that suit the cluster and the size (:func:`variants`).

[Note: beyond the samples] A curve is believed where it was measured, and only there. Beyond its
largest sample a curve's own extrapolation counts only above what is known otherwise:

* The bytes that the schedule puts on the busiest link take their time at line rate; for the
  backend's own, whose schedule is not known, the fewest bytes that the collective needs.
* The schedule's price, where all samples are short (less than ``LONG_BYTES``) and say nothing about
  bytes, or where another algorithm was measured further: that one was worth measuring. For a fair
  comparison prices are raised by as much as the others took more than theirs, and by
  ``UNMEASURED``, so that what was measured is left only for a gain beyond noise.
* Without a price, the cheapest of those that were measured further, and ``UNMEASURED``, or as much
  more as it took where it was last measured: calibration stops measuring an algorithm that is far
  behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from syncopate.artifacts.cluster import Cluster, CollectiveCurve
from syncopate.artifacts.level import sizes_text
from syncopate.costs.flows.curve import EVERYWHERE, Asked
from syncopate.costs.flows.rails import rail_pieces
from syncopate.costs.flows.stages import STAGED, staged_pieces
from syncopate.costs.model.bound import LONG_BYTES, line_s_per_byte
from syncopate.costs.model.functions import FREE, CostFunction, CurveCost, Envelope, VariantCost
from syncopate.costs.model.pieces import Pieces, highest, highest_line, lower_envelope
from syncopate.costs.model.remembered import remembered
from syncopate.costs.papers.closed_forms import closed_lines
from syncopate.costs.schedule.congestion import busiest_s_per_byte
from syncopate.costs.schedule.execution import execution_cost, execution_times
from syncopate.costs.schedule.price import price, price_pieces
from syncopate.errors import InvalidValueError, ScheduleError, SyncopateError, UnknownNameError
from syncopate.recipe import ORDER, Recipe
from syncopate.schedules.base import Schedule, checked_bounds
from syncopate.schedules.compose import by_element
from syncopate.schedules.conditions import conditions
from syncopate.schedules.factors import cluster_factors, equal_sizes
from syncopate.schedules.registry import (
    ALGORITHMS,
    NATIVE,
    algorithms,
    build,
    candidates,
    fitted,
    has,
)

BLOCKS = tuple(2**k for k in range(9))
"""Numbers of blocks considered. A pipeline with half or twice the best number costs at most a
quarter more, and one within a factor of the square root of two at most 6%."""

PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of message chunks considered for stages that work at the same time."""

MOST_CHUNKED = 256
"""Message chunks are considered on no more ranks where they have no formula: on levels of which
some have unequal units."""

MAX_PRICED_RANKS = 2048
"""A schedule for more ranks is not made to price it: tables grow with the square of the ranks."""

NARROW = ("recursive_doubling", "halving_doubling", "binary_tree", "mst", "be", "recursive")
"""Algorithms whose tables grow with p log p alone."""

MAX_NARROW_RANKS = 1 << 17
"""A schedule of :data:`NARROW` for more ranks is not made either."""

UNMEASURED = 0.05
"""An algorithm that was not measured where others were has to be cheaper by this share."""


def collective_costs(
    cluster: Cluster,
    collective: str = "all_reduce",
    names: Iterable[str] | None = None,
    asked: Asked = EVERYWHERE,
) -> Envelope:
    """Return the costs of ``collective`` on ``cluster``, by algorithm.

    Args:
        cluster: the machines; on a single rank every algorithm costs nothing.
        collective: such as ``"all_reduce"``.
        names: the algorithms wanted; by default all that were measured, or, when none was
            measured, all that the registry holds worth considering on this cluster. Of these a
            price is right where it is less than one and a half times that of another one: there
            they compete. One that cannot be priced there is left out. Those that are named are
            right everywhere.
        asked: where prices have to be right: closer to another one's; or at a few sizes, where
            named ones compete as well.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced; ``"native"`` has no schedule and therefore no price.
        InvalidValueError: none can be priced, or not the one wanted.
    """
    wanted = None if names is None else tuple(names)
    return _collective_costs(cluster, collective, wanted, asked)


@remembered
def _collective_costs(
    cluster: Cluster, collective: str, names: tuple[str, ...] | None, asked: Asked
) -> Envelope:
    registered = algorithms(collective, names or ())
    measured = {c.algorithm: c for c in cluster.curves if c.collective == collective}
    known = tuple(measured) or registered
    default = tuple(measured) or candidates(collective, cluster)
    if cluster.world_size == 1:
        known = default = tuple(dict.fromkeys((*known, *registered, NATIVE)))
    wanted = default if names is None else names
    if names is None and not measured and cluster.world_size > 1:
        return Envelope(_competing(cluster, collective, wanted, asked))
    require_priced(cluster, collective, wanted, known)
    if cluster.world_size == 1:
        return Envelope(dict.fromkeys(wanted, FREE))
    if measured:
        curves = _curve_costs(cluster, collective)
        return Envelope({name: curves[name] for name in wanted})
    if asked.sizes:
        return Envelope(_competing(cluster, collective, wanted, asked, every=True))
    price = partial(schedule_cost, cluster, collective)
    return Envelope(priced(wanted, price, every=True))


class UnmeasuredError(UnknownNameError):
    """An algorithm that there is, and that has no price on a cluster.

    Args:
        collective: what it is an algorithm of.
        name: the algorithm.
        cluster: the machines.
        known: the algorithms that have a price there.
    """

    def __init__(self, collective: str, name: str, cluster: Cluster, known: Iterable[str]) -> None:
        without = ", and has no formula" if name == NATIVE else ""
        SyncopateError.__init__(
            self,
            f"algorithm {name!r} was not measured for {collective} on {cluster.name!r}{without}; "
            f"known here: {', '.join(known)}",
        )
        self.kind, self.name = "algorithm", name


def require_priced(
    cluster: Cluster, collective: str, names: Iterable[str], known: Sequence[str]
) -> None:
    """Refuse algorithms that have no price on a cluster, of which ``known`` have one.

    Raises:
        UnmeasuredError: there is such an algorithm, without a price there.
        UnknownNameError: there is none.
    """
    for name in names:
        if name not in known:
            if name == NATIVE or has(collective, name):
                raise UnmeasuredError(collective, name, cluster, known)
            raise UnknownNameError("algorithm", name, known, f"{collective} on {cluster.name!r}")


def priced(
    names: Iterable[str], price: Callable[[str], CostFunction], *, every: bool
) -> dict[str, CostFunction]:
    """Return the cost of each algorithm; of one that has no price, none, unless ``every`` is asked.

    Raises:
        InvalidValueError, ScheduleError: why one has none, where every one is asked for or none of
            them has any.
    """
    found: dict[str, CostFunction] = {}
    refusal: SyncopateError | None = None
    for name in names:
        try:
            found[name] = price(name)
        except (InvalidValueError, ScheduleError) as error:
            if every:
                raise
            refusal = refusal or error
    if refusal is not None and not found:
        raise refusal
    return found


def _competing(
    cluster: Cluster, collective: str, names: Sequence[str], asked: Asked, *, every: bool = False
) -> dict[str, CostFunction]:
    """Return the prices of algorithms, each right at the sizes at which it may be the cheapest.

    Where some sizes are asked for, it is right at these alone. With ``every``, an algorithm that
    has no price is refused. Those that have formulas come first, and those by levels, of which
    little is played: playing others where they are far dearer would be of no use.
    """
    known: dict[str, CostFunction] = {}

    def effort(name: str) -> int:
        try:
            fitted_to = variants(cluster, collective, name)[0]
        except (InvalidValueError, ScheduleError):
            return 0  # it has no price, and says so at once
        if cluster.handling or closed_lines(cluster, collective, name, fitted_to):
            return 0
        return 1 if ALGORITHMS[collective, name].hierarchical else 2

    def price(name: str) -> CostFunction:
        if efforts[name] and (known or asked.sizes):
            rival = lower_envelope([cost.pieces for cost in known.values()]) if known else None
            known[name] = _schedule_cost(cluster, collective, name, rival, asked)
        else:
            known[name] = schedule_cost(cluster, collective, name)
        return known[name]

    efforts = {name: effort(name) for name in names}
    made = priced(sorted(names, key=efforts.__getitem__), price, every=every)
    return {name: made[name] for name in names if name in made}


@remembered
def _curve_costs(cluster: Cluster, collective: str) -> dict[str, CurveCost]:
    """Return the costs of all measured algorithms; see [Note: beyond the samples]."""
    curves = {c.algorithm: c for c in cluster.curves if c.collective == collective}
    schedules = {name: _schedule(cluster, curve) for name, curve in curves.items()}
    furthest = max(map(_end, curves.values()))
    found: dict[str, CurveCost] = {}
    factor = 0.0
    # Those measured further come first: the others are held to them.
    for name in sorted(curves, key=lambda name: -_end(curves[name])):
        curve, schedule = curves[name], schedules[name]
        limits = [_at_line_rate(cluster, collective, schedule)]
        if _end(curve) == furthest:
            if schedule is not None and furthest < LONG_BYTES:
                limits.append(_pieces(schedule, cluster))
        elif schedule is not None:
            factor = factor or _dearer(cluster, found, schedules)
            limits.append(_pieces(schedule, cluster).times(factor))
        else:
            further = [cost.pieces for cost in found.values() if cost.sizes[-1] > _end(curve)]
            cheapest = lower_envelope(further)
            # It stays as far behind as it was where it was last seen.
            there_s = float(cheapest(_end(curve)))
            behind = curve.points[-1].expected_s / there_s if there_s else 1.0
            limits.append(cheapest.times(max(1 + UNMEASURED, behind)))
        found[name] = CurveCost(curve, highest(limits))
    return found


def _at_line_rate(cluster: Cluster, collective: str, schedule: Schedule | None) -> Pieces:
    """Return the time that the bytes of a schedule need on the busiest link; None is unknown."""
    if schedule is None:
        return Pieces.of([math.inf], [0.0], [line_s_per_byte(cluster, collective)])
    return Pieces.of([math.inf], [0.0], [busiest_s_per_byte(schedule, cluster)])


def _dearer(
    cluster: Cluster, costs: Mapping[str, CurveCost], schedules: Mapping[str, Schedule | None]
) -> float:
    """Return what prices are multiplied with to compare with the curves that go the furthest."""
    furthest = max(cost.sizes[-1] for cost in costs.values())
    ratios = []
    for name, cost in costs.items():
        schedule = schedules[name]
        if schedule is not None and cost.sizes[-1] == furthest:
            price_s = float(_pieces(schedule, cluster)(furthest))
            if price_s > 0:
                ratios.append(float(cost(furthest)) / price_s)
    return (1 + UNMEASURED) * max(1.0, min(ratios, default=1.0))


def _end(curve: CollectiveCurve) -> int:
    return curve.points[-1].nbytes


def _schedule(cluster: Cluster, curve: CollectiveCurve) -> Schedule | None:
    """Return what a curve would run beyond its largest size; None where it is not known."""
    if not has(curve.collective, curve.algorithm):
        return None
    options: dict[str, Any] = dict(curve.points[-1].options)
    if curve.order:
        options[ORDER] = curve.order
    try:
        return build(curve.collective, curve.algorithm, cluster.world_size, **options)
    except (InvalidValueError, UnknownNameError):
        # Measured by another version, with options that this one does not take.
        return None


@remembered
def schedule_cost(cluster: Cluster, collective: str, algorithm: str) -> VariantCost:
    """Return the price of an algorithm, at every size with the best options of :func:`variants`.

    Worked out once for a cluster and remembered.

    Raises:
        UnknownNameError: no such algorithm.
    """
    return _schedule_cost(cluster, collective, algorithm, None)


def _schedule_cost(
    cluster: Cluster,
    collective: str,
    algorithm: str,
    rival: Pieces | None,
    asked: Asked = EVERYWHERE,
) -> VariantCost:
    """Return :func:`schedule_cost`, right where it is asked for and not far above ``rival``."""
    known = variants(cluster, collective, algorithm)
    costs = _fixed_costs(cluster, collective, algorithm, known, rival=rival, asked=asked)
    found = list(zip(known, costs, strict=True))
    return VariantCost(found, lambda options: fixed_cost(cluster, collective, algorithm, options))


@remembered
def cost_at_s(cluster: Cluster, collective: str, algorithm: str, nbytes: float) -> float:
    """Return what :func:`schedule_cost` says of one size, without working out the others.

    Raises:
        UnknownNameError: no such algorithm.
        InvalidValueError: more ranks than can be priced one by one.
    """
    found = []
    for options in variants(cluster, collective, algorithm):
        if cluster.handling or closed_lines(cluster, collective, algorithm, options):
            return float(schedule_cost(cluster, collective, algorithm)(nbytes))
        _require_few(cluster, collective, algorithm)
        schedule = build(collective, algorithm, cluster.world_size, **options)
        found.append(price(schedule, cluster, nbytes))
    return min(found)


def variants(cluster: Cluster, collective: str, algorithm: str) -> tuple[dict[str, Any], ...]:
    """Return the options with which an algorithm is worth pricing on ``cluster``, simplest first.

    Those that fit it (:func:`~syncopate.schedules.registry.fitted`), and with them every number of
    :data:`BLOCKS`, or of :data:`PIPELINES` where there are levels to work at the same time, and
    few enough ranks (:data:`MOST_CHUNKED`).

    Raises:
        UnknownNameError: no such algorithm.
    """
    fitting = fitted(collective, algorithm, cluster)
    known = ALGORITHMS[collective, algorithm].options
    if "blocks" in known:
        return tuple(fitting | {"blocks": blocks} for blocks in BLOCKS)
    if "pipelines" in known and len(cluster_factors(cluster)) > 1:
        few = equal_sizes(cluster) == cluster_factors(cluster) or cluster.world_size <= MOST_CHUNKED
        return tuple(fitting | {"pipelines": count} for count in (PIPELINES if few else (1,)))
    return (fitting,)


def fixed_cost(
    cluster: Cluster, collective: str, algorithm: str, options: Mapping[str, Any]
) -> CostFunction:
    """Return the price of an algorithm's schedule with given options, as a cost function.

    On a calibrated cluster that is what the executor is expected to take (``execution.py``). By
    the papers' model, which is all that is known of a cluster written by hand, it is that of
    ``price.py``; where a formula is known that says the same (``closed_lines``), no schedule is
    made.

    Raises:
        UnknownNameError: no such algorithm or option.
        InvalidValueError: no such value of an option, or more ranks than can be priced one by one.
    """
    (cost,) = _fixed_costs(cluster, collective, algorithm, (options,))
    return cost


def _fixed_costs(
    cluster: Cluster,
    collective: str,
    algorithm: str,
    variants: Sequence[Mapping[str, Any]],
    *,
    rival: Pieces | None = None,
    asked: Asked = EVERYWHERE,
) -> list[CostFunction]:
    """Return the price of an algorithm with each of several options, as :func:`fixed_cost`."""
    found: list[CostFunction] = []
    chunked = (collective, algorithm) == STAGED and any("pipelines" in o for o in variants)
    if chunked and not cluster.handling:
        staged = staged_pieces(cluster, variants)
        if staged:
            return [CostFunction(pieces) for pieces in staged]
    for options in variants:
        if not cluster.handling:
            lines = closed_lines(cluster, collective, algorithm, options)
            pieces = highest_line(lines) if lines else None
            pieces = pieces or rail_pieces(cluster, collective, algorithm, options, rival)
            if pieces is not None:
                found.append(CostFunction(pieces))
                continue
            _require_few(cluster, collective, algorithm)
        schedule = build(collective, algorithm, cluster.world_size, **options)
        found.append(CostFunction(_pieces(schedule, cluster, rival, asked)))
    return found


def _require_few(cluster: Cluster, collective: str, algorithm: str) -> None:
    """Refuse a schedule whose table would not fit into memory.

    Raises:
        InvalidValueError: of a cluster of several levels, or an algorithm of one's own.
    """
    most = MAX_NARROW_RANKS if algorithm in NARROW else MAX_PRICED_RANKS
    if cluster.world_size > most:
        levels = sizes_text(cluster.levels)
        raise InvalidValueError(
            "ranks",
            cluster.world_size,
            f"at most {most}: {collective} ({algorithm}) on levels of {levels} has no "
            "formula with these options, and is priced message by message; every algorithm has one "
            "on a single level, and most on several where factors are the levels and ranks are in "
            "their order",
        )


def _pieces(
    schedule: Schedule,
    cluster: Cluster,
    rival: Pieces | None = None,
    asked: Asked = EVERYWHERE,
) -> Pieces:
    if cluster.handling:
        return execution_cost(schedule, cluster)
    return price_pieces(schedule, cluster, rival, asked)


def unequal_factor(
    cluster: Cluster, recipe: Recipe, bounds: tuple[int, ...], itemsize: int
) -> float:
    """Return how many times as long a collective takes if rank r's shard is no equal one.

    What the cluster's cost of the even collective is multiplied with. A schedule is priced transfer
    by transfer with its chunks as long as they then are, and without; the busiest link takes its
    bytes at line rate at least, burst aside.

    Args:
        cluster: the machines.
        recipe: a reduce-scatter or all-gather that the cluster has a cost for, with the options
            that it is to run with.
        bounds: rank r's shard is the elements ``bounds[r]:bounds[r + 1]``.
        itemsize: bytes per element.

    Raises:
        InvalidValueError: the collective has no shards, or these are no bounds of its ranks'.
        UnknownNameError: an algorithm that has no schedule, or none that can be priced.
    """
    if not conditions(recipe.collective).sharded:
        raise InvalidValueError("collective", recipe.collective, "one with shards")
    p, nbytes = cluster.world_size, bounds[-1] * itemsize
    if checked_bounds(bounds, bounds[-1], p) is None:
        return 1.0
    try:
        costs = collective_costs(cluster, recipe.collective, (recipe.algorithm,))
        even = costs.of(recipe.algorithm).fixed(recipe.options)
    except UnmeasuredError:  # another stands in for it, and its own schedule is what is compared
        even = fixed_cost(cluster, recipe.collective, recipe.algorithm, recipe.options)
    even_s = float(even(nbytes))
    schedule = build(recipe.collective, recipe.algorithm, p, recipe.root, **recipe.options)
    ratio, least_s = _unequal(cluster, schedule, bounds, itemsize)
    return max(ratio, least_s / even_s)


@remembered
def _unequal(
    cluster: Cluster, schedule: Schedule, bounds: tuple[int, ...], itemsize: int
) -> tuple[float, float]:
    """Return how many times as long a schedule takes by its price, and the seconds at least."""
    nbytes = bounds[-1] * itemsize
    unit = 1 + (bounds[-1] >> 31)  # a table of transfers counts no further
    unequal = by_element(schedule, tuple(bound // unit for bound in bounds))
    priced_s = [_played_s(each, cluster, nbytes, itemsize) for each in (schedule, unequal)]
    lag_s = max(level.burst_bytes * level.byte_time_s for level in cluster.levels)
    least_s = busiest_s_per_byte(unequal, cluster) * nbytes - lag_s
    return priced_s[1] / priced_s[0], least_s


def _played_s(schedule: Schedule, cluster: Cluster, nbytes: int, itemsize: int) -> float:
    """Return the price of a schedule at one size, as :func:`fixed_cost` gives it for all."""
    if cluster.handling:
        return float(execution_times(schedule, cluster, nbytes, itemsize=itemsize))
    return float(_pieces(schedule, cluster)(nbytes))
