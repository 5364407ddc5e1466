"""Executor: runs schedules on CPU tensors over point-to-point messages.

A schedule is compiled once per (algorithm, size, dtype, bounds of shards) and kept. Small buffers
are copied into memory of the program's own, whose views were all made beforehand: for them Python's
time per message is what counts, and two copies of at most 64 KiB are cheaper than the views. Large
buffers are worked on in place. Messages go through the mesh, or through Gloo where ranks cannot
connect.

[Note: cold caches] A rank that was just woken up, on a processor that it shares with others, finds
little in its caches: there, torch's dispatcher takes 8 us for one element, and to cut out and add a
block of 256 KiB 90 us where numpy takes 50. So numpy adds, to the same bits, unless torch would
take several threads, and numpy copies. Sums of halves are torch's: numpy adds them one by one.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import STAGED_BYTES
from syncopate.collectives import transport
from syncopate.collectives.health.blame import PeerError
from syncopate.collectives.mesh import links
from syncopate.collectives.mesh.narrow import narrowed
from syncopate.collectives.mesh.program import Op, Program, compile_program
from syncopate.collectives.mesh.reductions import REDUCTIONS, SUM, Reduce
from syncopate.collectives.mesh.sockets import Sending
from syncopate.collectives.shards import PLAIN, Bounds, Form
from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions
from syncopate.units import MIB

CACHE_BYTES = 32 * MIB
"""Memory that the programs of one executor may keep for staged buffers; the oldest go first."""

_HALVES = (torch.float16, torch.bfloat16)
_CACHED_PROGRAMS = 256
_TAG_BITS = 12
_TAG_MASK = (1 << _TAG_BITS) - 1
_TAG_HASH = (1 << 16) - 1
_MESSAGE_TAG = 1 << 29
_SWAP_TAG = 1 << 28
_SWAP_HASH = (1 << 28) - 1
_POST, _SEND, _ADD = int(Op.POST), int(Op.SEND), int(Op.ADD)

_Key = tuple[Schedule, int, torch.dtype, Form]

_Code = Iterable[tuple[int, int, Any, Any, int]]
"""(op, index, region, source or peer, tag) with memory in place of regions."""

_Cut = Callable[[int, int], Any]
"""Elements from, up to: what stands for them on the wire."""

_Cuts = Callable[[torch.Tensor], _Cut]


class _Wire(NamedTuple):
    """How messages travel, and what stands for the regions of a tensor there.

    Messages between two ranks match by tag, in the order in which each side posted them. What
    ``send`` and ``receive`` return must be kept until its ``wait()``, and waited for once. Both
    raise ``RuntimeError`` when the connection is already known to be lost.
    """

    send: Callable[[Any, int, int], Any]
    receive: Callable[[Any, int, int], Any]
    cuts: _Cuts


class _Direct(NamedTuple):
    """A program that works in the caller's buffer.

    Attributes:
        program: what to do.
        tag_base: the part of its tags that tells collectives apart.
        narrow: the element type of its messages; None for that of the buffer.
        add: what reduces; None for a sum.
    """

    program: Program
    tag_base: int
    narrow: torch.dtype | None
    add: Reduce | None = None

    def beside(self, numel: int, dtype: torch.dtype) -> tuple[torch.dtype, tuple[int, int]]:
        """Return the type and the elements of scratch and of what is on the wire.

        Args:
            numel: elements of the buffer.
            dtype: theirs.
        """
        if self.narrow is None:
            return dtype, (self.program.scratch_numel, 0)
        return self.narrow, (self.program.scratch_numel, numel)


class _Staged:
    """A program bound to memory of its own.

    Attributes:
        memory: of the collective's buffer, as numpy sees it.
        add: what reduces; None for a sum.
        code: bound instructions.
        adds: whether it has sums.
        works: room for the pending sends and receives.
        nbytes: memory held.
    """

    def __init__(self, direct: _Direct, cuts: _Cuts, numel: int, dtype: torch.dtype) -> None:
        buffer = torch.empty(numel, dtype=dtype)
        self.memory = _memory(buffer)
        beside_dtype, sizes = direct.beside(numel, dtype)
        beside = torch.empty(sum(sizes), dtype=beside_dtype)
        self.add = direct.add
        memory = buffer, beside[: sizes[0]], beside[sizes[0] :]
        self.code = list(_bind(direct, cuts, memory))
        self.adds = any(item[0] == _ADD for item in self.code)
        self.works: list[Any] = [None] * direct.program.works
        self.nbytes = buffer.nbytes + beside.nbytes


class Executor:
    """Runs the schedules of one channel, one at a time.

    Args:
        group: the channel's process group; a Gloo group, or any with CPU point-to-point.
        rank: this rank within the group.
        timeout_s: how long a rank waits for another.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, timeout_s: float) -> None:
        self._mesh = links.connect(group, timeout_s)
        if self._mesh is None:
            backend = transport.gloo_backend(group) or group
            self._wire = _Wire(backend.send, backend.recv, _slices)
        else:
            self._wire = _Wire(self._mesh.send, self._mesh.receive, _bytes)
        self._rank = rank
        self._programs: OrderedDict[_Key, _Direct | _Staged] = OrderedDict()
        self._staged_bytes = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def run(self, schedule: Schedule, tensor: torch.Tensor, form: Form = PLAIN) -> None:
        """Run ``schedule`` in place on ``tensor``, a contiguous CPU tensor with elements.

        Args:
            schedule: what is to happen.
            tensor: on what.
            form: its shards, and what elements travel as
                (:mod:`syncopate.collectives.mesh.narrow`).

        Raises:
            PeerError: a send or receive failed.
        """
        program = self._program(schedule, tensor, form)
        if isinstance(program, _Staged):
            self._run_staged(program, tensor)
        else:
            beside = self._scratch_of(*program.beside(tensor.numel(), tensor.dtype))
            code = _bind(program, self._wire.cuts, (tensor.view(-1), *beside))
            with _quietly():
                self._execute(code, [None] * program.program.works, program.add)

    @property
    def meshed(self) -> bool:
        """Whether messages go through a mesh."""
        return self._mesh is not None

    def sent(self) -> dict[int, Sending]:
        """Return what the mesh sent to each peer; nothing of messages through Gloo."""
        return {} if self._mesh is None else self._mesh.sent()

    def interrupt(self) -> None:
        """Make messages of the mesh that are under way fail now, here and at their other ends.

        Those through Gloo fail when the group's connections are closed, but for one that is half
        read; see :mod:`syncopate.collectives.backend.waits`.
        """
        if self._mesh is not None:
            self._mesh.interrupt()

    def start(
        self,
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
        label: str = "",
    ) -> Callable[[], None]:
        """Start to send to, and to receive from, some ranks at the same time, beside schedules.

        Args:
            outgoing: what goes to each rank: contiguous CPU tensors with elements.
            incoming: where what comes from each rank lands; the same kind of tensors.
            label: of a collective that this is; empty for messages that are none. Messages of
                another label do not meet these.

        Returns:
            What waits for all of them; messages of later calls may be under way meanwhile. It
            raises ``PeerError`` where one failed.

        Raises:
            PeerError: a connection is lost.
        """
        send, receive, _ = self._wire
        mark = zlib.crc32(label.encode()) & _SWAP_HASH
        tag = _SWAP_TAG | mark if label else _MESSAGE_TAG
        started = []
        peer = -1
        try:
            for peer, tensor in incoming.items():
                started.append((peer, receive(self._whole(tensor), peer, tag)))
            for peer, tensor in outgoing.items():
                started.append((peer, send(self._whole(tensor), peer, tag)))
        except RuntimeError as error:
            raise PeerError(peer, error) from error

        def wait() -> None:
            for peer, message in started:
                try:
                    message.wait()
                except RuntimeError as error:
                    raise PeerError(peer, error) from error

        return wait

    def _whole(self, tensor: torch.Tensor) -> Any:
        return self._wire.cuts(tensor.view(-1))(0, tensor.numel())

    def close(self) -> None:
        """Close the mesh."""
        if self._mesh is not None:
            self._mesh.close()

    def _run_staged(self, program: _Staged, tensor: torch.Tensor) -> None:
        memory = _memory(tensor)
        program.memory[:] = memory
        with _quietly() if program.adds else contextlib.nullcontext():
            self._execute(program.code, program.works, program.add)
        memory[:] = program.memory

    def _execute(self, code: _Code, works: list[Any], add: Reduce | None) -> None:
        send, receive, _ = self._wire
        peer = -1
        try:
            for op, index, region, other, tag in code:
                if op == _POST:
                    peer = other
                    works[index] = receive(region, peer, tag)
                elif op == _SEND:
                    peer = other
                    works[index] = send(region, peer, tag)
                elif op < _ADD:
                    peer = other
                    works[index].wait()
                    works[index] = None
                elif op == _ADD:
                    if add is None:
                        region.__iadd__(other)
                    else:
                        add(region, other)
                else:
                    region[:] = other
        except RuntimeError as error:
            raise PeerError(peer, error) from error

    def _program(self, schedule: Schedule, tensor: torch.Tensor, form: Form) -> _Direct | _Staged:
        bounds, narrow, reduction = form
        numel, travels_as = tensor.numel(), narrow or tensor.dtype
        key = (schedule, numel, tensor.dtype, form)
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
            return found
        compiled = compile_program(schedule, self._rank, numel, travels_as.itemsize, bounds=bounds)
        if narrow is not None:
            compiled = narrowed(compiled, agree=conditions(schedule.collective).agrees)
        elements = f"{numel} {travels_as}" + (reduction if reduction != SUM else "")
        base = _tag_base(schedule, elements, bounds)
        direct = _Direct(compiled, base, narrow, REDUCTIONS[reduction])
        program: _Direct | _Staged = direct
        if tensor.nbytes <= STAGED_BYTES:
            program = _Staged(direct, self._wire.cuts, numel, tensor.dtype)
            self._staged_bytes += program.nbytes
        self._programs[key] = program
        while len(self._programs) > 1 and (
            self._staged_bytes > CACHE_BYTES or len(self._programs) > _CACHED_PROGRAMS
        ):
            _, oldest = self._programs.popitem(last=False)
            self._staged_bytes -= oldest.nbytes if isinstance(oldest, _Staged) else 0
        return program

    def _scratch_of(self, dtype: torch.dtype, sizes: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        """Return memory, shared by all large programs: only one of them runs at a time."""
        nbytes = sum(sizes) * dtype.itemsize
        if self._scratch.numel() < nbytes:
            self._scratch = torch.empty(nbytes, dtype=torch.uint8)
        memory = self._scratch[:nbytes].view(dtype)
        return memory[: sizes[0]], memory[sizes[0] :]


def _tag_base(schedule: Schedule, elements: str, bounds: Bounds | None) -> int:
    """Return the part of the tags that is the same for equal collectives alone.

    Gloo ends the process when a message meets a receive of another size. Messages of ranks that
    disagree about the collective do not meet; the failure detector finds out why they wait.
    """
    what = f"{schedule.title}, {schedule.root}, {schedule.chunks}, {elements}"
    what += "" if bounds is None else f", {bounds}"
    mark = zlib.crc32(schedule.table.table.tobytes(), zlib.crc32(what.encode()))
    return (mark & _TAG_HASH) << _TAG_BITS


def _bytes(tensor: torch.Tensor) -> _Cut:
    memory, size = tensor.view(torch.uint8).numpy().data, tensor.element_size()
    return lambda start, stop: memory[start * size : stop * size]


def _slices(tensor: torch.Tensor) -> _Cut:
    return lambda start, stop: [tensor[start:stop]]


def _memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the elements of a contiguous tensor as numpy sees them, in a row; bits of bfloat16."""
    plain = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return plain.numpy().reshape(-1)


def _quietly() -> np.errstate:
    """Let numpy add as torch does, without warnings of sums that overflow."""
    return np.errstate(all="ignore")


def _terms(memory: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """Return what stands for ``memory`` where it is added; see [Note: cold caches]."""
    short = memory[0].nbytes <= STAGED_BYTES
    mixed = memory[0].dtype != memory[1].dtype
    if mixed or memory[0].dtype in _HALVES or not (short or torch.get_num_threads() == 1):
        return memory
    return tuple(tensor.numpy() for tensor in memory)


def _bind(direct: _Direct, cuts_of: _Cuts, memory: tuple[torch.Tensor, ...]) -> _Code:
    """Yield the instructions one by one: the first message need not wait for the last one's view.

    Args:
        direct: the program.
        cuts_of: what stands for its messages on the wire.
        memory: what it works on, and beside it what :meth:`_Direct.beside` says, flat.
    """
    cuts = tuple(cuts_of(tensor) for tensor in memory)
    terms = _terms(memory)
    for op, index, (where, start, stop), source, peer, tag in direct.program.instructions:
        if op <= _SEND:
            yield op, index, cuts[where](start, stop), peer, direct.tag_base | (tag & _TAG_MASK)
        elif op < _ADD:
            yield op, index, None, peer, tag
        else:
            there = terms[source.memory][source.start : source.stop]
            yield op, index, terms[where][start:stop], there, tag
