"""Pieces: a piecewise-linear cost as arrays, and the envelopes of several.

Every cost in Syncopate is piecewise linear in the message size: a fit is one line, a measured curve
is a chain of chords, the price of a schedule is a maximum of lines, and the cheapest of several
algorithms is a lower envelope. One form for all of them makes costs cheap to evaluate and lets the
planner solve its dynamic programme exactly (see ``planning/policies/optimal.py``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncopate.artifacts.cluster import LinearFit
from syncopate.errors import InvalidValueError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ROUNDING = 1e-12
_FARTHEST_BYTES = 2.0**60
_SMALLEST_S = 1e-30
"""Durations that differ by less are the same; near zero, rounding is no share of the value."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """A non-decreasing piecewise-linear function of the message size, zero at zero bytes.

    Piece ``k`` holds for sizes in ``(upper_bytes[k-1], upper_bytes[k]]`` and is
    ``intercept_s[k] + slope_s_per_byte[k] * nbytes``. Piece 0 is the message of zero bytes, which
    is not sent and costs nothing. Jumps upwards between pieces are allowed.

    Attributes:
        upper_bytes: shape (K,), strictly ascending from 0.0 to infinity.
        intercept_s: shape (K,); may be negative where a curve bends upwards.
        slope_s_per_byte: shape (K,), >= 0.
        owner: shape (K,); which of the costs of an envelope a piece comes from, else 0.

    Raises:
        InvalidValueError: not ascending, a negative slope, a jump downwards, or not finite.
    """

    upper_bytes: FloatArray
    intercept_s: FloatArray
    slope_s_per_byte: FloatArray
    owner: IntArray

    def __post_init__(self) -> None:
        upper, a, b = self.upper_bytes, self.intercept_s, self.slope_s_per_byte
        if len(upper) < 2 or upper[0] != 0 or upper[-1] != np.inf or (np.diff(upper) <= 0).any():
            raise InvalidValueError(
                "upper_bytes", upper.tolist(), "strictly ascending from 0 to infinity"
            )
        if not (np.isfinite(a).all() and np.isfinite(b).all() and (b >= 0).all()):
            raise InvalidValueError(
                "pieces of a cost",
                (a.tolist(), b.tolist()),
                "finite, with slopes >= 0 (a larger message never costs less)",
            )
        left = a[:-1] + b[:-1] * upper[:-1]
        right = a[1:] + b[1:] * upper[:-1]
        # Intercept and slope of a steep piece cancel, so rounding is relative to both of them.
        terms = np.abs(a) + b * np.append(upper[:-1], 0.0)
        slack = _ROUNDING * (terms[:-1] + np.abs(a[1:]) + b[1:] * upper[:-1]) + _SMALLEST_S
        falls = np.flatnonzero(right < left - slack)
        if a[0] != 0 or b[0] != 0 or len(falls):
            at = int(falls[0]) if len(falls) else 0
            raise InvalidValueError(
                f"a cost just above {upper[at]:.0f} bytes",
                float(right[at]),
                f"non-decreasing from zero at 0 bytes; up to there it is {left[at]:g} s",
            )

    @classmethod
    def of(
        cls, upper_bytes: ArrayLike, intercept_s: ArrayLike, slope_s_per_byte: ArrayLike
    ) -> Pieces:
        """Return pieces of one cost; the piece of zero bytes is put in front.

        Args:
            upper_bytes: ends of the pieces, > 0; the last is taken to be infinity.
            intercept_s: one per piece.
            slope_s_per_byte: one per piece.
        """
        upper = np.concatenate(([0.0], np.asarray(upper_bytes, float)))
        upper[-1] = np.inf
        return cls(
            upper,
            np.concatenate(([0.0], np.asarray(intercept_s, float))),
            np.concatenate(([0.0], np.asarray(slope_s_per_byte, float))),
            np.zeros(len(upper), np.int64),
        )

    @classmethod
    def chords(cls, nbytes: FloatArray, seconds: FloatArray, slope: float | None = None) -> Pieces:
        """Return a cost that is level up to the smallest size, and a line from each to the next.

        Args:
            nbytes: shape (n,), ascending, >= 0.
            seconds: shape (n,), never falling.
            slope: in s per byte beyond the largest size; that of the last line when left out.
        """
        slopes = np.concatenate(([0.0], np.diff(seconds) / np.diff(nbytes)))
        slopes = np.append(slopes, slopes[-1] if slope is None else slope)
        anchors, levels = np.append(nbytes[:1], nbytes), np.append(seconds[:1], seconds)
        # Zero bytes are the start-up alone: they have no piece below them.
        first = int(nbytes[0] == 0)
        uppers, intercepts = np.append(nbytes, np.inf), levels - slopes * anchors
        return cls.of(uppers[first:], intercepts[first:], slopes[first:])

    def __call__(self, nbytes: ArrayLike) -> FloatArray:
        """Return the cost in seconds of messages of ``nbytes`` (any shape; >= 0)."""
        sizes = np.asarray(nbytes, float)
        piece = self.index(sizes)
        cost = self.intercept_s[piece] + self.slope_s_per_byte[piece] * sizes
        return np.asarray(np.maximum(cost, self.least_s[piece]))

    def at(self, nbytes: float) -> float:
        """Return the same for one message: planning asks tens of thousands of times.

        Raises:
            InvalidValueError: the size is negative, NaN or infinite.
        """
        piece = self.index_at(nbytes)
        _, intercepts_s, slopes, least_s = self._listed
        return max(intercepts_s[piece] + slopes[piece] * nbytes, least_s[piece])

    def index_at(self, nbytes: float) -> int:
        """Return which piece one size belongs to; as :meth:`index`."""
        if not 0 <= nbytes < math.inf:
            raise InvalidValueError("nbytes", nbytes, "finite and >= 0")
        return bisect_left(self._listed[0], nbytes)

    @cached_property
    def _listed(self) -> tuple[list[float], ...]:
        """The columns as lists, of which one element is found much faster than of arrays."""
        columns = (self.upper_bytes, self.intercept_s, self.slope_s_per_byte, self.least_s)
        return tuple(column.tolist() for column in columns)

    @cached_property
    def least_s(self) -> FloatArray:
        """The sum of the pieces before each one: shape (K,), 0.0 for the first.

        The intercept of a steep chord cancels against its slope, and what is left is rounded to the
        last bit of the intercept: by itself a piece may begin lower than the one before ends, or
        below zero. Within a piece rounding keeps the order of sizes.
        """
        ends_s = self.intercept_s[:-1] + self.slope_s_per_byte[:-1] * self.upper_bytes[:-1]
        return np.concatenate(([0.0], np.maximum.accumulate(np.maximum(ends_s, 0.0))))

    def index(self, nbytes: ArrayLike) -> IntArray:
        """Return which piece each size belongs to.

        Raises:
            InvalidValueError: a size is negative, NaN or infinite.
        """
        sizes = np.asarray(nbytes, float)
        if not (np.isfinite(sizes).all() and (sizes >= 0).all()):
            raise InvalidValueError("nbytes", np.asarray(nbytes).tolist(), "finite and >= 0")
        return np.asarray(np.searchsorted(self.upper_bytes, sizes, side="left"))

    def at_least(self, s_per_byte: float) -> Pieces:
        """Return the larger of this and a line through the origin; owners stay."""
        if Pieces.of([np.inf], [0.0], [s_per_byte]).never_above(self):
            return self
        rows: list[tuple[float, float, float, int]] = [(0.0, 0.0, 0.0, 0)]
        columns = (self.upper_bytes, self.intercept_s, self.slope_s_per_byte, self.owner)
        for high, a, b, owner in list(zip(*(c.tolist() for c in columns), strict=True))[1:]:
            lines = ((a, b), (0.0, s_per_byte))
            for upper, which in _picked_line(lines, rows[-1][0], high, max):
                rows.append((upper, *lines[which], owner))
        uppers, intercepts, slopes, owners = zip(*rows, strict=True)
        return Pieces(
            np.array(uppers), np.array(intercepts), np.array(slopes), np.array(owners, np.int64)
        )

    def times(self, factor: float) -> Pieces:
        """Return ``factor`` (> 0) times this."""
        return Pieces(
            self.upper_bytes, self.intercept_s * factor, self.slope_s_per_byte * factor, self.owner
        )

    def of_share(self, share: float) -> Pieces:
        """Return this as a function of a size of which ``share`` (> 0) counts."""
        return Pieces(
            self.upper_bytes / share, self.intercept_s, self.slope_s_per_byte * share, self.owner
        )

    def up_to(self, limit: float, beyond: Pieces) -> Pieces:
        """Return this for sizes of at most ``limit``, and ``beyond``, nowhere less, for larger."""
        ends = np.concatenate((self.upper_bytes[self.upper_bytes < limit], [limit]))
        mine = self.index(ends)
        rest = np.flatnonzero(beyond.upper_bytes > limit)
        return Pieces(
            np.concatenate((ends, beyond.upper_bytes[rest])),
            np.concatenate((self.intercept_s[mine], beyond.intercept_s[rest])),
            np.concatenate((self.slope_s_per_byte[mine], beyond.slope_s_per_byte[rest])),
            np.concatenate((self.owner[mine], beyond.owner[rest])),
        )

    def never_above(self, other: Pieces) -> bool:
        """Return whether this costs at most as much as ``other`` at every size."""
        ends = np.union1d(self.upper_bytes, other.upper_bytes)
        low, high = ends[:-1], ends[1:]
        # Between two ends both are lines: it is enough to look just after one and at the next.
        mine = np.searchsorted(self.upper_bytes, high, side="left")
        theirs = np.searchsorted(other.upper_bytes, high, side="left")
        lead = other.intercept_s[theirs] - self.intercept_s[mine]
        steeper = other.slope_s_per_byte[theirs] - self.slope_s_per_byte[mine]
        at_high = lead[:-1] + steeper[:-1] * high[:-1]
        return bool((lead + steeper * low >= 0).all() and (at_high >= 0).all() and steeper[-1] >= 0)


def summed(costs: Sequence[tuple[float, Pieces]]) -> Pieces:
    """Return the sum of at least one cost, each so many times."""
    ends = np.unique(np.concatenate([cost.upper_bytes for _, cost in costs]))
    ends = ends[np.append(True, np.diff(ends) > _ROUNDING * ends[:-1])]
    places = [np.searchsorted(cost.upper_bytes, ends[1:], side="left") for _, cost in costs]
    each = list(zip(costs, places, strict=True))
    intercepts = sum(times * cost.intercept_s[place] for (times, cost), place in each)
    slopes = sum(times * cost.slope_s_per_byte[place] for (times, cost), place in each)
    return Pieces.of(ends[1:], np.asarray(intercepts), np.asarray(slopes))


def lower_envelope(costs: Sequence[Pieces]) -> Pieces:
    """Return the cheapest of several costs at every size; ``owner`` tells whose each piece is.

    At a tie the cost that stands first wins.
    """
    return _envelope(costs, min)


def highest(costs: Sequence[Pieces]) -> Pieces:
    """Return the dearest of several costs at every size; otherwise as :func:`lower_envelope`."""
    return _envelope(costs, max)


def highest_line(lines: Iterable[LinearFit]) -> Pieces:
    """Return the maximum of lines ``a + b n`` over n > 0 as pieces."""
    hull: list[LinearFit] = []
    starts: list[float] = []
    for line in sorted(lines, key=lambda line: (line.b_s_per_byte, line.a_s)):
        start = 0.0
        while hull:
            start = _crossing(hull[-1], line)
            if start > starts[-1]:
                break
            # The line before is overtaken no later than it overtook the one before it.
            hull.pop()
            starts.pop()
        if start < math.inf:
            hull.append(line)
            starts.append(start if hull[:-1] else 0.0)
    return Pieces.of(
        [*starts[1:], math.inf],
        [line.a_s for line in hull],
        [line.b_s_per_byte for line in hull],
    )


def _crossing(flat: LinearFit, steep: LinearFit) -> float:
    """Return from which size on ``steep`` is at least ``flat``; ``steep`` is not less steep."""
    gain = steep.b_s_per_byte - flat.b_s_per_byte
    head_start = flat.a_s - steep.a_s
    if head_start <= 0:
        return 0.0
    return head_start / gain if gain > 0 else math.inf


_Pick = Callable[[Iterable[float]], float]


def _envelope(costs: Sequence[Pieces], pick: _Pick) -> Pieces:
    """Return the cost that ``pick`` takes at every size.

    Between two neighbouring ends of pieces every cost is a line, so the envelope changes hands only
    at an end or where two lines cross.
    """
    if not costs:
        raise InvalidValueError("costs of an envelope", (), "at least one")
    ends = np.unique(np.concatenate([cost.upper_bytes for cost in costs]))
    rows: list[tuple[float, float, float, int]] = []
    for low, high in pairwise(ends.tolist()):
        lines = []
        for cost in costs:
            piece = int(np.searchsorted(cost.upper_bytes, high, side="left"))
            lines.append((float(cost.intercept_s[piece]), float(cost.slope_s_per_byte[piece])))
        for upper, owner in _picked_line(lines, low, high, pick):
            intercept, slope = lines[owner]
            if rows and rows[-1][1:] == (intercept, slope, owner):
                rows.pop()
            rows.append((upper, intercept, slope, owner))
    upper_bytes, intercepts, slopes, owners = zip(*rows, strict=True)
    return Pieces(
        np.array([0.0, *upper_bytes]),
        np.array([0.0, *intercepts]),
        np.array([0.0, *slopes]),
        np.array([0, *owners], np.int64),
    )


def _picked_line(
    lines: Sequence[tuple[float, float]], low: float, high: float, pick: _Pick
) -> list[tuple[float, int]]:
    """Cut ``(low, high]`` where the picked line changes; return each part's end and owner."""
    cuts = {high}
    # Lines that cross at an end, or farther away than that, differ there by rounding alone, which
    # would decide between them.
    first = low * (1 + _ROUNDING)
    last = min(high * (1 - _ROUNDING), max(_FARTHEST_BYTES, low))
    for (a, b), (c, d) in combinations(lines, 2):
        if b != d and first < (crossing := (c - a) / (b - d)) < last:
            cuts.add(crossing)
    parts: list[tuple[float, int]] = []
    left = low
    for right in sorted(cuts):
        middle = (left + right) / 2 if right < np.inf else 2 * left + 1.0
        owner = _picked(lines, middle, pick)
        if parts and parts[-1][1] == owner:
            parts.pop()
        parts.append((right, owner))
        left = right
    return parts


def _picked(lines: Sequence[tuple[float, float]], nbytes: float, pick: _Pick) -> int:
    """Return which line is picked at a size at which none of them cross; at a tie the first.

    The lines' distance tells, not their values: of two lines that begin at one point, the slopes
    may differ by so little that their values at ``nbytes`` are the same number, and yet matter for
    a message a million times as large.
    """
    picked = 0
    for index, (intercept, slope) in enumerate(lines):
        a, b = lines[picked]
        above = (intercept - a) + (slope - b) * nbytes
        if above and pick((above, 0.0)) == above:
            picked = index
    return picked
