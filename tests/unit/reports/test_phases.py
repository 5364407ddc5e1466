"""The report of a timeline's phases."""

from __future__ import annotations

import pytest

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError
from syncopate.reports.phases import phases_report
from tests.unit import examples


def span(lane: str, start_s: float, end_s: float, iteration: int = 0, rank: int = 0) -> Span:
    return Span(name=lane, lane=lane, rank=rank, start_s=start_s, end_s=end_s, iteration=iteration)


def timeline(*spans: Span) -> Timeline:
    return Timeline(name="small, optimal", source="simulated", world_size=2, spans=spans)


def test_each_iteration_has_a_row_and_the_last_one_speaks_for_all():
    """The second takes 4 s, of which 3 s of communication; 1 s of that beside computation."""
    report = phases_report(
        timeline(
            *(span("forward", 0.0, 2.0, 0, rank) for rank in (0, 1)),
            *(span("forward", 2.0, 4.0, 1, rank) for rank in (0, 1)),
            *(span("push", 3.0, 6.0, 1, rank) for rank in (0, 1)),
        )
    )
    text = examples.text(report)
    assert "small, optimal, simulated: 2 ranks" in text
    assert "takes 4.00 s, computation 2.00 s, communication 3.00 s, 33% hidden" in text
    (table,) = examples.tables(report)
    rows = list(zip(*(column._cells for column in table.columns), strict=True))
    assert rows == [
        ("0", "2.00 s", "2.00 s", "0.0 us", "0.0 us", "0.0 us", "0.0 us"),
        ("1", "4.00 s", "2.00 s", "3.00 s", "1.00 s", "2.00 s", "0.0 us"),
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_timeline_without_spans_is_refused():
    with pytest.raises(InvalidValueError, match="no spans"):
        phases_report(timeline())
