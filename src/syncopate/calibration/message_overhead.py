"""Message overhead: what messages cost besides the wire, fitted to a few collectives.

What the collectives of :mod:`syncopate.calibration.samples` took is held against what
:mod:`syncopate.costs.schedule.execution` expects; the fit is a least squares of the ratio's
logarithm. Buffers that the executor copies and those in which it works in place have figures of
their own.

Everything else that is priced on a calibrated cluster, all other algorithms, options and sizes, is
a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from syncopate.artifacts.cluster import Cluster, Handling
from syncopate.calibration.samples import SIZES, Sample
from syncopate.costs.model.pieces import FloatArray
from syncopate.costs.schedule.execution import Executions
from syncopate.schedules import registry

_FITTED = ("call_s", "round_s", "stream_s", "addition_s", "byte_s", "exposed", "left_over")
_STEPS = 30
_NEAR = 0.1
_NUDGE = 1e-4
_ENOUGH = 1e-4
_SCALE = np.array([1e-3, 1e-4, 1e-4, 1e-4, 1e-8, 1.0, 1.0])
_MOST = np.array([*([np.inf] * 5), 1.0, 1.0])
_FEWER = np.array([1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0])
_UNFELT = 1e-9


def handling_of(
    cluster: Cluster, samples: Sequence[Sample], burst_byte_s: float
) -> tuple[Handling, ...]:
    """Return one entry per range of sizes, fitted to the samples there; none without samples.

    Args:
        cluster: what is known: levels, placement, γ.
        samples: of all sizes.
        burst_byte_s: see :class:`~syncopate.artifacts.cluster.Handling`; measured with the links.
    """
    if not samples:
        return ()
    return tuple(
        Handling(
            up_to_bytes=limit,
            burst_byte_s=burst_byte_s,
            **fit(cluster, [s for s in samples if s.nbytes in some], burst_byte_s),
        )
        for limit, some in SIZES
    )


def fit(cluster: Cluster, samples: Sequence[Sample], burst_byte_s: float) -> dict[str, float]:
    """Return the figures with which the expected times are closest to the measured ones.

    The loss is soft L1 on the logarithm of the ratio, with its threshold at 10%.

    Args:
        cluster: levels, placement and γ.
        samples: at least one; a share that none of them feels is 0.
        burst_byte_s: the figure that is known already.
    """
    measured = np.log([sample.seconds for sample in samples])
    expected = _Expected(cluster, samples, burst_byte_s)

    def off(scaled: FloatArray) -> FloatArray:
        return np.asarray(expected.at(scaled)[0] - measured)

    def slopes(scaled: FloatArray) -> FloatArray:
        return expected.at(scaled)[1]

    guess = _guess(cluster.world_size, samples) / _SCALE
    # Times are maxima of sums, so there are valleys on the way; another start mostly misses them.
    descents = [
        scipy.optimize.least_squares(
            off,
            start,
            slopes,
            bounds=(0.0, _MOST),
            loss="soft_l1",
            f_scale=_NEAR,
            ftol=_ENOUGH,
            max_nfev=_STEPS,
        )
        for start in (guess * _FEWER, guess)
    ]
    found = min(descents, key=lambda descent: float(descent.cost))
    # What nothing shows is not charged; costs keep their guess, which others may hide.
    shown = (np.abs(found.jac).max(axis=0) > _UNFELT) | np.isinf(_MOST)
    return dict(zip(_FITTED, np.where(shown, found.x * _SCALE, 0.0).tolist(), strict=True))


def _guess(ranks: int, samples: Sequence[Sample]) -> FloatArray:
    """Return figures to start from, at which every one of them is in the way of something."""
    shortest_s = min(sample.seconds for sample in samples)
    rounds_s = [s.seconds / (ranks - 1) for s in samples if s[:2] == ("all_gather", "ring")]
    round_s = min(rounds_s, default=shortest_s)
    return np.array([shortest_s / 2, round_s, round_s / 2, round_s / 10, 1e-9, 0.5, 0.5])


class _Expected:
    """The expected time of each sample with given figures, and its derivative by each.

    Both come from the same call, so that arrays are long enough to be worth it.
    """

    def __init__(self, cluster: Cluster, samples: Sequence[Sample], burst_byte_s: float) -> None:
        self._burst_byte_s = burst_byte_s
        schedules = [
            registry.build(
                sample.collective, sample.algorithm, cluster.world_size, **sample.options
            )
            for sample in samples
        ]
        different = list(dict.fromkeys(schedules))
        sizes = sorted({sample.nbytes for sample in samples})
        self._sizes = len(sizes)
        self._rows = [different.index(schedule) for schedule in schedules]
        self._columns = [sizes.index(sample.nbytes) for sample in samples]
        self._runs = Executions(different, cluster, sizes * (len(_FITTED) + 1))
        self._known: tuple[FloatArray, FloatArray, FloatArray] | None = None

    def at(self, scaled: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the logarithm of every sample's seconds, and its slopes.

        Args:
            scaled: figures over ``_SCALE``, shape (figures,).

        Returns:
            Shapes (samples,) and (samples, figures).
        """
        if self._known is None or not np.array_equal(scaled, self._known[0]):
            nudges = np.where(scaled + _NUDGE < _MOST, _NUDGE, -_NUDGE)
            here, *there = self._logarithms(scaled + np.diag(np.append(0.0, nudges))[:, 1:])
            slopes = (np.stack(there, axis=1) - here[:, None]) / nudges
            self._known = scaled.copy(), here, np.asarray(slopes)
        return self._known[1:]

    def _logarithms(self, scaled: FloatArray) -> FloatArray:
        """Return the logarithm of every sample's seconds, shape (sets, samples)."""
        entries = [
            Handling(burst_byte_s=self._burst_byte_s, **dict(zip(_FITTED, figures, strict=True)))
            for figures in (scaled * _SCALE).tolist()
        ]
        seconds = self._runs.times([entry for entry in entries for _ in range(self._sizes)])
        found = seconds.reshape(len(seconds), len(entries), self._sizes)
        return np.asarray(np.log(found[self._rows, :, self._columns].T))
