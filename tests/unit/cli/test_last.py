"""``--last``: it counts the iterations that are there, not their numbers."""

from __future__ import annotations

import pytest

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.cli.common.timelines import last_of


def test_iterations_that_are_there_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a long run every hundredth iteration was kept, and the last five."""
    numbers = [0, 100, 200, *range(250, 255)]
    spans = tuple(
        Span(name="forward", lane="forward", rank=0, start_s=n, end_s=n + 0.5, iteration=n)
        for n in numbers
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    assert last_of(timeline, 8) is timeline
    assert {span.iteration for span in last_of(timeline, 6).spans} == {200, *range(250, 255)}
    assert "the last 6 iterations are looked at, from iteration 200 on" in capsys.readouterr().err
