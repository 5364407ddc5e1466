"""Parts ``pipeline8`` and ``pipeline16``: LP on ever more hosts, beside MST, BE and Gloo's own.

All numbers of hosts are measured in one lab, the first 2, 4, 8, .. of its hosts taking part while
the others wait, so that they can be compared. LP's blocks are those that the cost model takes for
the links as calibrated; how much other numbers of blocks cost is measured for the broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist

from syncopate.cluster import Cluster, Level
from syncopate.collectives import Communicator
from syncopate.costs.model import schedule_cost
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
                    contenders = _contenders(collective, nbytes, p, cluster)
                    cells.append(session.measure(collective, nbytes, contenders, members[p]))
                session.communicator.barrier()
    texts = {f"lp:blocks={count}": {"blocks": count} for count in BLOCKS}
    cells.append(
        session.measure(
            "broadcast", nbytes, {text: Contender("lp", chosen) for text, chosen in texts.items()}
        )
    )
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
    collective: str, nbytes: int, world_size: int, cluster: Cluster
) -> Mapping[str, Contender]:
    where = first(cluster.levels, world_size, cluster.reduction_s_per_byte)
    options = schedule_cost(where, collective, "lp").options(nbytes)
    return {
        "lp": Contender("lp", options, label("lp", options)),
        "mst": Contender("mst"),
        "be": Contender("be"),
        "native": Contender(),
    }


def first(levels: tuple[Level, ...], world_size: int, reduction_s_per_byte: float) -> Cluster:
    """Return the cluster of some ranks joined by the slowest of ``levels``."""
    slowest = min(levels, key=lambda level: level.bandwidth_bytes_per_s)
    return Cluster.flat(
        world_size,
        latency_s=slowest.latency_s,
        bandwidth_bytes_per_s=slowest.bandwidth_bytes_per_s,
        reduction_s_per_byte=reduction_s_per_byte,
    )
