"""Gradients that travel as bfloat16 or float16: half the bytes of pushes, all of those of pulls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Envelope, LinearCost
from syncopate.costs.model.training import exchange_costs, on_the_wire, training_costs
from syncopate.errors import UnknownNameError
from syncopate.planning import make_plan, predict
from syncopate.recipe import WIRE_DTYPES
from syncopate.simulation import simulate

CLUSTER = Cluster.preset("1gbe", 4)


def workload(count: int = 12, dtype: str = "float32") -> Workload:
    tensors = tuple(
        GradientTensor(
            name=f"l{i}.w",
            numel=300_000 * (1 + i % 3),
            dtype=dtype,
            backward_s=0.01,
            forward_s=0.005,
        )
        for i in range(count)
    )
    return Workload(
        model="m", tensors=tensors, forward_s=0.005 * count, backward_s=0.01 * count, update_s=1e-3
    )


@pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)
def test_an_all_reduce_of_narrow_gradients_is_one_of_half_as_many_bytes(wire_dtype: str) -> None:
    """Half the bytes on the wire take as long as a model of half-precision gradients."""
    narrow = make_plan(workload(), CLUSTER, wire_dtype=wire_dtype)
    half = make_plan(workload(dtype="bfloat16"), CLUSTER)
    assert narrow.wire_dtype == wire_dtype
    assert narrow.prediction is not None
    assert half.prediction is not None
    for name in ("iteration_s", "bound_s", "communication_s"):
        assert getattr(narrow.prediction, name) == pytest.approx(getattr(half.prediction, name))
    assert [bucket.nbytes for bucket in narrow.buckets] == [2 * b.nbytes for b in half.buckets]
    assert [b.push.algorithm for b in narrow.buckets] == [b.push.algorithm for b in half.buckets]
    assert Plan.from_json(narrow.to_json()) == narrow


def test_weights_come_back_as_they_are() -> None:
    costs = exchange_costs(CLUSTER, 10**8, "sharded")
    wired = on_the_wire(costs, 0.5)
    for n in (1000, 10**6, 10**8):
        pushed, pulled = wired["reduce_scatter"], wired["all_gather"]
        assert float(pushed(n)) == pytest.approx(float(costs["reduce_scatter"](n / 2)))
        assert float(pulled(n)) == float(costs["all_gather"](n))
        contract = pushed.bucket([n])
        assert contract[:2] == costs["reduce_scatter"].bucket([n / 2])[:2]
    plan = make_plan(workload(), CLUSTER, exchange="sharded", wire_dtype="bfloat16")
    full = make_plan(workload(), CLUSTER, exchange="sharded")
    assert plan.prediction is not None
    assert full.prediction is not None
    assert plan.prediction.iteration_s < full.prediction.iteration_s
    pulled = sum(bucket.nbytes for bucket in plan.buckets if bucket.pull is not None)
    sent = 0.5 * workload().nbytes + (1 - 0.5) / 2 * pulled
    wire_s = 1.5 * sent / CLUSTER.levels[0].bandwidth_bytes_per_s
    assert plan.prediction.bound_s == pytest.approx(max(wire_s, plan.prediction.compute_s))


def test_options_and_start_ups_are_those_of_what_is_sent() -> None:
    reduced = training_costs(CLUSTER, 10**8, ("lp",), "reduce")
    wired = on_the_wire({"reduce": reduced}, 0.5)["reduce"]
    assert wired.bucket([2_000_000]).options == reduced.bucket([1_000_000]).options
    fixed, sent = wired.of("lp").fixed({"blocks": 5}), reduced.of("lp").fixed({"blocks": 5})
    assert float(fixed(10**7)) == pytest.approx(float(sent(5 * 10**6)))
    assert fixed.startup_s == sent.startup_s
    assert wired.least_s_per_byte == reduced.least_s_per_byte / 2


@given(
    exchange=st.sampled_from(list(SERVERLESS)),
    wire_dtype=st.sampled_from(("", *WIRE_DTYPES)),
    count=st.integers(1, 12),
    channels=st.integers(1, 2),
)
def test_predictions_and_timelines_agree(
    exchange: str, wire_dtype: str, count: int, channels: int
) -> None:
    work = workload(count)
    plan = make_plan(
        work, CLUSTER, "threshold", exchange=exchange, channels=channels, wire_dtype=wire_dtype
    )
    assert plan.prediction is not None
    assert predict(work, plan, CLUSTER) == plan.prediction
    assert plan.prediction.iteration_s >= plan.prediction.bound_s * (1 - 1e-12)
    timeline = simulate(work, plan, CLUSTER, iterations=2)
    spans = [span for span in timeline.spans if span.iteration == 1 and span.rank == 0]
    lasted_s = timeline.duration_s - min(span.start_s for span in spans)
    assert lasted_s == pytest.approx(plan.prediction.iteration_s)
    sent = {lane: sum(s.nbytes for s in spans if s.lane == lane) for lane in ("push", "pull")}
    assert sent["push"] == work.nbytes // (2 if wire_dtype else 1)
    kind = EXCHANGES[exchange]
    narrow = 2 if wire_dtype and kind.pulls_gradients else 1
    assert sent["pull"] == (work.nbytes // narrow if kind.pull else 0)


def test_given_costs_are_by_the_bytes_on_the_wire() -> None:
    costs = {"all_reduce": Envelope({"ring": LinearCost(LinearFit(a_s=0.0, b_s_per_byte=1e-7))})}
    work = structs.replace(workload(1), forward_s=0.0)
    full, narrow = (
        make_plan(work, CLUSTER, costs=costs, wire_dtype=name) for name in ("", "float16")
    )
    assert full.prediction is not None
    assert narrow.prediction is not None
    assert full.prediction.communication_s == pytest.approx(work.nbytes * 1e-7)
    assert narrow.prediction.communication_s == pytest.approx(work.nbytes * 0.5e-7)


def test_what_cannot_be_narrowed_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown dtype on the wire 'int8'; known: bfloat16"):
        make_plan(workload(), CLUSTER, wire_dtype="int8")
    plan = make_plan(workload(), CLUSTER, wire_dtype="float16")
    with pytest.raises(UnknownNameError, match="dtype on the wire"):
        structs.replace(plan, wire_dtype="float8")


@pytest.mark.parametrize(
    ("dtype", "share"), [("float32", 0.5), ("float64", 0.25), ("bfloat16", 1), ("complex64", 1)]
)
def test_what_has_16_bits_or_is_complex_travels_as_it_is(dtype: str, share: float) -> None:
    work = workload(dtype=dtype)
    plan = make_plan(work, CLUSTER, wire_dtype="float16")
    as_it_is = make_plan(work, CLUSTER)
    assert plan.prediction is not None
    assert as_it_is.prediction is not None
    expected_s = share * as_it_is.prediction.bound_s
    assert plan.prediction.bound_s == pytest.approx(max(expected_s, plan.prediction.compute_s))
    timeline = simulate(work, plan, CLUSTER)
    sent = sum(span.nbytes for span in timeline.spans if span.lane == "push" and span.rank == 0)
    assert sent == share * work.nbytes


def test_a_model_of_several_dtypes_sends_each_as_it_may() -> None:
    """The bytes of all gradients together are right; each bucket has its part of them."""
    wide, half = workload(), workload(dtype="bfloat16")
    both = [structs.replace(t, name=f"half.{t.name}") for t in half.tensors]
    work = structs.replace(wide, tensors=(*wide.tensors, *both), backward_s=0.24)
    plan = make_plan(work, CLUSTER, "single", wire_dtype="bfloat16")
    timeline = simulate(work, plan, CLUSTER)
    sent = sum(span.nbytes for span in timeline.spans if span.lane == "push" and span.rank == 0)
    assert sent == wide.nbytes // 2 + half.nbytes
