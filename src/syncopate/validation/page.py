"""Page: a validation as a document in Markdown: how far off, where, and why.

What is said in words stands in files beside the data; tables come from the points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from statistics import median

from msgspec import structs

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.results.benchmark import percentile
from syncopate.shown import markdown_table
from syncopate.units import format_seconds
from syncopate.validation.errors import (
    LEAST_POINTS,
    Errors,
    covered,
    errors_by,
    errors_of,
    interval_of,
)
from syncopate.validation.point import GPU, LAB, Phase, Point, Validation
from syncopate.validation.published import gpu_points

_LITTLE = 0.1
"""What shared processors add to a prediction of which links decide, at most."""


def page(validation: Validation) -> str:
    """Return the whole document."""
    parts = [_prose("head"), *_gpus(validation.of(GPU)), *_lab(validation)]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _gpus(points: Sequence[Point]) -> Iterator[str]:
    if not points:
        return
    yield _prose("gpus")
    yield _summary(points)
    yield _by(points, "exchange", lambda point: point.way)
    yield _by(points, "network", lambda point: point.network)
    yield _by(points, "GPUs", lambda point: str(point.ranks))
    yield _all(points)
    yield _prose("gpus_why")
    yield _otherwise(points)


def _lab(validation: Validation) -> Iterator[str]:
    points = validation.of(LAB)
    yield _prose("lab")
    if not points:
        yield _prose("lab_absent")
        return
    facts = ", ".join(f"{name} {value}" for name, value in sorted(validation.metadata.items()))
    yield f"{facts}.\n" if facts else ""
    yield _summary(points)
    yield _by(points, "exchange", lambda point: point.exchange)
    yield _by(points, "hosts", lambda point: str(point.hosts))
    yield _by(points, "network", lambda point: point.network)
    yield _by(points, "work", lambda point: point.work)
    yield _phases(points)
    yield _all(points)
    yield _alone(points)
    yield _repeated(points)
    yield "".join(f"- Not measured: {name}: {why}\n" for name, why in validation.missing.items())


def _otherwise(points: Sequence[Point]) -> str:
    """Return what other inputs would have given."""
    rows = (
        _row("as above", errors_of(points)),
        _row("overlap is free", errors_of(gpu_points(Interference()))),
        _row("MG-WFBP merges by the costs here", errors_of(gpu_points(as_run=False))),
    )
    return markdown_table(("inputs", "points", "median", "90th percentile", "worst"), rows)


def _summary(points: Sequence[Point]) -> str:
    found = errors_of(points)
    rows = [
        ("points", str(found.points)),
        ("error, median", f"{found.median:.1%}"),
        ("90th percentile", f"{found.p90:.1%}"),
        ("worst", f"{found.worst.error:+.1%}, {found.worst.name}"),
        *_interval(points),
    ]
    return markdown_table(("", "all"), rows)


def _interval(points: Sequence[Point]) -> Iterator[tuple[str, str]]:
    interval, held = interval_of(points), covered(points)
    if interval is None or held is None:
        yield "interval of 90%", f"none: it takes more than {LEAST_POINTS} points"
        return
    whole, apart = held
    count = len(points)
    yield "interval of 90%", f"{interval.low:.3f} to {interval.high:.3f} times the prediction"
    yield "it holds", f"{whole} of {count} points, {whole / count:.0%}"
    yield (
        "an interval made without the point holds",
        f"{apart} of {count}, {apart / count:.0%}",
    )


def _by(points: Sequence[Point], what: str, key: Callable[[Point], str]) -> str:
    rows = (_row(name, found) for name, found in errors_by(points, key).items())
    return markdown_table((what, "points", "median", "90th percentile", "worst"), rows)


def _row(name: str, found: Errors) -> tuple[str, ...]:
    worst = f"{found.worst.error:+.1%}"
    return name, str(found.points), f"{found.median:.1%}", f"{found.p90:.1%}", worst


def _phases(points: Sequence[Point]) -> str:
    """Return how far each phase was off, over the measured iteration, so that parts compare."""
    names = dict.fromkeys(phase.name for point in points for phase in point.phases)
    rows = []
    for name in names:
        offs = sorted(
            (phase.predicted_s - phase.measured_s) / point.measured_s
            for point in points
            for phase in point.phases
            if phase.name == name
        )
        middle = offs[len(offs) // 2]
        rows.append((name, str(len(offs)), f"{middle:+.1%}", f"{max(offs, key=abs):+.1%}"))
    return markdown_table(("phase", "points", "off, of the iteration, median", "worst"), rows)


def _all(points: Sequence[Point]) -> str:
    shared = any(point.unlimited is not None for point in points)
    rows = (
        (
            point.name,
            format_seconds(point.prediction.iteration_s),
            *([_both(point.unlimited)] if shared else []),
            format_seconds(point.measured_s),
            f"{point.error:+.1%}",
            ", ".join(_both(one) for one in point.phases if one.name == "exposed communication"),
        )
        for point in points
    )
    apart = ["links no limit: predicted, measured"] if shared else []
    head = ("training", "predicted", *apart, "measured", "error", "exposed: predicted, measured")
    return markdown_table(head, rows)


def _alone(points: Sequence[Point]) -> str:
    """Return how far the predictions are off without what shared processors add."""
    bare = [structs.replace(point, unlimited=None) for point in points]
    added = [_added(point) for point in points]
    little = [point for point, share in zip(points, added, strict=True) if share <= _LITTLE]
    named = (
        ("with what shared processors add", points),
        ("predictions alone", bare),
        (f"shared processors add up to {_LITTLE:.0%}", little),
        ("they add more", [point for point in points if point not in little]),
    )
    rows = (_row(name, errors_of(chosen)) for name, chosen in named if chosen)
    return markdown_table(("", "points", "median", "90th percentile", "worst"), rows)


def _added(point: Point) -> float:
    """Return which share of the prediction shared processors add to it."""
    return point.expected_s / point.prediction.iteration_s - 1


def _repeated(points: Sequence[Point]) -> str:
    """Return how much one training differs from itself: no prediction is nearer than that."""
    rows = []
    for work in dict.fromkeys(point.work for point in points):
        own = [point for point in points if point.work == work]
        turns = [off for p in own if len(p.samples_s) > 1 for off in _offs(p.samples_s)]
        starts = [abs(median(p.again_s) / median(p.samples_s) - 1) for p in own if p.again_s]
        for what, offs in (("turns", turns), ("started again", starts)):
            if offs:
                figures = (f"{percentile(offs, at):.1%}" for at in (50, 90))
                rows.append((f"{work}, {what}", str(len(offs)), *figures))
    head = ("one training, from itself", "times", "median", "90th percentile")
    return markdown_table(head, rows) if rows else ""


def _offs(samples_s: Sequence[float]) -> list[float]:
    """Return how far samples are off their median, as shares of it."""
    middle_s = median(samples_s)
    return [abs(sample_s / middle_s - 1) for sample_s in samples_s]


def _both(phase: Phase | None) -> str:
    if phase is None:
        return ""
    return f"{format_seconds(phase.predicted_s)}, {format_seconds(phase.measured_s)}"


def _prose(name: str) -> str:
    return files("syncopate.validation").joinpath("data", f"{name}.md").read_text(encoding="utf-8")
