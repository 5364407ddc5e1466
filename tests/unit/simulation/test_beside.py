"""What travels beside gradients, flags and buffers, counts where the workload knows of it."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVERLESS, SHARDED
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import iteration_bound_s, wire_s
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.model.training import beside_s
from syncopate.errors import InvalidValueError
from syncopate.planning import make_plan, predict
from syncopate.simulation import simulate

CLUSTER = Cluster.preset("1gbe", 4)
BUFFERS = 240_000


def workload(buffers_nbytes: int | None, backward_s: float = 4e-3) -> Workload:
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=1_000_000, backward_s=backward_s) for i in range(5)
    )
    return Workload(
        model="normalised",
        tensors=tensors,
        forward_s=5e-3,
        backward_s=5 * backward_s,
        update_s=1e-3,
        buffers_nbytes=buffers_nbytes,
    )


def test_bytes_are_those_of_flags_and_buffers() -> None:
    assert workload(None).beside_nbytes(4) == 0
    assert workload(0).beside_nbytes(4) == 4 * (5 + 2 * 4 + 1)
    assert workload(BUFFERS).beside_nbytes(4) == 56 + BUFFERS
    assert workload(BUFFERS).beside_nbytes(1) == 0
    with pytest.raises(InvalidValueError, match="buffers_nbytes is -1"):
        workload(-1)
    assert Workload.from_json(workload(BUFFERS).to_json()) == workload(BUFFERS)


@pytest.mark.parametrize("exchange", list(SERVERLESS))
@pytest.mark.parametrize("nbytes", [0, BUFFERS])
def test_an_iteration_takes_longer_by_what_the_engine_sends_besides(
    exchange: str, nbytes: int
) -> None:
    unknown, known = workload(None), workload(nbytes)
    plan = make_plan(unknown, CLUSTER, exchange=exchange)
    before, after = predict(unknown, plan, CLUSTER), predict(known, plan, CLUSTER)
    sent = known.beside_nbytes(4)
    asked_s = float(schedule_cost(CLUSTER, "broadcast", "mst")(4)) if nbytes else 0.0
    told_s = wire_s(CLUSTER, sent)
    if exchange == DECOUPLED:
        sent += 4 * len(known.tensors)  # sums of squares
    if exchange != ALLREDUCE:
        told_s = float(schedule_cost(CLUSTER, "all_reduce", "recursive_doubling")(sent))
    more_s = beside_s(CLUSTER, known, exchange)
    assert more_s == pytest.approx(asked_s + told_s)
    assert after.iteration_s == pytest.approx(before.iteration_s + more_s)
    assert after.communication_s == pytest.approx(before.communication_s + more_s)
    assert after.compute_s == before.compute_s


@pytest.mark.parametrize("exchange", [ALLREDUCE, SHARDED, ROOTED])
def test_the_bound_counts_their_bytes(exchange: str) -> None:
    unknown, known = workload(None, 1e-6), workload(BUFFERS, 1e-6)
    plan = make_plan(unknown, CLUSTER, exchange=exchange)
    bounds_s = [predict(one, plan, CLUSTER).bound_s for one in (unknown, known)]
    assert bounds_s[1] - bounds_s[0] == pytest.approx(wire_s(CLUSTER, known.beside_nbytes(4)))
    assert iteration_bound_s(known, CLUSTER) > iteration_bound_s(unknown, CLUSTER)


def test_a_narrow_wire_narrows_what_rides_with_the_gradients() -> None:
    known = workload(BUFFERS)
    whole_s = beside_s(CLUSTER, workload(0), ALLREDUCE)
    assert beside_s(CLUSTER, workload(0), ALLREDUCE, 0.5) == pytest.approx(whole_s / 2)
    for wire_dtype in ("", "bfloat16"):
        plan = make_plan(known, CLUSTER, wire_dtype=wire_dtype)
        assert plan.prediction == predict(known, plan, CLUSTER)


@pytest.mark.parametrize("exchange", list(SERVERLESS))
def test_what_is_simulated_lasts_as_long_as_predicted(exchange: str) -> None:
    known = workload(BUFFERS)
    plan = make_plan(known, CLUSTER, exchange=exchange)
    assert plan.prediction is not None
    timeline = simulate(known, plan, CLUSTER, iterations=3)
    starts = [span.start_s for span in timeline.spans if span.iteration == 2]
    assert timeline.duration_s - min(starts) == pytest.approx(plan.prediction.iteration_s)
    told = [span for span in timeline.spans if span.name == "flags and buffers"]
    assert {(span.lane, span.nbytes) for span in told} == {("push", 56 + BUFFERS)}
    assert len(told) == 3 * 4


def test_a_plan_does_not_depend_on_them() -> None:
    plans = [make_plan(workload(nbytes), CLUSTER) for nbytes in (None, BUFFERS)]
    assert plans[0].buckets == plans[1].buckets
    assert structs.replace(plans[0], prediction=None) == structs.replace(plans[1], prediction=None)
