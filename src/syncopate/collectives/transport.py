"""Transport: makes, breaks and destroys torch's groups, and knows what Gloo says when it fails.

The public ``isend``/``irecv`` spend more time in Python than a small message spends on the wire, so
Gloo's backend object is called directly where there is one.

A group over all ranks of the job is ``torch.distributed.new_group``'s. One over a part of them is
put together here, of torch's own parts: ``new_group`` would name it by how many groups the process
has had, so ranks that share other groups with others would wait under other names; and where the
default group is bound to a device it would split that group's communicator, in which all ranks of
the job must take part. torch does not know of such a group, so ``torch.distributed``'s functions
refuse it; :mod:`syncopate.collectives.backend.calls` calls the group itself.

[Note: private names] What is used of torch that has no public name. Everything is a plain read or
call on an object of torch's; nothing is replaced, patched or kept alive.

* ``ProcessGroup._get_backend``, the Gloo or NCCL object of a group;
* ``ProcessGroup._register_backend``, ``_set_default_backend`` and ``_set_group_name``, which put a
  group together, and ``ProcessGroupNCCL`` with the ``_timeout`` of its ``Options``;
* ``_reduce_scatter_base``, ``_allgather_base``, ``_start_coalescing`` and ``_end_coalescing`` of
  groups and backends, which torch's public functions call;
* ``ProcessGroupGloo.options._timeout``, the time limit that a group was made with.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from syncopate.collectives.health.blame import Kind
from syncopate.errors import CollectiveError
from syncopate.ranks import BACKEND

LONGEST_S = (1 << 31) // 1000 - 1.0
"""The longest time limit, some weeks: what one call of the kernel can wait."""

INTERRUPTED = "interrupted here"
"""What :func:`failure_kind` knows a wait by that this rank ended itself."""

MADE_HERE = ("gloo", "nccl")
"""Backends that :func:`make_backend` makes."""

_BREAK_TAG = 1 << 30
_CPU = torch.device("cpu")
_c10d: Any = distributed_c10d


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

    Gloo has no call for it, and destroying a group closes nothing while there is a reference
    to it. But a group gives up all its connections once one of its receives passes its time limit:
    so receives are posted that no peer answers. The peers see the connections close.

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
    if INTERRUPTED in text:
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
    """Return a further process group over the ranks of ``group``, of the same backends.

    Every rank of ``group`` must call this in the same order, and no other rank.

    Raises:
        RuntimeError: not every rank arrived in time.
    """
    served = backends(group)
    names = set(served.values())
    if group is not None and group.group_name in _parts:
        return part_of_the_job(job_ranks(group), served, timeout_s, group.rank())
    if group is None or group is dist.group.WORLD:
        return dist.new_group(  # type: ignore[no-any-return]
            timeout=datetime.timedelta(seconds=timeout_s),
            # A group made from the full configuration has no backend of its own name, which torch
            # remarks on when the group is destroyed.
            backend=names.pop() if len(names) == 1 else dist.get_backend_config(group),
        )
    ranks = dist.get_process_group_ranks(group)
    if names <= set(MADE_HERE):
        return part_of_the_job(ranks, served, timeout_s)
    return dist.new_group(  # type: ignore[no-any-return]
        ranks,
        timeout=datetime.timedelta(seconds=timeout_s),
        backend=dist.get_backend_config(group),
        use_local_synchronization=True,
    )


def new_groups(
    group: dist.ProcessGroup | None, channels: int, timeout_s: float
) -> list[dist.ProcessGroup]:
    """Return one process group per channel; none for a single rank, which needs no messages.

    Raises:
        CollectiveError: not every rank arrived.
    """
    if (dist.get_world_size() if group is None else group.size()) == 1:
        return []
    made: list[dist.ProcessGroup] = []
    began_s = time.monotonic()
    try:
        for _ in range(channels):
            made.append(new_group(group, timeout_s))
    except RuntimeError as error:
        for each in made:
            destroy_group(each)
        took_s = min(time.monotonic() - began_s, timeout_s)  # a store that is gone says so at once
        reason = f"not every rank arrived within {took_s:.3g} s ({error})"
        raise CollectiveError("creating the communicator", reason) from error
    return made


class Seat(NamedTuple):
    """One rank's place in a backend that is to be made.

    Attributes:
        store: where its ranks meet; of no other backend.
        name: of the backend, the same on all its ranks.
        rank: this rank within it.
        job_ranks: its ranks, by their numbers in the job.
        timeout_s: how long its operations may take.
    """

    store: Any
    name: str
    rank: int
    job_ranks: Sequence[int]
    timeout_s: float


def make_backend(kind: str, seat: Seat) -> Any:
    """Return a backend, one of :data:`MADE_HERE`; all its ranks must call this, and no others.

    Raises:
        RuntimeError: Gloo did not find the other ranks in time. NCCL looks for them at the first
            collective.
    """
    size, timeout = len(seat.job_ranks), datetime.timedelta(seconds=seat.timeout_s)
    if kind == "gloo":
        return dist.ProcessGroupGloo(seat.store, seat.rank, size, timeout)
    nccl = _c10d.ProcessGroupNCCL  # not in every build of torch
    options = nccl.Options()
    options._timeout = timeout
    options.global_ranks_in_group = list(seat.job_ranks)
    options.group_name = seat.name
    return nccl(seat.store, seat.rank, size, options)


class _Part(NamedTuple):
    """What torch does not know of a group over a part of the job.

    Attributes:
        job_ranks: its ranks, by their numbers in the job.
        served: which backend serves each device type.
    """

    job_ranks: tuple[int, ...]
    served: dict[str, str]


_first_store: list[Any] = []
"""Where the ranks meet while torch makes its default group."""

_counts: collections.Counter[tuple[int, ...]] = collections.Counter()
"""How many groups this process has made over each set of ranks that is a part of the job."""

_parts: dict[str, _Part] = {}
"""Those that are not destroyed yet, by their names."""


def part_of_the_job(
    ranks: Sequence[int], served: dict[str, str], timeout_s: float, rank: int | None = None
) -> dist.ProcessGroup:
    """Return a process group over ``ranks`` of the job, put together here.

    It is named by its ranks and by how many groups these have had among themselves: they make their
    groups in the same order, and may make other groups besides.

    Args:
        ranks: this rank among them; the group counts them in this order.
        served: which backend serves each device type, of :data:`MADE_HERE`.
        timeout_s: how long its operations may take.
        rank: this rank's number in the group; found by its number in the job when left out.

    Raises:
        RuntimeError: not every rank arrived in time.
    """
    key = tuple(ranks)
    _counts[key] += 1
    text = f"{key} {_counts[key]}".encode()
    name = hashlib.sha1(text, usedforsecurity=False).hexdigest()
    rank = key.index(dist.get_rank()) if rank is None else rank
    store = _job_store(f"syncopate/group/{name}", timeout_s)
    group = dist.ProcessGroup(store, rank, len(key))
    types = {kind: getattr(dist.ProcessGroup.BackendType, kind.upper()) for kind in MADE_HERE}
    made: dict[str, Any] = {}
    for device, kind in served.items():
        if kind not in made:
            own = _c10d.PrefixStore(kind, store)
            made[kind] = make_backend(kind, Seat(own, name, rank, key, timeout_s))
        group._register_backend(torch.device(device), types[kind], made[kind])
    group._set_default_backend(types["nccl" if "nccl" in made else "gloo"])
    group._set_group_name(cast(Any, name))
    _parts[name] = _Part(key, served)
    return group


class Roll:
    """The ranks of a group that is to be made, and has no connections; known while in a block.

    A communicator takes it for a group. For a backend, which torch makes before its group.

    Args:
        store: where the ranks meet as long as torch has no default group.
        rank: this rank's number in the group.
        ranks: all of its ranks, by their numbers in the job.
        name: the same on all of them, and of no other group.

    Attributes:
        group_name: as given.
    """

    def __init__(self, store: Any, rank: int, ranks: Sequence[int], name: str) -> None:
        self.group_name = name
        self._store, self._rank, self._ranks = store, rank, tuple(ranks)

    def rank(self) -> int:
        """Return this rank's number."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self._ranks)

    def __enter__(self) -> Any:
        if dist.group.WORLD is None:
            _first_store[:] = [self._store]
        _parts[self.group_name] = _Part(self._ranks, {"cpu": "gloo"})
        return self

    def __exit__(self, *_: object) -> None:
        _parts.pop(self.group_name, None)


def job_ranks(group: dist.ProcessGroup) -> Sequence[int]:
    """Return the ranks of ``group``, in its order, by their numbers in the job."""
    part = _parts.get(group.group_name)
    return dist.get_process_group_ranks(group) if part is None else part.job_ranks


def destroy_group(group: dist.ProcessGroup) -> None:
    """Destroy ``group``, which this module made."""
    with contextlib.suppress(Exception):  # a broken group has nothing left to lose
        if _parts.pop(group.group_name, None) is None:
            dist.destroy_process_group(group)
        else:
            group.shutdown()


def group_timeout_s(group: dist.ProcessGroup | None) -> float:
    """Return how long a collective of ``group`` waits for a rank.

    torch has no public name for it. Where a group has several backends the most patient counts.
    """
    whole: Any = dist.group.WORLD if group is None else group
    found = []
    for device in backends(group):
        with contextlib.suppress(AttributeError, RuntimeError):
            found.append(whole._get_backend(torch.device(device)).options._timeout)
    limits = [limit for limit in found if isinstance(limit, datetime.timedelta)]
    seconds = max(limits, default=distributed_c10d.default_pg_timeout).total_seconds()
    return min(seconds, LONGEST_S) if seconds > 0 else LONGEST_S


def group_store(group: dist.ProcessGroup, prefix: str, timeout_s: float) -> distributed_c10d.Store:
    """Return a store of the group's own, with its own connection and time limit.

    Its own connection, because a store client serves one call at a time and another thread may be
    blocked in one.
    """
    return _job_store(f"{prefix}/{group.group_name}", timeout_s)


def job_store() -> distributed_c10d.Store:
    """Return the store that all ranks of this run share, and those of no other run."""
    return distributed_c10d.PrefixStore("syncopate/run", _default_store())


def store_address() -> tuple[str, int] | None:
    """Return host and port of the job's rendezvous store; None when it is not reached by TCP."""
    store = _default_store()
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return None if host is None else (host, store.port)


def _job_store(prefix: str, timeout_s: float) -> distributed_c10d.Store:
    store = distributed_c10d.PrefixStore(prefix, _default_store().clone())
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    return store


def _default_store() -> Any:
    default: Any = dist.group.WORLD
    return _first_store[0] if default is None else default.get_group_store()


def backends(group: dist.ProcessGroup | None) -> dict[str, str]:
    """Return which backend serves each device type, such as ``{"cpu": "gloo"}``."""
    part = None if group is None else _parts.get(group.group_name)
    if part is not None:
        return dict(part.served)
    served = {}
    for entry in dist.get_backend_config(group).split(","):
        device, _, backend = entry.partition(":")
        served[device] = "gloo" if backend == BACKEND else backend  # our own meets by Gloo
    return served


def gloo_backend(group: dist.ProcessGroup) -> Any:
    """Return torch's Gloo backend that serves CPU tensors in ``group``, or ``None``."""
    try:
        backend = group._get_backend(_CPU)
    except (AttributeError, RuntimeError):
        return None
    return backend if isinstance(backend, dist.ProcessGroupGloo) else None
