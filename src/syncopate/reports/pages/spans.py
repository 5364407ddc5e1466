"""Spans: a timeline as the script of a page draws it, and which of it where there is too much.

A page holds so many spans. Of a longer run it shows whole iterations: the typical one, whose length
is nearest to the median, and the slowest. Of one that is still too large it shows some ranks: those
that others wait for most, and others evenly from all.

Times travel as whole numbers of a tenth of a microsecond from the first start.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncopate.analysis.collectives import collectives
from syncopate.analysis.memoized import memoized
from syncopate.analysis.path import critical_path
from syncopate.analysis.phases import COMPUTATION
from syncopate.analysis.work import last_end_s, steady, works
from syncopate.artifacts.timeline import LANES, Span, Timeline
from syncopate.artifacts.timelines.spans import Times

MOST_SPANS = 24_000
"""Spans of one page."""

_TICK_S = 1e-7
_SLOWEST = 3
_DEEPEST = 4


@dataclass(frozen=True)
class Chosen:
    """The part of a timeline that a page shows.

    Attributes:
        iterations: that are shown, ascending.
        ranks: that are shown, ascending.
        typical: the iteration whose length is nearest to the median; -1: nothing was computed.
        slowest: the longest iteration; -1: nothing was computed.
        said: what is left out, in a sentence; empty where nothing is.
    """

    iterations: tuple[int, ...]
    ranks: tuple[int, ...]
    typical: int
    slowest: int
    said: str


@memoized
def iteration_bounds(timeline: Timeline) -> dict[int, tuple[float, float]]:
    """Return when each iteration with computation began and ended: one ends as the next begins."""
    work = works(timeline)
    found: dict[int, tuple[float, float]] = {}
    begins_s = min((one.begins_s for one in work), default=0.0)
    for number, ends_s in sorted(last_end_s(work).items()):
        found[number] = begins_s, max(ends_s, begins_s)
        begins_s = max(ends_s, begins_s)
    return found


def chosen(timeline: Timeline, waited_for_s: Mapping[int, float], most: int = MOST_SPANS) -> Chosen:
    """Return what a page shows of a timeline.

    Args:
        timeline: measured or simulated.
        waited_for_s: rank -> how long others wait for it.
        most: spans of a page.
    """
    bounds = iteration_bounds(timeline)
    columns = np.unique(timeline.columns.iteration, return_counts=True)
    counts = dict(zip(*(column.tolist() for column in columns), strict=True))
    lasts_s = {n: bounds[n][1] - bounds[n][0] for n in steady(list(bounds))}
    ranks = tuple(range(timeline.world_size))
    if not lasts_s:
        return Chosen(tuple(sorted(counts)), ranks, -1, -1, "")
    middle_s = statistics.median(lasts_s.values())
    typical = min(lasts_s, key=lambda n: (abs(lasts_s[n] - middle_s), n))
    order = sorted(lasts_s, key=lambda n: (-lasts_s[n], n))
    if len(timeline.spans) <= most:
        return Chosen(tuple(sorted(counts)), ranks, typical, order[0], "")
    shown, held = [typical], counts[typical]
    for number in order[: _SLOWEST + 1]:
        if number not in shown and held + counts[number] <= most:
            shown.append(number)
            held += counts[number]
    parts = [f"iteration {typical} is typical, its length nearest to the median"]
    if rest := [str(n) for n in shown[1:]]:
        parts.append(f"{', '.join(rest)} took longest")
    if held > most:
        there = np.unique(timeline.columns.rank).tolist()
        ranks = _some(there, waited_for_s, max(most * len(there) // held, 1))
        parts.append(f"{len(ranks)} of its {timeline.world_size} ranks")
    said = f"{len(shown)} of {len(counts)} iterations are shown: {'; '.join(parts)}"
    slowest = next((n for n in order if n in shown), typical)
    return Chosen(tuple(sorted(shown)), ranks, typical, slowest, said)


def drawing(timeline: Timeline, what: Chosen) -> dict[str, Any]:
    """Return what the script draws: rows, spans by columns, iterations, and critical paths."""
    every = timeline.columns
    shown = np.isin(every.iteration, what.iterations) & np.isin(every.rank, what.ranks)
    places = np.flatnonzero(shown)
    order = np.lexsort((-every.end_s[places], every.start_s[places]))
    places = places[order]
    spans, moves_s = list(every.take(places)), _moves_s(timeline)[places].tolist()
    origin_s = min((span.start_s for span in spans), default=0.0)
    rows, row_of = _rows(spans)
    depths, deepest = _depths(spans, row_of, len(rows))
    texts: dict[str, int] = {}
    bounds = {n: b for n, b in iteration_bounds(timeline).items() if n in what.iterations}
    columns = _columns(spans, texts, moves_s, origin_s)
    words = {what.slowest: "slowest", what.typical: "typical"}
    return {
        "tick_s": _TICK_S,
        "lanes": LANES,
        "rows": [{**row, "depth": depth} for row, depth in zip(rows, deepest, strict=True)],
        "iterations": [
            {
                "number": number,
                "start": _ticks(begin_s - origin_s),
                "end": _ticks(end_s - origin_s),
                "word": words.get(number, ""),
            }
            for number, (begin_s, end_s) in sorted(bounds.items())
        ],
        "whole": not what.said,
        "typical": what.typical,
        "slowest": what.slowest,
        "spans": {"row": [row_of[_row(span)] for span in spans], "depth": depths, **columns},
        "texts": list(texts),
        "paths": [
            {
                "rank": segment.rank,
                "kind": segment.kind,
                "start": _ticks(segment.start_s - origin_s),
                "end": _ticks(segment.end_s - origin_s),
            }
            for number in dict.fromkeys((what.typical, what.slowest))
            if number in bounds
            for segment in critical_path(timeline, number)
            if segment.rank in what.ranks
        ],
    }


def _columns(
    spans: Sequence[Span],
    texts: dict[str, int],
    moves_s: Sequence[float],
    origin_s: float,
) -> dict[str, list[int]]:
    """Return a column of numbers for each field of the spans; -1 for an unknown time.

    Texts have numbers, so that a page holds each once.
    """

    def ticks(seconds: float | None) -> int:
        return -1 if seconds is None else _ticks(seconds - origin_s)

    return {
        "lane": [LANES.index(span.lane) for span in spans],
        "start": [ticks(span.start_s) for span in spans],
        "end": [ticks(span.end_s) for span in spans],
        "moves": [-1 if math.isnan(at_s) else ticks(at_s) for at_s in moves_s],
        "launched": [ticks(span.launched_s) for span in spans],
        "ready": [ticks(span.ready_s) for span in spans],
        "iteration": [span.iteration for span in spans],
        "name": [texts.setdefault(span.name, len(texts)) for span in spans],
        "detail": [texts.setdefault(span.detail, len(texts)) for span in spans],
        "bytes": [span.nbytes for span in spans],
    }


def _ticks(seconds: float) -> int:
    return round(seconds / _TICK_S)


def _row(span: Span) -> tuple[int, str, int]:
    if span.lane in COMPUTATION:
        return span.rank, "compute", 0
    return span.rank, span.lane, span.channel


def _rows(spans: Iterable[Span]) -> tuple[list[dict[str, Any]], dict[tuple[int, str, int], int]]:
    """Return the rows, and which is whose: of each rank what it computed, channels, waiting."""
    order = ("compute", "push", "pull", "wait")
    keys = sorted({_row(s) for s in spans}, key=lambda key: (key[0], order.index(key[1]), key[2]))
    several = {(rank, kind) for rank, kind, channel in keys if channel}
    rows = [
        {"rank": rank, "label": f"{kind} {channel}" if (rank, kind) in several else kind}
        for rank, kind, channel in keys
    ]
    return rows, {key: index for index, key in enumerate(keys)}


def _depths(
    spans: Sequence[Span], row_of: Mapping[tuple[int, str, int], int], rows: int
) -> tuple[list[int], list[int]]:
    """Return how spans of one row that overlap stand above each other.

    Returns:
        The first free place of each span in its row, as ``spans`` stand by start; and how many
        places each row has.
    """
    ends_s: list[list[float]] = [[] for _ in range(rows)]
    found = []
    for span in spans:
        taken = ends_s[row_of[_row(span)]]
        depth = next((d for d, end_s in enumerate(taken) if end_s <= span.start_s), len(taken))
        if depth == len(taken) and depth < _DEEPEST:
            taken.append(span.end_s)
        depth = min(depth, _DEEPEST - 1)
        taken[depth] = max(taken[depth], span.end_s)
        found.append(depth)
    return found, [max(len(taken), 1) for taken in ends_s]


def _moves_s(timeline: Timeline) -> Times:
    """Return when each span of communication ceases to wait; NaN of the others."""
    found = collectives(timeline)
    moves_s = np.full(len(timeline.columns), math.nan)
    moves_s[found.rows] = found.moves_s
    return moves_s


def _some(ranks: Sequence[int], waited_for_s: Mapping[int, float], count: int) -> tuple[int, ...]:
    """Return some ranks: half those that are waited for most, the others evenly from all."""
    late = sorted(waited_for_s, key=lambda rank: -waited_for_s[rank])[: (count + 1) // 2]
    found = dict.fromkeys(late)
    for index in range(count):
        if len(found) < count:
            found[ranks[index * len(ranks) // count]] = None
    return tuple(sorted(found))
