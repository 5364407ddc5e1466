"""Cost functions: bytes of a collective in, seconds out.

A line (the papers' ``a + b n``), a measured curve, an algorithm with the best of its options, and
the lower envelope over algorithms, which also says which is the cheapest at each size. All are
vectorised, never decrease with the size, and cost nothing for zero bytes, because nothing is sent.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.model.fits import isotonic, tail_slope
from syncopate.costs.model.pieces import FloatArray, Pieces, highest, lower_envelope
from syncopate.errors import InvalidValueError, UnknownNameError

Ranges = Sequence[tuple[float, Mapping[str, Any]]]
"""``(largest size in bytes, options)`` by ascending size, the last without limit."""


class CostFunction:
    """A cost given by its pieces.

    Args:
        pieces: the function.
        options: the options with which the algorithm costs this; none when left out.

    Attributes:
        pieces: as given.
        option_ranges: the options with which the algorithm costs this, by size.
        least_s_per_byte: seconds for which each byte keeps the link busy; 0.0 when unknown.
    """

    least_s_per_byte: float = 0.0

    def __init__(self, pieces: Pieces, options: Mapping[str, Any] | None = None) -> None:
        self.pieces = pieces
        self.option_ranges: Ranges = ((math.inf, options or {}),)

    @property
    def startup_s(self) -> float:
        """``a``: the limit of the cost as the message shrinks, in seconds."""
        return float(self.pieces.intercept_s[1])

    def __call__(self, nbytes: ArrayLike) -> FloatArray:
        """Return the cost in seconds of messages of ``nbytes`` (any shape; >= 0)."""
        return self.pieces(nbytes)

    def options(self, nbytes: float) -> Mapping[str, Any]:
        """Return the options with which the algorithm costs this at ``nbytes``."""
        ranges = self.option_ranges
        return ranges[bisect_left(ranges, nbytes, key=lambda item: item[0])][1]

    def fixed(self, options: Mapping[str, Any]) -> CostFunction:
        """Return the cost with the same options at every size: itself, where none are known."""
        return self

    @property
    def choices(self) -> Sequence[CostFunction]:
        """The joint cost of messages of several sizes with the same options."""
        return (self,)


def startup_part_s(cost: CostFunction, sizes: Sequence[float], duration_s: float) -> float:
    """Return how much of a bucket's duration is start-up, in which its channel's link is free.

    Args:
        cost: of the bucket's algorithm.
        sizes: bytes of each dtype; each that is not empty starts up once.
        duration_s: what the bucket takes. What its bytes need on the link is no start-up.
    """
    startup_s = cost.startup_s * sum(size > 0 for size in sizes)
    return min(startup_s, max(duration_s - cost.least_s_per_byte * sum(sizes), 0.0))


class LinearCost(CostFunction):
    """``T(n) = a + b n`` for n > 0 (MG-WFBP, Eq. 9).

    Args:
        fit: a and b.

    Example:
        >>> from syncopate.artifacts.cluster import LinearFit
        >>> LinearCost(LinearFit(a_s=1e-3, b_s_per_byte=1e-9))([0, 1_000_000]).tolist()
        [0.0, 0.002]
    """

    def __init__(self, fit: LinearFit) -> None:
        super().__init__(Pieces.of([np.inf], [fit.a_s], [fit.b_s_per_byte]))
        self.fit = fit


_TELLING = 4
"""From so many points on, a level end is told from noise."""

FREE = LinearCost(LinearFit(a_s=0.0, b_s_per_byte=0.0))
"""What every collective costs one rank alone: nothing."""


class CurveCost(CostFunction):
    """A measured curve: monotone, piecewise linear through the expected durations.

    The expected duration of each size stands for it (``CurvePoint.expected_s``, in which a
    straggling sample counts for little). Durations that decrease with the size are noise; isotonic
    regression pools them, weighted by their sample counts. Below the smallest measured size the
    curve is flat. It is believed where it was measured; beyond the largest size it goes on with the
    slope of its upper part (:func:`~syncopate.costs.model.fits.tail_slope`), or, where a few points
    were pooled to one level, with that of its linear fit, and costs no less than ``beyond`` says.

    Options are those of the nearest measured size, by ratio; a curve knows of no others.

    Args:
        curve: the measurement.
        beyond: what sizes larger than any measured one cost at least; None where nothing is known.
    """

    def __init__(self, curve: CollectiveCurve, beyond: Pieces | None = None) -> None:
        sizes = np.array([point.nbytes for point in curve.points], float)
        expected_s = np.array([point.expected_s for point in curve.points])
        counts = [float(len(point.samples_s)) for point in curve.points]
        seconds = isotonic(expected_s, counts)
        slope = 0.0
        if len(sizes) >= _TELLING or (len(sizes) > 1 and seconds[-1] > seconds[-2]):
            slope = tail_slope(sizes, expected_s)
        pieces = Pieces.chords(sizes, seconds, slope if slope > 0 else curve.fit.b_s_per_byte)
        if beyond is not None:
            pieces = pieces.up_to(float(sizes[-1]), highest([pieces, beyond]))
        super().__init__(pieces)
        self.curve = curve
        self.option_ranges = _measured_options(curve)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes in bytes, ascending."""
        return tuple(point.nbytes for point in self.curve.points)

    def point(self, nbytes: float) -> CurvePoint:
        """Return the measurement nearest to ``nbytes``: what tells how uncertain the cost is."""
        return min(self.curve.points, key=lambda point: abs(point.nbytes - nbytes))


def _measured_options(curve: CollectiveCurve) -> Ranges:
    order = {"order": curve.order} if curve.order else {}
    ranges: list[tuple[float, Mapping[str, Any]]] = []
    for point, following in pairwise(curve.points):
        if following.options != point.options:
            half_way = math.sqrt(max(point.nbytes, 1) * following.nbytes)
            ranges.append((half_way, point.options | order))
    return (*ranges, (math.inf, curve.points[-1].options | order))


class VariantCost(CostFunction):
    """An algorithm with the options that are the cheapest at every size.

    Args:
        variants: options and what the algorithm costs with them; at a tie the first wins.
        price: the cost with any other options.
    """

    def __init__(
        self,
        variants: Sequence[tuple[Mapping[str, Any], CostFunction]],
        price: Callable[[Mapping[str, Any]], CostFunction],
    ) -> None:
        super().__init__(lower_envelope([cost.pieces for _, cost in variants]))
        self._variants = tuple(variants)
        self._price = price
        # Piece 0 is the message of no bytes, which is never sent.
        owners, uppers = self.pieces.owner[1:].tolist(), self.pieces.upper_bytes[1:].tolist()
        self.option_ranges = tuple(
            (upper, variants[owner][0])
            for index, (owner, upper) in enumerate(zip(owners, uppers, strict=True))
            if owners[index : index + 2] != [owner, owner]
        )

    def fixed(self, options: Mapping[str, Any]) -> CostFunction:
        """Return the cost with ``options`` at every size."""
        for known, cost in self._variants:
            if known == options:
                return cost
        return self._price(options)

    @property
    def choices(self) -> Sequence[CostFunction]:
        """The cost with each of its options."""
        return [CostFunction(cost.pieces, options) for options, cost in self._variants]


class _HeldCost(CostFunction):
    """A cost that is at least so many seconds per byte."""

    def __init__(self, cost: CostFunction, least_s_per_byte: float) -> None:
        super().__init__(cost.pieces.at_least(least_s_per_byte))
        self._cost = cost
        self._held: dict[int, tuple[CostFunction, _HeldCost]] = {id(cost): (cost, self)}
        self.option_ranges = cost.option_ranges
        self.least_s_per_byte = least_s_per_byte

    def fixed(self, options: Mapping[str, Any]) -> CostFunction:
        """Return the cost with the same options at every size."""
        cost = self._cost.fixed(options)
        if id(cost) not in self._held:
            # The cost is kept, so that its id stays its own.
            self._held[id(cost)] = (cost, _HeldCost(cost, self.least_s_per_byte))
        return self._held[id(cost)][1]

    @property
    def choices(self) -> Sequence[CostFunction]:
        """Those of the cost, held."""
        return [_HeldCost(cost, self.least_s_per_byte) for cost in self._cost.choices]


class _NarrowedCost(CostFunction):
    """The cost of messages of which a share goes on the wire."""

    def __init__(self, cost: CostFunction, share: float) -> None:
        super().__init__(cost.pieces.of_share(share))
        self._cost = cost
        self._share = share
        self.option_ranges = tuple((upper / share, told) for upper, told in cost.option_ranges)

    def fixed(self, options: Mapping[str, Any]) -> CostFunction:
        """Return the cost with the same options at every size."""
        return _NarrowedCost(self._cost.fixed(options), self._share)

    @property
    def choices(self) -> Sequence[CostFunction]:
        """Those of the cost, narrowed."""
        return [_NarrowedCost(cost, self._share) for cost in self._cost.choices]


class Cheapest(NamedTuple):
    """The cheapest algorithm of a bucket.

    Attributes:
        algorithm: its name.
        options: what it is told; see ``schedules/options.py``.
        seconds: what it is expected to take.
    """

    algorithm: str
    options: Mapping[str, Any]
    seconds: float


class Envelope(CostFunction):
    """The cheapest of several algorithms at every size.

    Args:
        costs: algorithm name -> its cost; at a tie the name that stands first wins.
        least_s_per_byte: what every byte costs by any algorithm. Which algorithm is the
            cheapest does not depend on it.
        in_switches: whether switches make the sums, so that ``least_s_per_byte``, not the bytes
            that ranks have to exchange among themselves, is what the network takes at least.

    Example:
        >>> from syncopate.artifacts.cluster import LinearFit
        >>> ring = LinearCost(LinearFit(a_s=6e-3, b_s_per_byte=2e-9))
        >>> tree = LinearCost(LinearFit(a_s=1e-3, b_s_per_byte=8e-9))
        >>> cheapest = Envelope({"ring": ring, "binary_tree": tree})
        >>> cheapest.best(1_000), cheapest.best(10_000_000)
        ('binary_tree', 'ring')
    """

    def __init__(
        self,
        costs: Mapping[str, CostFunction],
        least_s_per_byte: float = 0.0,
        *,
        in_switches: bool = False,
    ) -> None:
        if not costs:
            raise InvalidValueError("costs of an envelope", dict(costs), "at least one algorithm")
        self._alone: dict[str, CostFunction] = dict(costs)
        self.costs: dict[str, CostFunction] = dict(costs)
        if least_s_per_byte:
            self.costs = {n: _HeldCost(cost, least_s_per_byte) for n, cost in costs.items()}
        pieces = lower_envelope([cost.pieces for cost in costs.values()])
        super().__init__(pieces.at_least(least_s_per_byte))
        self.least_s_per_byte = least_s_per_byte
        self.in_switches = in_switches

    @property
    def names(self) -> tuple[str, ...]:
        """The algorithms, in the order given."""
        return tuple(self.costs)

    @cached_property
    def together(self) -> Sequence[tuple[str, CostFunction, CostFunction]]:
        """The candidates for a bucket of several dtypes: every algorithm with each of its options.

        Its name, its cost, and its cost alone, which decides where what every byte costs is all
        that can be seen. One that never costs less than another, alone either, is left out.
        """
        found: list[tuple[str, CostFunction, CostFunction]] = []
        for name, cost in self.costs.items():
            for one, alone in zip(cost.choices, self._alone[name].choices, strict=True):
                if not any(other.pieces.never_above(alone.pieces) for _, _, other in found):
                    found = [row for row in found if not alone.pieces.never_above(row[2].pieces)]
                    found.append((name, one, alone))
        return found

    def best(self, nbytes: float) -> str:
        """Return the cheapest algorithm for a message of ``nbytes``."""
        # Nothing is sent for zero bytes; the algorithm of the smallest messages stands for it.
        piece = max(self.pieces.index_at(nbytes), 1)
        return self.names[int(self.pieces.owner[piece])]

    def of(self, algorithm: str) -> CostFunction:
        """Return the cost of one algorithm.

        Raises:
            UnknownNameError: this cluster has no cost for it.
        """
        if algorithm not in self.costs:
            raise UnknownNameError("algorithm", algorithm, self.costs, "the costs of this cluster")
        return self.costs[algorithm]

    def at_least(self, s_per_byte: float) -> Envelope:
        """Return these costs where every byte takes at least so long, by any algorithm."""
        return Envelope(self._alone, s_per_byte)

    def held(self, algorithms: Collection[str], s_per_byte: float) -> Envelope:
        """Return these costs where every byte takes some of the algorithms at least so long."""
        costs = {
            name: _HeldCost(cost, s_per_byte) if name in algorithms else cost
            for name, cost in self._alone.items()
        }
        return Envelope(costs, self.least_s_per_byte)

    def narrowed(self, share: float) -> Envelope:
        """Return these costs by the bytes of messages of which only ``share`` go on the wire."""
        costs = {name: _NarrowedCost(cost, share) for name, cost in self._alone.items()}
        return Envelope(costs, self.least_s_per_byte * share, in_switches=self.in_switches)

    def only(self, algorithm: str) -> Envelope:
        """Return the envelope of one algorithm alone.

        Raises:
            UnknownNameError: this cluster has no cost for it.
        """
        self.of(algorithm)
        return Envelope({algorithm: self._alone[algorithm]}, self.least_s_per_byte)

    def bucket(self, nbytes_by_dtype: Sequence[float]) -> Cheapest:
        """Return the cheapest algorithm of a bucket, its options and its seconds.

        A bucket has one algorithm with one set of options and travels as one collective per dtype,
        back to back, so its cost is the sum over its dtypes. A measured algorithm takes the options
        of its largest dtype.

        Args:
            nbytes_by_dtype: bytes of each dtype in the bucket; zeros are free.
        """
        largest = max(nbytes_by_dtype)
        if len(nbytes_by_dtype) == 1:
            name = self.best(largest)
            return Cheapest(name, self.costs[name].options(largest), self.pieces.at(largest))
        sizes = np.asarray(nbytes_by_dtype, float)
        seconds = [float(cost(sizes).sum()) for _, cost, _ in self.together]
        least_s = min(seconds)
        tied = [row for row, each in zip(self.together, seconds, strict=True) if each == least_s]
        name, cost, _ = min(tied, key=lambda row: float(row[2](sizes).sum()))
        return Cheapest(name, cost.options(largest), least_s)


Costs = Mapping[str, Envelope]
"""Collective -> its costs by algorithm."""
