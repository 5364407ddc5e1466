"""Curve: what a schedule takes as a function of the size, from a few sizes that are played.

A play gives the seconds at one size and the line along which they grow as long as events keep
their order. Where a size's line meets that of the next one, the chord between the two is farthest
from what a curve that bends one way can be: if that is more than ``CLOSE``, the size where they
meet is played next, and so on. A curve that is a maximum of a few lines is found in as many plays.

Where the curve is far above that of a rival, another way to send the same, it is not used. There it
is a guess, from which nothing is played, and the guess is far above the rival as well. What a
traffic takes at least (:mod:`~syncopate.costs.flows.least`) says where that is so without a play.

Curves may bend both ways, for messages that miss each other at one size meet at another. So a chord
is believed only where a size between was played too, within a factor of ``_NEAR``, that came out as
the chord and as the lines foretold. Where it came out as the chord alone, the curve may be jagged,
and that size on the chord by chance: there chords are no longer than a factor of ``_BESIDE``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from syncopate.costs.flows.kernel import play
from syncopate.costs.flows.least import least_seconds
from syncopate.costs.flows.traffic import Traffic
from syncopate.costs.model.pieces import FloatArray, Pieces

CLOSE = 3e-3
"""Share by which a chord may differ from the lines of its ends."""

FAR = 1.5
"""A curve that many times as high as its rival is far above."""


class Asked(NamedTuple):
    """Where a price has to be right; elsewhere it may be a guess.

    Attributes:
        sizes: in bytes; none where every size counts.
        near: up to so many times the price of what else can be sent.
    """

    sizes: tuple[float, ...] = ()
    near: float = FAR


EVERYWHERE = Asked()
"""At every size up to far above what else can be sent."""

_FIRST = tuple(4.0**power for power in range(-4, 25))
"""Sizes in bytes that are played first: from less than a byte to more than any buffer."""
_NEAR = 1.5
"""Between sizes that are farther apart messages may meet of which neither of the two tells."""
_BESIDE = 1.02
"""What is between sizes that are closer than this is believed to be on their chord."""
_LOOKED_AT = 17
"""Sizes of an interval at which a curve is held against its rival."""
_NARROW = 1.0005
"""Sizes that are closer than this are not told apart."""
_SAME = 1e-8


class _Point(NamedTuple):
    nbytes: float
    seconds: float
    slope: float
    guessed: bool = False

    def at(self, nbytes: float) -> float:
        return self.seconds + self.slope * (nbytes - self.nbytes)


class _Interval(NamedTuple):
    """Sizes between two that are played.

    Attributes:
        number: of the traffic.
        low: the smaller size.
        high: the larger one.
        byte_s: what a byte of the buffer takes at least, for all sizes up to ``high``.
        sure: whether the curve is known to keep to its lines around there.
    """

    number: int
    low: float
    high: float
    byte_s: float
    sure: bool = False

    def far(self, points: Sequence[dict[float, _Point]], rival: Pieces, near: float) -> bool:
        """Return whether the curve is more than ``near`` times its rival all over."""
        sizes = np.geomspace(self.low, self.high, _LOOKED_AT)
        least_s = np.maximum(points[self.number][self.low].seconds, self.byte_s * sizes[:-1])
        return bool((least_s > near * rival(sizes[1:])).all())


def played_pieces(
    several: Sequence[Traffic], rival: Pieces | None = None, near: float = FAR
) -> list[Pieces]:
    """Return the seconds that each traffic takes, by the size of the buffer.

    They never fall: where a larger buffer would be through earlier, because its messages happen to
    meet less, both cost the same, what most sizes around there take (see ``_rising``).

    Args:
        several: the traffics.
        rival: what else can be sent; None: each size counts.
        near: a curve that is more times as high as its rival is far above.
    """
    points = [_guessed(traffic, rival) for traffic in several]
    intervals = [
        _Interval(index, low, high, _per_byte(guessed, high))
        for index, guessed in enumerate(points)
        for low, high in pairwise(_FIRST)
    ]
    intervals = [one for one in intervals if rival is None or not one.far(points, rival, near)]
    first = sorted({(one.number, nbytes) for one in intervals for nbytes in (one.low, one.high)})
    for (index, nbytes), point in zip(first, _played(several, first), strict=True):
        points[index][nbytes] = point
    while intervals:
        cut = []
        for one in intervals:
            known = points[one.number]
            if rival is None or not one.far(points, rival, near):
                middle = _between(known[one.low], known[one.high], sure=one.sure)
                cut += [] if middle is None else [(one, middle)]
        found = _played(several, [(one.number, middle) for one, middle in cut])
        intervals = []
        for (one, middle), point in zip(cut, found, strict=True):
            known = points[one.number]
            known[middle] = point
            if _believed(known[one.low], known[one.high], point):
                continue
            sure = _foretold(known[one.low], known[one.high], point)
            intervals += [one._replace(high=middle, sure=sure), one._replace(low=middle, sure=sure)]
    return [_joined([of[nbytes] for nbytes in sorted(of)]) for of in points]


def spotted_pieces(traffic: Traffic, asked: Asked, rival: Pieces | None = None) -> Pieces:
    """Return the seconds that a traffic takes at a few sizes, and a guess between them.

    Args:
        traffic: the messages.
        asked: at which sizes, each > 0; they are played, and none beside them.
        rival: what else can be sent: a size at which the curve is far above it is a guess as well.
    """
    points = _least(traffic, sorted({_FIRST[0], *asked.sizes}))
    played = [
        (0, nbytes)
        for nbytes in sorted(set(asked.sizes))
        if rival is None or points[nbytes].seconds <= asked.near * rival.at(nbytes)
    ]
    points |= {point.nbytes: point for point in _played([traffic], played)}
    return _joined([points[nbytes] for nbytes in sorted(points)])


def _guessed(traffic: Traffic, rival: Pieces | None) -> dict[float, _Point]:
    """Return a guess at the sizes that are played first; none where all of them will be."""
    return {} if rival is None else _least(traffic, _FIRST)


def _per_byte(guessed: dict[float, _Point], nbytes: float) -> float:
    """Return what a byte takes at least in buffers of at most so many.

    What a traffic takes at least is a start-up and a time for each byte, or the largest or smallest
    of several such: a byte of a smaller buffer takes no less.
    """
    return guessed[nbytes].seconds / nbytes if guessed else 0.0


def _least(traffic: Traffic, sizes: Sequence[float]) -> dict[float, _Point]:
    """Return the least that a traffic may take, by the size; sizes ascend, and are > 0."""
    ends = np.array([0.0, *sizes])
    least_s = least_seconds(traffic, ends)
    slopes = np.diff(least_s) / np.diff(ends)
    rows = zip(sizes, least_s[1:].tolist(), slopes.tolist(), strict=True)
    return {nbytes: _Point(nbytes, seconds, slope, guessed=True) for nbytes, seconds, slope in rows}


def _played(several: Sequence[Traffic], asked: Sequence[tuple[int, float]]) -> list[_Point]:
    """Return points of traffics, by their index and the size."""
    if not asked:
        return []
    sizes = [nbytes for _, nbytes in asked]
    found = play([several[index] for index, _ in asked], sizes)
    rows = zip(sizes, found.seconds.tolist(), found.slopes.tolist(), strict=True)
    return [_Point(*row) for row in rows]


def _between(low: _Point, high: _Point, *, sure: bool) -> float | None:
    """Return which size between two is to be played; None where a chord is close enough.

    Args:
        low: the smaller.
        high: the larger.
        sure: whether the curve is known to keep to its lines around there.
    """
    beside = high.nbytes <= low.nbytes * _BESIDE
    half_way = math.sqrt(low.nbytes * high.nbytes)
    if high.nbytes <= low.nbytes * _NARROW:
        return None
    if high.seconds <= low.seconds * (1 + CLOSE):
        return None if beside or _tells(low, high) else half_way
    crossing = _crossing(low, high)
    if crossing is None:
        return None if _one_line(low, high) else half_way
    share = (crossing - low.nbytes) / (high.nbytes - low.nbytes)
    chord_s = low.seconds + share * (high.seconds - low.seconds)
    if abs(chord_s - low.at(crossing)) <= CLOSE * low.at(crossing):
        return None if sure and beside else half_way
    within = low.nbytes * _NARROW < crossing < high.nbytes / _NARROW
    return crossing if within else half_way


def _crossing(low: _Point, high: _Point) -> float | None:
    """Return where the lines of two sizes cross, if between them."""
    steeper = high.slope - low.slope
    if not steeper:
        return None
    crossing = (low.at(0.0) - high.at(0.0)) / steeper
    inside = low.nbytes <= crossing * (1 + _SAME) and crossing <= high.nbytes * (1 + _SAME)
    return crossing if inside else None


def _one_line(low: _Point, high: _Point) -> bool:
    apart = abs(low.at(high.nbytes) - high.seconds), abs(high.at(low.nbytes) - low.seconds)
    return apart[0] <= _SAME * high.seconds and apart[1] <= _SAME * low.seconds


def _foretold(low: _Point, high: _Point, middle: _Point) -> bool:
    """Say whether the lines of two sizes foretold what was played between them."""
    crossing = _crossing(low, high)
    if crossing is None:
        return False
    return _tells(low if middle.nbytes <= crossing else high, middle)


def _tells(point: _Point, other: _Point) -> bool:
    """Say whether one size's line predicts the time of another size."""
    return abs(point.at(other.nbytes) - other.seconds) <= CLOSE * other.seconds


def _believed(low: _Point, high: _Point, middle: _Point) -> bool:
    """Say whether chords from two sizes to what was played between them are close to the curve."""
    if high.nbytes > low.nbytes * _NEAR or not _on_chord(low, high, middle):
        return False
    return high.nbytes <= low.nbytes * _BESIDE or (_tells(low, middle) and _tells(high, middle))


def _on_chord(low: _Point, high: _Point, middle: _Point) -> bool:
    """Say whether the chord of two sizes comes close to what was played between them."""
    share = (middle.nbytes - low.nbytes) / (high.nbytes - low.nbytes)
    chord_s = low.seconds + share * (high.seconds - low.seconds)
    return abs(chord_s - middle.seconds) <= CLOSE * middle.seconds


def _joined(points: Sequence[_Point]) -> Pieces:
    """Return chords between the points, and the lines of the first and the last beyond them.

    Args:
        points: by ascending size, at least two. A guess among them moves no point that was played.
    """
    highest_s = np.maximum.accumulate([point.seconds for point in points]).tolist()
    points = [
        point._replace(seconds=least_s) if point.guessed else point
        for point, least_s in zip(points, highest_s, strict=True)
    ]
    first, last = points[0], points[-1]
    start_s = max(first.seconds - max(first.slope, 0.0) * first.nbytes, 0.0)
    sizes = np.array([0.0, *(point.nbytes for point in points)])
    # A point counts for the sizes half way to its neighbours, in logarithms.
    ends = np.log([first.nbytes, *(point.nbytes for point in points), last.nbytes])
    weights = np.append(0.0, ends[2:] - ends[:-2])
    seconds = _rising(np.array([start_s, *(point.seconds for point in points)]), weights)
    slopes = np.append(np.diff(seconds) / np.diff(sizes), max(last.slope, 0.0))
    # Where the line goes on as it came there is no end of a piece.
    bends = np.abs(np.diff(slopes)) * sizes[1:] > _SAME * seconds[1:]
    knots = np.concatenate(([True], bends))
    sizes, seconds = sizes[knots], seconds[knots]
    slopes = np.append(np.diff(seconds) / np.diff(sizes), max(last.slope, 0.0))
    return Pieces.of(np.append(sizes[1:], np.inf), seconds - slopes * sizes, slopes)


def _rising(seconds: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the values that never fall and whose weighted sum of distances is the least.

    That is isotonic regression by absolute error. Neighbours that fall are pooled, and each pool
    has its median (Robertson and Waltman, On Estimating Monotone Parameters, 1968): the peaks and
    dips of a few sizes do not move the price of all others around them.
    """
    pools: list[tuple[float, int, int]] = []
    for index, value in enumerate(seconds.tolist()):
        pool = (value, index, index + 1)
        while pools and pools[-1][0] > pool[0]:
            both = slice(pools.pop()[1], index + 1)
            pool = (_median(seconds[both], weights[both]), both.start, both.stop)
        pools.append(pool)
    return np.concatenate([np.full(end - first, middle) for middle, first, end in pools])


def _median(values: FloatArray, weights: FloatArray) -> float:
    """Return a value such that those below and those above weigh at most half of all."""
    order = np.argsort(values)
    heavier = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(heavier, heavier[-1] / 2)])
