"""Expected: what a cell is predicted to take, from what was measured elsewhere.

Known are the hosts' own work (what a message costs beside the wire, the speed of reduction, how
computation and collectives disturb each other) as calibrated at home, and what the user would know
of a network that is yet to be bought: the rates of its links, and its racks. So latencies and the
share of the nominal rate that a link reaches are those at home; rates are the new ones, and what a
link lets through at once grows with them. Nothing measured on the cell's own links goes in.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.level import Level
from syncopate.artifacts.plan import ALLREDUCE, SERVED, Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.served import served_costs
from syncopate.delay import LocalSGD
from syncopate.lab.topology import Topology
from syncopate.planning import make_plan, predict
from syncopate.validation.grid import AVERAGED, COMPUTING, PERIOD, REPLAYED, Cell, home_of
from syncopate.validation.point import Home
from syncopate.validation.published import resnet50

REPLAYED_SHARE = 0.25
"""Of ResNet-50's elements."""

REPLAYED_S = 0.3
"""What its forward and backward take together."""


def replayed_workload(share: float = REPLAYED_SHARE, compute_s: float = REPLAYED_S) -> Workload:
    """Return ResNet-50 with a share of its elements, and layers by their parts of ``compute_s``."""
    whole = resnet50()
    paced = whole.scaled(compute_s / whole.compute_s)
    tensors = tuple(
        structs.replace(tensor, numel=max(1, round(share * tensor.numel)))
        for tensor in paced.tensors
    )
    found: Workload = structs.replace(
        paced, model=f"ResNet-50 x {share:g}, replayed", tensors=tensors, metadata={}
    )
    return found


def carried(calibrated: Cluster, home: Topology, there: Topology) -> Cluster:
    """Return a cluster as it is expected with the links of another lab; see the module.

    Args:
        calibrated: as measured at ``home``.
        home: a flat lab.
        there: hosts as many as at home.
    """
    nominal_home, nominal = home.cluster(), there.cluster()
    known, given = calibrated.levels[-1], nominal_home.levels[-1]
    # Beside other work a calibration may see more than a link can carry.
    reached = min(known.bandwidth_bytes_per_s / given.bandwidth_bytes_per_s, 1.0)
    faster = there.rate_bytes_per_s / home.rate_bytes_per_s

    def level(one: Level) -> Level:
        return structs.replace(
            one,
            latency_s=known.latency_s,
            bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * reached,
            burst_bytes=known.burst_bytes * faster,
        )

    found: Cluster = structs.replace(
        nominal,
        levels=tuple(map(level, nominal.levels)),
        reduction_s_per_byte=calibrated.reduction_s_per_byte,
        handling=calibrated.handling,
        interference=calibrated.interference,
        metadata={"calibrated": f"on {home.describe()}"},
    )
    return found


def cluster_of(cell: Cell, home: Home) -> Cluster:
    """Return the cluster that a cell is predicted on.

    Args:
        cell: what is trained, and where.
        home: of as many hosts.
    """
    cluster = carried(home.cluster, home_of(home.hosts), cell.workers)
    if cell.work == REPLAYED:
        # A rank that sleeps is not slowed down by those that communicate.
        cluster = structs.replace(cluster, interference=Interference())
    return cluster


def plan_of(cell: Cell, home: Home) -> Plan:
    """Return the plan that a cell trains by, with its prediction.

    Args:
        cell: what is trained, and where.
        home: of as many hosts.

    Raises:
        SyncopateError: no plan of its exchange can be made.
    """
    cluster, workload = cluster_of(cell, home), home.workloads[cell.work]
    costs = costs_of(cell, cluster)
    exchange = ALLREDUCE if cell.exchange == AVERAGED else cell.exchange
    plan = make_plan(workload, cluster, "auto", exchange=exchange, costs=costs)
    if cell.exchange == AVERAGED:
        plan = plan.delayed(LocalSGD(period=PERIOD))
    expected: Plan = structs.replace(plan, prediction=predict(workload, plan, cluster, costs))
    return expected


def predicted_s(cell: Cell, plan: Plan, home: Home) -> float:
    """Return what an iteration by a plan is predicted to take on a cell's links, in seconds."""
    cluster = cluster_of(cell, home)
    prediction = predict(home.workloads[cell.work], plan, cluster, costs_of(cell, cluster))
    return prediction.iteration_s


def costs_of(cell: Cell, cluster: Cluster) -> Costs | None:
    """Return the costs of parameter servers; None where there are none."""
    return served_costs(cluster, cell.servers) if cell.exchange == SERVED else None


def home_with(hosts: int, cluster: Cluster, workloads: Mapping[str, Workload]) -> Home:
    """Return a calibration without its curves, which hold for its own links."""
    bare: Cluster = structs.replace(cluster, curves=(), probes=())
    assert set(workloads) == {REPLAYED, COMPUTING}
    return Home(hosts=hosts, cluster=bare, workloads=dict(workloads))
