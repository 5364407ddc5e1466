"""torch.profiler: the Chrome traces that ``export_chrome_trace`` and TensorBoard's handler write.

What is read, all by its name:

    forward      ``DistributedDataParallel.forward`` or ``FullyShardedDataParallel.forward``
    backward     from the first function that autograd evaluates after a forward to the last
    update       ``Optimizer.step#...``
    collectives  on a CPU from the call (``c10d::allreduce_``) to the end of ``gloo:all_reduce``; on
                 a GPU the kernels that carry ``Collective name``
    iterations   ``ProfilerStep#N``, else the steps of the optimizer

On a GPU the three kinds of computation are the kernels that they launched. Sizes are there when
shapes were recorded (``record_shapes=True``), and always on a GPU.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from syncopate.errors import ArtifactError
from syncopate.tracing.foreign.iterations import iteration_at
from syncopate.tracing.foreign.ranktrace import Launch, RankTrace, Work, nbytes_of

TOOL = "torch.profiler"

_CALLS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    "c10d::gather_": "gather",
    "c10d::scatter_": "scatter",
    "c10d::barrier": "barrier",
    "c10d::send": "send",
    "c10d::recv_": "recv",
}
_ON_DEVICE = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
}
"""``Collective name`` of a kernel -> collective; others are called what they are."""

_FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")
_EVALUATED = "autograd::engine::evaluate_function"
_STEP = re.compile(r"Optimizer\.step#(.+)\.step")
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


class _Event(NamedTuple):
    start_ns: int
    end_ns: int
    name: str
    cat: str
    args: Mapping[str, Any]


def is_trace(document: Mapping[str, Any]) -> bool:
    """Say whether a document is a trace of torch.profiler."""
    return {"traceEvents", "schemaVersion"} <= document.keys()


def read_trace(document: Mapping[str, Any], path: str | os.PathLike[str]) -> RankTrace:
    """Return the rank that a trace is of.

    Raises:
        ArtifactError: an event lacks its time, or is no event.
    """
    events = _events(document, path)
    about = document.get("distributedInfo") or {}
    rank, world_size = int(about.get("rank", 0)), int(about.get("world_size", 1))
    phases = sorted(_phases(events), key=lambda work: work.start_ns)
    steps = list(_profiler_steps(events))
    if any(event.cat == "kernel" for event in events):
        kernels = _kernels(events)
        launches = list(_on_device(kernels))
        phases = list(_on_kernels(phases, kernels))
        steps = [(_begun(kernels, moment), number) for moment, number in steps]
    else:
        launches = list(_on_host(events))
    trace = RankTrace(
        rank,
        world_size,
        TOOL,
        tuple(sorted(launches, key=lambda launch: launch.start_ns)),
        tuple(phases),
        # A moment's own nanosecond still belongs to the iteration before it.
        tuple((moment - 1, number) for moment, number in steps) or tuple(_by_updates(phases)),
        host=str(document.get("host_name", "")),
    )
    return trace._replace(launches=tuple(_keyed(trace)))


def _events(document: Mapping[str, Any], path: str | os.PathLike[str]) -> list[_Event]:
    """Return the complete events in the order of their starts, in nanoseconds since 1970."""
    base_ns = int(document.get("baseTimeNanoseconds", 0))
    found = []
    for index, event in enumerate(document["traceEvents"]):
        try:
            if event["ph"] == "X":
                start_ns = base_ns + round(event["ts"] * 1000)
                end_ns = start_ns + round(event.get("dur", 0) * 1000)
                cat, args = str(event.get("cat", "")), event.get("args") or {}
                found.append(_Event(start_ns, end_ns, str(event["name"]), cat, args))
        except (KeyError, TypeError) as error:
            reason = f"not an event of a Chrome trace: {error!r}"
            raise ArtifactError(path, reason, f"$.traceEvents[{index}]") from None
    return sorted(found, key=lambda event: (event.start_ns, -event.end_ns))


def _phases(events: Iterable[_Event]) -> Iterator[Work]:
    """Yield forwards, backwards and updates as the host saw them."""
    begun = 0
    backwards: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.name in _FORWARDS and event.cat != "gpu_user_annotation":
            begun += 1
            yield Work("forward", "forward", event.start_ns, event.end_ns)
        elif found := _STEP.fullmatch(event.name):
            if event.cat != "gpu_user_annotation":
                begun += 1
                yield Work(found[1], "update", event.start_ns, event.end_ns)
        elif event.name.startswith(_EVALUATED):
            start_ns, end_ns = backwards.get(begun, (event.start_ns, event.end_ns))
            backwards[begun] = (start_ns, max(end_ns, event.end_ns))
    for start_ns, end_ns in backwards.values():
        yield Work("backward", "backward", start_ns, end_ns)


def _profiler_steps(events: Iterable[_Event]) -> Iterator[tuple[int, int]]:
    """Yield when each step of the profiler began on the host, and its number."""
    for event in events:
        found = _PROFILER_STEP.fullmatch(event.name)
        if found and event.cat != "gpu_user_annotation":
            yield event.start_ns, int(found[1])


def _by_updates(phases: Iterable[Work]) -> Iterator[tuple[int, int]]:
    updates = (work.start_ns for work in phases if work.lane == "update")
    return ((start_ns, number) for number, start_ns in enumerate(updates, start=1))


def _on_host(events: Iterable[_Event]) -> Iterator[Launch]:
    """Yield the collectives of a CPU: each call with the first run of its kind that follows it."""
    runs: dict[str, list[_Event]] = defaultdict(list)
    calls = []
    for event in events:
        if event.name in _CALLS and event.cat == "cpu_op":
            calls.append((event, _CALLS[event.name]))
        elif event.name.startswith("gloo:"):
            runs[event.name.removeprefix("gloo:").removeprefix("sparse_")].append(event)
    taken: Counter[str] = Counter()
    for call, collective in calls:
        waiting = runs[collective]
        while taken[collective] < len(waiting):
            run = waiting[taken[collective]]
            taken[collective] += 1
            if run.start_ns >= call.start_ns:
                nbytes = _nbytes(run.args)
                yield Launch(
                    None, collective, "", call.start_ns, run.end_ns, nbytes, None, run.name
                )
                break
        else:
            yield Launch(None, collective, "", call.start_ns, None, 0, None, call.name)


def _nbytes(args: Mapping[str, Any]) -> int:
    shapes, dtypes = args.get("Input Dims") or (), args.get("Input type") or ()
    return sum(nbytes_of(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))


def _kernels(events: Iterable[_Event]) -> list[tuple[_Event, int]]:
    """Return the kernels, each with when the host launched it; -1: not known."""
    launched = {
        event.args["correlation"]: event.start_ns
        for event in events
        if event.cat in ("cuda_runtime", "cuda_driver") and "correlation" in event.args
    }
    return [
        (event, launched.get(event.args.get("correlation"), -1))
        for event in events
        if event.cat == "kernel"
    ]


def _begun(kernels: Iterable[tuple[_Event, int]], moment_ns: int) -> int:
    """Return when the device began what the host launched from a moment on."""
    after = (kernel.start_ns for kernel, launched_ns in kernels if launched_ns >= moment_ns)
    return max(min(after, default=moment_ns), moment_ns)


def _on_device(kernels: Iterable[tuple[_Event, int]]) -> Iterator[Launch]:
    """Yield the collectives of a GPU."""
    for kernel, _ in kernels:
        name = kernel.args.get("Collective name")
        if name is None:
            continue
        dtype, number = str(kernel.args.get("dtype")), int(kernel.args.get("In msg nelems", 0))
        yield Launch(
            None,
            _ON_DEVICE.get(str(name), str(name)),
            str(kernel.args.get("Process Group Name", "")),
            kernel.start_ns,
            kernel.end_ns,
            nbytes_of([number], dtype),
            None,
            kernel.name,
        )


def _on_kernels(phases: list[Work], kernels: Iterable[tuple[_Event, int]]) -> Iterator[Work]:
    """Yield each phase as the kernels that it launched; a phase without any is left out."""
    spans: dict[int, tuple[int, int]] = {}
    starts = [work.start_ns for work in phases]
    for kernel, launched_ns in kernels:
        place = bisect_right(starts, launched_ns) - 1
        collective = "Collective name" in kernel.args
        if place >= 0 and launched_ns <= phases[place].end_ns and not collective:
            start_ns, end_ns = spans.get(place, (kernel.start_ns, kernel.end_ns))
            spans[place] = (min(start_ns, kernel.start_ns), max(end_ns, kernel.end_ns))
    for place, (start_ns, end_ns) in sorted(spans.items()):
        yield phases[place]._replace(start_ns=start_ns, end_ns=end_ns)


def _keyed(trace: RankTrace) -> Iterator[Launch]:
    """Yield the collectives of a rank with keys: the k-th of its kind in its iteration."""
    seen: Counter[Hashable] = Counter()
    for launch in trace.launches:
        if launch.collective in ("send", "recv"):
            yield launch
            continue
        kind = (iteration_at(trace, launch.start_ns), launch.group, launch.collective)
        yield launch._replace(key=(*kind, seen[kind]))
        seen[kind] += 1
