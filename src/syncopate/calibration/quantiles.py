"""Quantiles: what the machine does when it is left alone."""

from __future__ import annotations

from collections.abc import Sequence


def lower_quartile(samples_s: Sequence[float]) -> float:
    """Return the sample that a quarter lie below, which a busy machine moves little.

    Disturbances only ever lengthen a duration; the minimum itself would hang on one lucky sample.

    Args:
        samples_s: at least one duration.
    """
    return sorted(samples_s)[len(samples_s) // 4]


def lowest_decile(samples_s: Sequence[float]) -> float:
    """Return the sample that a tenth lie below; the minimum of fewer than ten.

    For what has a hard floor, such as a message on an idle link.

    Args:
        samples_s: at least one duration.
    """
    return sorted(samples_s)[len(samples_s) // 10]
