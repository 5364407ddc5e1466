"""Calibrate: the ranks at hand become a cluster, in seconds."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve
from syncopate.artifacts.disturbed import BUDGET, ELAPSED, doubts
from syncopate.calibration.curves import (
    DEFAULT_SIZES,
    Curves,
    measure_curves,
    prices,
    suiting,
)
from syncopate.calibration.interference import Load, measure_interference
from syncopate.calibration.message_overhead import handling_of
from syncopate.calibration.partial import begun
from syncopate.calibration.probing import Network, probed
from syncopate.calibration.racks.discovery import discover, measure_racks
from syncopate.calibration.racks.table import read_groups
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import cpu_name, hosts_of
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import Progress, part, say
from syncopate.recipe import Recipe
from syncopate.schedules import registry
from syncopate.topology import Topology
from syncopate.units import KIB, MIB, format_bytes

DISCOVERY_SHARE = 0.15
NETWORK_SHARE = 0.25
INTERFERENCE_SHARE = 0.2
"""Shares of the time budget; what is left goes to the curves."""

_LOAD_BYTES = (256 * KIB, 4 * MIB)
"""Sizes of the collectives that run beside computation: buckets of small and of large models."""


def calibrate(
    communicator: Communicator,
    *,
    collectives: Sequence[str] = ("all_reduce",),
    sizes: Sequence[int] | None = None,
    algorithms: Sequence[str] | None = None,
    racks: str | os.PathLike[str] | None = None,
    budget_s: float = 10.0,
    interference: bool = True,
    progress: Progress | None = None,
) -> Cluster:
    """Measure links, reduction, collectives and interference; return the same on all ranks.

    Every rank must call it with the same arguments, while nothing else uses the communicator.

    Args:
        communicator: the ranks.
        collectives: whose algorithms to measure; they share the budget. A plan needs all-reduce
            alone, and so does the measurement of interference, which is taken to be ideal without
            it; ``algorithm="auto"`` goes by prices for those left out.
        sizes: message sizes in bytes, rounded up to whole float32; 4 B to 64 MiB when left out. A
            size that the budget cannot afford is left out, and the longest are measured for the
            most promising algorithms alone.
            :func:`syncopate.calibration.curves.sizes_up_to` has those that a plan can ask for.
        algorithms: their names, ``"native"`` for the backend's own; those that suit the cluster
            when left out. Each collective is measured by those of them that it has.
        racks: a text file with a line ``host rack`` for every host, which rank 0 reads; see
            :mod:`syncopate.calibration.racks.table`. Left out, racks are searched for.
        budget_s: about how long to take. A short one means fewer samples and smaller sizes.
        interference: whether to measure it, beside a computation of our own. A caller that measures
            it on the training itself leaves it out: then it is ideal, and its time goes to the
            curves.
        progress: called with what is measured and how much of the whole is done.

    Raises:
        UnknownNameError: no such collective, or an algorithm that none of them has.
        InvalidValueError: a size or budget out of range, or a collective without an algorithm.
        ArtifactError: the file of racks cannot be read, is damaged, or lacks a host; on every rank.
        CalibrationError: a link or an algorithm that does not work.
        CollectiveError: a rank was lost.
    """
    if not budget_s > 0:
        raise InvalidValueError("budget_s", budget_s, "a number of seconds > 0")
    effort = _Effort(
        _sizes(sizes),
        _algorithms(collectives, algorithms),
        None if racks is None else Path(racks),
        budget_s,
        INTERFERENCE_SHARE if interference else 0.0,
    )
    cluster = _measure(communicator, effort, progress)
    say(progress, "calibrated", 1.0)
    agreed: Cluster = communicator.broadcast_object(cluster)
    return agreed


@dataclass(frozen=True)
class _Effort:
    sizes: tuple[int, ...]
    algorithms: dict[str, tuple[str, ...]]  # by collective; empty for those that suit the cluster
    racks: Path | None
    budget_s: float
    interference_share: float


def _measure(communicator: Communicator, effort: _Effort, progress: Progress | None) -> Cluster:
    taken = begun(communicator)
    before_curves, before_load = DISCOVERY_SHARE + NETWORK_SHARE, 1 - effort.interference_share
    if taken.network is None:
        taken.network = _network(communicator, effort, progress)
    bare = taken.network
    if communicator.detector is not None:
        communicator.detector.expect(bare)
    curves: list[Curves] = []
    for index, collective in enumerate(effort.algorithms):
        share = (before_load - before_curves) / len(effort.algorithms)
        begin = before_curves + index * share
        spent_s = communicator.broadcast_object(taken.spent_s)
        left_s = effort.budget_s * before_load - spent_s
        names = effort.algorithms[collective]
        names = names or (registry.NATIVE, *registry.candidates(collective, bare))
        told = suiting(communicator, bare, collective, names, effort.sizes)
        expected = prices(bare, collective, told) if communicator.rank == 0 else {}
        curves.append(
            measure_curves(
                communicator,
                collective,
                told,
                communicator.broadcast_object(expected),
                budget_s=left_s / (len(effort.algorithms) - index),
                shared_clock=len(set(bare.hosts)) == 1,
                progress=part(progress, begin, begin + share),
                points=taken.points.setdefault(collective, {}),
            )
        )
    measured = [curve for found in curves for curve in found.curves]
    interference = measure_interference(
        communicator,
        _loads(measured) if effort.interference_share else [],
        budget_s=effort.budget_s * effort.interference_share,
        progress=part(progress, before_load, 1.0),
    )
    elapsed_s = taken.spent_s
    cluster = structs.replace(
        bare,
        curves=tuple(measured),
        interference=interference,
        metadata=_facts(communicator, bare.hosts, curves)
        | ({} if effort.racks is None else {"racks": f"as {effort.racks} says"})
        | {BUDGET: f"{effort.budget_s:g}", ELAPSED: f"{elapsed_s:.2f}"},
    )
    return structs.replace(cluster, warnings=doubts(cluster))


def _network(communicator: Communicator, effort: _Effort, progress: Progress | None) -> Cluster:
    """Return the measured network, without curves: who sits where, and the links."""
    where = _located(communicator, effort, part(progress, 0.0, DISCOVERY_SHARE))
    return measure_network(
        communicator,
        where,
        budget_s=effort.budget_s * NETWORK_SHARE,
        progress=part(progress, DISCOVERY_SHARE, DISCOVERY_SHARE + NETWORK_SHARE),
    ).cluster


def measure_network(
    communicator: Communicator,
    where: Topology,
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> Network:
    """Measure links, reduction and handling, and fit it; return the same on all ranks.

    Every rank must call it with the same arguments, while nothing else uses the communicator.

    Args:
        communicator: the ranks.
        where: which ranks sit where.
        budget_s: about how long to take.
        progress: called with what is measured and how much of the whole is done.
    """
    bare = probed(communicator, where, budget_s, progress)
    # Fitted once: in floating point, ranks on different machines might not agree.
    handling = handling_of(*bare) if communicator.rank == 0 else None
    agreed = communicator.broadcast_object(handling)
    return bare._replace(cluster=structs.replace(bare.cluster, handling=agreed))


def _located(communicator: Communicator, effort: _Effort, progress: Progress) -> Topology:
    """Return the place of every rank: by the file of racks, or as measured."""
    hosts, budget_s = hosts_of(communicator), effort.budget_s * DISCOVERY_SHARE
    if effort.racks is None:
        return discover(communicator, hosts, budget_s, progress)
    groups = read_groups(communicator, effort.racks, hosts)
    return measure_racks(communicator, hosts, groups, budget_s, progress)


def _sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    if sizes is None:
        return DEFAULT_SIZES
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidValueError("sizes", size, "integers >= 1, in bytes")
    if not sizes:
        raise InvalidValueError("sizes", sizes, "at least one message size in bytes")
    return tuple(sorted({-(-size // 4) * 4 for size in sizes}))


def _algorithms(
    collectives: Sequence[str], algorithms: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """Return the algorithms to measure by collective; none for those that suit the cluster."""
    if isinstance(collectives, str) or not collectives:
        rule = f"a list of at least one of {', '.join(registry.collectives())}"
        raise InvalidValueError("collectives", collectives, rule)
    known = {
        name: (registry.NATIVE, *registry.algorithms(name, algorithms or ()))
        for name in collectives
    }
    if algorithms is None:
        return dict.fromkeys(known, ())
    everywhere = tuple(dict.fromkeys(name for names in known.values() for name in names))
    for name in algorithms:
        if name not in everywhere:
            raise UnknownNameError("algorithm", name, everywhere, ", ".join(known))
    found = {
        collective: tuple(name for name in dict.fromkeys(algorithms) if name in names)
        for collective, names in known.items()
    }
    for collective, names in found.items():
        if not names:
            rule = f"names with at least one of {collective}: {', '.join(known[collective])}"
            raise InvalidValueError("algorithms", tuple(algorithms), rule)
    return found


def _loads(curves: Sequence[CollectiveCurve]) -> list[Load]:
    """Return, per size of ``_LOAD_BYTES``, the fastest all-reduce at the nearest measured size."""
    curves = [curve for curve in curves if curve.collective == "all_reduce"]
    loads: dict[int, Load] = {}
    for wanted in _LOAD_BYTES if curves else ():
        sizes = {point.nbytes for curve in curves for point in curve.points}
        nearest = min(sizes, key=lambda size: abs(size - wanted))
        found = [
            Load(
                nearest,
                Recipe("all_reduce", curve.algorithm, options=point.options).in_order(curve.order),
                point.expected_s,
            )
            for curve in curves
            for point in curve.points
            if point.nbytes == nearest
        ]
        loads[nearest] = min(found, key=lambda load: load.alone_s)
    return list(loads.values())


def _facts(
    communicator: Communicator, hosts: Sequence[str], curves: Sequence[Curves]
) -> dict[str, str]:
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": str(communicator.world_size),
        "hosts": str(len(set(hosts))),
        "backend": str(dist.get_backend_config()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    if any(found.curves for found in curves):
        one_host = len(set(hosts)) == 1
        facts["samples"] = "barrier-separated; " + (
            "from the last rank's start to the last rank's end"
            if one_host
            else "maximum over ranks of each one's duration"
        )
        facts["options"] = (
            "in the points, as the prices of the schedules on these links choose them by size"
        )
    for found in curves:
        # A file of one collective says so in its curves.
        of = f", {found.collective}" if len(curves) > 1 else ""
        if found.curves:
            facts[f"repetitions{of}"] = ", ".join(
                f"{format_bytes(size)}: {count}" for size, count in found.repetitions.items()
            )
        if found.left_out:
            facts[f"left out{of}"] = "; ".join(
                f"{name}: {why}" for name, why in found.left_out.items()
            )
    return facts
