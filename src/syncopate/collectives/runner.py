"""Runner: chooses how one channel carries out a collective: backend, device, algorithm.

[Note: the first time] NCCL connects the ranks of a group at its first collective, and the host
waits for all of them meanwhile. Ranks that first use their channels in another order would wait for
each other for ever. So on every channel the first collective, and the first one of each set of
subgroups, runs on the channel's thread unless its caller waits for it anyway. That first collective
is one of all ranks: the messages of a schedule's round may be among few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from syncopate.collectives import native, transport
from syncopate.collectives.device import PinnedStage, StreamQueue, mark, on_this_device
from syncopate.collectives.executor import Executor
from syncopate.collectives.handle import Completion
from syncopate.collectives.request import Request
from syncopate.collectives.rescue import finish
from syncopate.collectives.rounds import Rounds
from syncopate.collectives.sockets import Sending
from syncopate.collectives.stages import Staged, Stages
from syncopate.errors import InvalidValueError
from syncopate.schedules import registry

Body = Callable[[torch.Tensor], None]
"""Carries out a collective on the tensor given."""

Work = Callable[[], Completion | None]
"""Carries out a collective; returns its completion if it goes on after the call."""

STAGED_BACKENDS = frozenset({"nccl"})
"""Backends whose own collectives make the stages of hierarchical algorithms. Not Gloo's: it reduces
and scatters in three times the bytes, and the executor overlaps what its collectives cannot."""

_MEETING = "recursive_doubling"
_MEETING_BYTES = 5
"""The all-reduce that a barrier is, of a size that nobody else uses."""

_KEPT = 1024
"""Requests remembered, which training asks again and again."""


class Prepared(NamedTuple):
    """A collective ready to run on any thread.

    Attributes:
        label: its name.
        work: what to call.
        waits: whether the call waits for other ranks, rather than queue on a stream.
    """

    label: str
    work: Work
    waits: bool


class Runner:
    """Carries out the collectives of one channel.

    Args:
        group: the channel's process group.
        rank: this rank within it.
        timeout_s: how long a rank waits for another.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, timeout_s: float = 300.0) -> None:
        self.group = group
        self._world_size = dist.get_world_size(group)
        self._backends = transport.backends(group)
        self._executor = Executor(group, rank, timeout_s)
        self._rounds = Rounds(group, rank)
        self._stages = Stages(group, rank, timeout_s)
        self._known: dict[tuple[Hashable, str], tuple[str, Body]] = {}
        self._pinned = PinnedStage()
        self._queue = StreamQueue()
        self._introduced: set[torch.device] = set()

    @property
    def device(self) -> torch.device:
        """Where small tensors of the communicator's own must live."""
        if "cpu" in self._backends:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def collective(self, request: Request, tensor: torch.Tensor) -> Prepared:
        """Return a collective, prepared on the caller's thread and stream.

        Raises:
            UnknownNameError: no such algorithm or option.
            InvalidValueError: no such value of an option, or no backend for the tensor's device.
        """
        backend = self._backend(tensor)
        label, body = self._named(request, backend)
        if not tensor.is_cuda:
            return Prepared(label, lambda: body(tensor), True)
        if backend == "gloo":
            return Prepared(label, self._pinned.staged(tensor, body), True)
        device = tensor.device
        ready = mark(device)
        # [Note: the first time]
        waits = device not in self._introduced or (
            isinstance(body, Staged) and not body.connected(device)
        )

        def run() -> None:
            if device not in self._introduced:
                self._introduce(device)
                self._introduced.add(device)
            body(tensor)

        return Prepared(label, lambda: self._queue.queue(tensor, ready, run), waits)

    def _introduce(self, device: torch.device) -> None:
        dist.all_reduce(torch.zeros(1, device=device), group=self.group)

    def _named(self, request: Request, backend: str) -> tuple[str, Body]:
        """Return label and body of a request, kept for the next time."""
        key = (request.key, backend)
        try:
            known = self._known.get(key)
        except TypeError:  # a value that is no key is no value of an option either
            return request.label, self._body(request, backend)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[key] = (request.label, self._body(request, backend))
        return known

    def _body(self, request: Request, backend: str) -> Body:
        if backend in STAGED_BACKENDS:
            staged = self._stages.staged(request.collective, request.algorithm, request.options)
            if staged is not None:
                return staged
        schedule = request.schedule(self._world_size)
        if schedule is None and request.collective in native.ROOTED:
            rooted = native.ROOTED[request.collective]
            return lambda target: rooted(target, request.root, self.group)
        if schedule is None:
            run = native.NATIVE[request.collective]
            return lambda target: run(target, self.group)
        if backend == "gloo":
            return lambda target: self._executor.run(schedule, target)
        return lambda target: self._rounds.run(schedule, target)

    def here(self, work: Work) -> Work:
        """Return ``work`` to be run on any thread, as if it ran on this one.

        A thread has a current CUDA device of its own, which NCCL asks for.
        """
        if self._backends.get("cuda", "gloo") == "gloo":
            return work
        if "cpu" in self._backends and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return work
        return on_this_device(work)

    def sent(self) -> dict[int, Sending]:
        """Return what was sent to each peer, of what a mesh carried; for any thread."""
        return self._executor.sent()

    def interrupt(self) -> None:
        """Make what is under way in subgroups and in the mesh fail now instead of hang."""
        self._stages.interrupt()
        self._executor.interrupt()

    def close(self) -> None:
        """Give subgroups, mesh and process group up."""
        self._stages.close()
        self._executor.close()
        transport.destroy_group(self.group)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send a tensor to ``peer``, outside any collective.

        Raises:
            PeerError: the message failed.
        """
        if tensor.is_cuda:
            dist.send(tensor, group=self.group, group_dst=peer)
        else:
            self._executor.send(tensor, peer)

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        """Receive what ``peer`` sends by :meth:`send` into ``tensor``.

        Raises:
            PeerError: the message failed.
        """
        if tensor.is_cuda:
            dist.recv(tensor, group=self.group, group_src=peer)
        else:
            self._executor.receive(tensor, peer)

    def exchange(self, outgoing: torch.Tensor, incoming: torch.Tensor, peer: int) -> list[Any]:
        """Start to send to and to receive from ``peer`` at the same time, outside any collective.

        Returns:
            What is to be waited for; those of later calls may be under way meanwhile.

        Raises:
            PeerError: a connection is lost.
        """
        if not outgoing.is_cuda:
            return self._executor.exchange(outgoing, incoming, peer)
        send = dist.P2POp(dist.isend, outgoing, group=self.group, group_peer=peer)
        receive = dist.P2POp(dist.irecv, incoming, group=self.group, group_peer=peer)
        return dist.batch_isend_irecv([send, receive])

    def barrier(self) -> None:
        """Return when every rank has come here."""
        if self._executor.meshed:
            # Nobody has everybody's sum before everybody came.
            meeting = registry.build("all_reduce", _MEETING, self._world_size)
            self._executor.run(meeting, torch.zeros(_MEETING_BYTES, dtype=torch.uint8))
        elif self.device.type == "cuda":
            dist.barrier(self.group, device_ids=[self.device.index])
        else:
            finish(dist.barrier, group=self.group)

    def _backend(self, tensor: torch.Tensor) -> str:
        try:
            return self._backends[tensor.device.type]
        except KeyError:
            known = ", ".join(f"{device} ({name})" for device, name in self._backends.items())
            raise InvalidValueError(
                "tensor device", str(tensor.device), f"one that the group's backend serves: {known}"
            ) from None
