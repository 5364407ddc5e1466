"""HTA: a timeline as the files that HolisticTraceAnalysis opens, one of each rank.

HTA reads traces of GPUs that NCCL joins. So each span is written as a kernel on a stream, and
communication bears NCCL's names, whatever carried it; ``args`` says what it was. Computation is
stream 7 as in PyTorch's own traces, channels are streams from 20 on, and waiting is left out: HTA
takes what no kernel fills for idle. Times are whole microseconds. HTA finds the rank by the text
``"rank": N``, with the space.

Source: HolisticTraceAnalysis 0.5, ``hta/common/trace_file.py`` and ``hta/utils/utils.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from syncopate.timeline import Span, Timeline

_COMPUTATION = ("forward", "backward", "update")
_COMMUNICATION = ("push", "pull")
_STREAM, _FIRST_CHANNEL = 7, 20
_NAMES = {
    "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float",
    "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_float",
    "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    "broadcast": "ncclKernel_Broadcast_RING_LL_Sum_int8_t",
    "reduce": "ncclKernel_Reduce_RING_LL_Sum_float",
}
_OTHERS = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"


def to_hta(timeline: Timeline, kinds: Mapping[Span, str]) -> dict[str, bytes]:
    """Return file name -> content, a file of each rank.

    Args:
        timeline: measured or simulated.
        kinds: spans of communication -> the collective each is part of.
    """
    origin_s = min((span.start_s for span in timeline.spans), default=0.0)
    events: list[list[dict[str, Any]]] = [[] for _ in range(timeline.world_size)]
    for span in sorted(timeline.spans, key=lambda span: (span.start_s, -span.end_s)):
        if span.lane in (*_COMPUTATION, *_COMMUNICATION):
            mine = events[span.rank]
            mine.append(_kernel(span, origin_s, len(mine) + 1, kinds, timeline.world_size))
    return {
        f"rank-{rank}.json": _file(timeline, rank, kernels) for rank, kernels in enumerate(events)
    }


def _file(timeline: Timeline, rank: int, kernels: list[dict[str, Any]]) -> bytes:
    document = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": timeline.world_size,
        },
        "otherData": {"name": timeline.name, "source": timeline.source} | timeline.metadata,
        "traceEvents": kernels,
    }
    return json.dumps(document).encode() + b"\n"  # which writes the space after "rank":


def _kernel(
    span: Span, origin_s: float, number: int, kinds: Mapping[Span, str], world_size: int
) -> dict[str, Any]:
    start_us = round((span.start_s - origin_s) * 1e6)
    stream, name = _STREAM, f"{span.lane} {span.name}"
    args: dict[str, Any] = {"iteration": span.iteration, "detail": span.detail}
    if span.lane in _COMMUNICATION:
        kind = kinds.get(span, "send")
        stream, name = _FIRST_CHANNEL + span.channel, _NAMES.get(kind, _OTHERS)
        args |= {"Collective name": kind, "bytes": span.nbytes, "Group size": world_size}
        args |= {"message": f"{span.lane} {span.name}"}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start_us,
        "dur": max(round((span.end_s - origin_s) * 1e6) - start_us, 0),
        "args": args | {"stream": stream, "device": 0, "correlation": number},
    }
