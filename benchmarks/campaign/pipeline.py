"""Parts ``pipeline8`` and ``pipeline16``: LP on ever more hosts, beside MST, BE and Gloo's own.

All numbers of hosts are measured in one lab, the first 2, 4, 8, .. of its hosts taking part while
the others wait, so that they can be compared. LP's blocks are those that the cost model takes for
the links; how much other numbers of blocks cost is measured for the broadcast. Gloo's
own is measured in labs of up to eight hosts: on sixteen it would take most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import torch.distributed as dist

from syncopate.cluster import Cluster
from syncopate.collectives import Communicator
from syncopate.costs.model import best_variant
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
    with ExitStack() as stack:
        members = {p: stack.enter_context(own) for p, own in _members(session, hosts).items()}
        for collective in COLLECTIVES:
            for p in (p for p in RANKS if p <= hosts):
                if p in members:
                    where = first(cluster, p, session.topology)
                    contenders = _contenders(collective, nbytes, where, native=hosts <= 8)
                    cells.append(session.measure(collective, nbytes, contenders, members[p]))
                session.communicator.barrier()
    others = {f"lp:blocks={count}": Contender("lp", {"blocks": count}) for count in BLOCKS}
    cells.append(session.measure("broadcast", nbytes, others))
    return {"cells": tuple(cells), **found_by(cluster)}


def _members(session: Session, hosts: int) -> dict[int, Communicator]:
    """Return the communicators of the first 2, 4, .. ranks that this rank takes part in."""
    # The larger first, and those that take part alone: torch names a group by how many its ranks
    # have had, which is then the same on all of them.
    return {
        p: Communicator(dist.new_group(range(p), use_local_synchronization=True))
        for p in reversed(RANKS)
        if session.communicator.rank < p <= hosts
    }


def _contenders(
    collective: str, nbytes: int, where: Cluster, *, native: bool
) -> Mapping[str, Contender]:
    options = best_variant(where, collective, "lp", nbytes)
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
