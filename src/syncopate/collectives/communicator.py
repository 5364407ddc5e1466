"""Communicator: the collectives of one group of ranks, on one or several channels.

Example:
    >>> import torch, torch.distributed as dist  # doctest: +SKIP
    >>> dist.init_process_group("gloo")  # doctest: +SKIP
    >>> with Communicator(channels=2) as communicator:  # doctest: +SKIP
    ...     handle = communicator.all_reduce(gradient, algorithm="ring", async_op=True)
    ...     communicator.all_reduce(other, algorithm="recursive_doubling", channel=1)
    ...     handle.wait()
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import native, transport
from syncopate.collectives.channel import Channel
from syncopate.collectives.executor import Executor
from syncopate.collectives.failure import Call
from syncopate.collectives.handle import Handle
from syncopate.collectives.watch import Watch
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.schedules import registry
from syncopate.units import DTYPE_BYTES

_DTYPES = frozenset(getattr(torch, name) for name in DTYPE_BYTES)


class Communicator:
    """Collectives among the ranks of a process group.

    Every rank of the group must create its communicators, and submit collectives to each channel,
    in the same order. With ``group=None`` all ranks of the job take part.

    Ranks are counted within the group. A collective that fails raises
    :class:`~syncopate.errors.CollectiveError` on every rank that is alive, and leaves the
    communicator broken: every later call raises the first reason at once.

    Args:
        group: the ranks; ``None`` for the default group.
        channels: how many collectives may be under way at once; each channel has its own process
            group over the same ranks, made here.
        timeout_s: how long a rank waits for another before it gives up.

    Raises:
        InvalidValueError: torch.distributed is not initialised, or an argument is out of range.
        CollectiveError: not every rank arrived to create the communicator.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        channels: int = 1,
        timeout_s: float = 300.0,
    ) -> None:
        if channels < 1:
            raise InvalidValueError("channels", channels, "an integer >= 1")
        if not timeout_s > 0:
            raise InvalidValueError("timeout_s", timeout_s, "a number of seconds > 0")
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidValueError(
                "torch.distributed",
                "not initialised",
                "initialised first: start with torchrun and call "
                "torch.distributed.init_process_group",
            )
        self.timeout_s = timeout_s
        self._closed = False
        self._rank = dist.get_rank(group)
        self._world_size = dist.get_world_size(group)
        self._groups = self._new_groups(group, channels) if self._world_size > 1 else []
        self._watch = Watch(self._groups, self._rank, self._world_size) if self._groups else None
        groups = self._groups or [None] * channels
        self._channels = [Channel(index, own) for index, own in enumerate(groups)]
        self._executors = [Executor(own, self._rank) for own in self._groups]

    @property
    def rank(self) -> int:
        """This process's rank within the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self._world_size

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self._channels)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
    ) -> Handle:
        """Replace ``tensor`` by its sum over the ranks; bit-identical on all of them.

        Args:
            tensor: contiguous, of the same size and dtype on every rank; not part of autograd.
            algorithm: a registered algorithm, or ``"native"`` for the backend's own.
            channel: where it runs; after what that channel was given before.
            async_op: return at once; :meth:`Handle.wait` then gives the result.

        Raises:
            UnknownNameError: no such algorithm.
            InvalidValueError: no such channel, or a tensor that does not fit.
            CollectiveError: it did not finish.
        """
        return self._collective("all_reduce", tensor, algorithm, channel, async_op)

    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
    ) -> Handle:
        """Leave in each rank's shard of ``tensor`` the sum of that shard over the ranks.

        The full buffer goes in; rank r's shard is
        ``chunk_offsets(numel, world_size)[r : r + 2]`` of it, and the rest is undefined afterwards.
        Arguments and errors as in :meth:`all_reduce`.
        """
        return self._collective("reduce_scatter", tensor, algorithm, channel, async_op)

    def all_gather(
        self,
        tensor: torch.Tensor,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
    ) -> Handle:
        """Fill ``tensor`` with every rank's shard, given that each rank's own is in place.

        Shards as in :meth:`reduce_scatter`; arguments and errors as in :meth:`all_reduce`.
        """
        return self._collective("all_gather", tensor, algorithm, channel, async_op)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> None:
        """Overwrite ``tensor`` with rank ``src``'s, on channel 0.

        Raises:
            InvalidValueError: no such rank, or a tensor that does not fit.
            CollectiveError: it did not finish.
        """
        self._require_rank("src", src)
        self._require_tensor("broadcast", tensor)
        if tensor.numel() and self._groups:
            self._call("broadcast (native)", lambda: native.broadcast(tensor, src, self._groups[0]))

    def barrier(self) -> None:
        """Return when every rank has come here; on channel 0.

        Raises:
            CollectiveError: some rank did not come.
        """
        if self._groups:
            self._call("barrier", lambda: dist.barrier(self._groups[0]))

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Return rank ``src``'s object on every rank; it travels pickled, on channel 0.

        Raises:
            InvalidValueError: no such rank.
            CollectiveError: it did not finish.
        """
        self._require_rank("src", src)
        if not self._groups:
            return obj
        held = [obj]
        self._call(
            "broadcast_object",
            lambda: dist.broadcast_object_list(held, group_src=src, group=self._groups[0]),
        )
        return held[0]

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every rank's object, in rank order; they travel pickled, on channel 0.

        Raises:
            CollectiveError: it did not finish.
        """
        if not self._groups:
            return [obj]
        gathered: list[Any] = [None] * self._world_size
        self._call(
            "all_gather_object",
            lambda: dist.all_gather_object(gathered, obj, group=self._groups[0]),
        )
        return gathered

    def close(self) -> None:
        """Finish what was submitted, end the threads, destroy the groups. May be called again."""
        if self._closed:
            return
        self._closed = True
        for channel in self._channels:
            channel.close(self.timeout_s)
        if self._watch is not None:
            self._watch.close()
        for group in self._groups:
            with contextlib.suppress(Exception):  # a broken group has nothing left to lose
                dist.destroy_process_group(group)
        self._groups = []
        self._executors = []

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _new_groups(
        self, group: dist.ProcessGroup | None, channels: int
    ) -> list[dist.ProcessGroup]:
        part = group is not None and group is not dist.group.WORLD
        ranks = dist.get_process_group_ranks(group) if part else None
        try:
            return [
                dist.new_group(
                    ranks,
                    timeout=datetime.timedelta(seconds=self.timeout_s),
                    backend=dist.get_backend_config(group),
                    use_local_synchronization=part,
                )
                for _ in range(channels)
            ]
        except RuntimeError as error:
            raise CollectiveError(
                "creating the communicator",
                f"not every rank arrived within {self.timeout_s:g} s ({error})",
            ) from error

    def _collective(
        self, collective: str, tensor: torch.Tensor, algorithm: str, channel: int, async_op: bool
    ) -> Handle:
        registry.require(collective, algorithm, allow_native=True)
        self._require_tensor(collective, tensor)
        if not 0 <= channel < len(self._channels):
            raise InvalidValueError("channel", channel, f"in 0..{len(self._channels) - 1}")
        label = f"{collective} ({algorithm})"
        if not tensor.numel() or self._world_size == 1:
            return self._submit(label, None, channel, async_op)
        if algorithm == registry.NATIVE:
            run, group = native.NATIVE[collective], self._groups[channel]
            work = lambda: run(tensor, group)  # noqa: E731
        else:
            schedule = registry.build(collective, algorithm, self._world_size)
            executor = self._executors[channel]
            work = lambda: executor.run(schedule, tensor)  # noqa: E731
        detail = f"{tensor.numel()} {str(tensor.dtype).removeprefix('torch.')}"
        return self._submit(label, work, channel, async_op, detail)

    def _call(self, label: str, work: Callable[[], Any]) -> None:
        self._submit(label, work, 0, False)

    def _submit(
        self,
        label: str,
        work: Callable[[], Any] | None,
        channel: int,
        async_op: bool,
        detail: str = "",
    ) -> Handle:
        if self._closed:
            raise CollectiveError(label, "the communicator is closed")
        handle = Handle()
        if work is None or self._watch is None:
            now_s = time.perf_counter()
            handle._finish(now_s, now_s)
            return handle
        target, watch = self._channels[channel], self._watch
        call = Call(label, channel, target.submitted, detail)
        target.submitted += 1

        def job() -> None:
            error: BaseException | None = None
            started_s = time.perf_counter()
            try:
                watch.run(call, work)
            except BaseException as caught:  # the handle raises it where it is waited for
                error = caught
            handle._finish(started_s, time.perf_counter(), error)

        target.run(job, background=async_op)
        if not async_op:
            handle.wait()
        return handle

    def _require_rank(self, what: str, rank: int) -> None:
        if not 0 <= rank < self._world_size:
            raise InvalidValueError(what, rank, f"a rank in 0..{self._world_size - 1}")

    def _require_tensor(self, collective: str, tensor: torch.Tensor) -> None:
        what = f"tensor of {collective}"
        if not isinstance(tensor, torch.Tensor):
            raise InvalidValueError(what, type(tensor).__name__, "a torch.Tensor")
        if tensor.dtype not in _DTYPES:
            raise InvalidValueError(what, tensor.dtype, f"one of {', '.join(DTYPE_BYTES)}")
        if not tensor.is_contiguous():
            shape = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            raise InvalidValueError(what, shape, "contiguous; pass tensor.contiguous()")
        if tensor.requires_grad:
            raise InvalidValueError(
                what, "part of autograd", "without requires_grad; pass tensor.detach()"
            )
