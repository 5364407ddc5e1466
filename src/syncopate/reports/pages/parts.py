"""Parts: where iterations go, by phase, by bucket, by rank and by pairs of ranks that wait.

Every number has its formula in ``docs/metrics.md``. Shares are of a bar's or a plot's length, in
percent, so that a page draws them at any width.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.collectives import bandwidths, is_served
from syncopate.analysis.evidence.noise import quantile
from syncopate.analysis.exposure import MessageExposure, exposures
from syncopate.analysis.path import Segment, critical_path
from syncopate.analysis.phases import mean, phases
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.round_trips import mean_round_trips
from syncopate.analysis.work import Work, steady, works
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import STAGES, RoundTrip
from syncopate.reports.attribution import spends_more_on
from syncopate.reports.pages.evidence import alike
from syncopate.reports.pages.spans import Chosen, iteration_bounds
from syncopate.reports.round_trips import longest_stage
from syncopate.units import format_bytes, format_rate, format_seconds

_BUCKETS, _RANKS, _CELLS = 40, 32, 16
"""Rows that a page shows of buckets and of ranks, and ranks of a matrix."""

_POINTS = 300
"""Iterations of a line."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def _seconds(seconds: float) -> str:
    """Write a duration; nothing but rounding is none."""
    return "0" if abs(seconds) < 5e-8 else format_seconds(seconds)


def whole_s(timeline: Timeline) -> float:
    """Return how long an iteration takes, in the mean over those that count."""
    bounds = iteration_bounds(timeline)
    numbers = steady(list(bounds))
    if not numbers:
        return 0.0
    return statistics.fmean(bounds[n][1] - bounds[n][0] for n in numbers)


def division(timeline: Timeline) -> list[dict[str, Any]]:
    """Return what an iteration consists of, in the mean over ranks, and the share of each part."""
    work = works(timeline)
    numbers = steady([one.iteration for one in work])
    each = len({one.rank for one in work}) * len(numbers)
    if not each:
        return []
    counted = frozenset(numbers)
    found = exposures(timeline)
    kept = np.isin(found.spans.iteration, numbers)
    computed_s = sum(w.computation_s for w in work if w.iteration in counted) / each
    waiting_s = float(found.waiting_s[kept].sum()) / each
    moving_s = float(found.transferring_s[kept].sum()) / each
    total_s = max(whole_s(timeline), computed_s + waiting_s + moving_s)
    rest_s = max(total_s - computed_s - waiting_s - moving_s, 0.0)
    sent = [
        ("waiting", "waiting for the slowest rank", waiting_s),
        ("moving", "transfers that nothing hides", moving_s),
    ]
    if is_served(timeline):  # what a server waits for is no part of a message
        sent = [("moving", "messages to and from servers that nothing hides", moving_s)]
    parts = (
        ("compute", "computation", computed_s),
        *sent,
        ("rest", "anything else: input, pauses, the framework", rest_s),
    )
    return [
        {
            "style": style,
            "what": what,
            "time": _seconds(seconds),
            "share": 100 * seconds / total_s if total_s > 0 else 0.0,
        }
        for style, what, seconds in parts
    ]


def hidden(timeline: Timeline) -> float:
    """Return the hidden share of communication, over the iterations that count."""
    numbers = set(steady(np.unique(timeline.columns.iteration).tolist()))
    return mean([one for one in phases(timeline) if one.iteration in numbers]).overlap_ratio


def buckets(timeline: Timeline) -> dict[str, Any]:
    """Return a row for each message: exposed, of that waiting and transferring, and hidden."""
    sent, count, of = alike(timeline)
    words = {
        (one.lane, one.name): " ".join(filter(None, (one.algorithm, one.collective)))
        for one in sent
    }
    rows = exposures(timeline).by_message({one.iteration for one in sent})
    rows.sort(key=lambda row: row.start_s)
    longest_s = max((sum(_times_s(row)) for row in rows), default=0.0) or 1.0
    return {
        "count": count,
        "of": of,
        "more": max(len(rows) - _BUCKETS, 0),
        "rows": [
            {
                "name": f"{row.lane} {row.name}",
                "how": words.get((row.lane, row.name), ""),
                "size": format_bytes(row.nbytes),
                "exposed": _seconds(row.exposed_s),
                "waiting": _seconds(row.waiting_s),
                "moving": _seconds(row.transferring_s),
                "hidden": _seconds(row.hidden_s),
                "shares": [100 * seconds / longest_s for seconds in _times_s(row)],
            }
            for row in _largest(rows)
        ],
    }


def _times_s(row: MessageExposure) -> tuple[float, float, float]:
    return row.waiting_s, row.transferring_s, row.hidden_s


def _largest(rows: Sequence[MessageExposure]) -> list[MessageExposure]:
    """Return the rows in their order, of too many those with the most exposed time."""
    kept = set(sorted(rows, key=lambda row: -row.exposed_s)[:_BUCKETS])
    return [row for row in rows if row in kept]


_STAGES = ("push", "waiting", "update", "wait", "forward", "pull")
"""How each of :data:`~syncopate.analysis.round_trips.STAGES` is drawn."""


def servers(trips: Sequence[RoundTrip]) -> dict[str, Any]:
    """Return of each server where the time goes from a push to the weights."""
    found = mean_round_trips(trips)
    if not found:
        return {}
    longest_s = max(one.total_s for one in found) or 1.0
    return {
        "said": longest_stage(found).replace("`", ""),
        "stages": [*zip(STAGES, _STAGES, strict=True)],
        "rows": [
            {
                "server": one.server,
                "whole": format_seconds(one.total_s),
                "times": [_seconds(seconds) for seconds in one.stages_s],
                "shares": [
                    (style, 100 * seconds / longest_s)
                    for style, seconds in zip(_STAGES, one.stages_s, strict=True)
                ],
            }
            for one in found
        ],
    }


def distributions(timeline: Timeline) -> dict[str, Any]:
    """Return of each rank how its iterations and its computation are distributed."""
    work = works(timeline)
    numbers = set(steady([one.iteration for one in work]))
    by_rank: dict[int, list[Work]] = defaultdict(list)
    for one in work:
        if one.iteration in numbers:
            by_rank[one.rank].append(one)
    longest_s = max((w.ends_s - w.begins_s for w in work if w.iteration in numbers), default=0.0)
    most_s = max((w.computation_s for mine in by_rank.values() for w in mine), default=0.0)
    order = sorted(by_rank, key=lambda r: -statistics.median(w.computation_s for w in by_rank[r]))
    shown = sorted(order[:_RANKS])
    return {
        "iterations": len(numbers),
        "more": len(order) - len(shown),
        "longest": format_seconds(longest_s),
        "most": format_seconds(most_s),
        "rows": [
            {
                "rank": rank,
                "computation": _box([w.computation_s for w in by_rank[rank]], most_s),
                "iteration": _box([w.ends_s - w.begins_s for w in by_rank[rank]], longest_s),
            }
            for rank in shown
        ],
    }


def _box(values_s: Sequence[float], longest_s: float) -> dict[str, Any]:
    """Return the least, the quartiles and the most of values, and where each of them stands."""
    ordered = sorted(values_s)
    points = [quantile(ordered, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {
        "at": [100 * value / longest_s if longest_s > 0 else 0.0 for value in points],
        "median": format_seconds(points[2]),
        "said": "{} to {}, half of them {} to {}, median {}".format(
            *(format_seconds(points[i]) for i in (0, 4, 1, 3, 2))
        ),
    }


def course(timeline: Timeline, what: Chosen) -> dict[str, Any]:
    """Return how long each iteration took, as a line from left to right."""
    bounds = iteration_bounds(timeline)
    numbers = steady(list(bounds))
    lasts_s = [bounds[n][1] - bounds[n][0] for n in numbers]
    most_s = max(lasts_s, default=0.0)
    if len(numbers) < 2 or most_s <= 0:
        return {}
    words = {what.slowest: "slowest", what.typical: "typical"}
    # Of very many the slowest of a few that follow one another stands for them.
    step = math.ceil(len(numbers) / _POINTS)
    bins = [range(at, min(at + step, len(numbers))) for at in range(0, len(numbers), step)]
    drawn = {max(places, key=lasts_s.__getitem__) for places in bins}
    drawn |= {place for place, number in enumerate(numbers) if number in words}
    points = [
        {
            "x": 100 * index / (len(numbers) - 1),
            "y": 100 - 92 * lasts_s[index] / most_s,
            "said": f"iteration {numbers[index]}: {format_seconds(lasts_s[index])}",
            "style": words.get(numbers[index], ""),
        }
        for index in sorted(drawn)
    ]
    return {
        "points": points,
        "first": numbers[0],
        "last": numbers[-1],
        "said": f"{len(numbers)} iterations of {format_seconds(min(lasts_s))} to "
        f"{format_seconds(most_s)}, median {format_seconds(statistics.median(lasts_s))}",
        "typical": format_seconds(bounds[what.typical][1] - bounds[what.typical][0]),
        "slowest": format_seconds(most_s),
    }


def waited_for(timeline: Timeline) -> dict[int, float]:
    """Return rank -> how long all others wait for it, in sum."""
    total_s = np.zeros(timeline.world_size)
    for _, ranks, seconds_s in exposures(timeline).charges():
        total_s += np.bincount(ranks, seconds_s, timeline.world_size)
    return {rank: seconds for rank, seconds in enumerate(total_s.tolist()) if seconds > 0}


def _waiting(timeline: Timeline) -> NDArray[np.float64]:
    """Return how long each rank (rows) waits for each (columns) in an iteration that counts."""
    numbers = steady([one.iteration for one in works(timeline)])
    size = timeline.world_size
    cells_s = np.zeros(size * size)
    found = exposures(timeline)
    counted = np.isin(found.spans.iteration, numbers) & (found.waiting_s > 0)
    if numbers:
        for places, late, seconds_s in found.charges(np.flatnonzero(counted)):
            cells = found.spans.rank[places].astype(np.int64) * size + late
            cells_s += np.bincount(cells, seconds_s, size * size) / len(numbers)
    return cells_s.reshape(size, size)


def matrix(timeline: Timeline) -> dict[str, Any]:
    """Return how long each rank waits for each other one, in the mean over iterations."""
    cells_s = _waiting(timeline)
    most_s = float(cells_s.max(initial=0.0))
    if most_s <= 0:
        return {}
    involved_s = cells_s.sum(axis=0) + cells_s.sum(axis=1)
    unit = next((one for one in _UNITS if most_s >= one[0]), _UNITS[-1])
    shown = sorted(np.argsort(-involved_s, kind="stable")[:_CELLS].tolist())
    return {
        "ranks": shown,
        "unit": unit[1],
        "of": timeline.world_size,
        "rows": [
            {
                "rank": waits,
                "cells": [
                    {
                        "time": "" if late == waits else _in(unit, float(cells_s[waits, late])),
                        "share": round(100 * float(cells_s[waits, late]) / most_s),
                        "late": late,
                    }
                    for late in shown
                ],
            }
            for waits in shown
        ],
        "late": _late(timeline),
    }


def _in(unit: tuple[float, str], seconds: float) -> str:
    value = seconds / unit[0]
    return "0" if value < 0.005 else f"{value:.3g}"


def _late(timeline: Timeline) -> list[dict[str, str]]:
    """Return the ranks that others wait for, the worst first, and why."""
    return [
        {
            "rank": str(one.rank),
            "time": format_seconds(one.caused_s),
            "share": f"{one.share:.0%}",
            "why": spends_more_on(one),
        }
        for one in [found for found in stragglers(timeline) if found.caused_s > 0][:8]
    ]


def path(timeline: Timeline, iteration: int) -> dict[str, Any]:
    """Return the critical path of an iteration: its pieces by rank, and what it consists of."""
    segments = critical_path(timeline, iteration)
    if not segments:
        return {}
    begin_s = min(segment.start_s for segment in segments)
    total_s = max(segment.end_s for segment in segments) - begin_s or 1.0
    sums_s: dict[tuple[int, str], float] = defaultdict(float)
    by_rank: Mapping[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        sums_s[segment.rank, segment.kind] += segment.duration_s
        by_rank[segment.rank].append(segment)
    most = sorted(by_rank, key=lambda r: -sum(s.duration_s for s in by_rank[r]))[:_CELLS]
    return {
        "iteration": iteration,
        "lasts": format_seconds(total_s),
        "left_out": len(by_rank) - len(most),
        "rows": [
            {
                "rank": rank,
                "pieces": [
                    {
                        "style": piece.kind,
                        "left": 100 * (piece.start_s - begin_s) / total_s,
                        "width": 100 * piece.duration_s / total_s,
                        "said": f"{piece.kind} {piece.name}".rstrip()
                        + f", {format_seconds(piece.duration_s)}",
                    }
                    for piece in by_rank[rank]
                ],
            }
            for rank in sorted(most)
        ],
        "parts": [
            {
                "what": kind,
                "rank": rank,
                "time": format_seconds(seconds),
                "share": 100 * seconds / total_s,
            }
            for (rank, kind), seconds in sorted(sums_s.items(), key=lambda item: -item[1])[:12]
        ],
    }


def reached(timeline: Timeline, link_bytes_per_s: float | None) -> list[dict[str, str]]:
    """Return what bandwidth each kind of collective reached, against a link's where it is known."""
    rows = []
    for one in bandwidths(timeline):
        of = f"{one.bus_bytes_per_s / link_bytes_per_s:.0%}" if link_bytes_per_s else ""
        rows.append(
            {
                "collective": one.collective,
                "bytes": format_bytes(one.nbytes),
                "time": format_seconds(one.transferring_s),
                "rate": format_rate(one.bus_bytes_per_s),
                "of": of,
            }
        )
    return rows
