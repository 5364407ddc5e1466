"""Predictor: from a setting to its point; clusters, prices of collectives and points are kept.

Prices are remembered by the identity of a cluster (``costs/model/remembered.py``), so settings that
share their machines share one cluster here, also where they compute or exchange differently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

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

V = TypeVar("V")


class _Kept(OrderedDict[Hashable, V]):
    """Values by key, the last used ones."""

    def get_or(self, key: Hashable, make: Callable[[], V]) -> V:
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = self[key] = make()
        if len(self) > _KEPT:
            self.popitem(last=False)
        return value


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
        self._clusters: _Kept[Cluster] = _Kept()
        self._workloads: _Kept[Workload] = _Kept()
        self._points: _Kept[Point] = _Kept()
        self._iterations: _Kept[float] = _Kept()

    def point(self, setting: Setting) -> Point:
        """Return the point of a setting, with intervals.

        Raises:
            InvalidValueError, UnknownNameError: settings that cannot be, or do not go together.
        """
        return self._points.get_or(setting, lambda: self._point(setting))

    def iteration_s(self, setting: Setting, *, ddp: bool, shifts: tuple[float, ...]) -> float:
        """Return the iteration of the best plan, or of DDP's, with other inputs; no interval.

        Args:
            setting: of the point.
            ddp: whether DDP's buckets are asked for.
            shifts: what bandwidth, latency and computation are multiplied by.
        """
        return self._iterations.get_or(
            (setting, ddp, shifts), lambda: self._iteration_s(setting, ddp, shifts)
        )

    def _iteration_s(self, setting: Setting, ddp: bool, shifts: tuple[float, ...]) -> float:
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

    def _point(self, setting: Setting) -> Point:
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
        machines = (
            setting.nodes,
            setting.gpus_per_node,
            setting.bandwidth_bytes_per_s,
            setting.latency_s,
            setting.oversubscription,
            setting.levels,
        )
        cluster = self._clusters.get_or(
            (machines, bandwidth, latency),
            lambda: shifted(cluster_of(self.cluster, setting), bandwidth, latency),
        )
        workload = self._workloads.get_or(
            (setting.gpu_speed, setting.profile, setting.batch, compute),
            lambda: slower(self.work.at(setting), compute),
        )
        return workload, cluster


def throughput(setting: Setting, iteration_s: float) -> float:
    """Return samples per second, or iterations of ranks where the batch is not known."""
    return setting.ranks * (setting.batch or 1) / iteration_s if iteration_s > 0 else 0.0


def efficiency(compute_s: float, iteration_s: float) -> float:
    """Return which share of an iteration is computation."""
    return min(compute_s / iteration_s, 1.0) if iteration_s > 0 else 1.0
