"""Alike ranks: ranks that do the same at the same times, whose spans are kept once for all of them.

A simulated training of a thousand equal ranks would hold a thousand copies of each span. A timeline
keeps one, and a table of which ranks have it. Who reads the columns of all ranks reads as if each
had spans of its own: a column is made when it is first asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.artifact import Record
from syncopate.artifacts.timelines.spans import Numbers, Spans
from syncopate.errors import InvalidValueError


class Alike(Record, frozen=True, kw_only=True):
    """Ranks that do what another rank does, at the same times.

    Attributes:
        rank: whose spans are kept.
        ranks: the others, as ranges: of each its first rank, and one past its last.
    """

    rank: int
    ranks: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rank: int, ranks: Iterable[int]) -> Alike:
        """Return that some ``ranks`` are like ``rank``, which may be among them."""
        others = np.setdiff1d(np.fromiter(ranks, np.int64), [rank])
        runs = np.split(others, np.flatnonzero(np.diff(others) != 1) + 1)
        return cls(
            rank=rank, ranks=tuple((int(one[0]), int(one[-1]) + 1) for one in runs if len(one))
        )

    @property
    def all(self) -> NDArray[np.int32]:
        """All of them: the one whose spans are kept, then the others."""
        ranges = [np.arange(first, stop, dtype=np.int32) for first, stop in self.ranks]
        return np.concatenate([np.array([self.rank], np.int32), *ranges])


class SharedSpans(Spans):
    """Spans of which some are those of several ranks.

    As a sequence and as columns they are the spans of every rank: each that is kept, for one rank
    after the other.

    Args:
        kept: each once.
        alike: which ranks have the spans of another one.
        world_size: number of ranks.
        most: of each set of alike ranks so many are in the columns, the first; None: all.

    Attributes:
        kept: as given.
        alike: as given, all ranks.
        world_size: as given.

    Raises:
        InvalidValueError: a rank that there is not, is like two others, or like another one and has
            spans of its own.
    """

    def __init__(
        self, kept: Spans, alike: Sequence[Alike], world_size: int, most: int | None = None
    ) -> None:
        _require_apart(kept, alike, world_size)
        self.kept, self.alike, self.texts = kept, tuple(alike), kept.texts
        self.world_size, self._most = world_size, most

    @cached_property
    def ranks_of(self) -> Mapping[int, NDArray[np.int32]]:
        """Rank whose spans are kept -> all ranks that have them, itself among them."""
        alone = {rank: np.array([rank], np.int32) for rank in np.unique(self.kept.rank).tolist()}
        return alone | {one.rank: one.all for one in self.alike}

    def few(self, spans: int) -> SharedSpans:
        """Return the same with about so many spans in its columns, of two alike ranks at least.

        Figures that are means over ranks are then means over the ranks in the columns.
        """
        most = max(spans // max(len(self.kept), 1), 2)
        return SharedSpans(self.kept, self.alike, self.world_size, most)

    @property
    def left_out(self) -> int:
        """How many ranks are not in the columns, though others there do the same."""
        return sum(len(ranks) - len(ranks[: self._most]) for ranks in self.ranks_of.values())

    @cached_property
    def _counts(self) -> Numbers:
        """How many ranks in the columns have each span that is kept."""
        ranks, place = np.unique(self.kept.rank, return_inverse=True)
        counts = np.array([len(self.shown(rank)) for rank in ranks.tolist()], np.int64)
        return counts[place]

    def shown(self, rank: int) -> NDArray[np.int32]:
        """Return the ranks in the columns that have the spans of one, itself the first."""
        return self.ranks_of[rank][: self._most]

    def __len__(self) -> int:
        return int(self._counts.sum())

    def __getattr__(self, field: str) -> NDArray[Any]:
        if field not in self.DTYPES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {field!r}")
        if field == "rank":
            own = [self.shown(rank) for rank in self.kept.rank.tolist()]
            column = np.concatenate([np.empty(0, np.int32), *own])
        else:
            column = np.repeat(getattr(self.kept, field), self._counts)
        column.flags.writeable = False
        setattr(self, field, column)
        return column


def shared(spans: Spans, alike: Sequence[Alike], world_size: int) -> Spans:
    """Return spans as those of all ranks; themselves where each rank has its own.

    Raises:
        InvalidValueError: as :class:`SharedSpans` does.
    """
    return SharedSpans(spans, alike, world_size) if alike else spans


def require_ranks(alike: Sequence[Alike], world_size: int) -> None:
    """Refuse ranks that there are not.

    Raises:
        InvalidValueError: a rank or a range of them that is not in the world.
    """
    for one in alike:
        if not 0 <= one.rank < world_size:
            rule = f"in 0..{world_size - 1}"
            raise InvalidValueError("rank that others are like", one.rank, rule)
        for first, stop in one.ranks:
            if not 0 <= first < stop <= world_size:
                rule = f"a first rank and one past the last, in 0..{world_size}"
                raise InvalidValueError("alike ranks", (first, stop), rule)


def _require_apart(kept: Spans, alike: Sequence[Alike], world_size: int) -> None:
    require_ranks(alike, world_size)
    firsts = {one.rank for one in alike}
    if len(firsts) < len(alike):
        raise InvalidValueError("alike", [one.rank for one in alike], "each rank once")
    ranges = sorted(part for one in alike for part in one.ranks)
    for (_, stop), (first, _) in pairwise(ranges):
        if first < stop:
            raise InvalidValueError("alike rank", first, "like one other rank alone")
    starts = [first for first, _ in ranges]
    for rank in sorted(firsts.union(np.unique(kept.rank).tolist())):
        place = bisect_right(starts, rank) - 1
        if place >= 0 and rank < ranges[place][1]:
            rule = "one without spans of its own: its spans are those of another rank"
            raise InvalidValueError("alike rank", rank, rule)
