"""Rounds: schedules run as batches of messages, ordered by the current stream.

This is how NCCL wants it: the sends and receives of a round form one group call, so that neither
side of a message blocks the other, and no call waits for the device. Gloo runs the same code.

[Note: message chunks] A batch begins when the one before is over, so a tree, in which most ranks
have nothing to do in most rounds, would leave them idle. A long buffer is therefore cut into
message chunks, each of which runs the whole schedule one round behind the chunk before it; a batch
holds what all of them send at that moment. All ranks number the batches alike, so that one that
takes part in few of them meets the others in the right ones.

[Note: landing buffers] What is to be added lands in scratch memory, and so does what overwrites
data that leaves in the same batch. It is allocated once per collective while its stream is current:
the allocator keeps freed memory for the stream it was allocated on, and that stream has waited for
all messages by then. So the next collective finds it again, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from syncopate.collectives.backend import calls
from syncopate.collectives.shards import PLAIN, Bounds, Form
from syncopate.schedules.base import Schedule, Transfer, chunk_offsets
from syncopate.schedules.conditions import conditions, element_offsets
from syncopate.units import MIB

CHUNK_BYTES = 4 * MIB
"""Least bytes of a message chunk; in less time a GPU cannot start a batch."""

MAX_CHUNKS = 16
"""Message chunks at most."""

_IDLE = 1.5
"""How much longer a schedule's rounds take than its busiest rank is busy, to cut the message."""

_CACHED_PROGRAMS = 256


class Send(NamedTuple):
    """Elements ``[start, stop)`` go to ``peer``."""

    start: int
    stop: int
    peer: int


class Receive(NamedTuple):
    """Elements ``[start, stop)`` come from ``peer``.

    Attributes:
        start: first element.
        stop: one past the last.
        peer: a rank of the group.
        landing: where they land in scratch memory; negative when in their place.
        adds: whether they are added to what is there.
    """

    start: int
    stop: int
    peer: int
    landing: int
    adds: bool


class Batch(NamedTuple):
    """The messages that leave and arrive together; either may be none."""

    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


class Program(NamedTuple):
    """What one rank does; batches without messages are left out."""

    batches: tuple[Batch, ...]
    scratch_numel: int


class Rounds:
    """Runs the schedules of one channel.

    Args:
        group: any group whose backend has point-to-point for the tensors' device.
        rank: this rank within the group.
        chunk_bytes: see :data:`CHUNK_BYTES`; the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._group = group
        self._rank = rank
        self._chunk_bytes = chunk_bytes

    def run(self, schedule: Schedule, tensor: torch.Tensor, form: Form = PLAIN) -> None:
        """Run ``schedule`` in place on ``tensor``, contiguous and with elements.

        Args:
            schedule: what is to happen.
            tensor: on what.
            form: its shards, and what elements travel as, to the same bits as the mesh's
                (:mod:`syncopate.collectives.mesh.narrow`).
        """
        flat, (bounds, narrow, _) = tensor.view(-1), form
        travels_as = narrow or flat.dtype
        buffer = flat.numel(), travels_as.itemsize, bounds
        program = _program(schedule, self._rank, buffer, self._chunk_bytes)
        scratch = flat.new_empty(program.scratch_numel, dtype=travels_as)
        wire = flat if narrow is None else torch.empty_like(flat, dtype=narrow)
        for batch in program.batches:
            if narrow is not None:
                for start, stop, _ in batch.sends:
                    flat[start:stop].copy_(wire[start:stop].copy_(flat[start:stop]))
            self._run(batch, flat, wire, scratch)
        if narrow is not None and conditions(schedule.collective).agrees:
            flat.copy_(wire.copy_(flat))

    def _run(
        self, batch: Batch, flat: torch.Tensor, wire: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        messages = [
            _message(wire[start:stop], peer, sends=True) for start, stop, peer in batch.sends
        ]
        landed = []
        for start, stop, peer, landing, adds in batch.receives:
            place, region = flat[start:stop], wire[start:stop]
            if landing >= 0:
                region = scratch[landing : landing + stop - start]
            messages.append(_message(region, peer, sends=False))
            if landing >= 0 or wire is not flat:
                landed.append((place, region, adds))
        for work in calls.batch(self._group, messages):
            work.wait()
        for place, region, adds in landed:
            if adds:
                place.add_(region)
            else:
                place.copy_(region)


@lru_cache(maxsize=_CACHED_PROGRAMS)
def _program(
    schedule: Schedule, rank: int, buffer: tuple[int, int, Bounds | None], chunk_bytes: int
) -> Program:
    numel, itemsize, bounds = buffer
    chunks = message_chunks(schedule, numel * itemsize, chunk_bytes)
    return compile_batches(schedule, rank, numel, chunks, bounds)


def _message(region: torch.Tensor, peer: int, *, sends: bool) -> calls.Message:
    # Bytes, because NCCL does not know every dtype.
    return calls.Message(region.view(torch.uint8), peer, sends)


def message_chunks(schedule: Schedule, nbytes: int, chunk_bytes: int) -> int:
    """Return into how many message chunks to cut ``nbytes``; see [Note: message chunks].

    Shards are not cut: rank r's has to stay what it is.
    """
    if conditions(schedule.collective).sharded or not len(schedule.table):
        return 1
    table = schedule.table
    lengths = table.stop - table.start
    loads = np.zeros((2, schedule.rounds, schedule.world_size), np.int64)
    np.add.at(loads[0], (table.round, table.src), lengths)
    np.add.at(loads[1], (table.round, table.dst), lengths)
    if loads.max(axis=(0, 2)).sum() < _IDLE * loads.sum(axis=1).max():
        return 1
    return max(1, min(MAX_CHUNKS, nbytes // chunk_bytes))


def compile_batches(
    schedule: Schedule, rank: int, numel: int, chunks: int = 1, bounds: Bounds | None = None
) -> Program:
    """Return what ``rank`` does to run ``schedule`` on ``numel`` elements.

    Args:
        schedule: what is to happen.
        rank: whose program.
        numel: elements of the buffer; transfers without any are left out.
        chunks: message chunks to cut the buffer into; one for a sharded collective.
        bounds: where the shards begin, as for
            :func:`~syncopate.schedules.conditions.element_offsets`.
    """
    slots: dict[int, list[tuple[int, int, Transfer]]] = {}
    for slot, start, stop, transfer in _moves(schedule, rank, (numel, bounds), chunks):
        slots.setdefault(slot, []).append((start, stop, transfer))
    batches = []
    scratch_numel = 0
    for slot in sorted(slots):
        moves = slots[slot]
        sends = tuple(Send(a, b, t.dst) for a, b, t in moves if t.src == rank)
        receives = []
        used = 0
        for start, stop, transfer in moves:
            if transfer.src == rank:
                continue
            adds = transfer.op == "reduce"
            landing = -1
            if adds or any(start < sent.stop and sent.start < stop for sent in sends):
                landing = used
                used += stop - start
            receives.append(Receive(start, stop, transfer.src, landing, adds))
        batches.append(Batch(sends, tuple(receives)))
        scratch_numel = max(scratch_numel, used)
    return Program(tuple(batches), scratch_numel)


def _moves(
    schedule: Schedule, rank: int, buffer: tuple[int, Bounds | None], chunks: int
) -> Iterator[tuple[int, int, int, Transfer]]:
    """Yield the batch, first element, one past the last, and transfer of every message of a rank.

    Both ends of a message see those between them in the same order, as NCCL needs it.
    """
    transfers = schedule.of_rank(rank)
    numel, bounds = buffer
    cuts = chunk_offsets(numel, chunks)
    for chunk in range(chunks):
        begin = cuts[chunk]
        offsets = element_offsets(schedule, cuts[chunk + 1] - begin, bounds)
        for transfer in transfers:
            start, stop = offsets[transfer.start], offsets[transfer.stop]
            if start < stop:
                yield transfer.round + chunk, begin + start, begin + stop, transfer
