"""Optimal: the exact best partition on one channel with ideal overlap, by dynamic programming.

With ready times r_1 <= ... <= r_L and C(i, j) the cost of one bucket of gradients i+1..j, the
earliest end of communication of the first j gradients is

    f(0) = 0,    f(j) = min over i < j of  max(f(i), r_j) + C(i, j).

[Note: why it is exact] The last bucket of any partition of the first j gradients starts when the
channel is free and gradient j is ready; an earlier end of the rest never makes it start later. So
the best partition whose last bucket is (i, j] is a best partition of the first i and that bucket.
Nothing is asked of C but that a larger bucket never costs less, for any shape of the costs:
start-up times, curves, steps, envelopes of algorithms, several dtypes.

[Note: why it is fast] Taken literally this is O(L^2) costs. Two facts make it near-linear.

1. f never decreases: drop gradient j+1 from a best partition of the first j+1, and nothing starts
   later or takes longer. So the i with ``f(i) <= r_j`` are a prefix 0..i0, all of them start at
   r_j, and i0, whose bucket is smallest, is at least as good as the others. As r_j grows, i0 only
   moves forward.
2. For i > i0 the candidate is ``f(i) + C(i, j)``. Costs are piecewise linear: C is
   ``a_k + b_k (P_j - P_i)``, P the bytes before a gradient, for the i whose size falls into piece
   k, which is a window of consecutive i. Within it the best i minimises ``f(i) - b_k P_i``, which
   does not depend on j, and both ends of the window only move forward with j: a sliding-window
   minimum. So each of K pieces costs amortised O(1) per j, O(L K) in all.

With several dtypes a bucket costs the sum over dtypes, a window is an intersection of one window
per dtype, and at most K windows per dtype are in use for any j. An envelope of algorithms is one
piecewise-linear cost for one dtype; with several it is the best over algorithms, each with each of
its options, of their sums, because a bucket has one algorithm and tells it one thing.

Reference: the recurrence of MG-WFBP (Eq. 7), whose Algorithm 1 it replaces; sliding-window minima
as in Monge and convex dynamic programmes (Galil and Park 1992).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from syncopate.costs.model.functions import Envelope
from syncopate.costs.model.pieces import Pieces
from syncopate.planning.problem import Partition, Problem

_ROWS_AT_ONCE = 512


def optimal(problem: Problem) -> Partition:
    """Return a partition whose communication ends as early as any partition's.

    Among equally good last buckets the one that starts with the latest gradient that was already
    sent when it became ready is preferred. Deterministic.
    """
    alternatives = [_Alternative(problem, pieces) for pieces in _alternatives(problem)]
    ready = problem.ready_s.tolist()
    finish = [0.0]
    before = [0]
    hidden = 0  # i0 of [Note: why it is fast]
    boundaries = zip(*(alternative.boundaries() for alternative in alternatives), strict=True)
    for stop, rows in enumerate(boundaries, start=1):
        while hidden + 1 < stop and finish[hidden + 1] <= ready[stop - 1]:
            hidden += 1
        chosen = hidden
        best = ready[stop - 1] + min(a.cost_s(hidden, stop) for a in alternatives)
        for alternative, row in zip(alternatives, rows, strict=True):
            best, chosen = alternative.improve(finish, hidden, stop, row, (best, chosen))
        # The window's arithmetic may be an ulp off; the value that is kept is the real one.
        cost = min(alternative.cost_s(chosen, stop) for alternative in alternatives)
        finish.append(max(finish[chosen], ready[stop - 1]) + cost)
        before.append(chosen)
    return _trace_back(problem, before)


def _trace_back(problem: Problem, before: Sequence[int]) -> Partition:
    ends = [problem.length]
    start = before[problem.length]
    while start:
        # An empty bucket joins the next one, which then has the same bytes and the same start.
        if (problem.offsets[:, start] > problem.offsets[:, before[start]]).any():
            ends.append(start)
        start = before[start]
    return tuple(reversed(ends))


def _alternatives(problem: Problem) -> list[Pieces]:
    if len(problem.nbytes) == 1 or not isinstance(problem.cost, Envelope):
        return [problem.cost.pieces]
    # One that is never cheaper than another is never the best for a bucket either.
    useful: list[Pieces] = []
    for _, cost, _ in problem.cost.together:
        if not any(other.never_above(cost.pieces) for other in useful):
            useful = [other for other in useful if not cost.pieces.never_above(other)]
            useful.append(cost.pieces)
    return useful


class _Window:
    """The sliding-window minimum of ``f(i) - slope * P_i`` for one combination of pieces.

    Attributes:
        intercept_s: sum of the pieces' intercepts.
        slopes: the piece's slope of each dtype.
        least_s: no bucket in this combination of pieces costs less.
        candidates: indices and values, both ascending.
        following: the first index that has not been looked at.
    """

    __slots__ = ("candidates", "following", "intercept_s", "least_s", "slopes")

    def __init__(self, intercept_s: float, slopes: tuple[float, ...], least_s: float) -> None:
        self.intercept_s = intercept_s
        self.slopes = slopes
        self.least_s = least_s
        self.candidates: deque[tuple[int, float]] = deque()
        self.following = 0

    def slide(
        self, low: int, high: int, finish: Sequence[float], offsets: Sequence[Sequence[float]]
    ) -> None:
        """Move to the indices ``[low, high)``; neither end ever moves back."""
        candidates = self.candidates
        for index in range(max(self.following, low), high):
            value = finish[index]
            for slope, of_dtype in zip(self.slopes, offsets, strict=True):
                value -= slope * of_dtype[index]
            while candidates and candidates[-1][1] > value:
                candidates.pop()
            candidates.append((index, value))
        self.following = max(self.following, high)
        while candidates[0][0] < low:
            candidates.popleft()


class _Alternative:
    """One cost function over the gradients: its windows, kept from one j to the next."""

    def __init__(self, problem: Problem, pieces: Pieces) -> None:
        self.offsets: list[list[float]] = problem.offsets.tolist()
        self._table = problem.offsets
        self._uppers: list[float] = pieces.upper_bytes.tolist()
        self._intercepts: list[float] = pieces.intercept_s.tolist()
        self._slopes: list[float] = pieces.slope_s_per_byte.tolist()
        self._reached: list[float] = pieces.least_s.tolist()
        # What the smallest message of each piece costs.
        self._leasts = [
            max(intercept + slope * low, 0.0)
            for intercept, slope, low in zip(
                self._intercepts, self._slopes, [0.0, *self._uppers[:-1]], strict=True
            )
        ]
        self._steps = [len(self._uppers) ** dtype for dtype in range(len(self.offsets))]
        self._windows: dict[int, _Window] = {}

    def cost_s(self, start: int, stop: int) -> float:
        """Return the cost of the bucket ``[start, stop)``."""
        total = 0.0
        for offsets in self.offsets:
            nbytes = offsets[stop] - offsets[start]
            piece = bisect_left(self._uppers, nbytes)
            cost_s = self._intercepts[piece] + self._slopes[piece] * nbytes
            total += max(cost_s, self._reached[piece])
        return total

    def boundaries(self) -> Iterator[list[int]]:
        """Yield for each j the starts i of buckets at which some dtype changes to a larger piece.

        From the largest i down to a last 0; each as ``i * D + dtype``. Buckets that start before i
        have more bytes of that dtype than its piece allows.
        """
        dtypes = len(self.offsets)
        uppers = np.array(self._uppers[:-1])
        for first in range(1, self._table.shape[1], _ROWS_AT_ONCE):
            packed = np.concatenate(
                [
                    np.searchsorted(row, row[first : first + _ROWS_AT_ONCE, None] - uppers) * dtypes
                    + dtype
                    for dtype, row in enumerate(self._table)
                ],
                axis=1,
            )
            if dtypes > 1:
                packed = -np.sort(-packed, axis=1)
            yield from np.pad(packed, ((0, 0), (0, 1))).tolist()

    def improve(
        self,
        finish: Sequence[float],
        hidden: int,
        stop: int,
        row: Sequence[int],
        best: tuple[float, int],
    ) -> tuple[float, int]:
        """Return the better of ``best`` and the buckets that start after ``hidden``.

        Args:
            finish: f(0), ..., f(stop - 1).
            hidden: i0.
            stop: j.
            row: what :meth:`boundaries` yields for j.
            best: the earliest end so far and where its last bucket starts.
        """
        dtypes = len(self.offsets)
        first, high, code = hidden + 1, stop, 0
        best_s, start = best
        for packed in row:
            boundary = packed // dtypes
            low = boundary if boundary > first else first
            if low < high:
                window = self._windows.get(code) or self._window(code)
                # f and C are monotone: no bucket that starts in this window ends before this.
                if finish[low] + window.least_s < best_s:
                    window.slide(low, high, finish, self.offsets)
                    index, value = window.candidates[0]
                    value += window.intercept_s
                    for slope, offsets in zip(window.slopes, self.offsets, strict=True):
                        value += slope * offsets[stop]
                    if value < best_s:
                        best_s, start = value, index
                high = low
            if boundary <= first:
                break
            code += self._steps[packed % dtypes]
        return best_s, start

    def _window(self, code: int) -> _Window:
        """Return a new window for a combination of pieces, one digit of ``code`` per dtype."""
        rest, pieces = code, []
        for _ in self.offsets:
            rest, piece = divmod(rest, len(self._uppers))
            pieces.append(piece)
        window = self._windows[code] = _Window(
            sum(self._intercepts[piece] for piece in pieces),
            tuple(self._slopes[piece] for piece in pieces),
            sum(self._leasts[piece] for piece in pieces),
        )
        return window
