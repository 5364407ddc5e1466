"""Calibrate: the ranks at hand become a cluster, in seconds."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec import structs

from syncopate.calibration.clocks import hosts_of
from syncopate.calibration.curves import COLLECTIVE, DEFAULT_SIZES, Curves, measure_curves
from syncopate.calibration.interference import Load, measure_interference
from syncopate.calibration.links import measure_links
from syncopate.calibration.progress import Progress, say
from syncopate.calibration.reduction import measure_reduction
from syncopate.calibration.topology import Topology, topology
from syncopate.calibration.wire import Wire
from syncopate.cluster import Cluster, CollectiveCurve
from syncopate.collectives.communicator import Communicator
from syncopate.errors import InvalidValueError
from syncopate.schedules import registry
from syncopate.units import KIB, MIB, format_bytes

LINKS_SHARE = 0.15
INTERFERENCE_SHARE = 0.2
"""Shares of the time budget; what is left goes to the curves."""

_LOAD_BYTES = (256 * KIB, 4 * MIB)
"""Sizes of the collectives that run beside computation: buckets of small and of large models."""


def calibrate(
    communicator: Communicator,
    *,
    sizes: Sequence[int] | None = None,
    algorithms: Sequence[str] | None = None,
    budget_s: float = 10.0,
    progress: Progress | None = None,
) -> Cluster:
    """Measure links, reduction, all-reduce curves and interference; return the same on all ranks.

    Every rank must call it with the same arguments, while nothing else uses the communicator.

    Args:
        communicator: the ranks.
        sizes: message sizes in bytes, rounded up to whole float32; 4 B to 64 MiB when left out.
        algorithms: all-reduce algorithms, ``"native"`` for the backend's own; those that
            suit the cluster when left out.
        budget_s: about how long to take. A short one means fewer samples and smaller sizes.
        progress: called with what is measured and how much of the whole is done.

    Raises:
        UnknownNameError: an algorithm that no registry knows.
        InvalidValueError: a size or budget out of range.
        CalibrationError: a link or an algorithm that does not work.
        CollectiveError: a rank was lost.
    """
    if not budget_s > 0:
        raise InvalidValueError("budget_s", budget_s, "a number of seconds > 0")
    effort = _Effort(_sizes(sizes), _algorithms(algorithms), budget_s)
    cluster = _measure(communicator, topology(hosts_of(communicator)), effort, progress)
    say(progress, "calibrated", 1.0)
    agreed: Cluster = communicator.broadcast_object(cluster)
    return agreed


@dataclass(frozen=True)
class _Effort:
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]  # empty for those that suit the cluster
    budget_s: float


def _measure(
    communicator: Communicator, where: Topology, effort: _Effort, progress: Progress | None
) -> Cluster:
    start_s = time.perf_counter()
    before_curves, before_load = LINKS_SHARE, 1 - INTERFERENCE_SHARE
    with Wire(communicator) as wire:
        levels, probes = measure_links(
            communicator,
            wire,
            where,
            budget_s=effort.budget_s * LINKS_SHARE,
            progress=_part(progress, 0.0, before_curves),
        )
    bare = Cluster(
        name=_name(where),
        levels=levels,
        placement=where.placement,
        hosts=where.hosts,
        reduction_s_per_byte=measure_reduction(communicator),
        probes=probes,
    )
    spent_s = communicator.broadcast_object(time.perf_counter() - start_s)
    curves = measure_curves(
        communicator,
        sizes=effort.sizes,
        algorithms=effort.algorithms or (registry.NATIVE, *registry.candidates(COLLECTIVE, bare)),
        budget_s=effort.budget_s * before_load - spent_s,
        shared_clock=len(set(where.hosts)) == 1,
        progress=_part(progress, before_curves, before_load),
    )
    interference = measure_interference(
        communicator,
        _loads(curves.curves),
        budget_s=effort.budget_s * INTERFERENCE_SHARE,
        progress=_part(progress, before_load, 1.0),
    )
    elapsed_s = time.perf_counter() - start_s
    return structs.replace(
        bare,
        curves=curves.curves,
        interference=interference,
        metadata=_facts(communicator, where, curves)
        | {"budget_s": f"{effort.budget_s:g}", "elapsed_s": f"{elapsed_s:.2f}"},
    )


def _part(progress: Progress | None, begin: float, end: float) -> Progress:
    """Return a progress for one stage, which takes the whole from ``begin`` to ``end``."""
    return lambda what, done: say(progress, what, begin + (end - begin) * done)


def _sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    if sizes is None:
        return DEFAULT_SIZES
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidValueError("sizes", size, "integers >= 1, in bytes")
    if not sizes:
        raise InvalidValueError("sizes", sizes, "at least one message size in bytes")
    return tuple(sorted({-(-size // 4) * 4 for size in sizes}))


def _algorithms(algorithms: Sequence[str] | None) -> tuple[str, ...]:
    if algorithms is None:
        return ()
    if not algorithms:
        raise InvalidValueError("algorithms", algorithms, "at least one name")
    for name in algorithms:
        registry.require(COLLECTIVE, name, allow_native=True)
    return tuple(dict.fromkeys(algorithms))


def _loads(curves: Sequence[CollectiveCurve]) -> list[Load]:
    """Return, per size of ``_LOAD_BYTES``, the fastest algorithm at the nearest measured size."""
    loads: dict[int, Load] = {}
    for wanted in _LOAD_BYTES if curves else ():
        sizes = {point.nbytes for curve in curves for point in curve.points}
        nearest = min(sizes, key=lambda size: abs(size - wanted))
        found = [
            Load(nearest, curve.algorithm, point.expected_s)
            for curve in curves
            for point in curve.points
            if point.nbytes == nearest
        ]
        loads[nearest] = min(found, key=lambda load: load.alone_s)
    return list(loads.values())


def _name(where: Topology) -> str:
    hosts = len(set(where.hosts))
    ranks = len(where.hosts)
    return f"{ranks} rank{'s' * (ranks != 1)} on {hosts} host{'s' * (hosts != 1)}"


def _facts(communicator: Communicator, where: Topology, curves: Curves) -> dict[str, str]:
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": str(communicator.world_size),
        "hosts": str(len(set(where.hosts))),
        "backend": str(dist.get_backend_config()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    if where.note:
        facts["levels"] = where.note
    if curves.curves:
        one_host = len(set(where.hosts)) == 1
        facts["samples"] = "barrier-separated; " + (
            "from the last rank's start to the last rank's end"
            if one_host
            else "maximum over ranks of each one's duration"
        )
        facts["repetitions"] = ", ".join(
            f"{format_bytes(size)}: {count}" for size, count in curves.repetitions.items()
        )
    if curves.left_out:
        facts["left out"] = "; ".join(f"{name}: {why}" for name, why in curves.left_out.items())
    return facts


def cpu_name() -> str:
    """Return the processor's model as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
