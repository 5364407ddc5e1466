"""torch.profiler: the Chrome traces that ``export_chrome_trace`` and TensorBoard's handler write.

What is read, all by its name:

    forward      ``DistributedDataParallel.forward`` or ``FullyShardedDataParallel.forward``, the
                 outermost; of FSDP2 from ``FSDP::root_pre_forward`` to the last
                 ``FSDP::post_forward``
    backward     from the first function that autograd evaluates after a forward to the last
    update       ``Optimizer.step#...``
    collectives  on a CPU from the call (``c10d::allreduce_``) to the end of ``gloo:all_reduce``,
                 by which Gloo carries a reduce-scatter, too; on a GPU the kernels of NCCL or RCCL
                 (:mod:`syncopate.tracing.foreign.chrome.names`)
    iterations   ``ProfilerStep#N``, else the steps of the optimizer

    gradients    ``torch::autograd::AccumulateGrad`` within backward, with ``record_shapes=True``
    units        of FSDP2 (:mod:`syncopate.tracing.foreign.chrome.sharded`)

On a GPU the three kinds of computation are the kernels that they launched. Sizes are there when
shapes were recorded (``record_shapes=True``), and always where a kernel carries its size.

[Note: steps that end iterations] Several optimizers may step one after the other, and iterations
may have several forwards and backwards. An iteration ends with the last step before the next
forward or backward. Where optimizers of several kinds take turns, those of the first kind count.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec

from syncopate.artifacts.timeline import Group
from syncopate.errors import ArtifactError
from syncopate.tracing.foreign.chrome import device, sharded
from syncopate.tracing.foreign.chrome.events import (
    NOTHING,
    ON_DEVICE,
    Args,
    Event,
    number_of,
    read_events,
)
from syncopate.tracing.foreign.chrome.gradients import ACCUMULATED, gradients_of
from syncopate.tracing.foreign.chrome.names import collective_of_call
from syncopate.tracing.foreign.iterations import iteration_of
from syncopate.tracing.foreign.ranktrace import (
    BETWEEN_TWO,
    Launch,
    RankTrace,
    Work,
    are_integers,
    nbytes_of,
)

TOOL = "torch.profiler"

_FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")
_BEFORE_FORWARD, _AFTER_FORWARD = "FSDP::root_pre_forward", "FSDP::post_forward"
_EVALUATED = "autograd::engine::evaluate_function"
_STEP = re.compile(r"Optimizer\.step#(.+)\.step")
_PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_PREFIXES = (_EVALUATED, sharded.PREFIX, "Optimizer.step#", "ProfilerStep")
_RUN = re.compile(r"gloo:(?:sparse_)?")


def read_trace(file: IO[bytes], path: str | os.PathLike[str]) -> RankTrace:
    """Return the rank that a trace is of; rank -1 and no ranks at all where it does not say which.

    Raises:
        ArtifactError: an event lacks its time, or is no event, or the file is damaged.
        OSError: it cannot be read.
    """
    chrome = read_events(file, path, _wanted)
    about = chrome.about.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    groups = _groups(about)
    kernels = device.kernels_of(chrome.events)
    phases = sorted(_phases(chrome.events), key=lambda work: work.start_ns)
    seen, gradients = phases, gradients_of(chrome.events, phases)
    marks = _marks(chrome.events, phases)
    if kernels:
        launches = list(device.launches_of(kernels, groups, marks))
        phases = device.on_kernels(phases, kernels, marks)
        begun = device.begun(kernels, [moment_ns for moment_ns, _ in marks])
        marks = [(at - 1, number) for at, (_, number) in zip(begun, marks, strict=True)]
    else:
        launches = list(_on_host(chrome.events, groups))
    if (units := sharded.is_sharded(chrome.events)) and not kernels:
        launches = list(sharded.with_units(launches, chrome.events))
        phases = list(sharded.computing(phases, launches))
    if units:
        gradients = sharded.of_units(gradients, chrome.events, seen, seen if kernels else phases)
    ranks = [rank for group in groups.values() for rank in group.ranks]
    ranks += [rank for launch in launches for rank in launch.group.ranks]
    rank = number_of(about.get("rank"), -1)
    trace = RankTrace(
        rank,
        max(number_of(about.get("world_size"), 0), max(ranks, default=-1) + 1),
        TOOL,
        tuple(sorted(launches, key=lambda launch: launch.start_ns)),
        tuple(phases),
        tuple(marks),
        numbered=any(_PROFILER_STEP.fullmatch(event.name) for event in chrome.events),
        host=str(chrome.about.get("host_name") or ""),
        on_device=bool(kernels),
        groups=tuple(groups.values()),
        gradients=gradients,
        notes=tuple(f"{count} events {what}" for what, count in chrome.odd.items()),
        sharded=units,
        process=chrome.process,
    )
    if not (trace.launches or trace.work):
        reason = (
            f"none of its {chrome.total} events is a kernel, a collective, a step of an optimizer, "
            "or a forward or backward by the name that torch gives it"
        )
        raise ArtifactError(path, reason, "$.traceEvents")
    return keyed(_within(trace))


def _wanted(cat: str, name: str) -> bool:
    """Say whether an event tells anything of phases, collectives or iterations."""
    if cat == device.KERNEL or cat in device.LAUNCHES:
        return True
    return (
        name in _FORWARDS
        or name in ("record_param_comms", ACCUMULATED)
        or name.startswith(_PREFIXES)
        or collective_of_call(name) is not None
    )


def _groups(about: Mapping[str, Any]) -> dict[str, Group]:
    found = {}
    listed = about.get("pg_config")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and "pg_name" in one:
            name, kind = str(one["pg_name"]), str(one.get("pg_desc") or "")
            ranks = device.ranks_of(one.get("ranks"))
            found[name] = Group(name=name, ranks=ranks, description=kind.replace("undefined", ""))
    return found


def _phases(events: Iterable[Event]) -> Iterator[Work]:
    """Yield forwards, backwards and updates as the host saw them."""
    begun = 0
    backwards: dict[int, tuple[int, int]] = {}
    forward_ns = -1
    whole: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.cat == ON_DEVICE:
            continue
        if event.name in _FORWARDS:
            last = backwards.get(begun, (0, -1))
            # Within another it is a part of the model; within backward it is computed once more.
            if event.start_ns >= forward_ns and event.start_ns > last[1]:
                begun += 1
                forward_ns = event.end_ns
                yield Work("forward", "forward", event.start_ns, event.end_ns)
        elif event.name.startswith(_BEFORE_FORWARD):
            begun += 1
            whole[begun] = (event.start_ns, event.end_ns)
        elif event.name.startswith(_AFTER_FORWARD):
            if begun in whole and begun not in backwards:
                whole[begun] = (whole[begun][0], event.end_ns)
        elif found := _STEP.fullmatch(event.name):
            begun += 1
            yield Work(found[1], "update", event.start_ns, event.end_ns)
        elif event.name.startswith(_EVALUATED):
            start_ns, end_ns = backwards.get(begun, (event.start_ns, event.end_ns))
            backwards[begun] = (start_ns, max(end_ns, event.end_ns))
    for start_ns, end_ns in whole.values():
        yield Work("forward", "forward", start_ns, end_ns)
    for start_ns, end_ns in backwards.values():
        yield Work("backward", "backward", start_ns, end_ns)


def _marks(events: Iterable[Event], phases: Sequence[Work]) -> list[tuple[int, int]]:
    """Return right after which moments iterations began on the host, and their numbers."""
    steps: dict[int, int] = {}
    for event in events:
        found = _PROFILER_STEP.fullmatch(event.name)
        if found and event.cat != ON_DEVICE:
            # A moment's own nanosecond still belongs to the iteration before it.
            # Files that are written here say it beside, where names count from 1.
            number = number_of(event.args.iteration, int(found[1]))
            steps.setdefault(number, event.start_ns - 1)
    if steps:
        return sorted((start_ns, number) for number, start_ns in steps.items())
    return list(by_updates(phases))


def by_updates(phases: Sequence[Work]) -> Iterator[tuple[int, int]]:
    """Yield right after which moments iterations began, by [Note: steps that end iterations]."""
    ends: list[tuple[int, str]] = []
    last = ""
    for work in phases:
        if work.lane == "update":
            # What begins when a step ends is of the next iteration.
            moment_ns = max(work.start_ns, work.end_ns - 1)
            if last == "update":
                ends[-1] = (max(moment_ns, ends[-1][0]), ends[-1][1])
            else:
                ends.append((moment_ns, work.name))
        last = work.lane
    counted = (moment_ns for moment_ns, name in ends if name == ends[0][1])
    return ((moment_ns, number) for number, moment_ns in enumerate(counted, start=1))


def _within(trace: RankTrace) -> RankTrace:
    """Return a rank without what it did before the first iteration that the profiler numbered."""
    if not (trace.numbered and trace.marks):
        return trace
    first = trace.marks[0][1]
    return trace._replace(
        launches=tuple(one for one in trace.launches if iteration_of(trace, one) >= first),
        work=tuple(one for one in trace.work if iteration_of(trace, one) >= first),
    )


def _on_host(events: Iterable[Event], groups: Mapping[str, Group]) -> Iterator[Launch]:
    """Yield the collectives of a CPU: each call with the first run of its kind that follows it."""
    runs: dict[str, list[Event]] = defaultdict(list)
    calls: list[tuple[Event, str]] = []
    told: list[tuple[int, Args]] = []
    for event in events:
        collective = collective_of_call(event.name)
        if event.cat == "cpu_op" and event.name.startswith("c10d::") and collective:
            calls.append((event, collective))
        elif _RUN.match(event.name) and collective:
            runs[collective].append(event)
        elif event.args.group is not None:
            told.append((event.start_ns, event.args))
    moments = [moment_ns for moment_ns, _ in told]
    taken: Counter[str] = Counter()
    for call, collective in calls:
        place = bisect_right(moments, call.end_ns) - 1
        args = told[place][1] if place >= 0 and moments[place] >= call.start_ns else NOTHING
        group = device.group_of(args, 0, groups)
        launch = Launch(None, collective, group, call.start_ns, None, 0, None, call.name)
        kind = collective
        if kind == "reduce_scatter" and not runs[kind]:
            kind = "all_reduce"  # Gloo has none, and sums all of it
        waiting = runs[kind]
        while taken[kind] < len(waiting):
            run = waiting[taken[kind]]
            taken[kind] += 1
            if run.start_ns >= call.start_ns:
                nbytes = _nbytes(run.args) or _nbytes(call.args)
                integers = are_integers(_types(run.args) or _types(call.args))
                launch = launch._replace(
                    end_ns=run.end_ns, nbytes=nbytes, detail=run.name, integers=integers
                )
                break
        yield launch


def _nbytes(args: Args) -> int:
    try:
        dims = msgspec.json.decode(args.dims) or ()
        return sum(nbytes_of(dim, kind) for dim, kind in zip(dims, _types(args), strict=False))
    except (ValueError, TypeError, AttributeError):
        return 0


def _types(args: Args) -> list[str]:
    try:
        return msgspec.json.decode(args.types, type=list[str] | None) or []
    except ValueError:
        return []


def keyed(trace: RankTrace) -> RankTrace:
    """Return a rank whose collectives have keys: the k-th of its kind in its iteration."""
    seen: Counter[Hashable] = Counter()
    launches: list[Launch] = []
    for launch in trace.launches:
        kind = (iteration_of(trace, launch), launch.group.key, launch.collective)
        known = launch.collective not in BETWEEN_TWO
        launches.append(launch._replace(key=(*kind, seen[kind])) if known else launch)
        seen[kind] += 1
    return trace._replace(launches=tuple(launches))
