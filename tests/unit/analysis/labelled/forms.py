"""Forms: the files in which a tool writes what ranks did."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.unit.analysis.labelled import noted
from tests.unit.analysis.labelled.machine import COMPUTED, Row

_NCCL = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*, unsigned long)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)",
}
_BEGAN_US = 1.7e15
_COMPUTE_STREAM = 7
_AHEAD_US = 10.0
"""The host launches a kernel so long before it runs."""

_ANNOTATED = {"forward": "DistributedDataParallel.forward", "update": "Optimizer.step#SGD.step"}
_CALLED = {"all_to_all": "c10d::alltoall_base_"}


def table(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write one table of all ranks."""
    return [noted.table(rows, folder / "spans.csv")]


def objects(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a trace of torch.profiler of each rank: an object."""
    ranks = 1 + max(row.rank for row in rows)
    return [
        _written(
            folder / f"worker.{rank}.pt.trace.json",
            {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
                "displayTimeUnit": "ms",
                "traceEvents": own,
            },
        )
        for rank, own in _by_rank(rows)
    ]


def arrays(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the same as arrays of events, whose names alone tell the ranks."""
    return [_written(folder / f"rank{rank}.json", own) for rank, own in _by_rank(rows)]


def cut_off(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write arrays of which one lacks its end, in the midst of an event."""
    paths = arrays(rows, folder)
    text = paths[-1].read_text()
    paths[-1].write_text(text[: int(len(text) * 0.8)].rpartition("}, {")[0] + "},")
    return paths


def _written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def _by_rank(rows: Sequence[Row]) -> Iterator[tuple[int, list[dict[str, object]]]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    for rank, own in sorted(found.items()):
        yield rank, list(_events(sorted(own, key=lambda row: row.start_s)))


def _events(own: Sequence[Row]) -> Iterator[dict[str, object]]:
    """Yield the events of a rank: steps, phases and launches of the host, kernels of the device."""
    computed = [row for row in own if row.kind in COMPUTED]
    begins: dict[int, float] = {}
    before_s = min(row.start_s for row in own)
    for row in computed:
        begins.setdefault(row.iteration, before_s)
        before_s = row.end_s
    ends = [*list(begins.values())[1:], max(row.end_s for row in own)]
    for (number, start_s), end_s in zip(begins.items(), ends, strict=True):
        yield _event(f"ProfilerStep#{number}", "user_annotation", start_s, end_s, 0)
    for row in noted.whole_passes([one for one in computed if one.kind != "backward"]):
        yield _event(_ANNOTATED[row.kind], "user_annotation", row.start_s, row.end_s, 1)
    streams: dict[str, int] = {}
    for number, row in enumerate(own):
        launched_s = row.called_s if row.group else row.start_s
        launch = _event("cudaLaunchKernel", "cuda_runtime", launched_s, launched_s + 1e-6, 1)
        yield launch | {"args": {"correlation": number}}
        if row.kind == "backward":
            name = "autograd::engine::evaluate_function: MmBackward0"
            yield _event(name, "cpu_op", row.start_s, row.end_s, 1)
        if row.kind in _CALLED:
            yield _event(_CALLED[row.kind], "cpu_op", launched_s - 1e-6, launched_s + 2e-6, 1)
        name, stream = "ampere_sgemm_128x64_tn", _COMPUTE_STREAM
        if row.group:
            name = _NCCL[row.kind]
            stream = streams.setdefault(row.group, 20 + 4 * len(streams))
        elif row.kind not in COMPUTED:
            continue
        kernel = _event(name, "kernel", row.start_s, row.end_s, stream)
        yield kernel | {"args": {"stream": stream, "correlation": number, "device": 0}}


def _event(name: str, cat: str, start_s: float, end_s: float, tid: int) -> dict[str, object]:
    at_us = _BEGAN_US + start_s * 1e6
    if cat in ("cuda_runtime", "cpu_op", "user_annotation"):
        at_us -= _AHEAD_US
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid,
        "ts": round(at_us, 3), "dur": round(max(end_s - start_s, 0.0) * 1e6, 3),
    }  # fmt: skip
