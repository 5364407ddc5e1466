"""Simulated timelines say what was played, in the form of recorded ones."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.analysis.phases import mean, phases
from syncopate.artifacts.cluster import Cluster, Interference, LinearFit
from syncopate.artifacts.plan import Bucket, Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Envelope, LinearCost
from syncopate.costs.model.training import exchange_costs, weight_sync_s
from syncopate.errors import InvalidValueError, PlanError
from syncopate.planning import predict
from syncopate.planning.planner import make_plan
from syncopate.recipe import Recipe
from syncopate.schedules.registry import algorithms
from syncopate.simulation import simulate
from syncopate.simulation.iteration import IDEAL
from syncopate.simulation.ranks import Variation

WORKLOAD = Workload(
    model="small",
    tensors=tuple(
        GradientTensor(name=f"w{i}", numel=1_000_000, backward_s=4e-3) for i in range(10)
    ),
    forward_s=20e-3,
    backward_s=42e-3,
    update_s=3e-3,
)


def cluster(interference: Interference = IDEAL) -> Cluster:
    flat = Cluster.preset("10gbe", 4)
    return Cluster(name=flat.name, levels=flat.levels, interference=interference)


@pytest.mark.parametrize("interference", [Interference(), Interference(compute_rate=0.6)])
def test_a_timeline_lasts_as_long_as_predicted(interference: Interference) -> None:
    where = cluster(interference)
    plan = make_plan(WORKLOAD, where)
    timeline = simulate(WORKLOAD, plan, where, iterations=3)
    assert plan.prediction is not None
    assert timeline.source == "simulated"
    assert timeline.duration_s == pytest.approx(3 * plan.prediction.iteration_s)
    assert {span.rank for span in timeline.spans} == set(range(4))
    average = mean(phases(timeline))
    assert average.duration_s == pytest.approx(plan.prediction.iteration_s)
    assert Timeline.from_json(timeline.to_json()) == timeline


@pytest.mark.parametrize("rooted", [True, False])
def test_a_broadcast_of_the_weights_is_predicted_in_the_mean_and_played_when_it_is_due(
    *, rooted: bool
) -> None:
    where = cluster()
    plan = make_plan(WORKLOAD, where)
    synced = structs.replace(plan, weight_sync_period=3)
    costs = dict(exchange_costs(where, WORKLOAD.nbytes, "allreduce"))
    if rooted:
        costs["broadcast"] = Envelope({"lp": LinearCost(LinearFit(a_s=0.02, b_s_per_byte=1e-9))})
    broadcast_s = weight_sync_s(where, WORKLOAD.nbytes, costs)
    line_s = WORKLOAD.nbytes / where.levels[0].bandwidth_bytes_per_s
    assert broadcast_s == pytest.approx(0.06) if rooted else broadcast_s >= line_s
    without, found = (predict(WORKLOAD, one, where, costs) for one in (plan, synced))
    for what in ("iteration_s", "communication_s", "exposed_s"):
        assert getattr(found, what) == pytest.approx(getattr(without, what) + broadcast_s / 3)
    assert (found.compute_s, found.bound_s) == (without.compute_s, without.bound_s)
    timeline = simulate(WORKLOAD, synced, where, costs=costs, iterations=6)
    assert timeline.duration_s == pytest.approx(6 * found.iteration_s)
    mine = [span for span in timeline.spans if span.rank == 1]
    broadcasts = [span for span in mine if span.name == "weights of rank 0"]
    assert [(s.iteration, s.lane, s.nbytes) for s in broadcasts] == [
        (2, "pull", WORKLOAD.nbytes),
        (5, "pull", WORKLOAD.nbytes),
    ]
    # Nothing computes beside it: the next iteration begins when it has ended.
    assert broadcasts[0].end_s == min(span.start_s for span in mine if span.iteration == 3)
    assert broadcasts[0].duration_s == pytest.approx(broadcast_s)
    assert mean(phases(timeline)).duration_s == pytest.approx(found.iteration_s)
    short = simulate(WORKLOAD, synced, where, costs=costs, iterations=2)
    assert short.duration_s == pytest.approx(2 * without.iteration_s)


def test_a_measured_broadcast_of_the_backend_is_the_weights() -> None:
    """The engine lets the backend broadcast them, whatever is cheaper."""
    native, lp = (LinearCost(LinearFit(a_s=seconds, b_s_per_byte=0.0)) for seconds in (0.5, 0.1))
    costs = {"broadcast": Envelope({"lp": lp, "native": native})}
    assert weight_sync_s(cluster(), 100, costs) == 0.5


def test_spans_are_those_of_the_plan() -> None:
    plan = make_plan(WORKLOAD, cluster(), "wfbp")
    assert plan.prediction is not None
    timeline = simulate(WORKLOAD, plan, cluster())
    mine = [span for span in timeline.spans if span.rank == 2]
    pushes = [span for span in mine if span.lane == "push"]
    assert [span.name for span in pushes] == [f"bucket {i}" for i in range(10)]
    assert [span.nbytes for span in pushes] == [4_000_000] * 10
    assert {span.detail for span in pushes} == {bucket.push.algorithm for bucket in plan.buckets}
    backward = [span for span in mine if span.lane == "backward"]
    assert [span.name for span in backward] == [*(f"w{i}" for i in range(10)), "backward"]
    assert backward[-1].end_s == pytest.approx(62e-3)
    lanes = [span.lane for span in mine if span.lane not in ("push", "backward")]
    assert lanes == ["forward", "wait", "update"]
    exposed = mean(phases(timeline)).exposed_communication_s
    assert exposed == pytest.approx(plan.prediction.exposed_s)


def test_every_field_of_every_span() -> None:
    """Bounds are those of the interplay; the fields are what the plan and the workload say."""
    workload = Workload(
        model="two",
        tensors=(
            GradientTensor(name="a", numel=1000, backward_s=4e-3),
            GradientTensor(name="at once", numel=10, backward_s=0.0),
            GradientTensor(name="b", numel=500, backward_s=2e-3),
        ),
        forward_s=5e-3,
        backward_s=6e-3,
    )
    where = Cluster.preset("10gbe", 2)
    buckets = (
        Bucket(tensors=("a",), nbytes=4000, push=Recipe("all_reduce", "ring", channel=1)),
        Bucket(
            tensors=("at once", "b"), nbytes=2040, push=Recipe("all_reduce", "recursive_doubling")
        ),
    )
    plan = Plan(
        model="two",
        fingerprint=workload.fingerprint,
        world_size=2,
        policy="by hand",
        channels=2,
        buckets=buckets,
    )
    timeline = simulate(workload, plan, where, iterations=2)
    assert timeline.name == "two, by hand"
    assert timeline.metadata == {
        "cluster": where.name,
        "policy": "by hand",
        "exchange": "allreduce",
    }
    spans = [span for span in timeline.spans if (span.rank, span.iteration) == (1, 1)]
    # No update span without an update, and none for a gradient that takes no time.
    found = [(s.name, s.lane, s.channel, s.nbytes, s.detail) for s in spans]
    assert found == [
        ("forward", "forward", 0, 0, ""),
        ("a", "backward", 0, 0, ""),
        ("b", "backward", 0, 0, ""),
        ("bucket 0", "push", 1, 4000, "ring"),
        ("bucket 1", "push", 0, 2040, "recursive_doubling"),
        ("wait for communication", "wait", 0, 0, ""),
    ]
    forward, a, b, _, last, wait = spans
    assert forward.start_s == pytest.approx(timeline.duration_s / 2)
    assert a.start_s == forward.end_s
    assert b.start_s == a.end_s
    assert wait.start_s == b.end_s
    assert wait.end_s == pytest.approx(last.end_s)
    assert wait.end_s == pytest.approx(timeline.duration_s)


def test_refuses_another_workload_and_no_iterations() -> None:
    plan = make_plan(WORKLOAD, cluster())
    other = Workload(model="other", tensors=WORKLOAD.tensors[:5], forward_s=0.0, backward_s=42e-3)
    with pytest.raises(PlanError, match="another model"):
        simulate(other, plan, cluster())
    with pytest.raises(PlanError, match="4 ranks; 8 are running"):
        simulate(WORKLOAD, plan, Cluster.preset("10gbe", 8))
    with pytest.raises(InvalidValueError, match="iterations is 0"):
        simulate(WORKLOAD, plan, cluster(), iterations=0)


@pytest.mark.parametrize("name", algorithms("all_reduce"))
def test_a_plan_of_any_algorithm_is_played(name: str) -> None:
    """Those too that nobody would choose here, such as twins of others."""
    where = Cluster.preset("10gbe", 3)
    plan = make_plan(WORKLOAD, where, "single", algorithm=name)
    assert plan.prediction is not None
    assert predict(WORKLOAD, plan, where) == plan.prediction
    timeline = simulate(WORKLOAD, plan, where)
    assert timeline.duration_s == pytest.approx(plan.prediction.iteration_s)


def test_only_what_a_plan_names_is_priced() -> None:
    """A ring has a formula on any levels; of so many ranks some have none, and are left out."""
    levels = cluster().levels
    where = Cluster(name="wide", levels=(*levels, *Cluster.preset("100gbe", 33_000).levels))
    plan = make_plan(WORKLOAD, where, "single", algorithm="ring")
    assert make_plan(WORKLOAD, where, "single").world_size == 132_000
    timeline = simulate(WORKLOAD, plan, where)
    assert plan.prediction is not None
    assert timeline.duration_s == pytest.approx(plan.prediction.iteration_s)
    assert timeline.world_size == 132_000
    assert timeline.columns.rank.max() == 131_999


def test_a_timeline_that_would_not_fit_is_refused_before_it_is_played() -> None:
    """Spans of ranks that differ are kept, a thousand gradients each."""
    tensors = tuple(GradientTensor(name=f"w{i}", numel=1) for i in range(999))
    work = structs.replace(WORKLOAD, tensors=tensors)
    costs = {"all_reduce": Envelope({"ring": LinearCost(LinearFit(a_s=1e-3, b_s_per_byte=0.0))})}
    for ranks, count, complaint in (
        (1 << 12, 5, r"iterations is 5; it must be at most 1 on 4096 ranks that differ"),
        (1 << 13, 1, r"ranks that differ from each other is 8192; it must be at most 4194"),
        (2, 3000, r"iterations is 3000; it must be at most 2097 on 2 ranks that differ"),
    ):
        where = Cluster.preset("10gbe", ranks)
        plan = make_plan(work, where, "single", costs=costs)
        jitter = Variation(jitter=0.1)
        with pytest.raises(InvalidValueError, match=complaint):
            simulate(work, plan, where, iterations=count, variation=jitter)
    with pytest.raises(InvalidValueError, match="iterations is 9999; it must be at most 4194 to"):
        simulate(work, plan, where, iterations=9999)


@pytest.mark.parametrize(("ranks", "iterations"), [(1024, 3), (16_384, 1)])
def test_ranks_that_do_the_same_are_kept_once(ranks: int, iterations: int) -> None:
    where = Cluster.preset("10gbe", ranks)
    work = structs.replace(
        WORKLOAD, tensors=tuple(GradientTensor(name=f"w{i}", numel=1000) for i in range(161))
    )
    timeline = simulate(work, make_plan(work, where, "wfbp"), where, iterations=iterations)
    assert len(timeline.spans) == ranks * len(timeline.kept)
    text = timeline.to_json()
    assert len(text) < 150_000
    assert Timeline.from_json(text).to_json() == text
    one = mean(phases(timeline))
    assert (one.rank, len(phases(timeline))) == (-1, ranks * iterations)
    assert one.duration_s == pytest.approx(timeline.duration_s / iterations)
