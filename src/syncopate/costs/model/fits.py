"""Fits: from measured durations to the models that planning uses.

Durations of collectives have a hard floor and a long upper tail (a core taken away, a
retransmission), and span decades, so plain least squares would be ruled by one straggler at the
largest size. The fit here weighs relative errors and forgives outliers.

``scipy`` loads its submodules when they are first used. That takes half a second, which a training
that starts with a kept plan never spends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from syncopate.artifacts.cluster import LinearFit
from syncopate.costs.model.pieces import FloatArray
from syncopate.errors import CalibrationError

_RESOLUTION_S = 1e-15
"""Shorter is no duration: no clock tells it, and arithmetic on it overflows."""


def isotonic(seconds: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Return the non-decreasing sequence closest to ``seconds`` by weighted least squares.

    Args:
        seconds: shape (n,).
        weights: shape (n,), > 0.
    """
    pooled = scipy.optimize.isotonic_regression(
        np.asarray(seconds, float), weights=np.asarray(weights, float)
    )
    # Pooling averages floats, and two pools may come out an ulp apart in the wrong order.
    return np.maximum.accumulate(pooled.x)


def tail_slope(nbytes: FloatArray, seconds: FloatArray) -> float:
    """Return the seconds per byte with which a curve goes on beyond its largest size.

    The slope of a line through the points within a factor of ``TAIL`` of the largest size, four at
    least, by least squares of relative residuals. Points farther from the line than their
    neighbours count for less (Huber's weights), so that one straggler does not tilt it. Two
    neighbouring points of a dense curve differ by little more than noise; many points do not.

    Args:
        nbytes: shape (n,), n >= 2, strictly ascending.
        seconds: shape (n,), >= 0.
    """
    first = min(int(np.searchsorted(nbytes, nbytes[-1] / TAIL)), max(len(nbytes) - 4, 0))
    largest, longest = float(nbytes[-1]), float(seconds[first:].max())
    if longest == 0:
        return 0.0
    x, y = nbytes[first:] / largest, seconds[first:] / longest
    # A duration of zero is below the clock's resolution; it must not get an infinite weight.
    relative = 1 / np.maximum(y, 1e-3) ** 2
    weights, slope = relative, 0.0
    for _ in range(_REWEIGHTED):
        x0, y0 = np.average(x, weights=weights), np.average(y, weights=weights)
        slope = float((weights * (x - x0)) @ (y - y0) / ((weights * (x - x0)) @ (x - x0)))
        residual = np.abs(y - y0 - slope * (x - x0)) * np.sqrt(relative)
        reach = max(_HUBER * 1.4826 * float(np.median(residual)), 1e-12)
        weights = relative * reach / np.maximum(residual, reach)
    return slope * longest / largest


TAIL = 64.0
"""What lies further below a curve's largest size says nothing about how it goes on."""

_REWEIGHTED = 8
_HUBER = 1.345


def fit_linear(
    nbytes: Sequence[float] | FloatArray, seconds: Sequence[float] | FloatArray
) -> LinearFit:
    """Fit ``T(n) = a + b n`` with a, b >= 0, robustly.

    Minimises the sum of absolute *relative* residuals, ``sum_i |a + b n_i - t_i| / m_i`` with m_i
    the median duration of all samples of that size, exactly, as a linear programme. Relative,
    because the start-up time that a plan depends on shows only in small messages; absolute rather
    than squared, because then nearly half of the samples of a size may be stragglers without moving
    the line.

    Args:
        nbytes: message sizes, shape (n,), >= 0.
        seconds: durations, shape (n,), >= 0; several samples of one size are welcome.

    Returns:
        a and b. Samples of one size alone cannot tell them apart: then the median is all b's, or
        all a's if that size is 0.

    Raises:
        CalibrationError: no samples, unequal lengths, or values that are negative or not finite.
    """
    sizes, times = np.asarray(nbytes, float), np.asarray(seconds, float)
    if sizes.ndim != 1 or sizes.shape != times.shape or not len(sizes):
        raise CalibrationError(
            f"cannot fit {times.shape} durations to {sizes.shape} sizes; "
            "give two flat sequences of one length, with at least one sample"
        )
    if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
        raise CalibrationError("cannot fit sizes or durations that are NaN or infinite")
    if (sizes < 0).any() or (times < 0).any():
        raise CalibrationError("cannot fit negative sizes or durations")
    times = np.where(times < _RESOLUTION_S, 0.0, times)
    if not times.any():
        return LinearFit(a_s=0.0, b_s_per_byte=0.0)
    if sizes.min() == sizes.max():
        median, size = float(np.median(times)), float(sizes[0])
        return LinearFit(a_s=0.0 if size else median, b_s_per_byte=median / size if size else 0.0)
    return _least_absolute_relative(sizes, times)


def _least_absolute_relative(sizes: FloatArray, times: FloatArray) -> LinearFit:
    _, group = np.unique(sizes, return_inverse=True)
    medians = np.array([np.median(times[group == index]) for index in range(group.max() + 1)])
    # A duration of zero is below the clock's resolution; it must not get an infinite weight.
    typical = max(float(np.median(times[times > 0])), float(times.max()) * 1e-9)
    scale = np.maximum(medians[group], typical * 1e-3)
    largest = float(sizes.max())
    # Unknowns: a in units of `typical`, b in units of `typical / largest`, one residual per sample.
    lines = np.column_stack((np.ones_like(sizes), sizes / largest)) * (typical / scale)[:, None]
    target, ones = times / scale, scipy.sparse.identity(len(sizes), format="csr")
    solution = scipy.optimize.linprog(
        np.concatenate(([0.0, 0.0], np.ones(len(sizes)))),
        A_ub=scipy.sparse.bmat([[lines, -ones], [-lines, -ones]], format="csr"),
        b_ub=np.concatenate((target, -target)),
        bounds=(0, None),
        method="highs",
    )
    if solution.x is None:
        raise CalibrationError(f"cannot fit these durations: {solution.message}")
    a, b = (max(float(value), 0.0) for value in solution.x[:2])
    return LinearFit(a_s=a * typical, b_s_per_byte=b * typical / largest)
