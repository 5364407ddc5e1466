"""Training: what the collectives of an exchange cost in iterations, one after the other.

Collectives follow one another there, and what passes one link in a burst passes it once. So every
byte takes its share of the physical bound at least (``bound.py``), however fast one short
collective alone was measured.

[Note: one after the other] Calibration measures collectives alone, from agreed starts. A long
reduce-scatter or all-gather whose ranks turn to other peers from round to round takes longer where
another one goes before it: ranks enter it apart, and messages of two rounds meet on a link while
another one idles. On four hosts at 1 Gbit/s, recursive and hierarchical ones of 13 MiB took 1.03 to
1.12 times what the wire does alone, and 1.32 times one after another; rings took 1.02 to 1.03 times
(``benchmarks/one_after_another.py``). So on a measured cluster a byte of theirs takes
``_AFTER_ANOTHER`` times its share of the bound.

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

[Note: beside gradients] Every backward ends with what ranks have to tell each other: a flag for
each parameter and some for each rank, and the small buffers of the model. Under ``allreduce`` they
ride behind the last bucket, which takes as much longer as the line rate says of their bytes. Where
ranks own what they update, they are an all-reduce of their own (recursive doubling) behind the last
push. Where averages are pulled, the sum of squares of each gradient is among it. A model with
buffers also has rank 0 say, once an iteration and while nothing else goes on, whether it changed
them meanwhile: a broadcast (MST) of a few bytes. Under ``fsdp`` torch tells nothing of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import wire_bytes, wire_s
from syncopate.costs.model.collective import (
    collective_costs,
    cost_at_s,
    fixed_cost,
    priced,
    variants,
)
from syncopate.costs.model.functions import (
    CostFunction,
    Costs,
    CurveCost,
    Envelope,
    PiecewiseCost,
    VariantCost,
)
from syncopate.costs.model.pieces import FloatArray, Pieces
from syncopate.costs.model.remembered import remembered
from syncopate.costs.model.served import served_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import algorithms, candidates, has, keeps_its_peers

_MEASURED_MOST = "all_reduce"
_AFTER_ANOTHER = 1.3
_LARGEST_BYTES = 1 << 30
_ASKED_BYTES = 4
_SQUARE_BYTES = 4


@remembered
def training_costs(
    cluster: Cluster,
    nbytes: int,
    names: tuple[str, ...] | None = None,
    collective: str = _MEASURED_MOST,
) -> Envelope:
    """Return what a collective costs in iterations that carry ``nbytes``; see the module.

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        names: the algorithms wanted; as for
            :func:`~syncopate.costs.model.collective.collective_costs`.
        collective: such as ``"reduce_scatter"``.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced.
    """
    share = wire_s(cluster, nbytes, collective) / nbytes if nbytes else 0.0
    measured = {curve.collective for curve in cluster.curves}
    if cluster.world_size == 1 or collective in measured or _MEASURED_MOST not in measured:
        found = collective_costs(cluster, collective, names)
    else:
        found = _derived(cluster, collective, names)
    if measured and conditions(collective).sharded:
        ranks = cluster.world_size
        turning = {name for name in found.names if not keeps_its_peers(collective, name, ranks)}
        found = found.held(turning, _AFTER_ANOTHER * share)
    return found.at_least(share)


def exchange_costs(
    cluster: Cluster, nbytes: int, exchange: str, names: tuple[str, ...] | None = None
) -> Costs:
    """Return the costs in training of every collective of an exchange.

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        exchange: one of ``EXCHANGES``.
        names: the algorithms wanted, the same for its collectives; by default the best.

    Raises:
        UnknownNameError: no such exchange, or an algorithm that was neither measured nor can be
            priced.
    """
    if exchange not in EXCHANGES:
        raise UnknownNameError("exchange", exchange, EXCHANGES)
    kind = EXCHANGES[exchange]
    if kind.asks_servers:
        served = served_costs(cluster)
        return {n: served[n] if names is None else served[n].only(names[0]) for n in served}
    found = {name: training_costs(cluster, nbytes, names, name) for name in kind.needed}
    if kind.replicated:
        with suppress(UnknownNameError):  # where it has none of these algorithms
            found[kind.replicated] = training_costs(cluster, nbytes, names, kind.replicated)
    return found


def plan_costs(cluster: Cluster, nbytes: int, plan: Plan) -> Costs:
    """Return the costs in training of the algorithms that a plan names, and of no others.

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        plan: whose recipes count.

    Raises:
        UnknownNameError: an algorithm that was neither measured nor can be priced.
    """
    if EXCHANGES[plan.exchange].asks_servers:
        return served_costs(cluster)
    names: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for bucket in plan.buckets:
        for _, recipe in bucket.recipes:
            names[recipe.collective][recipe.algorithm] = None
    return {
        collective: training_costs(cluster, nbytes, tuple(found), collective)
        for collective, found in names.items()
    }


def weight_sync_s(cluster: Cluster, nbytes: int, costs: Costs | None = None) -> float:
    """Return what a broadcast of rank 0's weights takes, beside which nothing else goes on.

    It is priced as one message. The backend's own carries it; where that was not measured, the
    cheapest there is stands in for it.

    Args:
        cluster: the machines.
        nbytes: of all weights.
        costs: by collective; where they have no broadcast, those of the cluster in training.
    """
    found = (costs or {}).get("broadcast") or training_costs(cluster, nbytes, None, "broadcast")
    if NATIVE in found.costs:
        return float(found.of(NATIVE)(nbytes))
    return found.bucket([nbytes]).seconds


def beside_s(cluster: Cluster, workload: Workload, exchange: str, share: float = 1.0) -> float:
    """Return what an iteration takes longer for what ranks tell each other beside gradients.

    See [Note: beside gradients].

    Args:
        cluster: the machines.
        workload: whose flags and buffers travel.
        exchange: one of ``EXCHANGES``.
        share: of the bytes of gradients, what goes on the wire.
    """
    nbytes = workload.beside_nbytes(cluster.world_size)
    if not nbytes or EXCHANGES[exchange].gathers:
        return 0.0
    if EXCHANGES[exchange].pulls_gradients:
        nbytes += _SQUARE_BYTES * len(workload.tensors)
    asked_s = 0.0
    if workload.buffers_nbytes:
        asked_s = cost_at_s(cluster, "broadcast", "mst", _ASKED_BYTES)
    if EXCHANGES[exchange].pull:
        alone_s = cost_at_s(cluster, _MEASURED_MOST, "recursive_doubling", nbytes)
        return asked_s + max(alone_s, wire_s(cluster, nbytes))
    gradients = workload.nbytes
    riding_s = wire_s(cluster, share * (gradients + nbytes)) - wire_s(cluster, share * gradients)
    return asked_s + riding_s


def on_the_wire(costs: Costs, share: float, exchange: str = "") -> Costs:
    """Return costs by the bytes of gradients of which ``share`` go on the wire.

    What carries gradients is narrowed: collectives that add, and in an ``exchange`` that pulls
    averages of gradients the others as well.
    """
    if share == 1:
        return costs
    everything = exchange in EXCHANGES and EXCHANGES[exchange].pulls_gradients
    return {
        name: envelope.narrowed(share) if everything or conditions(name).reduces else envelope
        for name, envelope in costs.items()
    }


class _Shown(NamedTuple):
    """How a measured all-reduce relates to the price of its schedule.

    Attributes:
        sizes: bytes, ascending, > 0.
        factors: measured seconds over the price, at each of them.
    """

    sizes: FloatArray
    factors: FloatArray

    def correct(self, cost: CostFunction) -> PiecewiseCost:
        """Return a cost times the factor: chords between sizes at most a factor of two apart."""
        powers = 2.0 ** np.arange(2, int(_LARGEST_BYTES).bit_length())
        sizes = np.union1d(powers, self.sizes)
        factors = np.interp(np.log(sizes), np.log(self.sizes), self.factors)
        seconds = np.maximum.accumulate(cost(sizes) * factors)
        slopes = np.concatenate(([0.0], np.diff(seconds) / np.diff(sizes)))
        slopes = np.append(slopes, slopes[-1])
        anchors, levels = np.append(sizes[:1], sizes), np.append(seconds[:1], seconds)
        return PiecewiseCost(
            Pieces.of(np.append(sizes, math.inf), levels - slopes * anchors, slopes)
        )


@remembered
def _shown(cluster: Cluster) -> _Shown | None:
    """Return what the measured all-reduces show of prices; None where none has a schedule."""
    measured = collective_costs(cluster).costs
    for name in sorted(measured, key=lambda name: name != "ring"):
        cost = measured[name]
        if not has(_MEASURED_MOST, name) or not isinstance(cost, CurveCost):
            continue
        least, most = max(min(cost.sizes), 4), max(cost.sizes)
        powers = 2.0 ** np.arange(math.log2(least), math.log2(most) + 1)
        sizes = np.unique([*(n for n in cost.sizes if n >= 4), *powers[powers <= most]])
        try:
            price = fixed_cost(cluster, _MEASURED_MOST, name, dict(cost.options(most)))
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
    for name in wanted:
        if name not in known:
            raise UnknownNameError("algorithm", name, known, f"{collective} on {cluster.name!r}")
    if shown is None:
        ways = [wire_bytes(cluster.world_size, 1.0, c) for c in (collective, _MEASURED_MOST)]
        pieces = collective_costs(cluster).of(NATIVE).pieces.times(ways[0] / ways[1])
        return Envelope(dict.fromkeys(wanted, PiecewiseCost(pieces)))
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
