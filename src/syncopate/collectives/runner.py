"""Runner: chooses how one channel carries out a collective: backend, device, algorithm.

[Note: the first time] NCCL connects the ranks of a group at its first collective, and the host
waits for all of them meanwhile. Ranks that first use their channels in another order would wait for
each other for ever. So on every channel the first collective, and the first one of each set of
subgroups, runs on the channel's thread unless its caller waits for it anyway. That first collective
is one of all ranks: the messages of a schedule's round may be among few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from syncopate.collectives import transport
from syncopate.collectives.backend import calls, native
from syncopate.collectives.backend.narrow import Narrow
from syncopate.collectives.mesh.executor import Executor
from syncopate.collectives.mesh.sockets import Sending
from syncopate.collectives.messages.objects import Objects
from syncopate.collectives.nccl.batches import Rounds
from syncopate.collectives.nccl.stages import Staged, Stages
from syncopate.collectives.nccl.streams import (
    Completion,
    PinnedStage,
    StreamQueue,
    mark,
    on_this_device,
)
from syncopate.collectives.request import schedule_of
from syncopate.collectives.shards import PLAIN, Form
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.recipe import Recipe

Body = Callable[[torch.Tensor], None]
"""Carries out a collective on the tensor given."""

Work = Callable[[], Completion | None]
"""Carries out a collective; returns its completion if it goes on after the call."""

STAGED_BACKENDS = frozenset({"nccl"})
"""Backends whose own collectives make the stages of hierarchical algorithms. Not Gloo's: it reduces
and scatters in three times the bytes, and the executor overlaps what its collectives cannot."""

_KEPT = 1024
"""Recipes remembered, which training asks again and again."""


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

    def __init__(self, group: dist.ProcessGroup, rank: int, timeout_s: float) -> None:
        self.group = group
        self._world_size = group.size()
        self._backends = transport.backends(group)
        self._native = native.Native(group)
        self._narrow = Narrow(self._native)
        self._rounds = Rounds(group, rank)
        self._stages = Stages(group, rank, timeout_s)
        self._known: dict[tuple[Hashable, str, Form], tuple[str, Body]] = {}
        self._pinned = PinnedStage()
        self._queue = StreamQueue()
        self._introduced: set[torch.device] = set()
        # Last, because its connections would stay open if anything failed here after it.
        self._executor = Executor(group, rank, timeout_s)
        run = self._executor.run if self._executor.meshed else None
        self.objects = Objects(self._native, self.device, run)

    @property
    def device(self) -> torch.device:
        """Where small tensors of the communicator's own must live."""
        if "cpu" in self._backends:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def collective(self, recipe: Recipe, tensor: torch.Tensor, form: Form = PLAIN) -> Prepared:
        """Return a collective, prepared on the caller's thread and stream.

        Args:
            recipe: what is to happen.
            tensor: on what.
            form: its shards, and what travels of it.

        Raises:
            UnknownNameError: no such algorithm or option.
            InvalidValueError: no such value of an option, or no backend for the tensor's device.
        """
        backend = self._backend(tensor)
        label, body = self._named(recipe, backend, form)
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
        self._native.all_reduce(torch.zeros(1, device=device))

    def _named(self, recipe: Recipe, backend: str, form: Form) -> tuple[str, Body]:
        """Return label and body of a recipe, kept for the next time."""
        key = (recipe.key, backend, form)
        try:
            known = self._known.get(key)
        except TypeError:  # a value that is no key is no value of an option either
            return form.labelled(recipe.label), self._body(recipe, backend, form)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            label = form.labelled(recipe.label)
            known = self._known[key] = (label, self._body(recipe, backend, form))
        return known

    def _body(self, recipe: Recipe, backend: str, form: Form) -> Body:
        # The backend's own collectives would add in the type of the wire.
        if backend in STAGED_BACKENDS and form.narrow is None:
            asked = recipe.collective, recipe.algorithm, recipe.options
            staged = self._stages.staged(*asked, form.bounds)
            if staged is not None:
                return staged
        schedule = schedule_of(recipe, self._world_size)
        if schedule is None:
            if form.narrow is not None:
                return lambda target: self._narrow.run(recipe, target, form)
            return lambda target: self._native.run(
                recipe.collective, target, recipe.root, form.bounds
            )
        if backend == "gloo":
            return lambda target: self._patiently(
                lambda: self._executor.run(schedule, target, form)
            )
        return lambda target: self._rounds.run(schedule, target, form)

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
        """Make what is under way fail now instead of hang, once the group's connections closed."""
        self._native.interrupt()
        self._stages.interrupt()
        self._executor.interrupt()

    def close(self) -> None:
        """Give subgroups, mesh and process group up."""
        self._stages.close()
        self._executor.close()
        transport.destroy_group(self.group)

    def start(
        self,
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
        label: str = "",
    ) -> Callable[[], None]:
        """Start to send to, and to receive from, some ranks at the same time, beside schedules.

        Arguments, errors and what is returned as of
        :meth:`~syncopate.collectives.mesh.executor.Executor.start`; one device's tensors.
        """
        if not any(tensor.is_cuda for tensor in (*outgoing.values(), *incoming.values())):
            wait = self._executor.start(outgoing, incoming, label)
            return lambda: self._patiently(wait)
        messages = [calls.Message(tensor, peer, True) for peer, tensor in outgoing.items()]
        messages += [calls.Message(tensor, peer, False) for peer, tensor in incoming.items()]
        works = calls.batch(self.group, messages)

        def wait_for_all() -> None:
            for work in works:
                work.wait()

        return wait_for_all

    def wait(self, work: Any) -> None:
        """Wait for a message of Gloo's that is under way, in a way that can be interrupted.

        Raises:
            RuntimeError: it failed, or the communicator broke.
        """
        self._native.waits.run(work.wait)

    def _patiently(self, action: Callable[[], None]) -> None:
        """Carry out what waits for messages of the executor, in a way that can be interrupted."""
        if self._executor.meshed:
            action()
        else:
            self._native.waits.run(action)

    def _backend(self, tensor: torch.Tensor) -> str:
        try:
            return self._backends[tensor.device.type]
        except KeyError:
            known = ", ".join(f"{device} ({name})" for device, name in self._backends.items())
            raise InvalidValueError(
                "tensor device", str(tensor.device), f"one that the group's backend serves: {known}"
            ) from None


@contextmanager
def opened(
    group: dist.ProcessGroup | None, channels: int, timeout_s: float
) -> Iterator[list[Runner]]:
    """Open so many more channels among the ranks of ``group``; every rank calls it.

    Yields what carries their collectives; nothing for a rank alone. Nothing of it stays behind
    where that or the block fails.

    Raises:
        CollectiveError: a rank was lost, or did not come.
    """
    groups = transport.new_groups(group, channels, timeout_s)
    runners: list[Runner] = []
    try:
        for each in groups:
            runners.append(Runner(each, each.rank(), timeout_s))
        yield runners
    except BaseException as error:
        for each in groups:
            transport.hang_up(each, [peer for peer in range(each.size()) if peer != each.rank()])
        for runner in runners:
            runner.close()
        for each in groups[len(runners) :]:
            transport.destroy_group(each)
        if isinstance(error, RuntimeError):
            raise CollectiveError("creating the communicator", str(error)) from error
        raise
