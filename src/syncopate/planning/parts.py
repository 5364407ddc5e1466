"""Parts: into how many messages a tensor is cut that is alone in its bucket.

A *grain* is the most that a message of such a tensor carries: one of n bytes travels as the fewest
equal parts of no more than that. Which grains are worth playing, the costs tell: those of which the
parts of the largest tensor cost less together than the whole. That second channels hide start-ups
is no reason to add some: what a message costs beyond its price is not predicted.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from syncopate.planning.problem import Partition, Problem

WHOLE = math.inf
"""The grain with which every tensor stays whole."""

_ALIGNED = 128
"""Parts begin at multiples of so many elements, where the memory of any dtype is aligned."""

_LEAST_BYTES = 16 * _ALIGNED
"""A smaller grain is not looked at: it could cut a tensor into more parts than it has elements."""

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""How many parts of the largest tensor are looked at."""

_MOST_PARTS = 512
"""A grain that cuts all bytes into more is not looked at."""


class Message(NamedTuple):
    """One message of a partition.

    Attributes:
        bucket: the place in the partition of the bucket that it carries, or carries a part of.
        start: the first gradient.
        stop: one past the last gradient.
        part: which part of a single gradient it is.
        parts: how many there are; 1 for whole gradients.
    """

    bucket: int
    start: int
    stop: int
    part: int = 0
    parts: int = 1


def messages(problem: Problem, partition: Partition, grain: float = WHOLE) -> list[Message]:
    """Return the messages of a partition in launch order."""
    found = []
    for bucket, (start, stop) in enumerate(pairwise((0, *partition))):
        parts = 1
        if grain < WHOLE and stop == start + 1:
            parts = max(1, math.ceil(float(problem.nbytes[:, start].sum()) / grain))
        for part in range(parts):
            found.append(Message(bucket, start, stop, part, parts))
    return found


def elements_of(numel: int, message: Message) -> tuple[int, int] | None:
    """Return which elements a message carries of a tensor of ``numel``; None for all of them.

    Example:
        >>> elements_of(1000, Message(0, 4, 5, 1, 3))
        (256, 640)
    """
    if message.parts == 1:
        return None
    step = _ALIGNED if numel >= _ALIGNED * message.parts else 1
    cuts = [numel * part // message.parts // step * step for part in range(message.parts)]
    start, stop = (*cuts, numel)[message.part : message.part + 2]
    return start, stop


def grains(problem: Problem) -> list[float]:
    """Return the grains worth playing, the largest first; see the module."""
    sizes = problem.nbytes.sum(axis=0)
    largest, total = float(sizes.max()), float(sizes.sum())
    pulls = problem.pulls
    if not largest or (pulls is not None and pulls.rooted):
        return []
    costs = [problem.cost] if pulls is None else [problem.cost, pulls.cost]

    def together_s(parts: int) -> float:
        return parts * sum(float(cost(largest / parts)) for cost in costs)

    most = [parts for parts in _COUNTS if parts * total / largest <= _MOST_PARTS]
    found = [largest / n for n in most if together_s(n) < together_s(1)]
    return [size for size in found if size >= _LEAST_BYTES]


def alone(problem: Problem, partition: Partition, grain: float) -> Partition:
    """Return the partition with every gradient larger than ``grain`` in a bucket of its own."""
    large = [i for i, size in enumerate(problem.nbytes.sum(axis=0).tolist()) if size > grain]
    ends = {*partition, *large, *(index + 1 for index in large)} - {0}
    return tuple(sorted(ends))
