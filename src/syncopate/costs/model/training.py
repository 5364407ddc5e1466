"""Training: what the collectives of an exchange cost in iterations, one after the other.

Collectives follow one another there, and what passes one link in a burst passes it once. So every
byte takes its share of the physical bound at least (``bound.py``), however fast one short
collective alone was measured. What was not measured is priced by ``unmeasured.py``.

[Note: one after the other] Calibration measures collectives alone, from agreed starts. A long
reduce-scatter or all-gather whose ranks turn to other peers from round to round takes longer where
another one goes before it: ranks enter it apart, and messages of two rounds meet on a link while
another one idles. On four hosts at 1 Gbit/s, recursive and hierarchical ones of 13 MiB took 1.03 to
1.12 times what the wire does alone, and 1.32 times one after another; rings took 1.02 to 1.03 times
(``benchmarks/one_after_another.py``). So on a measured cluster a byte of theirs takes
``_AFTER_ANOTHER`` times its share of the bound.

[Note: beside gradients] Every backward ends with what ranks have to tell each other: a flag for
each parameter and some for each rank, and the small buffers of the model. Under ``allreduce`` they
ride behind the last bucket, which takes as much longer as the line rate says of their bytes. Where
ranks own what they update, they are an all-reduce of their own (recursive doubling) behind the last
push. Where averages are pulled, the sum of squares of each gradient is among it. A model with
buffers also has rank 0 say, once an iteration and while nothing else goes on, whether it changed
them meanwhile: a broadcast (MST) of a few bytes. Under ``fsdp`` torch tells nothing of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.flows.curve import EVERYWHERE, Asked
from syncopate.costs.model.bound import wire_s
from syncopate.costs.model.collective import cost_at_s
from syncopate.costs.model.functions import Costs, Envelope
from syncopate.costs.model.remembered import remembered
from syncopate.costs.model.served import served_costs
from syncopate.costs.model.unmeasured import MEASURED_MOST, StandIn, alone_costs, stand_in
from syncopate.errors import UnknownNameError
from syncopate.recipe import NATIVE
from syncopate.schedules.conditions import conditions
from syncopate.schedules.registry import keeps_its_peers

_AFTER_ANOTHER = 1.3
_ASKED_BYTES = 4
_SQUARE_BYTES = 4


@remembered
def training_costs(
    cluster: Cluster,
    nbytes: int,
    names: tuple[str, ...] | None = None,
    collective: str = MEASURED_MOST,
    asked: Asked = EVERYWHERE,
) -> Envelope:
    """Return what a collective costs in iterations that carry ``nbytes``; see the module.

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        names: the algorithms wanted; as for
            :func:`~syncopate.costs.model.collective.collective_costs`.
        collective: such as ``"reduce_scatter"``.
        asked: as for :func:`~syncopate.costs.model.collective.collective_costs`.

    Raises:
        UnknownNameError: no such collective, or an algorithm that was neither measured nor can be
            priced.
    """
    return _in_training(cluster, nbytes, alone_costs(cluster, collective, names, asked), collective)


def _in_training(cluster: Cluster, nbytes: int, found: Envelope, collective: str) -> Envelope:
    """Return what collectives cost in iterations, of what each costs alone."""
    share = wire_s(cluster, nbytes, collective) / nbytes if nbytes else 0.0
    if cluster.curves and conditions(collective).sharded:
        ranks = cluster.world_size
        turning = {name for name in found.names if not keeps_its_peers(collective, name, ranks)}
        found = found.held(turning, _AFTER_ANOTHER * share)
    return found.at_least(share)


def exchange_costs(
    cluster: Cluster,
    nbytes: int,
    exchange: str,
    names: tuple[str, ...] | None = None,
    asked: Asked = EVERYWHERE,
) -> Costs:
    """Return the costs in training of every collective of an exchange.

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        exchange: one of ``EXCHANGES``.
        names: the algorithms wanted, the same for its collectives; by default the best.
        asked: as for :func:`~syncopate.costs.model.collective.collective_costs`.

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
    found = {name: training_costs(cluster, nbytes, names, name, asked) for name in kind.needed}
    if kind.replicated:
        with suppress(UnknownNameError):  # where it has none of these algorithms
            costs = training_costs(cluster, nbytes, names, kind.replicated, asked)
            found[kind.replicated] = costs
    return found


def plan_costs(
    cluster: Cluster, nbytes: int, plan: Plan, sizes: Mapping[str, tuple[float, ...]] | None = None
) -> Costs:
    """Return the costs in training of the algorithms that a plan names, and of no others.

    Where one has no price of its own, another stands in for it (:func:`stand_ins`).

    Args:
        cluster: the machines.
        nbytes: of all gradients together.
        plan: whose recipes count.
        sizes: of its messages in bytes, by algorithm, where no other is asked for.

    Raises:
        UnknownNameError: an algorithm that is registered nowhere.
    """
    if EXCHANGES[plan.exchange].asks_servers:
        return served_costs(cluster)
    return {
        collective: _named_costs(
            cluster, nbytes, tuple((n, (sizes or {}).get(n, ())) for n in names), collective
        )
        for collective, names in _named(plan).items()
    }


@remembered
def _named_costs(
    cluster: Cluster,
    nbytes: int,
    names: tuple[tuple[str, tuple[float, ...]], ...],
    collective: str,
) -> Envelope:
    """Return what algorithms cost in iterations, where need be as what stands in for them."""
    alone = {name: stand_in(cluster, collective, name, Asked(sizes)).cost for name, sizes in names}
    return _in_training(cluster, nbytes, Envelope(alone), collective)


def stand_ins(cluster: Cluster, plan: Plan) -> tuple[StandIn, ...]:
    """Return what stands in for those algorithms of a plan that have no price on a cluster.

    Args:
        cluster: the machines that carry out the plan's collectives.
        plan: whose recipes count.

    Raises:
        UnknownNameError: an algorithm that is registered nowhere.
    """
    if EXCHANGES[plan.exchange].asks_servers:
        return ()
    found = [stand_in(cluster, c, name) for c, names in _named(plan).items() for name in names]
    return tuple(one for one in found if one.by)


def _named(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the algorithms that a plan names, by collective."""
    names: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for bucket in plan.buckets:
        for _, recipe in bucket.recipes:
            names[recipe.collective][recipe.algorithm] = None
    return {collective: tuple(found) for collective, found in names.items()}


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
        alone_s = cost_at_s(cluster, MEASURED_MOST, "recursive_doubling", nbytes)
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
