"""Iterations of ranks by themselves: played, predicted, and averages on the plan's channels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import plan_bound_s
from syncopate.delay import LocalSGD
from syncopate.planning import make_plan, predict
from syncopate.simulation.iteration import IDEAL
from syncopate.simulation.local_sgd import play_closing
from syncopate.simulation.timeline import simulate
from tests.unit.simulation.workloads import collectives, workloads


def _work() -> Workload:
    tensors = tuple(
        GradientTensor(name=f"w{index}", numel=1_000_000, backward_s=0.02) for index in range(8)
    )
    return Workload(model="layers", tensors=tensors, forward_s=0.08, backward_s=0.16, update_s=0.01)


def _plan(channels: int = 1, wire_dtype: str = "") -> tuple[Plan, Workload, Cluster]:
    cluster = Cluster.preset("10gbe", 4)
    slow = replace(cluster.levels[0], bandwidth_bytes_per_s=1e8)
    cluster = replace(cluster, levels=(slow,))
    made = make_plan(
        _work(), cluster, "threshold", channels=channels, algorithm="ring", wire_dtype=wire_dtype
    )
    return made, _work(), cluster


@given(st.data())
def test_on_one_channel_an_average_lasts_as_long_as_its_sums_together(data: st.DataObject) -> None:
    pushes = tuple(data.draw(collectives(data.draw(workloads()))))
    played = play_closing(pushes, IDEAL)
    assert played.finishes_s[-1] == pytest.approx(sum(push.duration_s for push in pushes))
    assert list(played.starts_s) == sorted(played.starts_s)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_prediction_is_computation_and_a_part_of_an_average(channels: int) -> None:
    plan, work, cluster = _plan(channels)
    assert plan.prediction is not None
    once = predict(work, plan.delayed(LocalSGD(period=1)), cluster)
    average_s = once.iteration_s - once.compute_s
    assert once.compute_s == plan.prediction.compute_s == pytest.approx(0.25)
    # Nothing overlaps, so that averaging each step takes longer than exchanging gradients.
    assert once.iteration_s > plan.prediction.iteration_s
    assert average_s <= once.communication_s * (1 + 1e-9)
    for period in (2, 4, 100):
        found = predict(work, plan.delayed(LocalSGD(period=period, warm_up=7)), cluster)
        assert found.compute_s == once.compute_s
        assert found.exposed_s == pytest.approx(average_s / period)
        assert found.iteration_s == pytest.approx(found.compute_s + average_s / period)
        assert found.communication_s == pytest.approx(once.communication_s / period)
        wire_s = plan_bound_s(cluster, plan.buckets, 0.0)
        assert found.bound_s == pytest.approx(max(found.compute_s, wire_s / period))
        assert found.bound_s <= found.iteration_s


def test_weights_are_priced_in_their_own_type() -> None:
    plan, work, cluster = _plan()
    narrow, _, _ = _plan(wire_dtype="bfloat16")
    narrow = replace(narrow, buckets=plan.buckets)
    local = LocalSGD(period=2)
    assert predict(work, narrow.delayed(local), cluster) == predict(
        work, plan.delayed(local), cluster
    )


def test_a_simulated_training_sends_nothing_between_averages() -> None:
    plan, work, cluster = _plan(2)
    local = plan.delayed(LocalSGD(period=3))
    played = simulate(work, local, cluster, iterations=7)
    assert not any(span.lane == "push" for span in played.spans)
    pulls = [span for span in played.spans if span.lane == "pull" and span.rank == 0]
    assert {span.iteration for span in pulls} == {2, 5}
    assert len(pulls) == 2 * len(plan.buckets)
    assert sum(span.nbytes for span in pulls) == 2 * work.nbytes
    updated_s = max(s.end_s for s in played.spans if (s.lane, s.iteration) == ("update", 2))
    assert min(span.start_s for span in pulls) == pytest.approx(updated_s)
    begins_s = [
        min(s.start_s for s in played.spans if s.iteration == iteration) for iteration in (0, 6)
    ]
    mean_s = (begins_s[1] - begins_s[0]) / 6
    assert mean_s == pytest.approx(predict(work, local, cluster).iteration_s)
