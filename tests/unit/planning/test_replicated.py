"""Sharded plans whose first buckets every rank updates: where that pays, and how it is played."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, ROOTED, SHARDED, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import plan_bound_s, wire_s
from syncopate.costs.model.training import exchange_costs
from syncopate.planning import make_plan
from syncopate.planning.question import predict
from syncopate.planning.search import replicated as module
from syncopate.recipe import Recipe
from syncopate.simulation.timeline import simulate
from syncopate.simulation.traffic import traffic_of

CLUSTER = Cluster.preset("1gbe", 4)


def layers(ratio: float, count: int = 40) -> Workload:
    """Layers of 1 MB; a third of the computation is forward, all of it ``ratio`` of the wire."""
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=250_000, forward_s=1 / count, backward_s=2 / count)
        for i in range(count)
    )
    made = Workload(model="layers", tensors=tensors, forward_s=1.0, backward_s=2.0)
    return made.scaled(ratio * wire_s(CLUSTER, made.nbytes) / 3.0)


def plan_of(workload: Workload) -> Plan:
    return make_plan(workload, CLUSTER, "optimal", exchange=SHARDED)


def replicated(plan: Plan) -> list[int]:
    return [index for index, bucket in enumerate(plan.buckets) if bucket.pull is None]


def test_the_first_buckets_are_replicated_where_backward_leaves_the_network_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = layers(1.0)
    plan = plan_of(workload)
    first = replicated(plan)
    assert first == list(range(len(first)))
    assert 0 < len(first) < len(plan.buckets)
    assert all(plan.buckets[index].push.collective == "all_reduce" for index in first)
    assert plan.exchange == SHARDED
    assert plan.prediction == predict(workload, plan, CLUSTER)
    assert Plan.from_json(plan.to_json()) == plan
    monkeypatch.setattr(module, "_WORTH_STATE", 1.0)
    without = plan_of(workload)
    assert replicated(without) == []
    assert plan.prediction is not None
    assert without.prediction is not None
    assert plan.prediction.iteration_s < 0.98 * without.prediction.iteration_s


def test_the_reason_says_how_much_is_replicated() -> None:
    plan = make_plan(layers(1.0), CLUSTER, "auto")
    share = sum(plan.buckets[index].nbytes for index in replicated(plan)) / layers(1.0).nbytes
    assert f"gathers hide in forward, {share:.0%} of the bytes all-reduced; bound" in plan.reason


@pytest.mark.parametrize("ratio", [0.3, 3.0])
def test_nothing_is_replicated_where_that_saves_nothing(ratio: float) -> None:
    """The network has no time to spare in backward, or forward waits for nothing."""
    assert replicated(plan_of(layers(ratio))) == []


def test_tensors_that_are_looked_at_whole_are_spread() -> None:
    workload = structs.replace(layers(1.0), whole=tuple(range(40)))
    assert replicated(plan_of(workload)) == []


@pytest.mark.parametrize("exchange", [ALLREDUCE, ROOTED])
def test_other_exchanges_have_no_such_buckets(exchange: str) -> None:
    plan = make_plan(layers(1.0), CLUSTER, "optimal", exchange=exchange)
    assert {bucket.pull is None for bucket in plan.buckets} == {exchange == ALLREDUCE}


def by_hand(workload: Workload, first: int) -> Plan:
    """The plan with two buckets, the first of which every rank updates."""
    plan = make_plan(workload, CLUSTER, "single", exchange=SHARDED)
    (whole,) = plan.buckets
    parts = (whole.tensors[:first], whole.tensors[first:])
    nbytes = [len(names) * 1_000_000 for names in parts]
    buckets = (
        structs.replace(
            whole, tensors=parts[0], nbytes=nbytes[0], push=Recipe("all_reduce", "ring"), pull=None
        ),
        structs.replace(whole, tensors=parts[1], nbytes=nbytes[1]),
    )
    return structs.replace(plan, buckets=buckets, prediction=None)


def test_a_replicated_bucket_is_pushed_and_not_pulled() -> None:
    workload = structs.replace(layers(1.0), update_s=0.1)
    plan = by_hand(workload, 10)
    timeline = simulate(workload, plan, CLUSTER, iterations=2)
    spans = {(span.lane, span.name) for span in timeline.spans if span.lane in ("push", "pull")}
    assert spans == {("push", "bucket 0"), ("push", "bucket 1"), ("pull", "bucket 1")}


def test_every_rank_updates_a_replicated_bucket() -> None:
    workload = structs.replace(layers(1.0), update_s=0.1)
    plan = by_hand(workload, 10)
    costs = exchange_costs(CLUSTER, workload.nbytes, SHARDED)
    traffic = traffic_of(workload, plan.buckets, costs, world_size=4)
    assert traffic.pulls[0] is None
    assert traffic.pulled == (1,)
    assert traffic.update_s == pytest.approx(0.1 * (0.25 + 0.75 / 4))


def test_the_bound_counts_an_all_reduce_once_and_a_shard_both_ways() -> None:
    workload = layers(1.0)
    plan = by_hand(workload, 10)
    everything_s = wire_s(CLUSTER, workload.nbytes)
    assert plan_bound_s(CLUSTER, plan.buckets, 0.0) == pytest.approx(everything_s)
    half = plan_bound_s(CLUSTER, plan.buckets, 0.0, 0.5)
    assert half == pytest.approx(everything_s * (0.25 * 0.5 + 0.75 * 0.75))
