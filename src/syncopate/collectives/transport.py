"""Transport: the one place that reaches below torch.distributed's public interface.

The public ``isend``/``irecv`` spend more time in Python than a small message spends on the wire,
so Gloo's backend object is called directly where there is one. Everything else falls back to the
public functions. Nothing outside this module and :mod:`syncopate.collectives.subgroup` touches a
name with a leading underscore.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from syncopate.collectives.board import Store
from syncopate.collectives.failure import Kind

Send = Callable[[list[torch.Tensor], int, int], Any]
"""``send([tensor], peer, tag) -> work``; ``peer`` is a rank of the group."""

Receive = Send
"""``receive([tensor], peer, tag) -> work``."""

LONGEST_S = (1 << 31) // 1000 - 1.0
"""The longest time limit, some weeks: what one call of the kernel can wait."""

_BREAK_TAG = 1 << 30
_CPU = torch.device("cpu")


def point_to_point(group: dist.ProcessGroup) -> tuple[Send, Receive]:
    """Return the cheapest ``(send, receive)`` for CPU tensors on ``group``.

    Messages between two ranks match by tag, in the order in which each side posted them. The
    returned work must be kept until its ``wait()``, and waited for once. Both calls raise
    ``RuntimeError`` when the connection is already known to be lost.
    """
    backend = gloo_backend(group)
    if backend is not None:
        return backend.send, backend.recv

    def send(tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return dist.isend(tensors[0], group=group, group_dst=peer, tag=tag)

    def receive(tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        return dist.irecv(tensors[0], group=group, group_src=peer, tag=tag)

    return send, receive


def break_connections(group: dist.ProcessGroup, peers: Iterable[int]) -> tuple[int, ...]:
    """Make every operation of ``group``, here and on its peers, fail now instead of hang.

    Returns:
        The peers whose connection turned out to be closed by them already.
    """
    if any(backend != "gloo" for backend in backends(group).values()):
        with contextlib.suppress(Exception):  # NCCL can abort; others have nothing to offer
            group.abort()
    return hang_up(group, peers)


def hang_up(group: dist.ProcessGroup, peers: Iterable[int]) -> tuple[int, ...]:
    """Close the Gloo connections of ``group``; messages already sent still arrive.

    Gloo has no call for it, and destroying a group closes nothing while anybody holds a reference
    to it. But a group gives up all its connections once one of its receives passes its time limit:
    so receives are posted that nobody answers. The peers see the connections close.

    Returns:
        The peers whose connection turned out to be closed by them already.
    """
    backend = gloo_backend(group)
    return () if backend is None else close_connections(backend, peers)


def close_connections(backend: Any, peers: Iterable[int]) -> tuple[int, ...]:
    """Do what :func:`hang_up` does, to a Gloo backend itself."""
    closed = []
    landing = torch.empty(1)
    for peer in peers:
        try:
            backend.recv([landing], peer, _BREAK_TAG).wait(datetime.timedelta(milliseconds=1))
        except RuntimeError as error:
            if failure_kind(error) == "closed":
                closed.append(peer)
    return tuple(closed)


def failure_kind(error: BaseException) -> Kind:
    """Read from a message of Gloo or NCCL what kind of failure it reports."""
    text = str(error).lower()
    if "interrupted here" in text:
        return "interrupted"
    # Gloo says this of every pair of a group once one receive passed its limit.
    if "application timeout caused pair closure" in text:
        return "interrupted"
    if "timed out" in text or "timeout" in text:
        return "timeout"
    if any(word in text for word in ("gloo", "connection", "socket", "broken pipe", "nccl")):
        return "closed"
    return "error"


def new_group(group: dist.ProcessGroup | None, timeout_s: float) -> dist.ProcessGroup:
    """Return a further process group over the ranks of ``group``, of the same backend.

    Every rank of ``group`` must call this in the same order.

    Raises:
        RuntimeError: not every rank arrived in time.
    """
    part = group is not None and group is not dist.group.WORLD
    return group_of(dist.get_process_group_ranks(group) if part else None, group, timeout_s)


def group_of(
    ranks: Sequence[int] | None, like: dist.ProcessGroup | None, timeout_s: float
) -> dist.ProcessGroup:
    """Return a further process group over ``ranks`` of the job, of the same backend as ``like``.

    ``None`` stands for all ranks, and for the default group. Otherwise as :func:`new_group`.
    """
    served = set(backends(like).values())
    with contextlib.nullcontext() if ranks is None else _part_of_the_job(ranks):
        return dist.new_group(  # type: ignore[no-any-return]
            None if ranks is None else list(ranks),
            timeout=datetime.timedelta(seconds=timeout_s),
            # A group made from the full configuration has no backend of its own name, which torch
            # remarks on when the group is destroyed.
            backend=served.pop() if len(served) == 1 else dist.get_backend_config(like),
            use_local_synchronization=ranks is not None,
        )


_parts: collections.Counter[tuple[int, ...]] = collections.Counter()
"""How many groups this process has made over each set of ranks that is a part of the job."""


@contextlib.contextmanager
def _part_of_the_job(ranks: Sequence[int]) -> Iterator[None]:
    """Make groups of some ranks without the others.

    torch would derive the name of the group from how many groups this process has had, so ranks
    that share another group with others would wait under another name. And where the default group
    is bound to a device torch splits its communicator, in which all its ranks must take part: those
    of the new group would wait for the others for ever.
    """
    key = tuple(ranks)
    _parts[key] += 1
    name = hashlib.sha1(f"{key} {_parts[key]}".encode(), usedforsecurity=False).hexdigest()
    naming = getattr(distributed_c10d, "_hash_ranks_to_str", None)
    default: Any = distributed_c10d._get_default_group()
    device = getattr(default, "bound_device_id", None)
    if naming is not None:
        distributed_c10d._hash_ranks_to_str = lambda ranks: name
    if device is not None:
        default.bound_device_id = None
    try:
        yield
    finally:
        if naming is not None:
            distributed_c10d._hash_ranks_to_str = naming
        if device is not None:
            default.bound_device_id = device


class _Destroyed:
    """Keeps a name taken, and stands still when torch shuts down all groups it has names of."""

    def shutdown(self) -> None:
        """Do nothing: the group is gone."""


def destroy_group(group: dist.ProcessGroup) -> None:
    """Destroy ``group``, and keep its name from being given again.

    torch would give a later group of the same ranks the same name, and its ranks would find each
    other's old addresses in the store.
    """
    names = getattr(getattr(distributed_c10d, "_world", None), "pg_names", None)
    name = getattr(group, "group_name", "")
    with contextlib.suppress(Exception):  # a broken group has nothing left to lose
        dist.destroy_process_group(group)
        if names is not None:
            names[_Destroyed()] = name


def group_timeout_s(group: dist.ProcessGroup | None) -> float:
    """Return how long a collective of ``group`` waits for a rank.

    torch has no public name for it. Where a group has several backends the most patient counts.
    """
    whole: Any = distributed_c10d._get_default_group() if group is None else group
    found = []
    for device in backends(group):
        with contextlib.suppress(AttributeError, RuntimeError):
            found.append(whole._get_backend(torch.device(device)).options._timeout)
    limits = [limit for limit in found if isinstance(limit, datetime.timedelta)]
    seconds = max(limits, default=distributed_c10d.default_pg_timeout).total_seconds()
    return min(seconds, LONGEST_S) if seconds > 0 else LONGEST_S


def group_store(group: dist.ProcessGroup, prefix: str, timeout_s: float) -> Store:
    """Return a store of the group's own, with its own connection and time limit.

    Its own connection, because a store client serves one call at a time and another thread may be
    blocked in one.
    """
    own: Any = distributed_c10d._get_default_store()
    store: Any = distributed_c10d.PrefixStore(f"{prefix}/{group.group_name}", own.clone())
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    return cast(Store, store)


def job_store() -> Store:
    """Return the store that all ranks of this run share, and those of no other run."""
    own: Any = distributed_c10d._get_default_store()
    return cast(Store, distributed_c10d.PrefixStore("syncopate/run", own))


def store_address() -> tuple[str, int] | None:
    """Return host and port of the job's rendezvous store; None when it is not reached by TCP."""
    store: Any = distributed_c10d._get_default_store()
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return None if host is None else (host, store.port)


def backends(group: dist.ProcessGroup | None) -> dict[str, str]:
    """Return which backend serves each device type, such as ``{"cpu": "gloo"}``."""
    served = {}
    for part in dist.get_backend_config(group).split(","):
        device, _, backend = part.partition(":")
        served[device] = backend
    return served


def uses_gloo(group: dist.ProcessGroup) -> bool:
    """Say whether Gloo serves CPU tensors in ``group``."""
    return gloo_backend(group) is not None


def gloo_backend(group: dist.ProcessGroup) -> Any:
    """Return torch's Gloo backend that serves CPU tensors in ``group``, or ``None``."""
    try:
        backend = group._get_backend(_CPU)
    except (AttributeError, RuntimeError):
        return None
    return backend if isinstance(backend, dist.ProcessGroupGloo) else None
