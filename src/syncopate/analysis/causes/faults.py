"""Faults: which ranks of one kind of cause have the same fault, and which have faults of their own.

Two ranks have faults of their own where one surely loses more than the other, by a fifth, or in
other parts of an iteration; of what comes and goes, where they lose it in other iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set

from syncopate.analysis.evidence.noise import surely_positive
from syncopate.artifacts.timelines.spans import Times

_OTHER, _SAME = 0.2, 0.5
"""What differs by more than this part is another fault; what has this part of its iterations in
common is the same one."""


def by_size(more: Mapping[int, Times]) -> list[list[int]]:
    """Return ranks by fault, of what they always lose.

    Args:
        more: rank -> what it takes longer, by iteration and part.
    """
    size = {rank: float(found.sum(axis=1).mean()) for rank, found in more.items()}

    def apart(one: int, other: int) -> bool:
        by = more[one] - more[other]
        usual = by.mean(axis=0)
        if abs(usual).sum() <= _OTHER * max(size[one], size[other]):
            return False
        return surely_positive((by * (usual > 0) - by * (usual < 0)).sum(axis=1).tolist())

    return _sorted_out(sorted(more, key=lambda rank: (-size[rank], rank)), apart)


def by_iteration(when: Mapping[int, Set[Hashable]]) -> list[list[int]]:
    """Return ranks by fault, of what comes and goes.

    Args:
        when: rank -> the iterations in which it loses something.
    """

    def apart(one: int, other: int) -> bool:
        return len(when[one] & when[other]) < _SAME * len(when[one] | when[other])

    return _sorted_out(sorted(when, key=lambda rank: (-len(when[rank]), rank)), apart)


def _sorted_out(order: Sequence[int], apart: Callable[[int, int], bool]) -> list[list[int]]:
    """Group ranks: each joins the first group whose first rank has the same fault."""
    found: list[list[int]] = []
    for rank in order:
        for mine in found:
            if not apart(mine[0], rank):
                mine.append(rank)
                break
        else:
            found.append([rank])
    return [sorted(mine) for mine in found]
