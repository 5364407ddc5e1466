"""Predictor: from a setting to its point; clusters, prices of collectives and points are kept.

Prices are remembered by the identity of a cluster (``costs/model/remembered.py``), so settings that
share their machines share one cluster here, also where they compute or exchange differently.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.results.whatif import Outcome, Point, Prices, Setting
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import iteration_bound_s
from syncopate.planning.margins import EXACT, Margins, shifted, slower, with_interval
from syncopate.planning.question import predict
from syncopate.planning.whatif import quick
from syncopate.planning.whatif.costs import epoch_cost
from syncopate.planning.whatif.machines import cluster_of
from syncopate.planning.whatif.work import Work

_KEPT = 256
"""So many clusters, workloads and points are kept, each; those that were used last."""

_ANYWHERE = Setting(nodes=1, gpus_per_node=1, bandwidth_bytes_per_s=1.0, latency_s=0.0)
"""The machines of settings whose work is all that is asked of them."""


class Predictor:
    """Predicts settings of one training.

    Args:
        work: what ranks compute.
        cluster: the machines that are known.
        margins: how uncertain the inputs and the method are.
        prices: what an hour costs; None: no costs.
    """

    def __init__(
        self, work: Work, cluster: Cluster, margins: Margins, prices: Prices | None = None
    ) -> None:
        self.work = work
        self.cluster = cluster
        self.margins = margins
        self.prices = prices
        self._cluster = lru_cache(_KEPT)(self._make_cluster)
        self._workload = lru_cache(_KEPT)(self._make_workload)
        self._point = lru_cache(_KEPT)(self._make_point)
        self._iteration_s = lru_cache(_KEPT)(self._predict_iteration_s)

    def require(self, setting: Setting) -> None:
        """Refuse a setting that cannot be, before anything is predicted.

        Raises:
            InvalidValueError, UnknownNameError: as of :meth:`point`, but for algorithms and
                policies, which are known when they are priced.
        """
        cluster_of(self.cluster, setting)
        quick.exchanges(setting)
        if self.prices is not None:
            epoch_cost(self.prices, setting, 1.0)

    def point(self, setting: Setting) -> Point:
        """Return the point of a setting, with intervals.

        Raises:
            InvalidValueError, UnknownNameError: settings that cannot be, or do not go together.
        """
        return self._point(setting)

    def iteration_s(self, setting: Setting, *, ddp: bool, shifts: tuple[float, ...]) -> float:
        """Return the iteration of the best plan, or of DDP's, with other inputs; no interval.

        Args:
            setting: of the point.
            ddp: whether DDP's buckets are asked for.
            shifts: what bandwidth, latency and computation are multiplied by.
        """
        return self._iteration_s(setting, ddp, shifts)

    def _predict_iteration_s(self, setting: Setting, ddp: bool, shifts: tuple[float, ...]) -> float:
        workload, cluster = self._inputs(setting, shifts)
        plan = quick.ddp(workload, cluster) if ddp else quick.planned(workload, cluster, setting)
        return plan.expected_s

    def bound_s(self, setting: Setting) -> float:
        """Return the least time of an iteration that sends every gradient in its own type."""
        return iteration_bound_s(*self._inputs(setting, EXACT))

    def compute_s(self, setting: Setting, shifts: tuple[float, ...]) -> float:
        """Return what an iteration computes, with other inputs."""
        return self._inputs(setting, shifts)[0].compute_s

    def machines(self, setting: Setting) -> Cluster:
        """Return the cluster of a setting."""
        return self._inputs(setting, EXACT)[1]

    def _make_point(self, setting: Setting) -> Point:
        workload, cluster = self._inputs(setting, EXACT)
        best = self._outcome(setting, quick.planned(workload, cluster, setting))
        plain = self._outcome(setting, quick.ddp(workload, cluster))
        made = Point(setting=setting, best=best, ddp=plain)
        if self.prices is None:
            return made
        costs = (epoch_cost(self.prices, setting, one.throughput) for one in (best, plain))
        return replace(made, **dict(zip(("epoch_cost", "ddp_epoch_cost"), costs, strict=True)))

    def _outcome(self, setting: Setting, plan: Plan) -> Outcome:
        found = plan.prediction
        assert found is not None
        shifted_s = (self._shifted_s(setting, plan, ends) for ends in self.margins.ends())
        found = with_interval(found, shifted_s, self.margins.method)
        assert found.low_s is not None
        assert found.high_s is not None
        return Outcome(
            policy=plan.policy,
            exchange=plan.exchange,
            buckets=len(plan.buckets),
            prediction=found,
            throughput=throughput(setting, found.iteration_s),
            low_throughput=throughput(setting, found.high_s),
            high_throughput=throughput(setting, found.low_s),
            efficiency=efficiency(found.compute_s, found.iteration_s),
        )

    def _shifted_s(self, setting: Setting, plan: Plan, ends: tuple[float, ...]) -> float:
        """Return the iteration of a plan with other inputs."""
        if ends == EXACT:
            return plan.expected_s
        workload, cluster = self._inputs(setting, ends)
        return predict(workload, plan, cluster).iteration_s

    def _inputs(self, setting: Setting, shifts: tuple[float, ...]) -> tuple[Workload, Cluster]:
        bandwidth, latency, compute = shifts
        machines = Setting(
            nodes=setting.nodes,
            gpus_per_node=setting.gpus_per_node,
            bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
            latency_s=setting.latency_s,
            oversubscription=setting.oversubscription,
            levels=setting.levels,
        )
        cluster = self._cluster(machines, bandwidth, latency)
        work = replace(
            _ANYWHERE, gpu_speed=setting.gpu_speed, profile=setting.profile, batch=setting.batch
        )
        return self._workload(work, compute), cluster

    def _make_cluster(self, machines: Setting, bandwidth: float, latency: float) -> Cluster:
        return shifted(cluster_of(self.cluster, machines), bandwidth, latency)

    def _make_workload(self, work: Setting, compute: float) -> Workload:
        return slower(self.work.at(work), compute)


def throughput(setting: Setting, iteration_s: float) -> float:
    """Return samples per second, or iterations of ranks where the batch is not known."""
    return setting.ranks * (setting.batch or 1) / iteration_s if iteration_s > 0 else 0.0


def efficiency(compute_s: float, iteration_s: float) -> float:
    """Return which share of an iteration is computation."""
    return min(compute_s / iteration_s, 1.0) if iteration_s > 0 else 1.0
