"""Disturbed: what a calibration's own file says against its figures.

Both are seen without measuring anew: how long it took against its budget, and at how few sizes its
collectives were measured. A line through two points has no error, and says nothing.
"""

from __future__ import annotations

from syncopate.artifacts.cluster import Cluster
from syncopate.units import format_bytes, format_seconds

BUDGET, ELAPSED = "budget_s", "elapsed_s"
"""Entries of a cluster's metadata: the seconds that calibration was given, and that it took."""

MOST_TIMES = 3.0
"""The budget that a calibration may take; undisturbed ones keep to about theirs."""

FEWEST = 3
"""Sizes below which a fit says nothing of its own error."""

_GRACE_S = 5.0


def disturbed(cluster: Cluster) -> tuple[str, ...]:
    """Return the doubts about a cluster's figures, a sentence each."""
    if BUDGET not in cluster.metadata:  # not of our calibration
        return ()
    return (*_overrun(cluster), *_few_sizes(cluster))


def doubts(cluster: Cluster) -> tuple[str, ...]:
    """Return a cluster's warnings, and what speaks against its figures besides."""
    return tuple(dict.fromkeys((*cluster.warnings, *disturbed(cluster))))


def _overrun(cluster: Cluster) -> list[str]:
    try:
        budget_s, took_s = (float(cluster.metadata.get(key, 0)) for key in (BUDGET, ELAPSED))
    except ValueError:
        return []
    if not budget_s > 0 or not took_s > MOST_TIMES * budget_s + _GRACE_S:
        return []
    return [
        f"calibration took {format_seconds(took_s)} for a budget of {format_seconds(budget_s)}: "
        "other work on these machines or links disturbed it, and its figures are too slow; "
        "calibrate again while nothing else runs"
    ]


def _few_sizes(cluster: Cluster) -> list[str]:
    """Return what to say of each collective with a curve that has too few sizes for its fit."""
    said = []
    for collective in dict.fromkeys(curve.collective for curve in cluster.curves):
        found: dict[tuple[int, ...], list[str]] = {}  # sizes -> algorithms measured at these alone
        for curve in cluster.curves:
            sizes = tuple(sorted({point.nbytes for point in curve.points}))
            if curve.collective == collective and len(sizes) < FEWEST:
                found.setdefault(sizes, []).append(curve.algorithm)
        if not found:
            continue
        where = "; ".join(
            f"{' and '.join(map(format_bytes, sizes))} alone ({', '.join(algorithms)})"
            for sizes, algorithms in found.items()
        )
        said.append(
            f"{collective} was measured at {where}: what other sizes take is a guess; "
            "calibrate again with a larger --budget, or more --sizes"
        )
    return said
