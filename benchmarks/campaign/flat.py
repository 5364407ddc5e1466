"""Parts ``flat4`` and ``flat8``: every collective, ``auto`` beside Gloo's own, 4 B to 64 MiB.

Gloo has two ways to reduce and scatter: ``reduce_scatter_tensor`` is ``native``, and
``reduce_scatter``, which takes a list of shards, stands beside it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.units import KIB, MIB

from .session import Session, found_by
from .streams import Ring
from .targets import LISTED
from .timing import ITEM_BYTES, Contender

SIZES = (4, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
STREAMS = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)


def measure(session: Session) -> dict[str, Any]:
    """Return what the part measured, by field of its result."""
    ring = Ring(session.communicator)
    streams = ring.measure(STREAMS, session.effort)
    ring.close()
    cluster = session.cluster(*BUS_FACTORS)
    table = [row for name in BUS_FACTORS for row in session.decisions(cluster, name)]
    cells = []
    for collective in BUS_FACTORS:
        for nbytes in (size for size in SIZES if size <= session.effort.largest_bytes):
            contenders = {
                "auto": session.auto(cluster, collective, nbytes),
                "native": Contender(),
            }
            equal = nbytes // ITEM_BYTES % session.communicator.world_size == 0
            if collective == "reduce_scatter" and equal:
                contenders[LISTED] = Contender(call=_reduce_scatter_of_list)
            cells.append(session.measure(collective, nbytes, contenders))
    return {
        "cells": tuple(cells),
        "streams": streams,
        "decisions": tuple(table),
        **found_by(cluster),
    }


def _reduce_scatter_of_list(tensor: torch.Tensor) -> None:
    """Reduce and scatter in place by Gloo's collective of a list of equal shards."""
    shards = list(tensor.chunk(dist.get_world_size()))
    dist.reduce_scatter(shards[dist.get_rank()], shards)
