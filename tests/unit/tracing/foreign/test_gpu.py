"""GPUs: collectives known by their kernels, waiting told from transfer, groups, iterations."""

from __future__ import annotations

import pytest

from syncopate.analysis.collectives import collectives
from syncopate.analysis.phases import phases
from syncopate.tracing.foreign import read_timeline
from syncopate.tracing.foreign.chrome.names import collective_of, collective_of_kernel
from tests.unit.tracing.foreign.made import notes, profile, times_ms, write

EVALUATED = "autograd::engine::evaluate_function: AddmmBackward0"
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name, start, end, number, stream=7, **args):
    """Return a kernel and its launch, a millisecond before it."""
    about = {"correlation": number}
    return [
        ("cuda_runtime", "cudaLaunchKernel", start - 1, start - 0.9, about),
        ("kernel", name, start, end, about | {"stream": stream} | args),
    ]


def iteration(begin, at, *messages):
    """Return an iteration whose kernels are numbered from ``at`` on, and these messages."""
    return [
        ("user_annotation", "DistributedDataParallel.forward", begin, begin + 5, {}),
        *kernel("gemm", begin + 2, begin + 10, at),
        ("cpu_op", EVALUATED, begin + 8, begin + 30, {}),
        *kernel("gemm", begin + 10, begin + 40, at + 1),
        *messages,
        ("user_annotation", "Optimizer.step#SGD.step", begin + 48, begin + 52, {}),
        *kernel("add", begin + 50, begin + 55, at + 2),
    ]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        (RING, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("void ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(x)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "all_gather"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, ncclWork*)", "send"),
        ("ncclDevKernel_Generic(ncclDevComm*)", "collective"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("rcclGenericKernel<1, false>(ncclDevComm*)", "collective"),
        ("multimem_all_reduce_kernel<float, 8>", "all_reduce"),
        ("ampere_sgemm_128x64_tn", None),
        ("void at::native::reduce_kernel<512, 1>(float)", None),
        ("ncclCommInitRank", None),
    ],
)
def test_collectives_are_known_by_the_names_of_their_kernels(name, collective):
    assert collective_of_kernel(name) == collective


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced_", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base_", "all_to_all"),
        ("recv_", "recv"),
        ("wait", None),
    ],
)
def test_collectives_are_known_by_what_pytorch_calls_them(name, collective):
    assert collective_of(name) == collective


def test_kernels_without_metadata_are_buckets(tmp_path):
    rows = [*iteration(0, 1, *kernel(RING, 30, 45, 4, 20))]
    rows += [*iteration(100, 11, *kernel(RING, 130, 145, 14, 20))]
    timeline = read_timeline(write(tmp_path, "rank", [profile(r, rows) for r in (0, 1)]))
    assert times_ms(timeline, "bucket 0", 1) == {0: (128, 143), 1: (128, 143)}
    assert times_ms(timeline, "SGD", 1)[0] == (148, 153)
    assert {span.lane for span in timeline.spans} == {"forward", "backward", "push", "update"}


@pytest.mark.parametrize("kernels", ["rcclGenericKernel<1,false>(x)", "ncclDevKernel_SendRecv(x)"])
def test_a_kernel_that_could_be_any_is_what_the_call_says(tmp_path, kernels):
    call = [("cpu_op", "c10d::alltoall_base_", 28, 30, {})]
    rows = iteration(0, 1, *call, *kernel(kernels, 30, 45, 4, 20))
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, rows, world_size=1)]))
    assert [span.name for span in timeline.spans if span.lane == "push"] == ["all_to_all 0"]


def test_metadata_of_the_call_counts_where_the_kernel_has_none(tmp_path):
    about = {
        "Collective name": "_reduce_scatter_base",
        "In msg nelems": 50,
        "dtype": "Float",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1]",
    }
    call = [("cpu_op", "record_param_comms", 28, 30, about)]
    name = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"
    rows = iteration(0, 1, *call, *kernel(name, 30, 45, 4, 20))
    timeline = read_timeline(write(tmp_path, "rank", [profile(r, rows) for r in (0, 1)]))
    (span, _) = [span for span in timeline.spans if span.lane == "push"]
    assert (span.name, span.nbytes) == ("reduce_scatter 0", 200)
    assert (timeline.groups[0].name, timeline.groups[0].ranks) == ("3", (0, 1))


def test_waiting_for_other_ranks_is_what_a_kernel_lasts_beyond_the_shortest(tmp_path):
    """Rank 1's clock is 3 s ahead; rank 0 waits 20 ms for it, and the bytes take 2 ms."""
    documents = []
    for rank, ahead, waits in ((0, 0, 20), (1, 3000, 0)):
        rows = []
        for number in range(4):
            begin = 100 * number + ahead
            message = kernel(RING, begin + 40 - waits, begin + 42, 1000 + number, 20)
            rows += iteration(begin, 10 * number, *message)
        documents.append(profile(rank, rows, host=f"host{rank}"))
    timeline = read_timeline(write(tmp_path, "rank", documents))
    for _, (first, second) in collectives(timeline):
        arrived_s = max(first.start_s, second.start_s)
        assert round((arrived_s - first.start_s) * 1e3, 3) == 20
        assert [round((s.end_s - arrived_s) * 1e3, 3) for s in (first, second)] == [2, 2]
    assert any("clocks of ranks 1 were moved" in note for note in notes(timeline))


def test_gaps_between_kernels_under_a_collective_are_no_computation(tmp_path):
    """Of a collective of 20 ms, kernels hide 10: figures of HTA count kernels, too."""
    rows = [
        ("user_annotation", "DistributedDataParallel.forward", 0, 5, {}),
        *kernel("gemm", 2, 10, 1),
        ("cpu_op", EVALUATED, 5, 60, {}),
        *kernel("gemm", 12, 20, 2),  # the gap before it is the host's
        *kernel(RING, 20, 40, 3, 20),
        *kernel("gemm", 20, 25, 4),
        *kernel("gemm", 35, 45, 5),
    ]
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, rows, world_size=1)]))
    (found,) = phases(timeline)
    assert round(found.communication_s * 1e3, 3) == 20
    assert round(found.overlapped_s * 1e3, 3) == 10


def test_what_was_launched_before_the_recording_is_of_no_iteration(tmp_path):
    mark = [("user_annotation", "ProfilerStep#7", 0, 90, {})]
    stray = [("kernel", RING, 0.5, 1.5, {"correlation": 77, "stream": 20})]
    rows = mark + stray + iteration(1, 1, *kernel(RING, 31, 46, 4, 20))
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, rows, world_size=1)]))
    assert {span.iteration for span in timeline.spans} == {7}
    assert [span.name for span in timeline.spans if span.lane == "push"] == ["bucket 0"]


def _group(name, ranks):
    return {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "dtype": "Float",
        "Process Group Name": name,
        "Process Group Description": "mesh_tp" if name != "0" else "default_pg",
        "Process Group Ranks": str(ranks),
    }


def test_groups_are_channels_and_kept_with_their_ranks(tmp_path):
    """Four ranks, pairs of which share each layer; micro-batches repeat what pairs do."""
    documents = []
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        rows = []
        for number in range(3):
            begin, at = 100 * number, 100 * number
            messages = []
            for micro in range(4):
                messages += kernel(
                    RING, begin + 12 + 4 * micro, begin + 14 + 4 * micro, at + 50 + micro, 30,
                    **_group("1" if rank < 2 else "2", pair),
                )  # fmt: skip
            messages += kernel(
                RING, begin + 40, begin + 45, at + 60, 20, **_group("0", [0, 1, 2, 3])
            )
            rows += iteration(begin, at + 1, *messages)
        documents.append(profile(rank, rows, world_size=4))
    timeline = read_timeline(write(tmp_path, "rank", documents))
    assert [(g.name, g.ranks, g.description) for g in timeline.groups] == [
        ("0", (0, 1, 2, 3), "default_pg"),
        ("1", (0, 1), "mesh_tp"),
        ("2", (2, 3), "mesh_tp"),
    ]
    assert {span.iteration for span in timeline.spans} == {0, 1, 2}
    sizes = {(spans[0].channel, len(spans)) for _, spans in collectives(timeline)}
    assert sizes == {(0, 4), (1, 2), (2, 2)}
    per_iteration = [one for _, one in collectives(timeline) if one[0].iteration == 1]
    assert len(per_iteration) == 1 + 4 + 4
    again = type(timeline).from_json(timeline.to_json())
    assert again.groups == timeline.groups


def test_streams_are_groups_where_nothing_names_them(tmp_path):
    two = [*kernel(RING, 30, 45, 4, 20), *kernel(RING, 31, 40, 5, 24)]
    rows = iteration(0, 1, *two)
    timeline = read_timeline(write(tmp_path, "rank", [profile(r, rows) for r in (0, 1)]))
    assert [group.name for group in timeline.groups] == ["", "stream 1"]
    assert {len(spans) for _, spans in collectives(timeline)} == {2}


def test_a_few_ranks_of_a_large_job_are_enough_for_what_they_show(tmp_path):
    rows = iteration(0, 1, *kernel(RING, 30, 45, 4, 20))
    documents = [profile(rank, rows, world_size=128) for rank in (0, 1)]
    timeline = read_timeline(write(tmp_path, "rank", documents))
    assert timeline.world_size == 128
    said = [note for note in notes(timeline) if "no file" in note]
    assert len(said) == 1
    assert said[0].startswith("ranks 2 to 127 have no file")


def test_lost_events_make_no_collective_of_what_was_not_at_the_same_time(tmp_path):
    """Rank 1's file lacks the first of three: its first was with rank 0's second."""
    own = [*kernel(RING, 12, 14, 4, 20), *kernel(RING, 22, 26, 5, 20), *kernel(RING, 32, 36, 6, 20)]
    other = [*kernel(RING, 23, 26, 5, 20), *kernel(RING, 33, 36, 6, 20)]
    documents = [profile(rank, iteration(0, 10, *m)) for rank, m in ((0, own), (1, other))]
    timeline = read_timeline(write(tmp_path, "rank", documents))
    assert [len(spans) for _, spans in collectives(timeline)] == [1, 2, 2]
