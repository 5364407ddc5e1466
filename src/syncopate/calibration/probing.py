"""Probing: levels, reduction, and samples of what messages cost beside; nothing is fitted."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration.links import burst_byte_time, measure_links
from syncopate.calibration.probes import measure_samples
from syncopate.calibration.racks.discovery import discover
from syncopate.calibration.samples import Sample
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import device_of, hosts_of, synchronize
from syncopate.output import Progress, part, say
from syncopate.topology import Topology
from syncopate.units import MIB, format_count

_LINKS_SHARE = 0.4
_DISCOVERY_SHARE = 0.375

_ADDED_BYTES = 4 * MIB
_ADDITIONS = 15
_WARM_UPS = 3


class Network(NamedTuple):
    """The measured links.

    Attributes:
        cluster: levels, γ and raw link probes; no curves.
        samples: what handling is fitted to.
        burst_byte_s: see :class:`~syncopate.artifacts.cluster.Handling`.
    """

    cluster: Cluster
    samples: tuple[Sample, ...]
    burst_byte_s: float


def probe(communicator: Communicator, budget_s: float, progress: Progress | None = None) -> Network:
    """Return hosts, racks, links and what messages cost, without a fit or a collective's curve.

    Every rank must call it with the same arguments, while nothing else uses the communicator.

    Args:
        communicator: the ranks.
        budget_s: about how long to take.
        progress: called with what is measured and how much of the whole is done.
    """
    where = discover(
        communicator,
        hosts_of(communicator),
        budget_s * _DISCOVERY_SHARE,
        part(progress, 0.0, _DISCOVERY_SHARE),
    )
    return probed(
        communicator,
        where,
        budget_s * (1 - _DISCOVERY_SHARE),
        part(progress, _DISCOVERY_SHARE, 1.0),
    )


def probed(
    communicator: Communicator, where: Topology, budget_s: float, progress: Progress | None = None
) -> Network:
    """Return what :func:`probe` does, where it is known which ranks sit where.

    Args:
        communicator: the ranks; every one must call this with the same arguments.
        where: which ranks sit where.
        budget_s: about how long to take.
        progress: called with what is measured and how much of the whole is done.
    """
    levels, probes = measure_links(
        communicator,
        where,
        budget_s=budget_s * _LINKS_SHARE,
        progress=part(progress, 0.0, _LINKS_SHARE),
    )
    bare = Cluster(
        name=_name(where),
        levels=levels,
        placement=where.placement,
        hosts=where.hosts,
        reduction_s_per_byte=measure_reduction(
            communicator, part(progress, _LINKS_SHARE, _LINKS_SHARE)
        ),
        probes=probes,
        warnings=where.warnings,
    )
    samples = measure_samples(
        communicator,
        bare,
        budget_s=budget_s * (1 - _LINKS_SHARE),
        progress=part(progress, _LINKS_SHARE, 1.0),
    )
    return Network(bare, samples, burst_byte_time(levels, probes))


def measure_reduction(communicator: Communicator, progress: Progress | None = None) -> float:
    """Return γ in seconds per byte: the median over rounds, then over ranks; alike on all ranks.

    γ is the time to add one byte of one buffer to another. All ranks add at the same time, as they
    do inside an all-reduce, because ranks of one host share its memory and cores.

    Args:
        communicator: the ranks; all of them must call this.
        progress: called before every round.
    """
    device = device_of(communicator)
    say(progress, "additions", 0.0)
    total = torch.zeros(_ADDED_BYTES // 4, device=device)
    say(progress, "additions", 0.0)
    part = torch.ones_like(total)
    samples_s = []
    for index in range(_WARM_UPS + _ADDITIONS):
        say(progress, "additions", index / (_WARM_UPS + _ADDITIONS))
        communicator.barrier()
        synchronize(device)
        start_s = time.perf_counter()
        total.add_(part)
        synchronize(device)
        samples_s.append(time.perf_counter() - start_s)
    medians_s = communicator.all_gather_object(statistics.median(samples_s[_WARM_UPS:]))
    return float(statistics.median(medians_s)) / _ADDED_BYTES


def _name(where: Topology) -> str:
    hosts = len(set(where.hosts))
    ranks = len(where.hosts)
    return f"{format_count(ranks, 'rank')} on {format_count(hosts, 'host')}"
