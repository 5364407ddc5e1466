"""torch.profiler: computation and collectives of a CPU and of a GPU."""

from __future__ import annotations

import pytest

from syncopate.artifacts.timelines.gradients import BESIDE, GRADIENTS, Seen, of_text
from syncopate.errors import ArtifactError
from syncopate.tracing.foreign import read_timeline
from tests.unit.tracing.foreign.made import notes, profile, times_ms, write

EVALUATED = "autograd::engine::evaluate_function: AddmmBackward0"
SHAPES = {"Input Dims": [[256]], "Input type": ["float"]}


def _iteration(begin, late=0, mark=None):
    """Return one iteration of a CPU: a bucket during backward, one at its end."""
    rows = [
        ("user_annotation", "DistributedDataParallel.forward", begin, begin + 10, {}),
        ("cpu_op", EVALUATED, begin + 11, begin + 15, {}),
        ("cpu_op", "c10d::allreduce_", begin + 14, begin + 15, {}),
        ("user_annotation", "gloo:all_reduce", begin + 15, begin + 20 + late, SHAPES),
        ("cpu_op", EVALUATED, begin + 16, begin + 30, {}),
        ("cpu_op", "c10d::allreduce_", begin + 29, begin + 30, {}),
        ("user_annotation", "gloo:all_reduce", begin + 30, begin + 35, {}),
        ("user_annotation", "Optimizer.step#AdamW.step", begin + 40, begin + 45, {}),
    ]
    if mark is not None:
        rows.append(("user_annotation", f"ProfilerStep#{mark}", begin - 1, begin + 50, {}))
    return rows


def test_computation_and_collectives_of_a_cpu(tmp_path):
    ranks = [profile(rank, [*_iteration(0), *_iteration(100, late=3)]) for rank in (0, 1)]
    timeline = read_timeline(write(tmp_path, "prof-", ranks))
    assert times_ms(timeline, "forward", 1) == {0: (100, 110), 1: (100, 110)}
    assert times_ms(timeline, "backward", 0)[0] == (11, 30)
    assert times_ms(timeline, "AdamW", 1)[0] == (140, 145)
    # From the call, not from when a thread of Gloo took it up.
    assert times_ms(timeline, "bucket 0", 1)[0] == (114, 123)
    assert times_ms(timeline, "bucket 1", 1)[1] == (129, 135)
    assert {span.nbytes for span in timeline.spans if span.name == "bucket 0"} == {1024}
    assert notes(timeline) == []


def test_fsdp2_has_its_forward_and_gloo_sums_for_its_reduce_scatters(tmp_path):
    rows = []
    for begin in (0, 100):
        rows += [
            ("cpu_op", "FSDP::root_pre_forward", begin, begin + 1, {}),
            ("cpu_op", "FSDP::post_forward (0)", begin + 5, begin + 6, {}),
            ("cpu_op", "FSDP::post_forward (1)", begin + 9, begin + 10, {}),
            ("cpu_op", EVALUATED, begin + 11, begin + 30, {}),
            ("cpu_op", "c10d::_reduce_scatter_base_", begin + 14, begin + 15, {}),
            ("user_annotation", "gloo:all_reduce", begin + 15, begin + 20, SHAPES),
            # Computed once more within backward.
            ("cpu_op", "FSDP::post_forward (0)", begin + 21, begin + 22, {}),
            ("user_annotation", "Optimizer.step#AdamW.step", begin + 40, begin + 45, {}),
        ]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert times_ms(timeline, "forward", 1)[0] == (100, 110)
    back = [s for s in timeline.spans if s.lane == "backward" and s.iteration == 1]
    found = [(round(s.start_s * 1e3, 3), round(s.end_s * 1e3, 3)) for s in back]
    assert found == [(111, 114), (120, 130)]  # it stood still in between
    (pushed,) = (s for s in timeline.spans if s.lane == "push" and s.iteration == 1)
    assert (pushed.nbytes, timeline.metadata["exchange"]) == (1024, "fsdp")
    assert pushed.duration_s == pytest.approx(6e-3)


def _accumulated(begin, *gradients):
    """Return when autograd had gradients: ``(end, shape, type)``, 1 ms each."""
    return [
        (
            "cpu_op",
            "torch::autograd::AccumulateGrad",
            begin + end - 1,
            begin + end,
            {"Input Dims": [shape], "Input type": [kind]},
        )
        for end, shape, kind in gradients
    ]


def test_gradients_are_told_one_by_one_where_shapes_were_recorded(tmp_path):
    usual = [(15, [16, 8], "float"), (20.5, [128], "c10::BFloat16"), (30, [], "float")]
    rows = [
        *_iteration(0),
        *_accumulated(0, *usual),
        # Outside of backward it belongs to no gradient.
        *_accumulated(0, (38, [9], "float")),
        *_iteration(100),
        *_accumulated(100, *usual),
        *_iteration(200),
        *_accumulated(200, *usual[:2]),
    ]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    # Backward takes from 11 to 30 ms.
    assert of_text(timeline.metadata[GRADIENTS]) == (
        Seen((16, 8), "float32", pytest.approx(4 / 19, abs=1e-6)),
        Seen((128,), "bfloat16", 0.5),
        Seen((), "float32", 1.0),
    )


def test_gradients_of_the_last_of_several_backwards_travel(tmp_path):
    """Of two backwards before a step the second ends at 60 ms, 20 ms after it began."""
    rows = []
    for begin in (0, 100):
        rows += [
            ("user_annotation", "DistributedDataParallel.forward", begin, begin + 10, {}),
            ("cpu_op", EVALUATED, begin + 10, begin + 30, {}),
            *_accumulated(begin, (25, [256], "float")),
            ("user_annotation", "DistributedDataParallel.forward", begin + 31, begin + 40, {}),
            ("cpu_op", EVALUATED, begin + 40, begin + 60, {}),
            *_accumulated(begin, (50, [256], "float")),
            ("cpu_op", "c10d::allreduce_", begin + 59, begin + 60, {}),
            ("user_annotation", "gloo:all_reduce", begin + 60, begin + 65, SHAPES),
            ("user_annotation", "Optimizer.step#SGD.step", begin + 70, begin + 75, {}),
        ]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert of_text(timeline.metadata[GRADIENTS]) == (Seen((256,), "float32", 0.75),)


def test_tensors_of_half_precision_have_bytes_and_counts_are_no_gradients(tmp_path):
    half = {"Input Dims": [[256]], "Input type": ["c10::BFloat16"]}
    counts = {"Input Dims": [[53]], "Input type": ["int"]}
    rows = [
        *_iteration(0),
        ("cpu_op", "c10d::allreduce_", 36, 36.5, {}),
        ("user_annotation", "gloo:all_reduce", 37, 38, counts),
    ]
    rows = [(*row[:-1], half) if row[-1] is SHAPES else row for row in rows]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert [span.nbytes for span in timeline.spans if span.name == "bucket 0"] == [512]
    assert [span.nbytes for span in timeline.spans if span.name == BESIDE] == [212]
    assert timeline.metadata["device"] == "cpu"


@pytest.mark.parametrize("odd", [(20, "?", "float"), (20, [4], "signed char")])
def test_gradients_that_do_not_tell_what_they_are_are_no_gradients(tmp_path, odd):
    rows = [*_iteration(0), *_accumulated(0, (15, [16, 8], "float"), odd)]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert GRADIENTS not in timeline.metadata


def test_steps_of_the_profiler_number_iterations(tmp_path):
    rows = [*_iteration(0, mark=6), *_iteration(100, mark=7)]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert {span.iteration for span in timeline.spans} == {6, 7}
    assert times_ms(timeline, "AdamW", 7)[0] == (140, 145)


def test_a_run_from_before_the_window_is_nobodys_and_a_call_at_its_end_has_no_end(tmp_path):
    rows = [
        ("user_annotation", "gloo:all_reduce", 0, 4, {}),
        *_iteration(10),
        ("cpu_op", "c10d::allreduce_", 60, 61, {}),
    ]
    other = [*_iteration(10), ("cpu_op", "c10d::allreduce_", 65, 66, {})]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows), profile(1, other)]))
    # Zero is the first forward, at 10 ms.
    assert times_ms(timeline, "bucket 0", 0)[0] == (14, 20)
    assert times_ms(timeline, "bucket 0", 1) == {0: (50, 55), 1: (55, 55)}
    assert "when 2 collectives ended is not known" in notes(timeline)[0]


def test_kernels_are_what_a_gpu_did(tmp_path):
    """The host runs ahead: phases are when their kernels ran, collectives when theirs did."""
    host = [
        ("user_annotation", "DistributedDataParallel.forward", 0, 2, {}),
        ("gpu_user_annotation", "DistributedDataParallel.forward", 5, 20, {}),
        ("cuda_runtime", "cudaLaunchKernel", 1, 1.1, {"correlation": 1}),
        ("cpu_op", EVALUATED, 3, 4, {}),
        ("cuda_runtime", "cudaLaunchKernel", 3.1, 3.2, {"correlation": 2}),
        ("cpu_op", "c10d::allreduce_", 3.5, 3.8, {}),
        ("cuda_runtime", "cudaLaunchKernelExC", 3.6, 3.7, {"correlation": 3}),
        ("user_annotation", "Optimizer.step#SGD.step", 5, 6, {}),
        ("cuda_runtime", "cudaLaunchKernel", 5.1, 5.2, {"correlation": 4}),
    ]
    about = {
        "Collective name": "allreduce",
        "In msg nelems": 100,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "correlation": 3,
    }
    device = [
        ("kernel", "gemm", 10, 20, {"correlation": 1, "stream": 7}),
        ("kernel", "gemm", 20, 40, {"correlation": 2, "stream": 7}),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30, 50, about),
        ("kernel", "add", 50, 52, {"correlation": 4, "stream": 7}),
        ("kernel", "stray", 60, 61, {"correlation": 99, "stream": 7}),
    ]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, host + device, world_size=1)]))
    spans = {span.name: span for span in timeline.spans}
    assert {name: span.lane for name, span in spans.items()} == {
        "forward": "forward",
        "backward": "backward",
        "bucket 0": "push",
        "SGD": "update",
    }
    assert times_ms(timeline, "backward", 0)[0] == (10, 30)
    assert times_ms(timeline, "bucket 0", 0)[0] == (20, 40)
    assert times_ms(timeline, "SGD", 0)[0] == (40, 42)
    assert spans["bucket 0"].nbytes == 200
    assert spans["bucket 0"].detail.startswith("ncclDevKernel_AllReduce")


def test_steps_of_the_profiler_begin_on_a_gpu_with_their_first_kernel(tmp_path):
    rows = []
    for number, begin in ((3, 0), (4, 10)):  # the host is done with both before the device begins
        launch, kernel = {"correlation": number}, {"correlation": number, "stream": 7}
        rows += [
            ("user_annotation", f"ProfilerStep#{number}", begin, begin + 9, {}),
            ("user_annotation", "DistributedDataParallel.forward", begin, begin + 2, {}),
            ("cuda_runtime", "cudaLaunchKernel", begin + 1, begin + 1.1, launch),
            ("kernel", "gemm", 10 * begin + 50, 10 * begin + 70, kernel),
        ]
    timeline = read_timeline(write(tmp_path, "prof-", [profile(0, rows, world_size=1)]))
    assert times_ms(timeline, "forward", 3) == {0: (0, 20)}
    assert times_ms(timeline, "forward", 4) == {0: (100, 120)}


def test_a_damaged_event_is_refused(tmp_path):
    document = profile(0, [("cpu_op", "x", 0, 1, {})])
    del document["traceEvents"][1]["ts"]
    with pytest.raises(ArtifactError, match=r"traceEvents\[1\]: not an event of a Chrome trace"):
        read_timeline(write(tmp_path, "prof-", [document]))
