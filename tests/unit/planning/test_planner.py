"""Plans and their predictions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Interference,
    Level,
    LinearFit,
)
from syncopate.artifacts.plan import Bucket, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model import collective as collective_model
from syncopate.costs.model.collective import collective_costs
from syncopate.costs.model.functions import Envelope, LinearCost
from syncopate.errors import InvalidValueError, PlanError, PredictionError, UnknownNameError
from syncopate.planning import POLICIES, compare, filled_to, make_plan, predict
from syncopate.schedules.registry import build
from syncopate.simulation import simulate
from tests.unit.simulation.workloads import play


def layers(count: int, numel: int = 250_000, dtypes: tuple[str, ...] = ("float32",)) -> Workload:
    tensors = tuple(
        GradientTensor(
            name=f"layer{i}.weight",
            numel=numel * (i % 4),
            dtype=dtypes[i % len(dtypes)],
            backward_s=1e-3 * (1 + i % 3),
        )
        for i in range(count)
    )
    return Workload(
        model="layers",
        tensors=tensors,
        forward_s=0.05,
        backward_s=sum(tensor.backward_s for tensor in tensors) + 1e-3,
        update_s=0.004,
    )


def with_interference(cluster: Cluster, interference: Interference) -> Cluster:
    return Cluster(
        name=cluster.name,
        levels=cluster.levels,
        reduction_s_per_byte=cluster.reduction_s_per_byte,
        interference=interference,
    )


def pushed(bucket: Bucket, **told: Any) -> Bucket:
    """Return the bucket with another push."""
    changed: Bucket = structs.replace(bucket, push=structs.replace(bucket.push, **told))
    return changed


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("dtypes", [("float32",), ("bfloat16", "float32")])
def test_a_plan_fits_its_workload(policy: str, dtypes: tuple[str, ...]) -> None:
    workload, cluster = layers(23, dtypes=dtypes), Cluster.preset("10gbe", 16)
    plan = make_plan(workload, cluster, policy)
    plan.require_fit([(t.name, t.numel, t.dtype) for t in workload.tensors], 16)
    planned = [name for bucket in plan.buckets for name in bucket.tensors]
    assert planned == [tensor.name for tensor in workload.tensors]
    assert sum(bucket.nbytes for bucket in plan.buckets) == workload.nbytes
    assert plan.policy == policy
    assert plan.cluster == cluster.name
    assert Plan.from_json(plan.to_json()) == plan


@given(
    count=st.integers(1, 40),
    nodes=st.sampled_from([1, 2, 3, 8, 16]),
    network=st.sampled_from(["1gbe", "10gbe", "100gbe"]),
    numel=st.sampled_from([0, 10, 10_000, 1_000_000]),
)
def test_predictions_hold_together(count: int, nodes: int, network: str, numel: int) -> None:
    workload, cluster = layers(count, numel), Cluster.preset(network, nodes)
    plans = compare(workload, cluster)
    assert [plan.policy for plan in plans] == [name for name in POLICIES if name != "auto"]
    by_policy = {plan.policy: plan.prediction for plan in plans}
    best = by_policy["optimal"]
    assert best is not None
    for prediction in by_policy.values():
        assert prediction is not None
        assert prediction.compute_s == workload.compute_s
        assert prediction.iteration_s >= best.iteration_s * (1 - 1e-12)
        assert prediction.iteration_s >= prediction.bound_s * (1 - 1e-12)
        assert prediction.iteration_s == pytest.approx(
            prediction.compute_s + prediction.exposed_s, rel=1e-12
        )
        if nodes == 1:
            assert prediction.communication_s == 0
            assert prediction.exposed_s == 0


def test_each_bucket_gets_its_cheapest_algorithm() -> None:
    envelope = Envelope(
        {
            "ring": LinearCost(LinearFit(a_s=1e-2, b_s_per_byte=1e-9)),
            "binary_tree": LinearCost(LinearFit(a_s=1e-4, b_s_per_byte=1e-8)),
        }
    )
    costs = {"all_reduce": envelope}
    workload, cluster = layers(9), Cluster.preset("10gbe", 8)
    plan = make_plan(workload, cluster, "wfbp", costs=costs)
    for bucket in plan.buckets:
        assert bucket.push.algorithm == ("ring" if bucket.nbytes > 1.1e6 else "binary_tree")
    fixed = make_plan(workload, cluster, "wfbp", costs=costs, algorithm="ring")
    assert {bucket.push.algorithm for bucket in fixed.buckets} == {"ring"}
    assert {b.push.algorithm for b in make_plan(workload, cluster, algorithm="ring").buckets} == {
        "ring"
    }


def test_the_envelope_is_at_least_as_good_as_any_one_algorithm() -> None:
    workload, cluster = layers(30), Cluster.preset("10gbe", 16)
    free = make_plan(workload, cluster).prediction
    assert free is not None
    for algorithm in collective_costs(cluster).names:
        fixed = make_plan(workload, cluster, algorithm=algorithm).prediction
        assert fixed is not None
        assert free.iteration_s <= fixed.iteration_s * (1 + 1e-12)


def test_the_threshold_is_the_callers() -> None:
    workload, cluster = layers(40), Cluster.preset("10gbe", 4)
    sizes = {
        limit: len(make_plan(workload, cluster, filled_to(limit)).buckets)
        for limit in (1, 4_000_000, 10**9)
    }
    # Gradients of zero bytes fill nothing and travel with the next.
    assert sizes == {1: 30, 4_000_000: 11, 10**9: 2}


def test_channels_are_taken_in_turn() -> None:
    workload, cluster = layers(20), Cluster.preset("1gbe", 4)
    plan = make_plan(workload, cluster, "wfbp", channels=3)
    assert plan.channels == 3
    assert [bucket.push.channel for bucket in plan.buckets] == [i % 3 for i in range(20)]
    one, two = (make_plan(workload, cluster, channels=c).prediction for c in (1, 2))
    assert one is not None
    assert two is not None
    assert two.iteration_s <= one.iteration_s * (1 + 1e-9)


def test_for_several_channels_another_partition_may_be_better_than_the_optimum_of_one() -> None:
    """Start-ups overlap there, so that more and smaller buckets pay; also where overlap is free."""
    workload, cluster = layers(40, 25_000), Cluster.preset("1gbe", 16)
    one = make_plan(workload, cluster)
    several = make_plan(workload, cluster, channels=2)
    assert several.prediction is not None
    in_turn = tuple(
        structs.replace(bucket, push=structs.replace(bucket.push, channel=index % 2))
        for index, bucket in enumerate(one.buckets)
    )
    dealt = predict(workload, structs.replace(one, buckets=in_turn, channels=2), cluster)
    assert several.prediction.iteration_s < 0.995 * dealt.iteration_s
    assert len(several.buckets) > len(one.buckets)


@pytest.mark.parametrize("rate", [0.4, 0.8])
@pytest.mark.parametrize("stretch", [1.0, 1.6, 3.0])
def test_under_interference_optimal_is_never_worse(rate: float, stretch: float) -> None:
    interference = Interference(compute_rate=rate, collective_stretch=stretch)
    cluster = with_interference(Cluster.preset("1gbe", 4), interference)
    workload = layers(40)
    plans = compare(workload, cluster)
    iterations = [plan.prediction.iteration_s for plan in plans if plan.prediction]
    assert plans[-1].policy == "optimal"
    assert iterations[-1] <= min(iterations) * (1 + 1e-12)
    ideal = make_plan(workload, Cluster.preset("1gbe", 4)).prediction
    assert ideal is not None
    assert iterations[-1] >= ideal.iteration_s * (1 - 1e-12)


def test_a_prediction_is_what_is_played() -> None:
    workload, cluster = layers(12), Cluster.preset("10gbe", 8)
    plan = make_plan(workload, cluster, filled_to(2_000_000))
    costs = {"all_reduce": collective_costs(cluster)}
    played = play(workload, plan.buckets, costs, cluster.interference)
    assert plan.prediction == predict(workload, plan, cluster)
    assert plan.prediction is not None
    assert plan.prediction.iteration_s == played.iteration_s
    assert plan.prediction.communication_s == played.communication_s


def test_refusals_say_what_there_is() -> None:
    workload, cluster = layers(3), Cluster.preset("10gbe", 4)
    with pytest.raises(UnknownNameError, match="unknown policy 'fastest'; known: wfbp"):
        make_plan(workload, cluster, "fastest")
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'rign'.*known: ring"):
        make_plan(workload, cluster, algorithm="rign")
    with pytest.raises(InvalidValueError, match="channels is 0"):
        make_plan(workload, cluster, channels=0)
    with pytest.raises(InvalidValueError, match="bucket_bytes is 0"):
        make_plan(workload, cluster, filled_to(0))
    plan = make_plan(layers(4), cluster)
    with pytest.raises(PlanError, match="do not hold the same gradients"):
        predict(workload, plan, cluster)


def test_buckets_carry_the_options_that_suit_the_cluster() -> None:
    placement = (0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11)
    racks = Cluster(
        name="racks",
        levels=(
            Level(name="device", size=2, latency_s=2e-6, bandwidth_bytes_per_s=2e10),
            Level(name="host", size=2, latency_s=3e-5, bandwidth_bytes_per_s=1e9),
            Level(name="rack", size=3, latency_s=9e-5, bandwidth_bytes_per_s=3e8),
        ),
        placement=placement,
    )
    workload = layers(40, numel=1_000_000)
    plan = make_plan(workload, racks, algorithm="blueconnect")
    assert plan.order == placement
    for bucket in plan.buckets:
        assert bucket.push.options["factors"] == (2, 2, 3)
        assert "order" not in bucket.push.options
    assert max(int(bucket.push.options["pipelines"]) for bucket in plan.buckets) > 1
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.prediction == predict(workload, plan, racks)
    # Without its order and options a plan runs the defaults, and is predicted to.
    bare = tuple(
        structs.replace(bucket, push=structs.replace(bucket.push, options={}))
        for bucket in plan.buckets
    )
    assert plan.prediction is not None
    for buckets in (bare, plan.buckets):
        without = structs.replace(plan, buckets=buckets, order=())
        assert predict(workload, without, racks).iteration_s > plan.prediction.iteration_s
    timeline = simulate(workload, plan, racks)
    assert timeline.duration_s == pytest.approx(plan.prediction.iteration_s)


def test_the_options_of_a_calibrated_cluster_are_those_measured() -> None:
    curves = tuple(
        CollectiveCurve(
            collective="all_reduce",
            algorithm=name,
            points=tuple(
                CurvePoint(nbytes=n, samples_s=(s,), options={"blocks": n // 1000} if order else {})
                for n, s in ((1000, small), (4_000_000, large))
            ),
            fit=LinearFit(a_s=small, b_s_per_byte=0.0),
            order=order,
        )
        for name, small, large, order in (
            ("native", 1e-4, 1e-2, ()),
            ("lp", 1e-3, 5e-3, (3, 1, 2, 0)),
        )
    )
    cluster = Cluster(name="c", levels=Cluster.preset("1gbe", 4).levels, curves=curves)
    plan = make_plan(layers(8), cluster, "wfbp")
    assert plan.order == (3, 1, 2, 0)
    for bucket in plan.buckets:
        piped = bucket.push.algorithm == "lp"
        assert bucket.push.options == ({"blocks": 4000} if piped else {})
        assert bucket.push.in_order(plan.order).options.get("order") == (
            plan.order if piped else None
        )
    assert {bucket.push.algorithm for bucket in plan.buckets} == {"native", "lp"}


def test_costs_that_promise_more_than_the_wire_carries_are_refused() -> None:
    workload, cluster = layers(9), Cluster.preset("1gbe", 4)
    ring = LinearCost(LinearFit(a_s=0.0, b_s_per_byte=1e-10))
    costs = {"all_reduce": Envelope({"ring": ring})}
    slow = structs.replace(workload, forward_s=0.0)
    with pytest.raises(PredictionError, match=r"'layers' is predicted to take .* less than"):
        make_plan(slow, cluster, costs=costs)
    plan = make_plan(slow, cluster, algorithm="ring")
    with pytest.raises(PredictionError, match="calibrate again, or report it"):
        predict(slow, plan, cluster, costs)


def test_a_prediction_takes_the_costs_of_training() -> None:
    """A burst passes once: hundreds of short messages do not each take what one alone took."""
    tensors = tuple(GradientTensor(name=f"w{i}", numel=16_384, backward_s=1e-5) for i in range(400))
    workload = Workload(model="many", tensors=tensors, forward_s=0.0, backward_s=4e-3)
    base = Cluster.preset("1gbe", 4)
    line_s_per_byte = 1.5 / base.levels[0].bandwidth_bytes_per_s
    curves = tuple(
        CollectiveCurve(
            collective="all_reduce",
            algorithm=name,
            points=tuple(CurvePoint(nbytes=n, samples_s=(a_s + n * b,)) for n in sizes),
            fit=LinearFit(a_s=a_s, b_s_per_byte=b),
        )
        for name, sizes, a_s, b in (
            ("ring", (1024, 1 << 20, 1 << 25), 1e-3, line_s_per_byte),
            ("native", (1024, 1 << 18), 1e-4, 0.0),
        )
    )
    cluster = structs.replace(base, curves=curves)
    plan = make_plan(workload, cluster, "wfbp")
    assert predict(workload, plan, cluster) == plan.prediction
    costs = {"all_reduce": collective_costs(cluster)}
    once = play(workload, plan.buckets, costs, cluster.interference)
    assert plan.prediction is not None
    assert once.iteration_s < plan.prediction.bound_s < plan.prediction.iteration_s


@given(
    st.integers(1, 12),
    st.sampled_from([(4, 8), (8, 2), (2, 3, 4)]),
    st.sampled_from(["allreduce", "sharded"]),
    st.integers(100, 400_000),
)
def test_optimal_is_behind_no_policy_with_several_dtypes_on_several_levels(
    count: int, sizes: tuple[int, ...], exchange: str, numel: int
) -> None:
    rates = (2e10, 1e9, 3e8)
    levels = tuple(
        Level(name=f"{i}", size=size, latency_s=1e-5 * 3**i, bandwidth_bytes_per_s=rates[i])
        for i, size in enumerate(sizes)
    )
    cluster = Cluster(name="by hand", levels=levels, reduction_s_per_byte=2e-10)
    workload = layers(count, numel, ("float32", "bfloat16", "float64"))
    plans = compare(workload, cluster, exchange=exchange)
    took = {plan.policy: plan.prediction.iteration_s for plan in plans if plan.prediction}
    assert took["optimal"] <= min(took.values()) * (1 + 1e-9), took


def test_many_ranks_are_planned_without_making_their_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(collective: str, name: str, world_size: int, *args: Any, **options: Any) -> Any:
        made.append(world_size)
        return build(collective, name, world_size, *args, **options)

    monkeypatch.setattr(collective_model, "build", counted)
    cluster = Cluster.preset("10gbe", 16_384)
    for exchange in ("allreduce", "sharded", "rooted"):
        plan = make_plan(layers(12), cluster, "optimal", exchange=exchange)
        assert plan.world_size == 16_384
        assert plan.prediction is not None
    assert not made


def test_a_bucket_of_two_dtypes_is_planned_with_the_options_it_runs_with() -> None:
    """Planned with each dtype's own, ``optimal`` was 2.9% behind a listed policy here."""
    sizes = [2660, 522_402, 2_159_323, 3313, 3360]
    dtypes = ["bfloat16", "bfloat16", "float32", "bfloat16", "float32"]
    backward_s = [6e-5, 2.8e-4, 2.26e-3, 1.16e-3, 2.62e-3]
    tensors = tuple(
        GradientTensor(name=f"layer{i}", numel=numel, dtype=dtype, backward_s=seconds)
        for i, (numel, dtype, seconds) in enumerate(zip(sizes, dtypes, backward_s, strict=True))
    )
    workload = Workload(
        model="mixed", tensors=tensors, forward_s=1e-3, backward_s=sum(backward_s) + 1e-4
    )
    rates = (("device", 2, 3e-6, 2e10), ("host", 3, 5e-5, 1e9), ("rack", 4, 9e-5, 3e8))
    levels = tuple(
        Level(name=name, size=size, latency_s=latency_s, bandwidth_bytes_per_s=rate)
        for name, size, latency_s, rate in rates
    )
    cluster = Cluster(name="by hand", levels=levels, reduction_s_per_byte=2e-10)
    plans = compare(workload, cluster, channels=1)
    took = {plan.policy: plan.prediction.iteration_s for plan in plans if plan.prediction}
    assert took["optimal"] <= min(took.values()) * (1 + 1e-9), took
