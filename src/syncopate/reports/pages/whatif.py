"""What-if page: a sweep as one HTML file: the answers, the curves, every change and every point.

Curves are drawn into the page as it is written: there is no script, and nothing is fetched. Each
series has its own pair of plots on common scales: throughput and efficiency of the best plan with
its interval shaded, of DDP's buckets, and the physical bound. Positions are percent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from syncopate.artifacts.results.whatif import AXES, PLANS, Outcome, Point, Setting, WhatIf
from syncopate.reports.pages.axes import Axis, thinned
from syncopate.reports.pages.page import render_page
from syncopate.reports.whatif import ASKS, heading, interval, rate, value
from syncopate.units import format_link, format_rate, format_seconds

_NUMBERS = (
    "nodes",
    "bandwidth",
    "gpus_per_node",
    "batch",
    "gpu_speed",
    "latency",
    "oversubscription",
    "pull_period",
    "servers",
    "local_sgd",
)
"""Axes whose values are numbers, those that curves are drawn over first."""

_MOST_SERIES = 8
_MOST_POINTS = 400
_TICKS = 5
_ROOM = 1.06
_FEW_DECADES = 2.0
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def whatif_page(found: WhatIf) -> str:
    """Return the page of a sweep.

    Raises:
        SyncopateError: the packages that make pages are not installed.
    """
    base = found.base
    return render_page(
        "whatif.html",
        {},
        title=f"{found.model} on {found.cluster}",
        found=found,
        count=len(found.points),
        verdict=_verdict(found),
        tiles=_tiles(found),
        today=PLANS[found.today],
        where=f"{base.setting.said('nodes')}, {base.setting.said('bandwidth')}",
        changes=_changes(found),
        curves=_curves(found),
        links=_links(found),
        doubts=_doubts(found),
        heads=[heading(axis) for axis in _shown(found)],
        rows=[_row(found, point) for point in found.points[:_MOST_POINTS]],
        more=max(len(found.points) - _MOST_POINTS, 0),
    )


def _verdict(found: WhatIf) -> str:
    """Return the sentence that a reader came for: what to change, or what it takes today."""
    if not found.changes:
        return found.sentences[0] if found.sentences else found.model
    marks = ("The single change", "No other network")
    said = (text for text in found.sentences if text.startswith(marks))
    return next(said, found.sentences[0])


def _tiles(found: WhatIf) -> list[tuple[str, str, str]]:
    base = found.base
    now = base.by(found.today)
    tiles = [
        (format_seconds(now.prediction.iteration_s), "an iteration today", interval(now)),
        (rate(now.throughput), found.unit, PLANS[found.today]),
        (
            f"{now.efficiency:.0%}",
            "efficiency today",
            f"{base.best.efficiency:.0%} by the best plan",
        ),
        (format_seconds(now.prediction.bound_s), "at least", "computation and line rate"),
    ]
    if found.currency and base.epoch_cost is not None:
        cost = f"{rate(base.epoch_cost)} {found.currency}"
        tiles.append((cost, "an epoch", "by the best plan"))
    return tiles


def _changes(found: WhatIf) -> list[dict[str, Any]]:
    most = max((change.gain for change in found.changes), default=0.0)
    return [
        {
            "words": change.words,
            "times": f"{1 + change.gain:.2f}x",
            "share": 100 * max(change.gain, 0.0) / most if most > 0 else 0.0,
            "iteration": format_seconds(change.iteration_s),
            "efficiency": f"{change.efficiency:.0%}",
            "asks": ASKS[change.asks],
        }
        for change in found.changes
    ]


def _links(found: WhatIf) -> list[dict[str, str]]:
    rows = []
    for one in found.links:
        rate_words = format_link(one.bandwidth_bytes_per_s) if one.bandwidth_bytes_per_s else "none"
        least = format_rate(one.least_bytes_per_s) if one.least_bytes_per_s else ""
        cost = "" if one.epoch_cost is None else f"{rate(one.epoch_cost)} {found.currency}"
        rows.append(
            {
                "nodes": str(one.nodes),
                "plan": PLANS[one.today],
                "link": rate_words,
                "least": least,
                "cost": cost,
            }
        )
    return rows


def _doubts(found: WhatIf) -> list[dict[str, str | bool]]:
    words = {change.kind: change.words for change in found.changes}
    return [
        {
            "what": f"{one.what} {one.factor - 1:+.0%}",
            "advice": words[one.advice],
            "times": f"{1 + one.gain:.2f}x",
            "changes": one.changes,
        }
        for one in found.doubts
    ]


def _shown(found: WhatIf) -> tuple[str, ...]:
    return found.varied or ("nodes", "bandwidth")


def _row(found: WhatIf, point: Point) -> dict[str, Any]:
    return {
        "names": [value(point, axis) for axis in _shown(found)],
        "now": point.setting == found.base.setting,
        "best": _cells(point.best),
        "ddp": _cells(point.ddp),
        "how": f"{point.best.exchange}, {point.best.buckets} buckets",
        "bound": format_seconds(point.best.prediction.bound_s),
        "cost": "" if point.epoch_cost is None else rate(point.epoch_cost),
    }


def _cells(found: Outcome) -> dict[str, str]:
    return {
        "iteration": format_seconds(found.prediction.iteration_s),
        "interval": interval(found),
        "throughput": rate(found.throughput),
        "efficiency": f"{found.efficiency:.0%}",
    }


# -- curves ---------------------------------------------------------------------------------------


def _curves(found: WhatIf) -> dict[str, Any]:
    """Return the plots of the first few series; nothing where no axis of numbers is varied."""
    over = next((axis for axis in _NUMBERS if axis in found.varied), None)
    if over is None:
        return {}
    field = AXES[over]
    series: dict[Setting, list[Point]] = defaultdict(list)
    for point in found.points:
        blank = {field: _blank(getattr(point.setting, field))}
        series[replace(point.setting, **blank)].append(point)
    chosen = {setting: mine for setting, mine in series.items() if len(mine) > 1}
    others = [axis for axis in found.varied if axis != over]
    shown = list(chosen.items())[:_MOST_SERIES]
    if not shown:
        return {}
    points = [point for _, mine in shown for point in mine]
    xs = [float(getattr(point.setting, field)) for point in points]
    across = Axis(min(xs), max(xs), min(xs) > 0 and max(xs) > 4 * min(xs))
    tops = [one.high_throughput for point in points for one in (point.best, point.ddp)]
    tops += [_bound_rate(point.best) for point in points]
    least = min(one.low_throughput for point in points for one in (point.best, point.ddp))
    # Over a logarithmic axis, what grows in proportion is a straight line on another one.
    as_log = across.is_log and least > 0
    up = Axis(least / _ROOM if as_log else 0.0, _ROOM * max(tops), as_log)
    whole = Axis(0.0, 1.0)
    return {
        "over": heading(over),
        "more": len(chosen) - len(shown),
        "series": [
            {
                "name": ", ".join(setting.said(axis) for axis in others) or "this network",
                "plots": [
                    _plot(mine, over, (across, up), _throughput, found.unit),
                    _plot(mine, over, (across, whole), _efficiency, "efficiency"),
                ],
            }
            for setting, mine in shown
        ],
    }


def _blank(figure: float | None) -> float | int:
    return 0.0 if isinstance(figure, float) else 0


class _Figures(NamedTuple):
    """The drawn values of a plan at a point: the figure, the interval's ends, the bound."""

    figure: float
    low: float
    high: float
    bound: float


def _throughput(one: Outcome) -> _Figures:
    return _Figures(one.throughput, one.low_throughput, one.high_throughput, _bound_rate(one))


def _efficiency(one: Outcome) -> _Figures:
    prediction = one.prediction
    low_s = prediction.low_s or prediction.iteration_s
    high_s = prediction.high_s or prediction.iteration_s

    def share(seconds: float) -> float:
        return min(prediction.compute_s / seconds, 1.0) if seconds > 0 else 1.0

    return _Figures(one.efficiency, share(high_s), share(low_s), share(prediction.bound_s))


def _bound_rate(one: Outcome) -> float:
    """Return the throughput of an iteration that takes no longer than the bound."""
    bound_s = one.prediction.bound_s
    return one.throughput * one.prediction.iteration_s / bound_s if bound_s > 0 else one.throughput


def _plot(
    points: Sequence[Point],
    over: str,
    scales: tuple[Axis, Axis],
    figures: Callable[[Outcome], _Figures],
    name: str,
) -> dict[str, Any]:
    across, up = scales
    field = AXES[over]
    ordered = sorted(points, key=lambda point: float(getattr(point.setting, field)))
    xs = [across.at(float(getattr(point.setting, field))) for point in ordered]
    best = [figures(point.best) for point in ordered]
    plain = [figures(point.ddp) for point in ordered]

    def line(values: Sequence[float]) -> str:
        return " ".join(f"{x},{100 - up.at(y):.3f}" for x, y in zip(xs, values, strict=True))

    band = list(zip(xs, (one.high for one in best), strict=True))
    band += list(zip(xs, (one.low for one in best), strict=True))[::-1]
    is_share = name == "efficiency"
    return {
        "name": name,
        "best": line([one.figure for one in best]),
        "ddp": line([one.figure for one in plain]),
        "bound": line([one.bound for one in best]),
        "band": " ".join(f"{x},{100 - up.at(y):.3f}" for x, y in band),
        "dots": [
            {
                "x": x,
                "y": f"{100 - up.at(mine.figure):.3f}",
                "said": f"{point.setting.said(over)}: {_said(mine.figure, is_share)} by the best "
                f"plan, {_said(theirs.figure, is_share)} by DDP's buckets, "
                f"{_said(mine.bound, is_share)} at most",
            }
            for x, mine, theirs, point in zip(xs, best, plain, ordered, strict=True)
        ],
        "x": [
            {"at": x, "text": value(point, over)}
            for x, point in thinned(list(zip(xs, ordered, strict=True)))
        ],
        "y": [
            {"at": 100 - up.at(tick), "text": _said(tick, is_share)}
            for tick in (_SHARES if is_share else _ticks(up))
        ],
    }


def _said(figure: float, is_share: bool) -> str:
    return f"{figure:.0%}" if is_share else rate(figure)


def _ticks(up: Axis) -> list[float]:
    """Return a few round figures on an axis."""
    if up.is_log:
        decades = range(math.floor(math.log10(up.low)), math.ceil(math.log10(up.high)) + 1)
        steps = (1, 2, 5) if up.decades < _FEW_DECADES else (1,)
        found = [step * 10.0**power for power in decades for step in steps]
        return [tick for tick in found if up.holds(tick)]
    raw = up.high / _TICKS
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw)
    return [step * place for place in range(int(up.high / step) + 1)]
