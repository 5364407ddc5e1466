"""Noise: when one duration is longer than another, and when the two are not told apart.

[Note: noise] Two expected durations differ by noise alone if they are within ``NOISE`` of each
other, or within twice the standard error of their difference. What is compared takes turns when it
is measured: where both have many samples, ``DRIFT`` takes the place of ``NOISE``. Of few, one
straggler makes the standard error as large as the difference, so one duration is also longer where
each of its samples is, by more than ``NOISE``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from syncopate.artifacts.cluster import robust_mean, standard_error

NOISE = 0.05
"""Expected durations closer than this share of the smaller are not told apart."""

DRIFT = 0.01
"""The same where both have many samples, of calls that took turns."""

_MANY_SAMPLES, _FEWEST_SAMPLES = 6, 3


def longer_beyond_noise(one: Sequence[float], other: Sequence[float]) -> bool:
    """Say whether one thing takes longer than another by more than noise; see [Note: ties].

    Args:
        one: durations of it in seconds, at least one, measured in turns with the other's.
        other: durations of the other, at least one.
    """
    return beyond_noise(robust_mean(one), robust_mean(other), one, other)


def beyond_noise(
    mine_s: float, theirs_s: float, mine: Sequence[float], theirs: Sequence[float]
) -> bool:
    """Say whether an expected duration is longer than another by more than noise.

    Args:
        mine_s: the one, in seconds.
        theirs_s: the other.
        mine: samples of the one, at least one.
        theirs: samples of the other, at least one.
    """
    fewest = min(len(mine), len(theirs))
    noise_s = (DRIFT if fewest >= _MANY_SAMPLES else NOISE) * theirs_s
    always = fewest >= _FEWEST_SAMPLES and min(mine) > theirs_s + noise_s
    error_s = 0.0 if always else math.hypot(standard_error(mine), standard_error(theirs))
    return mine_s - theirs_s > max(noise_s, 2 * error_s)
