"""Conditions: what each collective starts from and must end with.

One row per collective says where data is defined at the start, where the result must be at the
end, and whether the result is a sum over the ranks or the data of one rank. The checker proves a
schedule against its row; the idea of collectives as pre- and postconditions is msccl-tools'.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from syncopate.errors import UnknownNameError
from syncopate.schedules.base import Schedule


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


def chunks_at(place: Place, schedule: Schedule, rank: int) -> range:
    """Return the chunks of ``rank`` that ``place`` speaks of.

    Raises:
        ScheduleError: the chunks do not divide into shards.
    """
    if place is Place.SHARD:
        return range(*schedule.shard(rank))
    if place is Place.ROOT and rank != schedule.root:
        return range(0)
    return range(schedule.chunks)
