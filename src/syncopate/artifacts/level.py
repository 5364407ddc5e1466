"""Level: one level of the network, and which of its units holds what.

Units of a level may be of unequal size: racks of 3 and of 5 hosts, or 5 devices on switches of 4.
Units are numbered in the order of positions, and so is what they hold.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from syncopate.artifacts.artifact import Record
from syncopate.errors import InvalidValueError

LONGEST_S = 1e15
"""Of a duration: sums and multiples of some stay numbers."""

Size = int | tuple[int, ...]
"""Fan-out of a level: that of every unit, or of each in the order of positions."""


def require_time(what: str, value: float) -> None:
    """Refuse a duration that is NaN, negative, or longer than ``LONGEST_S``."""
    if not 0 <= value <= LONGEST_S:
        rule = f"a finite number of seconds >= 0, and at most {LONGEST_S:.0e}"
        raise InvalidValueError(what, value, rule)


class Level(Record, frozen=True, kw_only=True):
    """One level of the network.

    Attributes:
        name: what its links join, such as ``"device"``, ``"host"`` or ``"rack"``.
        size: fan-out, how many units of the level below one unit of this level holds; >= 1. Where
            units are unequal, and only there, one number for each of them, such as ``(3, 5)``.
        latency_s: α, the start-up time of a message across this level.
        bandwidth_bytes_per_s: 1/β, what one unit sends across this level, each direction.
        burst_bytes: what a link that was silent passes at once, before its rate holds. Rates that
            are kept by a token bucket, in clouds or in a lab, allow it; a cable does not.
    """

    name: str
    size: Size
    latency_s: float
    bandwidth_bytes_per_s: float
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size + 1)
        if len(set(sizes)) < 2 or min(sizes) < 1:
            rule = "an integer >= 1, or where units are unequal one for each of them"
            raise InvalidValueError("size", self.size, rule)
        require_time("latency_s", self.latency_s)
        if not math.isfinite(self.burst_bytes) or self.burst_bytes < 0:
            raise InvalidValueError("burst_bytes", self.burst_bytes, "a finite number >= 0")
        if not math.isfinite(self.bandwidth_bytes_per_s) or self.bandwidth_bytes_per_s <= 0:
            raise InvalidValueError(
                "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, "a finite number > 0"
            )

    @property
    def byte_time_s(self) -> float:
        """β, seconds per byte."""
        return 1.0 / self.bandwidth_bytes_per_s

    @property
    def largest(self) -> int:
        """How many units of the level below its largest unit holds."""
        return max(self.size) if isinstance(self.size, tuple) else self.size

    @property
    def joins(self) -> bool:
        """Whether it joins anything: a unit of it holds two of the level below at least."""
        return self.largest > 1

    @property
    def equal_size(self) -> int | None:
        """The size of every unit; None where units are unequal."""
        return None if isinstance(self.size, tuple) else self.size

    @property
    def size_text(self) -> str:
        """The size as people write it: ``"8"``, or ``"3+5"``."""
        return "+".join(map(str, self.size)) if isinstance(self.size, tuple) else str(self.size)

    def place(self, number: int) -> tuple[int, int]:
        """Return which unit holds a unit of the level below, and as its which; both from 0."""
        if isinstance(self.size, int):
            return divmod(number, self.size)
        firsts = self._firsts(self.size)
        unit = bisect_right(firsts, number) - 1
        return unit, number - firsts[unit]

    def held(self, unit: int) -> range:
        """Return the units of the level below that a unit holds."""
        if isinstance(self.size, int):
            return range(unit * self.size, (unit + 1) * self.size)
        first = self._firsts(self.size)[unit]
        return range(first, first + self.size[unit])

    @staticmethod
    def _firsts(sizes: tuple[int, ...]) -> list[int]:
        return list(accumulate(sizes[:-1], initial=0))


def size_of(counts: Iterable[int]) -> Size:
    """Return the size of a level whose units hold so much, at least one unit."""
    each = tuple(counts)
    return each[0] if len(set(each)) == 1 else each


def unit_counts(levels: Sequence[Level]) -> tuple[int, ...]:
    """Return how many units each level joins, innermost first, the number of ranks; then 1.

    Raises:
        InvalidValueError: a level has sizes for more or fewer units than the levels above hold.
    """
    counts = [1]
    for level in reversed(levels):
        units = counts[-1]
        if isinstance(level.size, int):
            counts.append(units * level.size)
            continue
        if len(level.size) != units:
            rule = f"one size for each unit of it, of which the levels above hold {units}"
            raise InvalidValueError(f"size of level {level.name!r}", level.size_text, rule)
        counts.append(sum(level.size))
    return tuple(reversed(counts))


def sizes_text(levels: Sequence[Level]) -> str:
    """Return the sizes of levels as people write them: ``"4 x 3+5 x 2"``."""
    return " x ".join(level.size_text for level in levels)
