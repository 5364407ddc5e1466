"""Assemble: what several logs measured, as one cluster.

[Note: latency] α is fitted to what was measured, and never assumed. By its source, the first that
there is: what the user says; single messages (``ib_write_lat``, ``sendrecv_perf``); the start-up of
a collective, which is the intercept of a robust line through its sizes up to ``SHORT_BYTES``,
divided by the messages that follow one another in it. These are NCCL's own counts (``tuning.cc``):
of p ranks, g on each of h hosts, a ring has 2 (p-1), a tree 2 (g-1) within hosts and 2 log2 h
between them, and half of a ring's where a collective goes one way. Where the log does not tell the
algorithm, several hosts are taken to use trees for messages that short, as NCCL does. Without any
of these there is no cluster, unless a typical network is named: then its latency is, and a sentence
says so.

[Note: bandwidth] A level carries what was seen to pass: the best bus bandwidth of a collective that
crosses it, and the rate between two hosts. NCCL's bus bandwidth is what the busiest link of a ring
carries, for any number of ranks. Of several pairs of hosts the slowest counts, because a
collective goes at its pace.

[Note: curves] What NCCL took is the curve of the backend's own algorithm, ``native``, by size, with
trees and rings as NCCL chose them. So prices are what was measured, at those sizes. Where logs of
forced algorithms alone are given, the faster one counts at each size. For another number of ranks
than was measured curves say nothing, and are left out.

[Note: levels] A log of several hosts does not tell its hosts' inside apart. One of a single host
with as many GPUs does; without it the inside is taken to be no faster than between hosts, which
every collective over all of them has shown.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from syncopate.artifacts.cluster import (
    MAX_POINT_BYTES,
    NETWORKS,
    Cluster,
    CollectiveCurve,
    CurvePoint,
)
from syncopate.artifacts.level import Level
from syncopate.artifacts.overlap import RDMA, TCP, assuming_overlap
from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.calibration.logs.measured import CollectiveLog, LinkLog, Log, Sample, sizes_of
from syncopate.costs.model.fits import fit_linear
from syncopate.errors import CalibrationError, InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE
from syncopate.topology import topology
from syncopate.units import KIB, format_bytes, format_rate

SHORT_BYTES = 64 * KIB
"""Up to this size a message says something about start-up."""

SLOW = 0.6
"""A pair of hosts is slow below this share of the typical rate."""

_MESSAGES = "sendrecv"
_Steps = Callable[[CollectiveLog, str], tuple[int, int]]
_ONE_WAY = ("reduce_scatter", "all_gather", "broadcast", "reduce")


@dataclass(frozen=True)
class Given:
    """The user's options beside the logs.

    Attributes:
        nodes: number of hosts; None: as the logs tell.
        ranks_per_host: None: as the logs tell.
        latency_s: between hosts; None: fitted.
        network: a typical network whose latency counts where nothing measured it; None: none.
    """

    nodes: int | None = None
    ranks_per_host: int | None = None
    latency_s: float | None = None
    network: str | None = None

    def __post_init__(self) -> None:
        for what in ("nodes", "ranks_per_host"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise InvalidValueError(what, value, "an integer >= 1")
        if self.network is not None and self.network not in NETWORKS:
            raise UnknownNameError("network", self.network, NETWORKS)


@dataclass(frozen=True)
class _Start:
    """α of a level, and where it comes from."""

    seconds: float
    source: str


def assemble(logs: Sequence[Log], given: Given) -> Cluster:
    """Return the cluster of some logs; see the notes of this module.

    Args:
        logs: at least one.
        given: what is said beside them.

    Raises:
        CalibrationError: nothing tells the number of ranks, or the latency, or a bandwidth; or logs
            of different numbers of ranks.
        InvalidValueError: less than two ranks.
    """
    collectives = [log for log in logs if isinstance(log, CollectiveLog)]
    links = [log for log in logs if isinstance(log, LinkLog)]
    largest = max((log.ranks for log in collectives), default=0)
    hosts, per_host = _shape(collectives, largest, given)
    if any(not log.ranks for log in collectives):
        # What a log does not tell, the user does.
        largest = largest or hosts * per_host
        collectives = [replace(log, ranks=log.ranks or largest) for log in collectives]
    whole = [log for log in collectives if log.ranks == largest]
    inside = [log for log in collectives if log.ranks < largest]
    _require_alike(inside, whole, per_host)
    remarks = [remark for log in logs for remark in log.remarks]
    shown = whole
    if largest == per_host:
        # Collectives of one host show its inside, however many hosts there are.
        inside, whole = [*inside, *whole], []
    levels, facts = _levels((inside, whole, links), (hosts, per_host), given)
    world = hosts * per_host
    curves = _curves([log for log in shown if log.ranks == world])
    if shown and not curves:
        remarks.append(
            f"the curves of {largest} ranks are left out: they say nothing of {world} ranks, which "
            "are priced by latency and bandwidth alone"
        )
    placed = _hosts(shown, world)
    cluster = Cluster(
        name=_name(shown, hosts, per_host),
        levels=levels,
        hosts=placed,
        placement=topology(placed).placement if placed else (),
        reduction_s_per_byte=(
            NETWORKS[given.network][2] if given.network is not None and not collectives else 0.0
        ),
        curves=curves,
        warnings=(*remarks, *_slow(links)),
        metadata=facts | _provenance(logs, curves, shown),
    )
    return assuming_overlap(cluster, _carrier(logs))


def _carrier(logs: Sequence[Log]) -> str:
    """Return what carries messages: TCP where any log says so, and RDMA otherwise."""
    return TCP if any(log.carrier == TCP for log in logs) else RDMA


def _shape(logs: Sequence[CollectiveLog], largest: int, given: Given) -> tuple[int, int]:
    """Return the number of hosts, and of ranks on each."""
    found = [log for log in logs if log.ranks == largest]
    hosts = given.nodes or max((log.host_count for log in found), default=0)
    per_host = given.ranks_per_host or max((log.ranks_per_host for log in found), default=0)
    if not found:
        hosts, per_host = hosts or 2, per_host or 1
    elif largest and not hosts and per_host:
        hosts = largest // per_host
    elif largest and hosts and not per_host:
        per_host = largest // hosts if largest % hosts == 0 else 0
    if not (hosts and per_host):
        uneven = any(log.hosts for log in found)
        why = "hosts have different numbers of ranks" if uneven else "it is not in the log"
        raise CalibrationError(
            f"how many ranks on how many hosts took part is not known ({why}); give --nodes and "
            "--ranks-per-host"
        )
    if hosts * per_host < 2:
        raise InvalidValueError("ranks", hosts * per_host, "at least 2; give --nodes")
    return hosts, per_host


def _require_alike(
    inside: Sequence[CollectiveLog], whole: Sequence[CollectiveLog], per_host: int
) -> None:
    """Refuse logs of other numbers of ranks than one host has, or all have."""
    for log in inside:
        if log.host_count > 1 or (log.ranks and log.ranks != per_host):
            raise CalibrationError(
                f"{log.path} has {log.ranks} ranks on {max(log.host_count, 1)} hosts, and "
                f"{whole[0].path} has {whole[0].ranks}; give logs of one cluster, and with them at "
                f"most those of one of its hosts with its {per_host} ranks"
            )


def _levels(
    logs: tuple[Sequence[CollectiveLog], Sequence[CollectiveLog], Sequence[LinkLog]],
    shape: tuple[int, int],
    given: Given,
) -> tuple[tuple[Level, ...], dict[str, str]]:
    """Return the levels, and where their figures come from.

    Args:
        logs: collectives of one host, collectives of all, links between hosts.
        shape: hosts, and ranks on each.
        given: what is said beside them.
    """
    inside, whole, links = logs
    hosts, per_host = shape
    facts: dict[str, str] = {}
    device: Level | None = None
    if per_host > 1 and inside:
        start = _inner_start(inside)
        device = _level("device", per_host, start, _busbw(inside))
        facts["latency of devices"] = start.source
        facts["bandwidth of devices"] = f"the best bus bandwidth of {_paths(inside)}"
    if hosts == 1 and device is not None:
        if given.latency_s is not None:
            rule = "left out: the logs are of one host, and tell its own"
            raise InvalidValueError("latency", given.latency_s, rule)
        return (device,), facts
    rates = [log.rate_bytes_per_s for log in links if log.rate_bytes_per_s]
    carried = max(_busbw(whole) if whole else 0.0, min(rates, default=0.0))
    if not carried:
        raise CalibrationError(
            "no log tells the bandwidth between hosts; give one of iperf3, ib_write_bw, or "
            "nccl-tests over several hosts"
        )
    start = _outer_start(whole, links, shape, given, device)
    host = _level("host", hosts, start, carried)
    facts["latency"] = start.source
    sources = [*([f"the best bus bandwidth of {_paths(whole)}"] if whole else []), *_tools(links)]
    facts["bandwidth"] = "; ".join(sources)
    if per_host == 1:
        return (host,), facts
    if device is None:
        device = _level("device", per_host, start, carried)
        facts["devices"] = (
            "no log of one host tells its inside: taken to be no faster than between hosts"
        )
    return (device, host), facts


def _level(name: str, size: int, start: _Start, rate: float) -> Level:
    return Level(name=name, size=size, latency_s=start.seconds, bandwidth_bytes_per_s=rate)


def _busbw(logs: Sequence[CollectiveLog]) -> float:
    """Return the best bus bandwidth of some collectives; see [Note: bandwidth]."""
    best = 0.0
    for log in logs:
        factor = 1.0 if log.collective == _MESSAGES else BUS_FACTORS[log.collective](log.ranks)
        for nbytes, seconds in sizes_of(log.samples).items():
            best = max(best, factor * nbytes / statistics.median(seconds))
    return best


def _inner_start(inside: Sequence[CollectiveLog]) -> _Start:
    """Return α within a host; see [Note: latency]."""
    found = _starts(inside, lambda log, algorithm: (_turns(log) * (log.ranks - 1), 0))
    if found is None:
        raise CalibrationError(
            f"{_paths(inside)} tells no latency within a host: it has fewer than two sizes up to "
            f"{format_bytes(SHORT_BYTES)}; measure from 8 bytes on (-b 8)"
        )
    return found


def _outer_start(
    whole: Sequence[CollectiveLog],
    links: Sequence[LinkLog],
    shape: tuple[int, int],
    given: Given,
    device: Level | None,
) -> _Start:
    """Return α between hosts; see [Note: latency]."""
    if given.latency_s is not None:
        return _Start(given.latency_s, "given by hand")
    points = sorted(point for log in links for point in log.one_way if point[0] <= SHORT_BYTES)
    if points:
        seconds = points[0][1] if points[0][0] == points[-1][0] else _intercept(points)
        return _Start(seconds, f"fitted to single messages: {_paths_of(links, points)}")

    def steps(log: CollectiveLog, algorithm: str) -> tuple[int, int]:
        hosts, per_host = log.host_count or shape[0], log.ranks_per_host or shape[1]
        if algorithm == "ring":
            between = _turns(log) * (hosts - 1)
            return _turns(log) * (log.ranks - 1) - between, between
        return _turns(log) * (per_host - 1), _turns(log) * math.ceil(math.log2(hosts))

    found = _starts(whole, steps, device)
    if found is not None:
        return found
    if given.network is not None:
        return _Start(
            NETWORKS[given.network][0],
            f"no log tells it: typical of {given.network}, which was not measured here",
        )
    tools = ", ".join(dict.fromkeys(log.tool for log in links)) or "nccl-tests"
    raise CalibrationError(
        f"no log tells the latency of small messages: {tools} measured large ones alone; give a "
        "log of ib_write_lat, or of nccl-tests from 8 bytes on, or --latency 20us, or with "
        f"--network the typical one of {', '.join(NETWORKS)}"
    )


def _turns(log: CollectiveLog) -> int:
    """Return how often a message goes around: an all-reduce twice."""
    return 1 if log.collective in _ONE_WAY else 2


def _starts(
    logs: Sequence[CollectiveLog], steps: _Steps, device: Level | None = None
) -> _Start | None:
    """Return α by the start-up of collectives; None where none has enough short sizes.

    Args:
        logs: of the collectives; single messages come first, then the all-reduce.
        steps: of a log and an algorithm, the messages within hosts and between them.
        device: what the former take; None where they take as long as the latter.
    """
    order = (_MESSAGES, "all_reduce", *_ONE_WAY)
    for log in sorted(logs, key=lambda log: order.index(log.collective)):
        short = [one for one in log.samples if one.nbytes <= SHORT_BYTES]
        points = [(size, t) for size, times in sizes_of(short).items() for t in times]
        if len({size for size, _ in points}) < 2:
            continue
        start_s = _intercept(points)
        if log.collective == _MESSAGES:
            return _Start(start_s, f"fitted to single messages: {log.path}")
        algorithm = min(short, key=lambda one: one.nbytes).algorithm
        within, between = steps(log, algorithm)
        alone = within * device.latency_s if device is not None else 0.0
        if between and alone < start_s and device is not None:
            within, start_s = 0, start_s - alone
        name = algorithm or "tree" if between else algorithm or "ring"
        told = "" if algorithm else ", which the log does not tell"
        return _Start(
            start_s / (within + between),
            f"fitted to the start-up of {log.collective} in {log.path}, {within + between} "
            f"messages one after the other of a {name}{told}",
        )
    return None


def _intercept(points: Sequence[tuple[int, float]]) -> float:
    return fit_linear([float(size) for size, _ in points], [t for _, t in points]).a_s


def _curves(logs: Sequence[CollectiveLog]) -> tuple[CollectiveCurve, ...]:
    """Return the backend's curve of every collective; see [Note: curves]."""
    found = []
    for collective in dict.fromkeys(log.collective for log in logs):
        if collective == _MESSAGES:
            continue
        sizes = _by_size([log for log in logs if log.collective == collective])
        points = tuple(
            CurvePoint(nbytes=size, samples_s=tuple(t for one in ones for t in one.seconds))
            for size, ones in sizes.items()
            if size <= MAX_POINT_BYTES
        )
        fit = fit_linear([float(p.nbytes) for p in points], [p.expected_s for p in points])
        found.append(
            CollectiveCurve(collective=collective, algorithm=NATIVE, points=points, fit=fit)
        )
    return tuple(found)


def _by_size(logs: Sequence[CollectiveLog]) -> dict[int, list[Sample]]:
    """Return the samples of each size, ascending: the library's choice, else the fastest forced."""
    free = [log for log in logs if not log.forced]
    sizes: dict[int, dict[str, list[Sample]]] = {}
    for log in free or logs:
        for sample in log.samples:
            sizes.setdefault(sample.nbytes, {}).setdefault(log.forced, []).append(sample)
    return {
        size: min(
            by.values(), key=lambda ones: statistics.median(t for o in ones for t in o.seconds)
        )
        for size, by in sorted(sizes.items())
    }


def _choices(logs: Sequence[CollectiveLog]) -> dict[str, str]:
    """Return what NCCL chose at which sizes, where logs tell, by collective."""
    found = {}
    for collective in dict.fromkeys(log.collective for log in logs):
        of = [log for log in logs if log.collective == collective]
        runs: list[tuple[str, int, int]] = []
        for size, samples in _by_size(of).items():
            names = {sample.algorithm for sample in samples}
            name = names.pop() if len(names) == 1 else ""
            if runs and runs[-1][0] == name:
                runs[-1] = (name, runs[-1][1], size)
            else:
                runs.append((name, size, size))
        if any(name for name, *_ in runs):
            forced = ", as NCCL_ALGO allowed" if all(log.forced for log in of) else ""
            found[f"algorithm of {collective}"] = "; ".join(
                f"{name or 'not told'}: {format_bytes(low)} to {format_bytes(high)}{forced}"
                for name, low, high in runs
            )
    return found


def _provenance(
    logs: Sequence[Log], curves: Sequence[CollectiveCurve], shown: Sequence[CollectiveLog]
) -> dict[str, str]:
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source": ", ".join(dict.fromkeys(log.path for log in logs)),
    }
    versions = [log.version for log in shown if log.version]
    if versions:
        facts["versions"] = "; ".join(dict.fromkeys(versions))
    if curves:
        facts["samples"] = (
            "back to back, each the average of its loop over iterations and ranks, as nccl-tests "
            "prints it; out of place and in place"
        )
        facts |= _choices([log for log in shown if log.collective != _MESSAGES])
    return facts


def _slow(links: Sequence[LinkLog]) -> tuple[str, ...]:
    """Return a warning for each pair of hosts that is much slower than the others."""
    rates = [(log.rate_bytes_per_s, log.path) for log in links if log.rate_bytes_per_s]
    if len(rates) < 2:
        return ()
    typical = statistics.median(rate for rate, _ in rates)
    return tuple(
        f"{path}: {format_rate(rate)}, where the typical pair reaches {format_rate(typical)}"
        for rate, path in rates
        if rate < SLOW * typical
    )


def _name(logs: Sequence[CollectiveLog], hosts: int, per_host: int) -> str:
    device = next((log.device for log in logs if log.device), "")
    ranks = f"{per_host} {device}".strip() if per_host > 1 or device else ""
    return f"{hosts} hosts x {ranks}" if ranks else f"{hosts} hosts"


def _hosts(logs: Sequence[CollectiveLog], world: int) -> tuple[str, ...]:
    """Return the host of each rank, where the ranks of a host follow one another."""
    for log in logs:
        if len(log.hosts) == world and log.ranks_per_host:
            return log.hosts
    return ()


def _paths(logs: Sequence[Log]) -> str:
    return ", ".join(dict.fromkeys(log.path for log in logs))


def _paths_of(links: Sequence[LinkLog], points: Sequence[tuple[int, float]]) -> str:
    sizes = f"{format_bytes(points[0][0])} to {format_bytes(points[-1][0])}"
    return f"{_paths([log for log in links if log.one_way])}, {sizes}"


def _tools(links: Sequence[LinkLog]) -> list[str]:
    return [
        f"{log.tool} of {log.path}, {format_rate(log.rate_bytes_per_s)}"
        for log in links
        if log.rate_bytes_per_s
    ]
