"""Parts ``pipeline8`` and ``pipeline16``: LP on ever more hosts, beside MST, BE and Gloo's own.

All numbers of hosts are measured in one lab, the first 2, 4, 8, .. of its hosts taking part while
the others wait, so that they can be compared. Each number has a communicator of its own, closed
before the next is made: Gloo's threads of one that idles wake up a hundred times a second, and
many hosts share few processors here. LP's blocks are those that the cost model takes for
the links; how much other numbers of blocks cost is measured for the broadcast. Gloo's
own is measured in labs of up to eight hosts: on sixteen it would take most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import Communicator
from syncopate.costs.decide.options import best_options
from syncopate.lab import Topology
from syncopate.units import MIB

from .results import Cell, label
from .session import Session, found_by
from .timing import Contender

COLLECTIVES = ("broadcast", "reduce", "all_reduce")
NBYTES = {8: 64 * MIB, 16: 8 * MIB}
"""Hosts of the lab -> size of the message."""

RANKS = (2, 4, 8, 16)

BLOCKS = (16, 64, 128, 256, 1024)
"""Numbers of blocks compared at the largest number of hosts."""


def measure(session: Session) -> dict[str, Any]:
    """Return what the part measured, by field of its result."""
    hosts = session.topology.hosts
    nbytes = min(NBYTES[hosts], session.effort.largest_bytes)
    cluster = session.links()
    cells: list[Cell] = []
    for p in reversed([p for p in RANKS if p <= hosts]):
        if session.communicator.rank < p:
            cells = [*_compared(session, cluster, p, nbytes), *cells]
        session.communicator.barrier()
    others = {f"lp:blocks={count}": Contender("lp", {"blocks": count}) for count in BLOCKS}
    cells.append(session.measure("broadcast", nbytes, others))
    return {"cells": tuple(cells), **found_by(cluster)}


def _compared(session: Session, cluster: Cluster, p: int, nbytes: int) -> list[Cell]:
    """Return the cells of the first ``p`` hosts; every one of their ranks must call this.

    The larger numbers come first, and those that take part are alone: torch names a group by how
    many its ranks have had, which is then the same on all of them.
    """
    group = dist.new_group(range(p), use_local_synchronization=True)
    where = first(cluster, p, session.topology)
    native = session.topology.hosts <= 8
    with Communicator(group) as communicator:
        cells = [
            session.measure(
                name, nbytes, _contenders(name, nbytes, where, native=native), communicator
            )
            for name in COLLECTIVES
        ]
    dist.destroy_process_group(group)
    return cells


def _contenders(
    collective: str, nbytes: int, where: Cluster, *, native: bool
) -> Mapping[str, Contender]:
    options = best_options(where, collective, "lp", nbytes)
    found = {
        "lp": Contender("lp", options, label("lp", options)),
        "mst": Contender("mst"),
        "be": Contender("be"),
    }
    return found | {"native": Contender()} if native else found


def first(cluster: Cluster, world_size: int, topology: Topology) -> Cluster:
    """Return the cluster of some of the ranks: latency as calibrated, bandwidth as emulated.

    A short calibration has no time for messages that are long beside the burst of a slow link.
    """
    (level,) = topology.cluster().levels
    found = max(cluster.levels, key=lambda level: level.latency_s)
    level = msgspec.structs.replace(level, size=world_size, latency_s=found.latency_s)
    bare = {"placement": (), "hosts": (), "curves": (), "probes": ()}
    return msgspec.structs.replace(cluster, levels=(level,), **bare)
