"""Beside: which ranks take longer than those that do the same: of a stage, or all.

A rank takes longer where the mean over iterations says so by more than its error. What is known to
be slow in one part is likelier to be slow in another: there less is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from syncopate.analysis.evidence.noise import LIKELY, SURE, surely_positive
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times

_TWO_SORTS = 0.3
"""Ranks are of two sorts where the next takes longer by more than this part."""

_AS_LONG = 0.25
"""Batches of two ranks are the same where they differ by less than this part of how they vary."""


class Beside:
    """Ranks beside those that do the same.

    Args:
        level: seconds by rank, iteration and part.
        counted: the places of iterations that count.
        alike: the places of ranks that do the same, also with the same data.
    """

    def __init__(self, level: Times, counted: Numbers, alike: Sequence[Sequence[int]]) -> None:
        self._level, self._alike = level[:, counted], alike

    def exceeds(
        self,
        ranks: tuple[int, int],
        part: int,
        least_s: float,
        alike: Sequence[int],
        *,
        sure: float = SURE,
    ) -> bool:
        """Say whether a rank surely exceeds another in a part, by ``least_s`` at least.

        Args:
            ranks: the two.
            part: which.
            least_s: what is worth a word.
            alike: those that do the same.
            sure: by so many standard errors.
        """
        rank, other = ranks
        level = self._level[..., part]
        more_s = level[rank] - level[other]
        if more_s.mean() <= least_s:
            return False
        others = [at for at in alike if at not in ranks]
        spreads_s = (level[others] - level[other]).std(axis=1)
        among = len(level) if sure >= SURE else 1
        return surely_positive(more_s.tolist(), among, spreads_s.tolist(), sure=sure)

    def slower(
        self, parts: Iterable[int], usual_s: Times, there: Mask, least_s: float
    ) -> dict[int, list[int]]:
        """Return who exceeds the median of the others, of two medians the lower, and where.

        Where ranks fall in two sorts that are far apart, those of the slower sort are compared with
        the slowest of the faster one, however few these are; then those of the faster among each
        other.

        Args:
            parts: in which ranks are compared.
            usual_s: what is usual, by rank and part.
            there: which ranks have which parts.
            least_s: what is worth a word.

        Returns:
            Place of a rank -> the parts in which it takes longer.
        """
        parts = tuple(parts)
        found: dict[int, list[int]] = defaultdict(list)
        for sure in (SURE, LIKELY):
            known = frozenset(found)
            for part, alike in product(parts, self._alike):
                for at, other in _compared([a for a in alike if there[a, part]], usual_s[:, part]):
                    fresh = part not in found.get(at, ()) and (sure >= SURE or at in known)
                    if fresh and self.exceeds((at, other), part, least_s, alike, sure=sure):
                        found[at].append(part)
        return {at: sorted(mine) for at, mine in found.items()}


def with_same_data(pace: Times) -> list[list[int]]:
    """Return the places of ranks whose batches are as long in each iteration, as one is of several.

    Args:
        pace: how long batches are, by rank and iteration.
    """
    off = pace - pace.mean(axis=1, keepdims=True)
    vary = off.std(axis=1)
    left, found = list(range(len(pace))), []
    while left:
        apart = (off[left] - off[left[0]]).std(axis=1)
        same = apart <= _AS_LONG * np.minimum(vary[left], vary[left[0]])
        same[0] = True
        found.append([at for at, one in zip(left, same.tolist(), strict=True) if one])
        left = [at for at, one in zip(left, same.tolist(), strict=True) if not one]
    return [mine for mine in found if 1 < len(mine) < len(pace)]


def _compared(there: Sequence[int], usual_s: Times) -> Iterable[tuple[int, int]]:
    """Yield ranks, and with which other each is compared."""
    order = sorted(there, key=lambda at: (usual_s[at], at))
    while len(order) > 1:
        apart_s = np.diff(usual_s[order])
        fast = int(apart_s.argmax())
        two = bool(apart_s[fast] > _TWO_SORTS * usual_s[order[fast]])
        for place, at in enumerate(order):
            if two and place <= fast:
                continue
            middle = (len(order) - 2) // 2  # of the others, which move up behind it
            middle = middle + (place <= middle)
            yield at, order[min(middle, fast) if two else middle]
        order = order[: fast + 1] if two else []
