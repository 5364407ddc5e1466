"""Agreement: compares, before a collective, what the ranks are about to do.

Ranks that run different collectives at the same time exchange messages of the wrong size and
meaning. The comparison costs a small all-gather per collective, so it is switched on to look for
such a mistake, by ``SYNCOPATE_CHECK=1``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from syncopate.collectives.failure import Call
from syncopate.collectives.rescue import finish
from syncopate.errors import CollectiveError

VARIABLE = "SYNCOPATE_CHECK"
"""The environment variable that switches the comparison on: anything but empty or ``0``."""

_ROW_BYTES = 160
_Result = TypeVar("_Result")


def wanted() -> bool:
    """Say whether the environment asks for the comparison; must be the same on all ranks."""
    return os.environ.get(VARIABLE, "0") not in {"", "0"}


def checked(
    call: Call,
    work: Callable[[], _Result],
    group: dist.ProcessGroup,
    device: torch.device,
) -> Callable[[], _Result]:
    """Return ``work``, preceded by :func:`require_agreement`."""

    def run() -> _Result:
        require_agreement(call, group, device)
        return work()

    return run


def require_agreement(call: Call, group: dist.ProcessGroup, device: torch.device) -> None:
    """Return when every rank of ``group`` is about to do ``call``.

    Raises:
        CollectiveError: they are about to do different things; raised on every rank alike.
    """
    world_size = dist.get_world_size(group)
    text = call.title.encode()[:_ROW_BYTES].ljust(_ROW_BYTES)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    finish(dist.all_gather, rows, mine, group=group)
    titles = [bytes(row.tolist()).decode(errors="replace").rstrip() for row in rows]
    if len(set(titles)) > 1:
        listed = "; ".join(f"rank {rank}: {title}" for rank, title in enumerate(titles))
        raise CollectiveError(call.title, f"the ranks disagree about what comes next: {listed}")
