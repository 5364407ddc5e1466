"""Bench: measures one collective by several contenders, the way nccl-tests and OSU do.

It belongs to calibration, not to collectives, because it needs what calibration has: which hosts
the ranks are on, and from that the algorithms that suit them.

[Note: what one call is] Ranks hold the same zeros, so that sums stay what they are however often
they are repeated. In place, a call is the collective alone. Out of place, it is the copy of the
input into the output buffer and the collective there: collectives here work in place, so that is
what a caller who must keep the input pays. Each rank times its own call, and a sample is the
longest of the ranks'. Contenders take turns, call by call with barriers between, loop by loop
without, so that a disturbance hits all of them alike.

After the timing each contender runs once more on data that can be verified
(:mod:`syncopate.collectives.pattern`).
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.benchmark import (
    BARRIER,
    Benchmark,
    Point,
    Series,
    Timing,
    geometric,
)
from syncopate.benchmarking.contenders import Call, Run, line_up
from syncopate.benchmarking.sweep import Effort, Sweep
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import cpu_name, device_of, hosts_of, synchronize
from syncopate.collectives.pattern import Pattern, distinct_values
from syncopate.errors import InvalidValueError
from syncopate.output import Progress, say
from syncopate.schedules.conditions import conditions
from syncopate.units import MIB, dtype_bytes, format_bytes

_Durations = dict[str, list[float]]
_PLACES = ("out", "in")
_TOLD = (
    *("GLOO_", "NCCL_", "OMP_", "TORCH_NCCL_"),
    *("OMPI_MCA_", "MPICH_", "UCX_", "FI_"),
)
"""Beginnings of environment variables that change what collectives do."""


def bench(
    communicator: Communicator,
    sweep: Sweep | str = "all_reduce",
    effort: Effort | None = None,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
    *,
    keep: Callable[[Benchmark], object] | None = None,
) -> Benchmark:
    """Measure ``sweep``; return the same on all ranks, every one of which must call it.

    Args:
        communicator: the ranks; idle otherwise. With NCCL, buffers are on each rank's GPU.
        sweep: what to measure; the name of a collective: that one, from 4 bytes to 64 MiB.
        effort: how; the defaults otherwise.
        progress: called before every size.
        cluster: what is known of the ranks; the communicator uses it from now on, algorithms run
            with the options that suit it and the size, and ``"auto"`` takes part.
        keep: called after each size with what is measured so far.

    Raises:
        InvalidValueError: no communicator, no such root, a dtype too narrow to verify sums of so
            many ranks, or ``"auto"`` without a cluster, or a cluster of another number of ranks.
        CalibrationError: a peer cannot be used here.
        CollectiveError: a rank was lost.
    """
    if not isinstance(communicator, Communicator):
        raise InvalidValueError("communicator", communicator, "a Communicator")
    if isinstance(sweep, str):
        sweep = Sweep(collective=sweep, sizes=geometric(4, 64 * MIB, 4))
    effort = effort or Effort()
    if not sweep.root < communicator.world_size:
        rule = f"a rank in 0..{communicator.world_size - 1}"
        raise InvalidValueError("root", sweep.root, rule)
    if effort.check:
        distinct_values(sweep.dtype, communicator.world_size)
    if cluster is not None:
        communicator.use_cluster(cluster)
    hosts = hosts_of(communicator)
    with line_up(communicator, sweep, hosts, cluster) as field:
        contenders = field.contenders
        points: dict[str, list[Point]] = {one.name: [] for one in contenders}
        facts = {**_facts(cluster, device_of(communicator)), **field.facts}
        for index, count in enumerate(sweep.counts):
            nbytes = count * dtype_bytes(sweep.dtype)
            say(progress, f"{sweep.collective} {format_bytes(nbytes)}", index / len(sweep.counts))
            calls = {one.name: one.at(nbytes) for one in contenders}
            for name, point in _Size(communicator, sweep, count).measure(calls, effort).items():
                points[name].append(point)
            series = tuple(
                Series(contender=one.name, peer=one.peer, points=tuple(points[one.name]))
                for one in contenders
            )
            found = _benchmark(sweep, effort, hosts, series, facts)
            if keep is not None:
                keep(found)
    say(progress, "measured", 1.0)
    agreed: Benchmark = communicator.broadcast_object(found)
    return agreed


def _benchmark(
    sweep: Sweep,
    effort: Effort,
    hosts: tuple[str, ...],
    series: tuple[Series, ...],
    facts: dict[str, str],
) -> Benchmark:
    return Benchmark(
        collective=sweep.collective,
        dtype=sweep.dtype,
        root=sweep.root if conditions(sweep.collective).rooted else -1,
        mode=effort.mode,
        warmup=effort.warmup,
        hosts=hosts,
        series=series,
        metadata=facts,
    )


class _Size:
    """Measures every contender at one size."""

    def __init__(self, communicator: Communicator, sweep: Sweep, count: int) -> None:
        self._communicator = communicator
        self._sweep = sweep
        self._count = count
        dtype = getattr(torch, sweep.dtype)
        self._device = device_of(communicator)
        self._source = torch.zeros(count, dtype=dtype, device=self._device)
        self._target = torch.zeros(count, dtype=dtype, device=self._device)

    def measure(self, calls: Mapping[str, Call], effort: Effort) -> dict[str, Point]:
        """Return a point per contender, the same on all ranks."""
        runs = {name: call.run for name, call in calls.items()}
        timings = {place: self._time(runs, effort, place) for place in _PLACES}
        return {
            name: Point(
                count=self._count,
                nbytes=self._source.nbytes,
                algorithm=call.algorithm,
                options=dict(call.options),
                out_of_place=timings["out"][name],
                in_place=timings["in"][name],
            )
            for name, call in calls.items()
        }

    def _time(self, runs: Mapping[str, Run], effort: Effort, place: str) -> dict[str, Timing]:
        self._source.zero_()
        self._target.zero_()
        calls = {name: self._placed(run, place) for name, run in runs.items()}
        for call in calls.values():
            for _ in range(effort.warmup):
                call()
        loops = _barrier_separated if effort.mode == BARRIER else _back_to_back
        done = partial(synchronize, self._device)
        durations, totals_s = loops(self._communicator, calls, effort.iterations, done)
        wrong = {
            name: self._wrong(run, place) if effort.check else -1 for name, run in runs.items()
        }
        ranks = self._communicator.all_gather_object((durations, totals_s, wrong))
        found = {}
        for name in runs:
            samples_s = [max(call) for call in zip(*(rank[0][name] for rank in ranks), strict=True)]
            total_s = max(rank[1].get(name, 0.0) for rank in ranks) or sum(samples_s)
            count = sum(rank[2][name] for rank in ranks) if effort.check else -1
            found[name] = Timing(
                samples_s=tuple(samples_s), time_s=total_s / effort.iterations, wrong=count
            )
        return found

    def _placed(self, run: Run, place: str) -> Callable[[], None]:
        source, target = self._source, self._target
        if place == "in":
            return lambda: run(target)

        def out_of_place() -> None:
            target.copy_(source)
            run(target)

        return out_of_place

    def _wrong(self, run: Run, place: str) -> int:
        """Run once on data that can be verified; return this rank's wrong elements."""
        pattern = Pattern(
            self._sweep.collective,
            self._count,
            self._sweep.dtype,
            self._communicator.rank,
            self._communicator.world_size,
            self._sweep.root,
        )
        (self._source if place == "out" else self._target).copy_(pattern.input())
        self._placed(run, place)()
        return pattern.wrong(self._target.cpu())


def _barrier_separated(
    communicator: Communicator,
    calls: Mapping[str, Callable[[], None]],
    iterations: int,
    done: Callable[[], None],
) -> tuple[_Durations, dict[str, float]]:
    durations: _Durations = {name: [] for name in calls}
    for _ in range(iterations):
        for name, call in calls.items():
            communicator.barrier()
            done()
            start_s = time.perf_counter()
            call()
            done()
            durations[name].append(time.perf_counter() - start_s)
    return durations, {}


def _back_to_back(
    communicator: Communicator,
    calls: Mapping[str, Callable[[], None]],
    iterations: int,
    done: Callable[[], None],
) -> tuple[_Durations, dict[str, float]]:
    durations: _Durations = {}
    totals_s = {}
    for name, call in calls.items():
        communicator.barrier()
        done()
        stamps = [time.perf_counter()]
        for number in range(iterations):
            call()
            if number == iterations - 1:
                done()
            stamps.append(time.perf_counter())
        durations[name] = [b - a for a, b in itertools.pairwise(stamps)]
        totals_s[name] = stamps[-1] - stamps[0]
    return durations, totals_s


def _facts(cluster: Cluster | None, device: torch.device) -> dict[str, str]:
    known = {} if cluster is None else {"cluster": cluster.name}
    if device.type == "cuda":
        known["gpu"] = torch.cuda.get_device_name(device)
    return known | {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "backend": str(dist.get_backend_config()),
        "syncopate": importlib.import_module("syncopate").__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith(_TOLD)},
    }
