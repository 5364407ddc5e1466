"""Objects: barriers, and Python objects from rank to rank, for which one need not know tensors.

They go over the mesh, whose waits the failure detector can end. Where there is no mesh they are
collectives of the backend's own (:mod:`syncopate.collectives.backend.native`).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

import torch

from syncopate.collectives.backend.native import Native
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule

Run = Callable[[Schedule, torch.Tensor], None]
"""Runs a schedule in place on a CPU tensor."""

_BARRIER, _BROADCAST, _ALL_GATHER = "recursive_doubling", "mst", "recursive"
_BARRIER_BYTES = 5
"""The all-reduce that a barrier is, of a size that no other all-reduce has."""

_SHORT_BYTES = 246
"""What travels along with its own length, which a longer object is sent after."""

_HEAD = struct.Struct(f"<Q5s{_SHORT_BYTES}s")
_MARK = b"objct"
"""Goes along with the length of every object, so that other collectives are not taken for it."""


class Objects:
    """What the ranks of a channel tell each other; one call at a time.

    Args:
        native: the backend's own collectives on the channel's group.
        device: where the group's tensors live.
        run: runs schedules over a mesh; None where there is none.
    """

    def __init__(self, native: Native, device: torch.device, run: Run | None = None) -> None:
        self._native = native
        self._device = device
        self._run = run

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises:
            RuntimeError: it failed; so do the other methods.
        """
        if self._run is None:
            self._native.barrier(self._device)
            return
        # No rank has the sum of all before all came.
        meeting = registry.build("all_reduce", _BARRIER, self._native.world_size)
        self._run(meeting, torch.zeros(_BARRIER_BYTES, dtype=torch.uint8))

    def broadcast(self, obj: Any, src: int) -> Any:
        """Return rank ``src``'s object on every rank.

        Args:
            obj: the object; of no consequence on other ranks.
            src: a rank of the group.
        """
        here = self._native.rank == src
        payload = pickle.dumps(obj) if here else b""
        length, came = _read(self._broadcast(_head(payload), _HEAD.size, src))
        if length > len(came):
            came = self._broadcast(payload, _width(length), src)
        return obj if here else pickle.loads(came[:length])

    def all_gather(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order."""
        payload = pickle.dumps(obj)
        heads = [_read(head) for head in self.all_gather_rows(_head(payload))]
        longest = max(length for length, _ in heads)
        rows = [came for _, came in heads]
        if longest > _SHORT_BYTES:
            rows = self.all_gather_rows(payload, _width(longest))
        return [pickle.loads(row[:length]) for row, (length, _) in zip(rows, heads, strict=True)]

    def all_gather_rows(self, row: bytes, width: int | None = None) -> list[bytes]:
        """Return the rows of all ranks, in rank order.

        Args:
            row: this rank's.
            width: how long every row is; that of ``row`` where all are of a length.
        """
        width = len(row) if width is None else width
        world_size, rank = self._native.world_size, self._native.rank
        matrix = torch.zeros((world_size, width), dtype=torch.uint8)
        matrix[rank, : len(row)] = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        if self._run is None:
            matrix = matrix.to(self._device)
            self._native.all_gather(matrix)
        else:
            self._run(registry.build("all_gather", _ALL_GATHER, world_size), matrix)
        return [found.tobytes() for found in matrix.cpu().numpy()]

    def _broadcast(self, row: bytes, width: int, src: int) -> bytes:
        """Return rank ``src``'s row in a buffer of ``width`` bytes."""
        whole = row.ljust(width, b"\0")[:width]
        tensor = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
        if self._run is None:
            tensor = tensor.to(self._device)
            self._native.broadcast(tensor, src)
        else:
            schedule = registry.build("broadcast", _BROADCAST, self._native.world_size, root=src)
            self._run(schedule, tensor)
        return tensor.cpu().numpy().tobytes()


def _width(nbytes: int) -> int:
    """Return the length of the buffer for so many bytes: of few sizes, as each has its program."""
    return 1 << (nbytes - 1).bit_length()


def _head(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), _MARK, payload[:_SHORT_BYTES])


def _read(head: bytes) -> tuple[int, bytes]:
    """Return the length of an object, and its first bytes."""
    length, mark, came = _HEAD.unpack(head)
    if mark != _MARK:
        raise RuntimeError("the ranks run different collectives: an object was expected")
    return length, came
