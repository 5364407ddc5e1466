"""Transport: the one place that reaches below torch.distributed's public interface.

The public ``isend``/``irecv`` spend more time in Python than a small message spends on the wire,
so Gloo's backend object is called directly where there is one. Everything else falls back to the
public functions. Nothing outside this module touches a name with a leading underscore.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

Send = Callable[[list[torch.Tensor], int, int], Any]
"""``send([tensor], peer, tag) -> work``; ``peer`` is a rank of the group."""

Receive = Send
"""``receive([tensor], peer, tag) -> work``."""

_BREAK_TAG = 1 << 30
_CPU = torch.device("cpu")


def point_to_point(group: dist.ProcessGroup) -> tuple[Send, Receive]:
    """Return the cheapest ``(send, receive)`` for CPU tensors on ``group``.

    Messages between two ranks match by tag, in the order in which each side posted them. The
    returned work must be kept until its ``wait()``, and waited for once. Both calls raise
    ``RuntimeError`` when the connection is already known to be lost.
    """
    backend = _gloo(group)
    if backend is not None:
        return backend.send, backend.recv

    def send(tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return dist.isend(tensors[0], group=group, group_dst=peer, tag=tag)

    def receive(tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return dist.irecv(tensors[0], group=group, group_src=peer, tag=tag)

    return send, receive


def break_connections(group: dist.ProcessGroup, peers: Iterable[int]) -> tuple[int, ...]:
    """Make every operation of ``group``, here and on its peers, fail now instead of hang.

    Gloo has no abort, but it gives up all connections of a group once one of its receives passes
    its time limit: so receives are posted that nobody answers. The peers see the connections
    close.

    Returns:
        The peers whose connection turned out to be closed by them already.
    """
    backend = _gloo(group)
    if backend is None:
        with contextlib.suppress(Exception):  # NCCL aborts; others have nothing to offer
            group.abort()
        return ()
    closed = []
    landing = torch.empty(1)
    for peer in peers:
        try:
            backend.recv([landing], peer, _BREAK_TAG).wait(datetime.timedelta(milliseconds=1))
        except RuntimeError as error:
            if not is_timeout(error):
                closed.append(peer)
    return tuple(closed)


def is_timeout(error: BaseException) -> bool:
    """Say whether Gloo or the store gave up waiting, rather than found a connection closed."""
    text = str(error).lower()
    return "timed out" in text or "timeout" in text


def was_interrupted(error: BaseException) -> bool:
    """Say whether an operation failed because this very process broke the connections."""
    return "application timeout caused pair closure" in str(error).lower()


def group_store(group: dist.ProcessGroup, prefix: str, timeout_s: float) -> dist.Store:
    """Return a store of the group's own, with its own connection and time limit.

    Its own connection, because a store client serves one call at a time and another thread may be
    blocked in one.
    """
    name = group.group_name
    store = dist.PrefixStore(f"{prefix}/{name}", distributed_c10d._get_default_store().clone())
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    return store


def backends(group: dist.ProcessGroup) -> dict[str, str]:
    """Return which backend serves each device type, such as ``{"cpu": "gloo"}``."""
    served = {}
    for part in dist.get_backend_config(group).split(","):
        device, _, backend = part.partition(":")
        served[device] = backend
    return served


def _gloo(group: dist.ProcessGroup) -> Any:
    """Return the Gloo backend object that serves CPU tensors, or ``None``."""
    try:
        backend = group._get_backend(_CPU)
    except (AttributeError, RuntimeError):
        return None
    return backend if isinstance(backend, dist.ProcessGroupGloo) else None
