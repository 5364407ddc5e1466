"""Runner: chooses how one channel carries out a collective: backend, device, algorithm."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
import torch.distributed as dist

from syncopate.collectives import native, transport
from syncopate.collectives.device import PinnedStage, StreamQueue, run_rounds
from syncopate.collectives.executor import Executor
from syncopate.collectives.handle import Completion
from syncopate.collectives.request import Request
from syncopate.errors import InvalidValueError

Body = Callable[[torch.Tensor], None]
"""Carries out a collective on the tensor given."""

Work = Callable[[], Completion | None]
"""Carries out a collective; returns its completion if it goes on after the call."""


_KEPT = 1024
"""Requests remembered, which training asks again and again."""


class Runner:
    """Carries out the collectives of one channel.

    Args:
        group: the channel's process group.
        rank: this rank within it.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self.group = group
        self._rank = rank
        self._world_size = dist.get_world_size(group)
        self._backends = transport.backends(group)
        self._executor = Executor(group, rank)
        self._known: dict[tuple[Hashable, bool], tuple[str, Body]] = {}
        self._stage = PinnedStage()
        self._queue = StreamQueue()

    @property
    def device(self) -> torch.device:
        """Where small tensors of the communicator's own must live."""
        if "cpu" in self._backends:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def queues(self, tensor: torch.Tensor) -> bool:
        """Say whether collectives on ``tensor`` go to a stream, rather than block the host."""
        return tensor.is_cuda and self._backend(tensor) != "gloo"

    def collective(self, request: Request, tensor: torch.Tensor) -> tuple[str, Work]:
        """Return name and work of a collective, prepared on the caller's thread and stream.

        Raises:
            UnknownNameError: no such algorithm or option.
            InvalidValueError: no such value of an option, or no backend for the tensor's device.
        """
        queued = self.queues(tensor)
        label, body = self._named(request, queued)
        return label, self.on_device(tensor, body)

    def _named(self, request: Request, queued: bool) -> tuple[str, Body]:
        """Return label and body of a request, kept for the next time."""
        key = (request.key, queued)
        try:
            known = self._known.get(key)
        except TypeError:  # a value that is no key is no value of an option either
            return request.label, self._body(request, queued)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[key] = (request.label, self._body(request, queued))
        return known

    def _body(self, request: Request, queued: bool) -> Body:
        schedule = request.schedule(self._world_size)
        if schedule is None and request.collective in native.ROOTED:
            rooted = native.ROOTED[request.collective]
            return lambda target: rooted(target, request.root, self.group)
        if schedule is None:
            run = native.NATIVE[request.collective]
            return lambda target: run(target, self.group)
        if queued:
            return lambda target: run_rounds(schedule, self._rank, target, self.group)
        return lambda target: self._executor.run(schedule, target)

    def on_device(self, tensor: torch.Tensor, body: Body) -> Work:
        """Return ``body`` on ``tensor``, or on its host copy, or on the channel's stream.

        Raises:
            InvalidValueError: the group has no backend for the tensor's device.
        """
        backend = self._backend(tensor)
        if tensor.is_cuda and backend == "gloo":
            return self._stage.staged(tensor, body)
        if tensor.is_cuda:
            return lambda: self._queue.queue(tensor, lambda: body(tensor))

        def run() -> None:
            body(tensor)

        return run

    def barrier(self) -> None:
        """Return when every rank has come here."""
        if self.device.type == "cuda":
            dist.barrier(self.group, device_ids=[self.device.index])
        else:
            dist.barrier(self.group)

    def _backend(self, tensor: torch.Tensor) -> str:
        try:
            return self._backends[tensor.device.type]
        except KeyError:
            known = ", ".join(f"{device} ({name})" for device, name in self._backends.items())
            raise InvalidValueError(
                "tensor device", str(tensor.device), f"one that the group's backend serves: {known}"
            ) from None
