"""Pattern: data whose sums are exact in every dtype, and what a collective must make of them.

Every rank contributes small integers that differ between ranks and between neighbouring elements.
They and their sums over all ranks are exact in the element type, so a result is right when it is
equal, in any order of addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from syncopate.errors import InvalidValueError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import Place, conditions

MOST_DISTINCT = 251
"""Distinct values at most; a prime, so that no usual chunk length is a multiple of the period."""

_EXACT = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255, "int16": 32767}
_EXACT_OTHERWISE = 1 << 24
_RANK_STRIDE = 3


def distinct_values(dtype: str, world_size: int) -> int:
    """Return how many values 0, 1, .. a rank may contribute so that sums over ranks are exact.

    Raises:
        InvalidValueError: fewer than two.
    """
    largest = _EXACT.get(dtype, _EXACT_OTHERWISE)
    found = min(largest // world_size + 1, MOST_DISTINCT)
    if found < 2:
        rule = f"wide enough to add up {world_size} ranks exactly, such as float32"
        raise InvalidValueError("dtype", dtype, rule)
    return found


@dataclass(frozen=True)
class Pattern:
    """The data of one collective on one rank.

    Attributes:
        collective: such as ``"all_gather"``.
        count: elements of the total buffer.
        dtype: element type, by torch's name.
        rank: this rank.
        world_size: number of ranks.
        root: the root of a rooted collective.
    """

    collective: str
    count: int
    dtype: str
    rank: int
    world_size: int
    root: int = 0

    def input(self) -> torch.Tensor:
        """Return what this rank's buffer holds before, shape (count,).

        Outside of what the collective reads it is filled with a value that may not come through.
        """
        mine = self._spread(self._period(self.rank))
        if conditions(self.collective).start is not Place.SHARD:
            return mine
        held = torch.full_like(mine, distinct_values(self.dtype, self.world_size))
        shard = self._shard(self.rank)
        held[shard] = mine[shard]
        return held

    def wrong(self, after: torch.Tensor) -> int:
        """Return the number of elements of this rank's buffer that differ from the right result.

        Args:
            after: shape (count,), after the collective ran on :meth:`input`.
        """
        needs = conditions(self.collective)
        if needs.end is Place.ROOT and self.rank != self.root:
            return 0
        place = self._shard(self.rank) if needs.end is Place.SHARD else slice(None)
        return int((after[place] != self._expected()[place]).sum())

    def _expected(self) -> torch.Tensor:
        needs = conditions(self.collective)
        everyone = [self._period(peer) for peer in range(self.world_size)]
        if needs.reduces:
            return self._spread(torch.stack(everyone).sum(0))
        if needs.start is Place.ROOT:
            return self._spread(everyone[self.root])
        gathered = self._spread(everyone[0])
        for peer in range(1, self.world_size):
            shard = self._shard(peer)
            own = everyone[peer].roll(-shard.start)
            gathered[shard] = self._spread(own, shard.stop - shard.start)
        return gathered

    def _period(self, rank: int) -> torch.Tensor:
        """Return one period of what ``rank`` contributes, int64."""
        length = distinct_values(self.dtype, self.world_size)
        return (torch.arange(length) + _RANK_STRIDE * rank) % length

    def _spread(self, period: torch.Tensor, count: int | None = None) -> torch.Tensor:
        count = self.count if count is None else count
        times = -(-count // period.numel())
        return period.to(getattr(torch, self.dtype)).repeat(times)[:count]

    def _shard(self, rank: int) -> slice:
        offsets = chunk_offsets(self.count, self.world_size)
        return slice(offsets[rank], offsets[rank + 1])
