"""Runs with parameter servers at other rates: what the same plan is simulated to take there."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.analysis.replay.elsewhere import played_on
from syncopate.analysis.replay.fitted import fitted_network
from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.timeline import SERVER_COUNT, Timeline
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.replayed import ClusterNetwork
from syncopate.costs.model.served import served_costs
from syncopate.delay import Delay
from syncopate.planning.planner import make_plan
from syncopate.simulation import Variation, simulate
from tests.unit.analysis.test_elsewhere import flat, iterations_s

MIB = 1 << 20
RECORDED_AT = 1.0


def workload(update_s: float = 0.004) -> Workload:
    sizes = (MIB, 14 * MIB, 2 * MIB, 6 * MIB, 3 * MIB, MIB)
    tensors = tuple(
        GradientTensor(name=f"t{n}", numel=size // 4, backward_s=0.02)
        for n, size in enumerate(sizes)
    )
    return Workload(model="m", tensors=tensors, forward_s=0.06, backward_s=0.12, update_s=update_s)


def run_of(
    gbit: float,
    servers: int,
    *,
    k: int = 1,
    update_s: float = 0.004,
    variation: Variation | None = None,
) -> Timeline:
    """Return a training by one plan, the same at every rate of its links."""
    work = workload(update_s)
    own, cluster = flat(RECORDED_AT), flat(gbit)
    costs = served_costs(own, servers)
    plan = make_plan(work, own, "threshold", exchange=SERVED, costs=costs)
    if k > 1:
        plan = plan.delayed(Delay(k=k, warm_up=k - 1))
    there = served_costs(cluster, servers)
    return simulate(work, plan, cluster, costs=there, iterations=3 * k + 5, variation=variation)


def networks(gbit: float, servers: int) -> tuple[ClusterNetwork, ClusterNetwork]:
    return ClusterNetwork(flat(gbit), servers), ClusterNetwork(flat(RECORDED_AT), servers)


def mean_s(timeline: Timeline, k: int) -> float:
    """Return what an iteration takes, in the mean over the last periods."""
    return float(np.mean(iterations_s(timeline)[-2 * k :]))


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("gbit", [0.25, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("k", [1, 3])
def test_a_run_is_what_is_simulated_at_another_rate(servers, gbit, k):
    """At 4 Gbit/s a wait shows, for weights that came during another at 1 Gbit/s: 2.4% too long."""
    recorded, there = run_of(RECORDED_AT, servers, k=k), run_of(gbit, servers, k=k)
    assert recorded.metadata[SERVER_COUNT] == str(servers)
    found = played_on(recorded, *networks(gbit, servers))
    near = 0.03 if gbit == 4 else 0.02
    assert mean_s(found.timeline, k) == pytest.approx(mean_s(there, k), rel=near)


@pytest.mark.parametrize("gbit", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("update_s", [0.0, 0.02])
def test_the_work_of_servers_is_small_beside_their_messages(gbit, update_s):
    recorded, there = (run_of(one, 2, update_s=update_s) for one in (RECORDED_AT, gbit))
    found = played_on(recorded, *networks(gbit, 2))
    assert mean_s(found.timeline, 1) == pytest.approx(mean_s(there, 1), rel=0.03)


@pytest.mark.parametrize(("gbit", "near"), [(0.25, 0.02), (1.0, 0.02), (4.0, 0.08)])
def test_ranks_that_differ_still_do(gbit, near):
    variation = Variation(slow_ranks={2: 1.3}, jitter=0.05, seed=3)
    recorded, there = (run_of(one, 2, variation=variation) for one in (RECORDED_AT, gbit))
    found = played_on(recorded, *networks(gbit, 2))
    assert mean_s(found.timeline, 1) == pytest.approx(mean_s(there, 1), rel=near)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_factors_are_enough(factor):
    """Where no cluster is known a line through the messages tells what bytes take."""
    recorded, there = run_of(RECORDED_AT, 2), run_of(factor * RECORDED_AT, 2)
    own = fitted_network(recorded, servers=2)
    found = played_on(recorded, own.changed(bandwidth=factor), own)
    assert mean_s(found.timeline, 1) == pytest.approx(mean_s(there, 1), rel=0.05)
