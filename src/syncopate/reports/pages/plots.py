"""Plots: bandwidth against message size, and what was expected of each bucket against what came.

Positions are percent of a plot's width and height, so that a page draws them at any size.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.artifacts.timeline import Timeline
from syncopate.reports.pages.axes import Axis, log_axis
from syncopate.reports.pages.evidence import Evidence, Message, alike, messages
from syncopate.reports.pages.spans import iteration_bounds
from syncopate.units import format_bytes, format_rate, format_seconds

_KINDS = 6
"""Collectives and algorithms that one plot can tell apart."""


def bandwidth(evidence: Evidence) -> dict[str, Any]:
    """Return bus bandwidth against message size: measured points, expected lines, the link.

    A point stands for all messages of one size, collective and algorithm: their median, and the
    range of the middle half.
    """
    size = evidence.timeline.world_size
    groups: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in messages(evidence.timeline):
        if one.nbytes > 0 and one.lasts_s > 0:
            rate = _factor(one.collective, size) * one.nbytes / one.lasts_s
            groups[one.collective, one.algorithm][one.nbytes].append(rate)
    most = sorted(groups, key=lambda key: -sum(map(len, groups[key].values())))[:_KINDS]
    lines = {key: _expected(evidence.prices.get(key, {}), key[0], size) for key in most}
    link = evidence.cluster.levels[-1].bandwidth_bytes_per_s if evidence.cluster else None
    sizes = [nbytes for key in most for nbytes in groups[key]]
    rates = [rate for key in most for found in groups[key].values() for rate in found]
    rates += [rate for line in lines.values() for _, rate in line] + ([link] if link else [])
    if not sizes or min(rates) <= 0:
        return {}
    across, up = log_axis(sizes, 2.0), log_axis(rates, 10.0)
    return {
        "x": [
            {"at": across.at(v), "text": format_bytes(v).replace(".0 ", " ")}
            for v in across.marks(_powers_of_two)
        ],
        "y": [
            {"at": 100 - up.at(v), "text": format_rate(v).replace(".00", "")}
            for v in up.marks(_decades if up.decades > 2 else _steps)
        ],
        "link": None if link is None else {"y": 100 - up.at(link), "text": format_rate(link)},
        "more": len(groups) - len(most),
        "kinds": [
            {
                "name": " ".join(filter(None, (algorithm, collective))),
                "points": [
                    _point(nbytes, found, across, up)
                    for nbytes, found in sorted(groups[collective, algorithm].items())
                ],
                "line": [
                    (across.at(nbytes), 100 - up.at(rate))
                    for nbytes, rate in lines[collective, algorithm]
                    if across.holds(nbytes)
                ],
            }
            for collective, algorithm in most
        ],
    }


def _point(nbytes: int, rates: Sequence[float], across: Axis, up: Axis) -> dict[str, Any]:
    ordered = sorted(rates)
    quarter = len(ordered) // 4
    low, high = ordered[quarter], ordered[len(ordered) - 1 - quarter]
    middle = statistics.median(ordered)
    return {
        "x": across.at(nbytes),
        "y": 100 - up.at(middle),
        "low": 100 - up.at(low),
        "high": 100 - up.at(high),
        "size": format_bytes(nbytes),
        "rate": format_rate(middle),
        "range": f"{format_rate(low)} to {format_rate(high)}",
        "count": len(ordered),
    }


def _expected(prices: Mapping[int, float], collective: str, size: int) -> list[tuple[int, float]]:
    factor = _factor(collective, size)
    return [(n, factor * n / lasts_s) for n, lasts_s in prices.items() if lasts_s > 0 < n]


def _factor(collective: str, world_size: int) -> float:
    return BUS_FACTORS[collective](world_size) if collective in BUS_FACTORS else 1.0


_powers_of_two = [float(2**power) for power in range(41)]
_decades = [10.0**power / 8 for power in range(2, 15)]
_steps = [digit * decade for decade in _decades for digit in (1, 2, 5)]


def against_plan(evidence: Evidence) -> dict[str, Any]:
    """Return what each bucket was expected to take, and when, against what was recorded.

    Where workload, cluster and plan are known the plan was played; else each message has its price
    by itself, and nothing says when it should have begun.
    """
    sent, count, _ = alike(evidence.timeline)
    bounds = iteration_bounds(evidence.timeline)
    came = _bars([one for one in sent if one.iteration in bounds], bounds)
    expected: dict[tuple[str, str], _Bar] = {}
    if evidence.expected is not None:
        expected = _played(evidence.expected)
    rows = []
    ends_s = [c.end_s for c in (*came.values(), *expected.values())]
    longest_s = max(ends_s, default=0.0) or 1.0
    for key, mine in came.items():
        told = expected.get(key)
        alone_s = evidence.prices.get((mine.collective, mine.algorithm), {}).get(mine.nbytes)
        wanted_s = told.lasts_s if told else alone_s
        if wanted_s is None:
            continue
        rows.append(
            {
                "name": " ".join(key),
                "size": format_bytes(mine.nbytes),
                "how": mine.algorithm,
                "expected": format_seconds(wanted_s),
                "came": format_seconds(mine.lasts_s),
                "ratio": f"{mine.lasts_s / wanted_s:.2f}x" if wanted_s > 0 else "-",
                "came_at": mine.place(longest_s),
                "expected_at": told.place(longest_s) if told else None,
            }
        )
    return {
        "rows": rows[:_ROWS],
        "more": max(len(rows) - _ROWS, 0),
        "count": count,
        "played": bool(expected),
        "longest": format_seconds(longest_s),
    }


_ROWS = 40


class _Bar:
    """The bar of all messages of one name: median begin and duration within an iteration."""

    def __init__(self, found: Sequence[Message], begins_s: Mapping[int, float]) -> None:
        self.nbytes = found[0].nbytes
        self.collective, self.algorithm = found[0].collective, found[0].algorithm
        self.start_s = statistics.median(one.arrived_s - begins_s[one.iteration] for one in found)
        self.lasts_s = statistics.median(one.lasts_s for one in found)
        self.end_s = self.start_s + self.lasts_s

    def place(self, longest_s: float) -> dict[str, float]:
        """Return where its bar stands."""
        left = min(max(100 * self.start_s / longest_s, 0.0), 100.0)
        return {"left": left, "width": 100 * self.lasts_s / longest_s}


def _bars(
    sent: Iterable[Message], bounds: Mapping[int, tuple[float, float]]
) -> dict[tuple[str, str], _Bar]:
    groups: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for one in sent:
        groups[one.lane, one.name].append(one)
    begins_s = {number: begin_s for number, (begin_s, _) in bounds.items()}
    return {key: _Bar(found, begins_s) for key, found in groups.items()}


def _played(timeline: Timeline) -> dict[tuple[str, str], _Bar]:
    """Return the bars of a played timeline; its last iterations stand for all."""
    bounds = iteration_bounds(timeline)
    last = sorted(bounds)[1:] or sorted(bounds)
    return _bars([one for one in messages(timeline) if one.iteration in last], bounds)
