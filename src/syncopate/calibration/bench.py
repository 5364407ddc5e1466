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
(:mod:`syncopate.calibration.pattern`).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from syncopate.benchmark import BARRIER, PEERS, Benchmark, Point, Series, Timing
from syncopate.calibration.calibrate import cpu_name
from syncopate.calibration.clocks import hosts_of
from syncopate.calibration.pattern import Pattern, distinct_values
from syncopate.calibration.progress import Progress, say
from syncopate.calibration.sweep import Effort, Sweep, parse_algorithm
from syncopate.calibration.topology import topology
from syncopate.cluster import Cluster, Level
from syncopate.collectives import native, transport
from syncopate.collectives.communicator import Communicator
from syncopate.errors import InvalidValueError
from syncopate.schedules import registry
from syncopate.schedules.conditions import conditions
from syncopate.units import dtype_bytes, format_bytes

_Call = Callable[[torch.Tensor], None]
_Durations = dict[str, list[float]]
_PLACES = ("out", "in")


def bench(
    communicator: Communicator,
    sweep: Sweep,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Measure ``sweep``; return the same on all ranks, every one of which must call it.

    Args:
        communicator: the ranks; idle otherwise, on host memory.
        sweep: what to measure.
        effort: how; the defaults otherwise.
        progress: called before every size.

    Raises:
        InvalidValueError: no such root, or a dtype too narrow to verify sums of so many ranks.
        CollectiveError: a rank was lost.
    """
    effort = effort or Effort()
    if not sweep.root < communicator.world_size:
        rule = f"a rank in 0..{communicator.world_size - 1}"
        raise InvalidValueError("root", sweep.root, rule)
    if effort.check:
        distinct_values(sweep.dtype, communicator.world_size)
    hosts = hosts_of(communicator)
    group = _peer_group(communicator) if sweep.against else None
    try:
        contenders = _contenders(communicator, sweep, hosts, group)
        points: dict[str, list[Point]] = {name: [] for name in contenders}
        for index, count in enumerate(sweep.counts):
            nbytes = count * dtype_bytes(sweep.dtype)
            say(progress, f"{sweep.collective} {format_bytes(nbytes)}", index / len(sweep.counts))
            at = _Size(communicator, sweep, count)
            for name, point in at.measure(contenders, effort).items():
                points[name].append(point)
    finally:
        if group is not None:
            transport.destroy_group(group)
    say(progress, "measured", 1.0)
    found = Benchmark(
        collective=sweep.collective,
        dtype=sweep.dtype,
        root=sweep.root if conditions(sweep.collective).rooted else -1,
        mode=effort.mode,
        warmup=effort.warmup,
        hosts=hosts,
        series=tuple(
            Series(contender=name, peer=name in sweep.against, points=tuple(of))
            for name, of in points.items()
        ),
        metadata=_facts(),
    )
    agreed: Benchmark = communicator.broadcast_object(found)
    return agreed


def suitable(collective: str, hosts: Sequence[str]) -> tuple[tuple[str, ...], Cluster]:
    """Return the algorithms that suit ranks on ``hosts``, and the cluster by which they do.

    The cluster has levels, sizes and placement, and nothing measured.

    Raises:
        UnknownNameError: no such collective.
    """
    where = topology(hosts)
    levels = tuple(
        Level(name=name, size=size, latency_s=0.0, bandwidth_bytes_per_s=1e9)
        for name, size in zip(where.names, where.sizes, strict=True)
    )
    cluster = Cluster(name="bench", levels=levels, placement=where.placement, hosts=where.hosts)
    return (registry.NATIVE, *registry.candidates(collective, cluster)), cluster


def _contenders(
    communicator: Communicator,
    sweep: Sweep,
    hosts: Sequence[str],
    group: dist.ProcessGroup | None,
) -> dict[str, _Call]:
    """Return every contender by name: the algorithms, then the peers."""
    names, cluster = suitable(sweep.collective, hosts)
    run = getattr(communicator, sweep.collective)
    where = (sweep.root,) if conditions(sweep.collective).rooted else ()
    found: dict[str, _Call] = {}
    for text in dict.fromkeys(sweep.algorithms or names):
        name, asked = parse_algorithm(sweep.collective, text)
        fitting = {}
        if name != registry.NATIVE:
            fitting = registry.fitted(sweep.collective, name, cluster)
        found[text] = _ours(run, where, name, fitting | asked)
    if group is not None:
        found[PEERS[0]] = _gloo(sweep, group)
    elif sweep.against:
        found[PEERS[0]] = lambda tensor: None
    return found


def _ours(
    run: Callable[..., object], where: tuple[int, ...], name: str, options: Mapping[str, object]
) -> _Call:
    def call(tensor: torch.Tensor) -> None:
        run(tensor, *where, algorithm=name, options=options)

    return call


def _gloo(sweep: Sweep, group: dist.ProcessGroup) -> _Call:
    if sweep.collective in native.ROOTED:
        rooted = native.ROOTED[sweep.collective]
        return lambda tensor: rooted(tensor, sweep.root, group)
    flat = native.NATIVE[sweep.collective]
    return lambda tensor: flat(tensor, group)


def _peer_group(communicator: Communicator) -> dist.ProcessGroup | None:
    """Return a Gloo group of the same ranks; None for one rank alone, which needs no messages."""
    if communicator.world_size == 1:
        return None
    ranks = communicator.all_gather_object(dist.get_rank())
    limit = datetime.timedelta(seconds=communicator.timeout_s)
    return dist.new_group(ranks, timeout=limit, backend="gloo")  # type: ignore[no-any-return]


class _Size:
    """Measures every contender at one size."""

    def __init__(self, communicator: Communicator, sweep: Sweep, count: int) -> None:
        self._communicator = communicator
        self._sweep = sweep
        self._count = count
        dtype = getattr(torch, sweep.dtype)
        self._source = torch.zeros(count, dtype=dtype)
        self._target = torch.zeros(count, dtype=dtype)

    def measure(self, contenders: Mapping[str, _Call], effort: Effort) -> dict[str, Point]:
        """Return a point per contender, the same on all ranks."""
        timings = {place: self._time(contenders, effort, place) for place in _PLACES}
        return {
            name: Point(
                count=self._count,
                nbytes=self._source.nbytes,
                out_of_place=timings["out"][name],
                in_place=timings["in"][name],
            )
            for name in contenders
        }

    def _time(
        self, contenders: Mapping[str, _Call], effort: Effort, place: str
    ) -> dict[str, Timing]:
        self._source.zero_()
        self._target.zero_()
        calls = {name: self._placed(call, place) for name, call in contenders.items()}
        for call in calls.values():
            for _ in range(effort.warmup):
                call()
        loops = _barrier_separated if effort.mode == BARRIER else _back_to_back
        durations, totals_s = loops(self._communicator, calls, effort.iterations)
        wrong = {
            name: self._wrong(call, place) if effort.check else -1
            for name, call in contenders.items()
        }
        ranks = self._communicator.all_gather_object((durations, totals_s, wrong))
        found = {}
        for name in contenders:
            samples_s = [max(call) for call in zip(*(rank[0][name] for rank in ranks), strict=True)]
            total_s = max(rank[1].get(name, 0.0) for rank in ranks) or sum(samples_s)
            count = sum(rank[2][name] for rank in ranks) if effort.check else -1
            found[name] = Timing(
                samples_s=tuple(samples_s), time_s=total_s / effort.iterations, wrong=count
            )
        return found

    def _placed(self, call: _Call, place: str) -> Callable[[], None]:
        source, target = self._source, self._target
        if place == "in":
            return lambda: call(target)

        def out_of_place() -> None:
            target.copy_(source)
            call(target)

        return out_of_place

    def _wrong(self, call: _Call, place: str) -> int:
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
        self._placed(call, place)()
        return pattern.wrong(self._target)


def _barrier_separated(
    communicator: Communicator, calls: Mapping[str, Callable[[], None]], iterations: int
) -> tuple[_Durations, dict[str, float]]:
    durations: _Durations = {name: [] for name in calls}
    for _ in range(iterations):
        for name, call in calls.items():
            communicator.barrier()
            start_s = time.perf_counter()
            call()
            durations[name].append(time.perf_counter() - start_s)
    return durations, {}


def _back_to_back(
    communicator: Communicator, calls: Mapping[str, Callable[[], None]], iterations: int
) -> tuple[_Durations, dict[str, float]]:
    durations: _Durations = {}
    totals_s = {}
    for name, call in calls.items():
        communicator.barrier()
        stamps = [time.perf_counter()]
        for _ in range(iterations):
            call()
            stamps.append(time.perf_counter())
        durations[name] = [b - a for a, b in itertools.pairwise(stamps)]
        totals_s[name] = stamps[-1] - stamps[0]
    return durations, totals_s


def _facts() -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "backend": str(dist.get_backend_config()),
        "syncopate": importlib.metadata.version("syncopate"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        **{
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("GLOO_", "NCCL_", "OMP_", "TORCH_NCCL_"))
        },
    }
