"""Conditions: what each collective starts from and must end with.

One row per collective says where data is defined at the start, where the result must be at the
end, and whether the result is a sum over the ranks or the data of one rank. The checker proves a
schedule against its row; the idea of collectives as pre- and postconditions is msccl-tools'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from syncopate.errors import UnknownNameError
from syncopate.schedules.base import Schedule, chunk_offsets


class Place(Enum):
    """Which chunks of which ranks a condition speaks of."""

    EVERYWHERE = "every chunk of every rank"
    SHARD = "every rank's own shard"
    ROOT = "every chunk of the root"


@dataclass(frozen=True)
class Conditions:
    """Pre- and postcondition of a collective.

    Attributes:
        start: where the buffers hold data at the start; elsewhere they are undefined.
        end: where the result must be at the end; elsewhere anything may be left behind.
        reduces: the result is the sum over all ranks; otherwise it is the data of the one rank
            that holds the chunk at the start.
    """

    start: Place
    end: Place
    reduces: bool

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return Place.ROOT in (self.start, self.end)

    @property
    def sharded(self) -> bool:
        """Whether each rank owns a shard of the buffer."""
        return Place.SHARD in (self.start, self.end)

    @property
    def agrees(self) -> bool:
        """Whether every rank ends with the whole result."""
        return self.end is Place.EVERYWHERE


CONDITIONS: dict[str, Conditions] = {
    "all_reduce": Conditions(Place.EVERYWHERE, Place.EVERYWHERE, reduces=True),
    "reduce_scatter": Conditions(Place.EVERYWHERE, Place.SHARD, reduces=True),
    "all_gather": Conditions(Place.SHARD, Place.EVERYWHERE, reduces=False),
    "reduce": Conditions(Place.EVERYWHERE, Place.ROOT, reduces=True),
    "broadcast": Conditions(Place.ROOT, Place.EVERYWHERE, reduces=False),
}
"""Collective -> its conditions."""


def conditions(collective: str) -> Conditions:
    """Return the conditions of ``collective``.

    Raises:
        UnknownNameError: no such collective.
    """
    try:
        return CONDITIONS[collective]
    except KeyError:
        raise UnknownNameError("collective", collective, CONDITIONS) from None


def chunks_at(
    place: Place, schedule: Schedule, rank: int, bounds: Sequence[int] | None = None
) -> range:
    """Return the chunks of ``rank`` that ``place`` speaks of.

    Args:
        place: which chunks are meant.
        schedule: whose chunks.
        rank: on which rank.
        bounds: rank r's shard is the chunks ``bounds[r]:bounds[r + 1]``; all ranks have as many
            when left out.

    Raises:
        ScheduleError: the chunks do not divide into shards.
    """
    if place is Place.SHARD:
        return range(*(schedule.shard(rank) if bounds is None else bounds[rank : rank + 2]))
    if place is Place.ROOT and rank != schedule.root:
        return range(0)
    return range(schedule.chunks)


def element_offsets(
    schedule: Schedule, numel: int, bounds: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return where each chunk of ``schedule`` begins in a buffer, and at the end ``numel``.

    The chunks that a rank owns make up its shard, of any length. Where it owns several, they are a
    balanced cut of it.

    Args:
        schedule: whose chunks.
        numel: elements of the buffer.
        bounds: rank r's shard of a sharded collective is the elements ``bounds[r]:bounds[r + 1]``;
            the balanced cut when left out. Of no meaning for the others.
    """
    if not conditions(schedule.collective).sharded:
        return chunk_offsets(numel, schedule.chunks)
    cuts = chunk_offsets(numel, schedule.world_size) if bounds is None else bounds
    share = schedule.shard(0)[1]
    if share == 1:
        return cuts
    inner = (
        begin + offset
        for begin, end in pairwise(cuts)
        for offset in chunk_offsets(end - begin, share)[:-1]
    )
    return (*inner, numel)
