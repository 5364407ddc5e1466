"""Quantiles: what the machine does when it is left alone."""

from __future__ import annotations

from collections.abc import Sequence


def lower_quartile(samples_s: Sequence[float]) -> float:
    """Return the sample that a quarter lie below, which a busy machine moves little.

    Disturbances only ever lengthen a duration; the minimum itself would hang on one lucky sample.

    Args:
        samples_s: at least one duration.
    """
    ordered = sorted(samples_s)
    return ordered[len(ordered) // 4]
