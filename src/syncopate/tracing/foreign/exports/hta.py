"""HTA: a timeline as the files that HolisticTraceAnalysis opens, one of each rank.

HTA reads traces of GPUs that NCCL joins. So each span is written as a kernel on a stream, and
communication bears NCCL's names, also over Gloo; ``args`` says what it was, in PyTorch's own
words. Waiting is left out: HTA takes what no kernel fills for idle. Times are whole microseconds.
HTA finds the rank by the text ``"rank": N``, with the space.

[Note: streams] Kernels of one stream run one after the other. Computation is stream 7 as in
PyTorch's own traces, channels are streams from 20 on, and what overlaps another span of its channel
is on a further one. A channel has the same streams on all ranks: HTA compares ranks by stream.

[Note: launches] HTA knows the iteration of a kernel by when the host launched it, within which
``ProfilerStep#N``. So each kernel has a launch, just before it begins but within its iteration, and
each iteration a step. Around the launch of computation are what PyTorch calls such a phase, and an
operator. HTA leaves out the last step, so an empty one follows. It also leaves out
step 0 where it looks for stragglers, so steps are counted from 1.

Source: HolisticTraceAnalysis 0.5, ``hta/common/trace_file.py``, ``hta/common/trace.py``,
``hta/analyzers/straggler.py`` and ``hta/utils/utils.py``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from syncopate.artifacts.timeline import Group, Span, Timeline

_COMPUTATION = ("forward", "backward", "update")
_COMMUNICATION = ("push", "pull")
_STREAM, _FIRST_CHANNEL = 7, 20
_HOST, _DEVICE, _THREAD = 1000, 0, 1
_NAMES = {
    "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float",
    "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_float",
    "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    "broadcast": "ncclKernel_Broadcast_RING_LL_Sum_int8_t",
    "reduce": "ncclKernel_Reduce_RING_LL_Sum_float",
}
_OTHERS = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"
_TORCH_S = {
    "all_reduce": "allreduce",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gather": "_allgather_base",
    "receive": "recv",
}
"""Collective -> what PyTorch calls it; others have their own names there."""

_PHASES = {
    "forward": ("user_annotation", "DistributedDataParallel.forward"),
    "backward": ("cpu_op", "autograd::engine::evaluate_function: backward"),
    "update": ("user_annotation", "Optimizer.step#{}.step"),
}
"""Lane -> category and name of what the host does where it launches the kernel of such a span."""

_FIRST_US = 1
"""When the first kernel begins: its launch comes before."""

_Event = dict[str, Any]


class _Kernel(NamedTuple):
    """A span in whole microseconds, and the number that joins it with its launch."""

    start_us: int
    end_us: int
    span: Span
    correlation: int


def to_hta(timeline: Timeline, kinds: Mapping[Span, str]) -> dict[str, bytes]:
    """Return file name -> content, a file of each rank.

    Args:
        timeline: measured or simulated.
        kinds: spans of communication -> the collective each is part of.
    """
    origin_s = min((span.start_s for span in timeline.kept), default=0.0)
    by_rank: list[list[_Kernel]] = [[] for _ in range(timeline.world_size)]
    for span in sorted(timeline.kept, key=lambda span: (span.start_s, -span.end_s)):
        if span.lane in (*_COMPUTATION, *_COMMUNICATION):
            start_us = _FIRST_US + round((span.start_s - origin_s) * 1e6)
            end_us = max(_FIRST_US + round((span.end_s - origin_s) * 1e6), start_us)
            mine = by_rank[span.rank]
            mine.append(_Kernel(start_us, end_us, span, len(mine) + 1))
    rows = [_rows(kernels) for kernels in by_rank]
    streams = _streams(rows)
    elsewhere = {rank for one in timeline.alike for rank in one.all.tolist() if rank != one.rank}
    made = {}
    for first, own in enumerate(rows):
        if first in elsewhere:
            continue
        events = list(_host(kernel for row in own.values() for kernel in row))
        for place, row in sorted(own.items()):
            for kernel in row:
                told = _told(kernel.span, kinds, timeline)
                events.append(_kernel(kernel, streams[place], *told))
        text = json.dumps(events)
        for rank in timeline.ranks_like(first):
            made[rank] = _file(timeline, rank, text)
    return {f"rank-{rank}.json": content for rank, content in sorted(made.items())}


_Rows = dict[tuple[int, int], list[_Kernel]]
"""(channel, row) -> kernels that do not overlap; computation is channel -1."""


def _rows(kernels: Iterable[_Kernel]) -> _Rows:
    """Distribute the kernels of a rank, which come by start, by [Note: streams]."""
    rows: _Rows = {}
    for kernel in kernels:
        channel = kernel.span.channel if kernel.span.lane in _COMMUNICATION else -1
        row = 0
        while (channel, row) in rows and rows[channel, row][-1].end_us > kernel.start_us:
            row += 1
        rows.setdefault((channel, row), []).append(kernel)
    return rows


def _streams(ranks: Sequence[_Rows]) -> dict[tuple[int, int], int]:
    """Return the stream of each row of each channel, the same on all ranks."""
    used = sorted({place for rows in ranks for place in rows})
    computing = [place for place in used if place[0] < 0]
    communicating = [place for place in used if place[0] >= 0]
    first = max(_FIRST_CHANNEL, _STREAM + len(computing))
    streams = {place: _STREAM + at for at, place in enumerate(computing)}
    return streams | {place: first + at for at, place in enumerate(communicating)}


def _file(timeline: Timeline, rank: int, events: str) -> bytes:
    head = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": timeline.world_size,
        },
        "otherData": {"name": timeline.name, "source": timeline.source} | timeline.metadata,
    }
    opened = json.dumps(head).removesuffix("}")  # which writes the space after "rank":
    return f'{opened}, "traceEvents": {events}}}\n'.encode()


def _host(kernels: Iterable[_Kernel]) -> Iterator[_Event]:
    """Yield steps and launches, by [Note: launches]."""
    by_iteration: dict[int, list[_Kernel]] = defaultdict(list)
    for kernel in kernels:
        by_iteration[kernel.span.iteration].append(kernel)
    begins: list[int] = []
    for _, mine in sorted(by_iteration.items()):
        first_us = min(kernel.start_us for kernel in mine) - 1
        begins.append(max(first_us, begins[-1] + 1) if begins else first_us)
    last_us = max((kernel.end_us for mine in by_iteration.values() for kernel in mine), default=0)
    begins.append(max(last_us, begins[-1]) + 1 if begins else 0)
    numbers = sorted(by_iteration)
    for number, (begin_us, end_us) in zip(numbers, pairwise(begins), strict=True):
        yield _step(number, begin_us, end_us)
        for kernel in sorted(by_iteration[number], key=lambda kernel: kernel.correlation):
            at_us = min(max(kernel.start_us - 1, begin_us), end_us - 1)
            lane = kernel.span.lane
            if lane in _PHASES:
                cat, name = _PHASES[lane]
                yield _complete(cat, name.format(kernel.span.name), at_us, 1)
                yield _complete("cpu_op", f"aten::{lane}", at_us, 1)
            launch = _complete("cuda_runtime", "cudaLaunchKernel", at_us, 1)
            yield launch | {"args": {"correlation": kernel.correlation}}
    if numbers:
        yield _step(numbers[-1] + 1, begins[-1], begins[-1] + 1)


def _step(iteration: int, begin_us: int, end_us: int) -> _Event:
    event = _complete(
        "user_annotation", f"ProfilerStep#{iteration + 1}", begin_us, end_us - begin_us
    )
    return event | {"args": {"iteration": iteration}}


def _complete(cat: str, name: str, at_us: int, dur_us: int) -> _Event:
    event: _Event = {"ph": "X", "cat": cat, "name": name, "pid": _HOST, "tid": _THREAD}
    return event | {"ts": at_us, "dur": dur_us}


def _told(span: Span, kinds: Mapping[Span, str], timeline: Timeline) -> tuple[str, _Event]:
    """Return the name of a kernel, and what its ``args`` say of it."""
    args: _Event = {"iteration": span.iteration, "detail": span.detail}
    if span.lane not in _COMMUNICATION:
        return f"{span.lane} {span.name}", args
    kind = kinds.get(span, "send")
    everybody = Group(name="0", ranks=tuple(range(timeline.world_size)))
    groups = timeline.groups
    group = groups[span.channel] if 0 <= span.channel < len(groups) else everybody
    args |= {
        "Collective name": _TORCH_S.get(kind, kind),
        "In msg nelems": span.nbytes,
        "Out msg nelems": span.nbytes,
        "dtype": "Byte",
        "Group size": len(group.ranks) or timeline.world_size,
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
        "bytes": span.nbytes,
        "message": f"{span.lane} {span.name}",
    }
    return _NAMES.get(kind, _OTHERS), args


def _kernel(kernel: _Kernel, stream: int, name: str, args: _Event) -> _Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": _DEVICE,
        "tid": stream,
        "ts": kernel.start_us,
        "dur": kernel.end_us - kernel.start_us,
        "args": args | {"stream": stream, "device": 0, "correlation": kernel.correlation},
    }
