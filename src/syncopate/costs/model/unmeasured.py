"""Unmeasured: what a collective costs that was not measured on a calibrated cluster.

[Note: collectives without measurements] Calibration measures all-reduces unless told to measure
more. A reduce-scatter or all-gather that was not measured is believed to take its schedule's price,
times what the measured ring all-reduce takes over its own price at that size. The ring is a
reduce-scatter and an all-gather by the same messages, one after the other, so what its price leaves
out, the work of processors and how well a link is filled, its halves share. Reduces and broadcasts
are chains and trees of the same executor on the same links; the same factor is the best guess there
is. Beyond the ring's sizes the factor stays what it was at the last. Without a ring another
schedule that was measured stands in for it. Where the backend's own all-reduce alone was measured,
the backend carries the other collectives too, and its time is in proportion to the bytes that each
must send.

[Note: stand-ins] A plan may name an algorithm that has no price where it is looked at: the
backend's own on a typical network, or one that was not measured on a calibrated
cluster. Prediction and simulation then take what comes nearest, and :class:`StandIn` says so:

* the price of its schedule, corrected as above, where it has one;
* for the backend's own the ring, as Gloo and NCCL run one for large messages; for rooted
  collectives, which have no ring, MST;
* the backend's own where it alone was measured; otherwise the cheapest that has a price.

Planning takes no stand-ins: it chooses among what has a price.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.flows.curve import EVERYWHERE, Asked
from syncopate.costs.model.bound import wire_bytes
from syncopate.costs.model.collective import (
    collective_costs,
    fixed_cost,
    priced,
    require_priced,
    variants,
)
from syncopate.costs.model.functions import CostFunction, CurveCost, Envelope, VariantCost
from syncopate.costs.model.pieces import FloatArray, Pieces
from syncopate.costs.model.remembered import remembered
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE
from syncopate.schedules.registry import algorithms, candidates, has, require

MEASURED_MOST = "all_reduce"
"""What calibration measures unless told otherwise."""

_RING, _ROOTED = "ring", "mst"
"""What stands in for the backend's own algorithm; the second where a collective has no ring."""

_LARGEST_BYTES = 1 << 30


class StandIn(NamedTuple):
    """What an algorithm costs by itself on a cluster, by its own price or another's.

    Attributes:
        collective: such as ``"all_reduce"``.
        algorithm: the one that was asked for.
        cluster: the name of the machines.
        cost: seconds by bytes.
        by: what stands in for the algorithm; empty where its price is its own.
    """

    collective: str
    algorithm: str
    cluster: str
    cost: CostFunction
    by: str = ""

    @property
    def told(self) -> str:
        """The sentence that says so."""
        what = f"{self.algorithm} for {self.collective}"
        return f"{what} was not measured on {self.cluster!r}: {self.by} stands in for it"


def for_native(collective: str) -> str:
    """Return the algorithm that stands in for the backend's own, where that was not measured."""
    return _RING if has(collective, _RING) else _ROOTED


def stand_in(
    cluster: Cluster, collective: str, algorithm: str, asked: Asked = EVERYWHERE
) -> StandIn:
    """Return what an algorithm costs by itself, at some sizes or at all; see [Note: stand-ins].

    Raises:
        UnknownNameError: it is registered nowhere.
    """
    require(collective, algorithm, allow_native=True)
    found = partial(StandIn, collective, algorithm, cluster.name)
    try:
        return found(alone_costs(cluster, collective, (algorithm,), asked).of(algorithm))
    except UnknownNameError:
        pass
    if algorithm != NATIVE and _shown(cluster) is not None:
        return found(_corrected(cluster, collective, algorithm), "the price of its schedule")
    costs = alone_costs(cluster, collective, None).costs
    usual = (name for name in (for_native(collective), NATIVE) if name in costs)
    by = next(usual, next(iter(costs)))
    # Without its options, which are not those of the algorithm that was asked for.
    return found(CostFunction(costs[by].pieces), by)


def alone_costs(
    cluster: Cluster,
    collective: str,
    names: Iterable[str] | None,
    asked: Asked = EVERYWHERE,
) -> Envelope:
    """Return the costs of a collective by itself, by algorithm.

    Those of :func:`~syncopate.costs.model.collective.collective_costs`; where all-reduces alone
    were measured, those that follow from them: [Note: collectives without measurements].

    Args:
        cluster: the machines.
        collective: such as ``"reduce_scatter"``.
        names: the algorithms wanted; by default all worth considering.
        asked: as for :func:`~syncopate.costs.model.collective.collective_costs`.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced.
    """
    wanted = None if names is None else tuple(names)
    measured = {curve.collective for curve in cluster.curves}
    if cluster.world_size == 1 or collective in measured or MEASURED_MOST not in measured:
        return collective_costs(cluster, collective, wanted, asked)
    return _derived(cluster, collective, wanted)


class _Shown(NamedTuple):
    """How a measured all-reduce relates to the price of its schedule.

    Attributes:
        sizes: bytes, ascending, > 0.
        factors: measured seconds over the price, at each of them.
    """

    sizes: FloatArray
    factors: FloatArray

    def correct(self, cost: CostFunction) -> CostFunction:
        """Return a cost times the factor: chords between sizes at most a factor of two apart."""
        powers = 2.0 ** np.arange(2, int(_LARGEST_BYTES).bit_length())
        sizes = np.union1d(powers, self.sizes)
        factors = np.interp(np.log(sizes), np.log(self.sizes), self.factors)
        seconds = np.maximum.accumulate(cost(sizes) * factors)
        return CostFunction(Pieces.chords(sizes, seconds))


@remembered
def _shown(cluster: Cluster) -> _Shown | None:
    """Return what the measured all-reduces show of prices; None where none has a schedule."""
    measured = collective_costs(cluster).costs
    for name in sorted(measured, key=lambda name: name != "ring"):
        cost = measured[name]
        if not has(MEASURED_MOST, name) or not isinstance(cost, CurveCost):
            continue
        least, most = max(min(cost.sizes), 4), max(cost.sizes)
        powers = 2.0 ** np.arange(math.log2(least), math.log2(most) + 1)
        sizes = np.unique([*(n for n in cost.sizes if n >= 4), *powers[powers <= most]])
        try:
            price = fixed_cost(cluster, MEASURED_MOST, name, dict(cost.options(most)))
        except (InvalidValueError, UnknownNameError):
            # Measured by another version, with options that this one does not take.
            continue
        priced_s = price(sizes)
        if len(sizes) and (priced_s > 0).all():
            return _Shown(sizes, cost(sizes) / priced_s)
    return None


def _derived(cluster: Cluster, collective: str, names: tuple[str, ...] | None) -> Envelope:
    """Return the costs of a collective that was not measured beside all-reduces that were."""
    shown = _shown(cluster)
    known = (NATIVE,) if shown is None else algorithms(collective, names or ())
    default = (NATIVE,) if shown is None else candidates(collective, cluster)
    wanted = default if names is None else names
    require_priced(cluster, collective, wanted, known)
    if shown is None:
        ways = [wire_bytes(cluster.world_size, 1.0, c) for c in (collective, MEASURED_MOST)]
        pieces = collective_costs(cluster).of(NATIVE).pieces.times(ways[0] / ways[1])
        return Envelope(dict.fromkeys(wanted, CostFunction(pieces)))
    price = partial(_corrected, cluster, collective)
    return Envelope(priced(wanted, price, every=names is not None))


@remembered
def _corrected(cluster: Cluster, collective: str, algorithm: str) -> VariantCost:
    """Return the price of an algorithm as corrected, with the best of its options at every size."""
    shown = _shown(cluster)
    assert shown is not None

    def price(options: Mapping[str, Any]) -> CostFunction:
        assert shown is not None
        return shown.correct(fixed_cost(cluster, collective, algorithm, options))

    found = [(options, price(options)) for options in variants(cluster, collective, algorithm)]
    return VariantCost(found, price)
