"""Workload of a timeline: what simulated and hand-made trainings compute and send."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.workload import (
    PIECE_BYTES,
    assumed,
    recorded_iteration_s,
    recorded_workload,
)
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.artifacts.timelines.gradients import GRADIENTS, Seen, to_text
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import InvalidValueError
from syncopate.planning.planner import make_plan
from syncopate.simulation import simulate
from tests.unit import examples
from tests.unit.analysis.made import UNDISTURBED_S, made


def test_times_are_those_of_the_recording():
    found = recorded_workload(made(2, 3))
    assert (found.forward_s, found.update_s) == (2.0, 1.0)
    assert found.backward_s == pytest.approx(4.0)
    assert [(t.name, t.nbytes) for t in found.tensors] == [("bucket 0", 100), ("bucket 1", 200)]
    # Bucket 0 begins when half of backward is done, bucket 1 at its end.
    assert found.ready_s == pytest.approx((4.0, 6.0))


def _with_gradients(*gradients):
    timeline = made(2, 3)
    metadata = timeline.metadata | {GRADIENTS: to_text(gradients)}
    return replace(timeline, metadata=metadata)


def test_gradients_that_were_seen_one_by_one_are_taken_as_they_were():
    timeline = _with_gradients(
        Seen((5, 5), "float32", 0.25), Seen((50,), "bfloat16", 0.5), Seen((25,), "float32", 1.0)
    )
    found = recorded_workload(timeline)
    assert [(tensor.name, tensor.nbytes) for tensor in found.tensors] == [
        ("gradient 0 (5x5)", 100),
        ("gradient 1 (50)", 100),
        ("gradient 2 (25)", 100),
    ]
    assert found.ready_s == pytest.approx((3.0, 4.0, 6.0))
    assert "without its name" in assumed(timeline, recorded_workload(timeline))
    assert "pieces of up to a mebibyte" in assumed(made(2, 3), recorded_workload(made(2, 3)))


def test_what_buckets_carried_beside_gradients_is_of_unused_parameters():
    found = recorded_workload(
        _with_gradients(Seen((5, 5), "float32", 0.25), Seen((40,), "float32", 1.0))
    )
    assert [(tensor.name, tensor.numel) for tensor in found.tensors][-2:] == [
        ("gradient 1 (40)", 40),
        ("unused parameters", 10),
    ]


def test_gradients_that_are_not_what_buckets_carried_do_not_count():
    found = recorded_workload(_with_gradients(Seen((5, 5), "float32", 0.25)))
    assert [tensor.name for tensor in found.tensors] == ["bucket 0", "bucket 1"]


def test_a_gradient_that_no_bucket_carried_is_left_out():
    """Of an input, or of anything else that is no parameter of the model."""
    carried = (Seen((5, 5), "float32", 0.25), Seen((25,), "float32", 0.75))
    carried = (*carried, Seen((50,), "bfloat16", 0.75))
    found = recorded_workload(_with_gradients(*carried, Seen((5, 5), "float32", 1.0)))
    assert [tensor.numel for tensor in found.tensors] == [25, 25, 50]
    assert found.tensors == recorded_workload(_with_gradients(*carried)).tensors
    empty = (*carried, Seen((0, 3), "float32", 1.0))
    assert [one.numel for one in recorded_workload(_with_gradients(*empty)).tensors][-1] == 0


def test_messages_without_their_bytes_are_refused_and_how_to_have_them_is_said():
    timeline = made(2, 3)
    spans = tuple(replace(s, nbytes=0) if s.lane == "push" else s for s in timeline.spans)
    with pytest.raises(InvalidValueError, match=r"pushes with their bytes .*record_shapes=True"):
        recorded_workload(replace(timeline, spans=spans))


def test_slow_ranks_and_pauses_are_not_the_usual():
    timeline = made(
        3,
        4,
        lambda rank, iteration: (
            {"forward_s": 9.0, "pause": ("checkpoint", 1.0)} if rank == 1 else {}
        ),
    )
    assert recorded_workload(timeline).forward_s == 2.0
    assert recorded_workload(timeline).backward_s == pytest.approx(4.0)


def test_the_layout_of_most_iterations_counts():
    timeline = made(2, 5)
    once = tuple(
        replace(span, nbytes=999) if span.name == "bucket 0" and span.iteration == 3 else span
        for span in timeline.spans
    )
    found = recorded_workload(replace(timeline, spans=once))
    assert [tensor.nbytes for tensor in found.tensors] == [100, 200]


def test_large_buckets_become_pieces_that_are_ready_one_after_the_other():
    found = recorded_workload(made(2, 3, nbytes=(4 * PIECE_BYTES, PIECE_BYTES)))
    assert len(found.tensors) == 5
    assert found.nbytes == 5 * PIECE_BYTES
    assert found.ready_s == pytest.approx((2.5, 3.0, 3.5, 4.0, 6.0))
    assert len({tensor.name for tensor in found.tensors}) == 5


@pytest.mark.parametrize("exchange", ["allreduce", "decoupled", "sharded", "served"])
def test_a_played_training_gives_its_workload_back(exchange):
    work, cluster = examples.workload(), Cluster.preset("10gbe", 4)
    plan = make_plan(work, cluster, "wfbp", exchange=exchange)
    played = simulate(work, plan, cluster, iterations=5)
    found = recorded_workload(played)
    assert found.nbytes == work.nbytes
    assert found.forward_s == pytest.approx(work.forward_s)
    assert found.backward_s == pytest.approx(work.backward_s)
    # Servers update, and their time is in no span of a rank.
    assert found.update_s == pytest.approx(0.0 if exchange == "served" else work.update_s)
    ends = [found.ready_s[-1], work.ready_s[-1]]
    assert ends[0] == pytest.approx(ends[1])
    # The 4 KB of the head are there after 2 of 17 ms of backward.
    assert found.ready_s[0] == pytest.approx(work.ready_s[0])


@pytest.mark.parametrize("network", ["1gbe", "10gbe", "25gbe"])
def test_what_is_predicted_of_a_recording_is_what_was_recorded(network):
    tensors = tuple(
        GradientTensor(name=f"layer{i}.weight", numel=(30_000, 90_000)[i % 2], backward_s=1e-3)
        for i in range(60)
    )
    work = Workload(model="sixty layers", tensors=tensors, forward_s=0.03, backward_s=0.0600001)
    cluster = Cluster.preset(network, 4)
    plan = make_plan(work, cluster, "threshold")
    found = recorded_workload(simulate(work, plan, cluster, iterations=5))
    again = make_plan(found, cluster, "threshold")
    assert again.prediction.iteration_s == pytest.approx(plan.prediction.iteration_s, rel=0.02)


def test_an_iteration_is_from_one_end_to_the_next():
    assert recorded_iteration_s(made(2, 4)) == UNDISTURBED_S
    late = made(2, 4, lambda rank, iteration: {"forward_s": 7.0} if iteration == 1 else {})
    assert recorded_iteration_s(late) == UNDISTURBED_S
    assert recorded_iteration_s(made(2, 1)) is None


def test_metadata_say_where_it_comes_from():
    timeline = replace(made(2, 3), metadata={"model": "lenet", "device": "cpu"})
    found = recorded_workload(timeline)
    assert found.model == "lenet"
    assert found.metadata["device"] == "cpu"
    assert found.metadata["recorded"] == "made"


@pytest.mark.parametrize("left", ["push", "backward"])
def test_a_timeline_without_either_is_refused(left):
    timeline = made(2, 3)
    spans = tuple(span for span in timeline.spans if span.lane != left)
    with pytest.raises(InvalidValueError, match="one of a data-parallel training"):
        recorded_workload(replace(timeline, spans=spans))
    none: tuple[Span, ...] = ()
    empty = Timeline(name="none", source="measured", world_size=1, spans=none)
    with pytest.raises(InvalidValueError, match="one of a data-parallel training"):
        recorded_workload(empty)
