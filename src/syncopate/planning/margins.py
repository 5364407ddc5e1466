"""Margins: how far a prediction may be off, as an interval around it.

Two things make a prediction uncertain: its inputs, and the method. For the inputs, the plan is
predicted again with each of them at the unfavourable end of its own interval, one at a time; the
relative shifts are those of a first-order propagation of uncertainty, and independent ones add as
squares (JCGM 100:2008, 5.1.2). With e of the method and x_i of the inputs,

    r = sqrt(min(e, communication / iteration)^2 + sum of x_i^2)
    [iteration / (1 + r), iteration (1 + r)]

The error of the method is one of communication: where little is communicated it cannot be large.
The lower end is never below what computation and line rate allow with favourable inputs.

The error of the method is what :mod:`syncopate.costs.validated` has: of GPUs from published
trainings, of processors from emulated hosts. An interval is meant to hold nine iterations in ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import FSDP, Plan, Prediction
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.costs.validated import BY_KIND
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.question import predict

Network = Callable[[Cluster], tuple[Cluster, Costs | None]]
"""What else links and switches do: a cluster in, and out with it, and what messages cost then."""

INPUTS = ("bandwidth", "latency", "compute")
"""Inputs that are uncertain, by name."""

EXACT = (1.0, 1.0, 1.0)
"""What inputs are multiplied by where they are taken as they are."""

MEASURED, TYPICAL = (0.02, 0.2, 0.03), (0.1, 0.5, 0.05)
"""By which share the inputs may be off: of a calibrated cluster, and of one written by hand."""


@dataclass(frozen=True)
class Margins:
    """How uncertain inputs and method are, as shares.

    Attributes:
        bandwidth: of every link's rate.
        latency: of every message's.
        compute: of every time of the workload.
        method: of the iteration that is predicted from exact inputs.
        source: where the method's error comes from.
    """

    bandwidth: float
    latency: float
    compute: float
    method: float
    source: str

    def __post_init__(self) -> None:
        for what in (*INPUTS, "method"):
            value = getattr(self, what)
            if not 0 <= value < 1:
                raise InvalidValueError(f"uncertainty of {what}", value, "a share in [0, 1)")

    def ends(self) -> Iterator[tuple[float, float, float]]:
        """Yield what to multiply all inputs by, each in turn at its unfavourable end."""
        yield 1 / (1 + self.bandwidth), 1.0, 1.0
        yield 1.0, 1 + self.latency, 1.0
        yield 1.0, 1.0, 1 + self.compute

    def of(self, what: str) -> float:
        """Return the share of an input."""
        return float(getattr(self, what))

    @property
    def words(self) -> str:
        """Where intervals come from, in a sentence."""
        inputs = ", ".join(f"{what} within {self.of(what):.0%}" for what in INPUTS)
        return f"{inputs}; the method within {self.method:.0%} ({self.source})"


def margins(device: str, measured: bool, given: dict[str, float]) -> Margins:
    """Return the margins of a sweep.

    Args:
        device: that the workload was profiled on, such as ``"cpu"``; anything else is a GPU.
        measured: whether the cluster's links were.
        given: shares by input, or of the ``"method"``, which take the place of the usual ones.

    Raises:
        UnknownNameError: no such input.
        InvalidValueError: a share that is none.
    """
    for name in given:
        if name not in (*INPUTS, "method"):
            raise UnknownNameError("uncertain input", name, (*INPUTS, "method"))
    usual = dict(zip(INPUTS, MEASURED if measured else TYPICAL, strict=True))
    kind, whose = ("lab", "measured") if device == "cpu" else ("gpu", "published")
    row = BY_KIND[kind]
    source = "as given"
    if "method" not in given:
        source = (
            f"of {row.points} {whose} iterations 90% were predicted within {row.p90:.1%}, half "
            f"within {row.median:.1%}: {row.source}"
        )
    return Margins(**(usual | {"method": row.p90} | given), source=source)


def sure(plan: Plan, workload: Workload, cluster: Cluster) -> Plan:
    """Return a plan whose prediction has an interval, by the usual margins; FSDP2's has none.

    Args:
        plan: with a prediction.
        workload: what it was made for.
        cluster: what it was made for.
    """
    assert plan.prediction is not None
    return replace(plan, prediction=_sure(plan.prediction, plan, workload, cluster, _alone))


def predict_surely(
    workload: Workload, plan: Plan, cluster: Cluster, network: Network | None = None
) -> Prediction:
    """Return what a plan is expected to cost, with an interval by the usual margins.

    Args:
        workload: what is computed and made ready.
        plan: whose own prediction is not looked at.
        cluster: the machines, as many ranks as the plan is for.
        network: what else links and switches do; nothing where left out.

    Raises:
        SyncopateError: as :func:`~syncopate.planning.question.predict`, and ``network``.
    """
    network = network or _alone
    there, costs = network(cluster)
    found = predict(workload, plan, there, costs)
    return _sure(found, plan, workload, cluster, network)


def _sure(
    found: Prediction, plan: Plan, workload: Workload, cluster: Cluster, network: Network
) -> Prediction:
    if plan.exchange == FSDP:  # of which no prediction was held against a measurement
        return found
    usual = margins(workload.metadata.get("device", ""), bool(cluster.probes), {})
    shifted_s = []
    for *links, compute in usual.ends():
        there, costs = network(shifted(cluster, *links))
        shifted_s.append(predict(slower(workload, compute), plan, there, costs).iteration_s)
    return with_interval(found, shifted_s, usual.method)


def _alone(cluster: Cluster) -> tuple[Cluster, Costs | None]:
    return cluster, None


def slower(workload: Workload, factor: float) -> Workload:
    """Return a workload whose every time is multiplied."""
    return workload if factor == 1 else workload.scaled(factor)


def shifted(cluster: Cluster, bandwidth: float, latency: float) -> Cluster:
    """Return a cluster whose links' rates and latencies are multiplied."""
    if bandwidth == latency == 1:
        return cluster
    return replace(
        cluster,
        levels=tuple(
            replace(
                level,
                bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * bandwidth,
                latency_s=level.latency_s * latency,
            )
            for level in cluster.levels
        ),
    )


def with_interval(found: Prediction, shifted_s: Iterable[float], method: float) -> Prediction:
    """Return a prediction with its interval.

    Args:
        found: without one.
        shifted_s: the iteration with each input at the end of its interval.
        method: the error of the method, as a share.
    """
    iteration_s = found.iteration_s
    if iteration_s <= 0:
        return replace(found, low_s=iteration_s, high_s=iteration_s)
    shifts = [abs(one_s / iteration_s - 1) for one_s in shifted_s]
    error = min(method, found.communication_s / iteration_s)
    share = math.hypot(error, *shifts)
    least_s = found.bound_s / (1 + math.hypot(*shifts))
    low_s = max(iteration_s / (1 + share), min(least_s, iteration_s))
    return replace(found, low_s=low_s, high_s=iteration_s * (1 + share))
