"""Groups: the process groups of a communicator, one per channel."""

from __future__ import annotations

import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.errors import CollectiveError


def new_groups(
    group: dist.ProcessGroup | None, channels: int, timeout_s: float
) -> list[dist.ProcessGroup]:
    """Return one process group per channel; none for a single rank, which needs no messages.

    Raises:
        CollectiveError: not every rank arrived.
    """
    if dist.get_world_size(group) == 1:
        return []
    try:
        return [transport.new_group(group, timeout_s) for _ in range(channels)]
    except RuntimeError as error:
        reason = f"not every rank arrived within {timeout_s:g} s ({error})"
        raise CollectiveError("creating the communicator", reason) from error
