"""BSP-SGD: the three algorithms of the LP paper's Section 3.3 as plans.

===== ========================================== ============== ============ ======================
Alg.  what it does                               exchange       buckets      forward waits for
===== ========================================== ============== ============ ======================
1     reduces a layer while backward goes on,    ``rooted``     one a layer  the weights of the
      broadcasts one while forward does                                      layer that computes
2     reduces all gradients, updates at the      ``rooted``     one          all weights
      root, broadcasts all weights
3     all-reduces all gradients, updates         ``allreduce``  one          nothing
      everywhere; every fifth iteration the
      root broadcasts its weights
===== ========================================== ============== ============ ======================

[Note: numbers] Section 3 and Table 2 number the algorithms differently, and here Section 3 counts.
By Section 4.2 what Table 2 calls Alg. 3 overlaps (``max(comm, compt)``, "LP-Overlap-Alg.3"), which
in Section 3 Alg. 1 alone does. Its Alg. 1 does not overlap and is, for MST, Caffe, which broadcasts
and reduces (footnote 2): Section 3's Alg. 2. There is left its Alg. 2, which does not overlap
either: Section 3's Alg. 3.

The paper lets Alg. 3 broadcast the weights because ranks that update for themselves drift apart in
its floating-point arithmetic. The all-reduces here end with the same bits on every rank, so that
equal optimizers keep equal weights, and a broadcast repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, EXCHANGES, ROOTED, Bucket, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.training import exchange_costs, training_costs
from syncopate.planning import predict
from syncopate.recipe import NATIVE, Recipe
from syncopate.recipe import ROOTED as WITH_ROOT
from syncopate.schedules.registry import algorithms
from syncopate.simulation.traffic import bytes_by_dtype


class Algorithm(NamedTuple):
    """One of the three, as the module's table has it.

    Attributes:
        exchange: of its plan.
        by_layer: one bucket for each layer, instead of one for all.
        weight_sync_period: iterations between broadcasts of the root's weights; 0 for none.
        printed: what Table 2 calls it; see [Note: numbers].
    """

    exchange: str
    by_layer: bool
    weight_sync_period: int
    printed: str


ALGORITHMS = {
    1: Algorithm(ROOTED, True, 0, "Alg.3"),
    2: Algorithm(ROOTED, False, 0, "Alg.1"),
    3: Algorithm(ALLREDUCE, False, 5, "Alg.2"),
}
"""Number in Section 3 -> what it is."""


def bsp_sgd_plan(
    workload: Workload, cluster: Cluster, number: int, algorithm: str, *, root: int = 0
) -> Plan:
    """Return one of the three algorithms as a plan.

    Args:
        workload: the model.
        cluster: the machines, for the options of the collectives and the prediction.
        number: 1, 2 or 3.
        algorithm: of the reduces and broadcasts, or of the all-reduce, such as ``"lp"``. With the
            backend's own, ``"native"``, nothing is predicted.
        root: the rank that updates the weights of Algorithms 1 and 2.

    Raises:
        UnknownNameError: no such algorithm.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    row = ALGORITHMS[number]
    costs = {}
    if algorithm != NATIVE:
        names, nbytes = (algorithm,), workload.nbytes
        costs = dict(exchange_costs(cluster, nbytes, row.exchange, names))
        if row.weight_sync_period and algorithm in algorithms("broadcast"):
            costs["broadcast"] = training_costs(cluster, nbytes, names, "broadcast")

    def recipe(collective: str, sizes: Sequence[int]) -> Recipe:
        options = costs[collective].bucket(sizes).options if costs else {}
        at = root if collective in WITH_ROOT else 0
        return Recipe(collective, algorithm, root=at, options=dict(options))

    buckets = []
    for layer in _layers(workload.tensors) if row.by_layer else [workload.tensors]:
        sizes = list(bytes_by_dtype(layer).values())
        kind = EXCHANGES[row.exchange]
        buckets.append(
            Bucket(
                tensors=tuple(tensor.name for tensor in layer),
                nbytes=sum(sizes),
                push=recipe(kind.push, sizes),
                pull=recipe(kind.pull, sizes) if kind.pull else None,
            )
        )
    plan = Plan(
        model=workload.model,
        fingerprint=workload.fingerprint,
        world_size=cluster.world_size,
        policy=f"BSP-SGD {number}, {algorithm}",
        buckets=tuple(buckets),
        exchange=row.exchange,
        weight_sync_period=row.weight_sync_period,
        cluster=cluster.name,
    )
    if not costs:
        return plan
    expected: Plan = structs.replace(plan, prediction=predict(workload, plan, cluster, costs))
    return expected


def _layers(tensors: Sequence[GradientTensor]) -> Iterable[list[GradientTensor]]:
    """Yield the tensors of one module after the other; a name without a dot is a layer."""
    for _, layer in groupby(tensors, lambda tensor: tensor.name.rpartition(".")[0] or tensor.name):
        yield list(layer)
