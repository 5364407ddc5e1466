"""Phases of hand-made timelines, and of any: the formulas hold together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.analysis.phases import Phases, mean, phases
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError
from tests.unit.strategies import timelines


def timeline(*spans: tuple[str, float, float], rank: int = 0, iteration: int = 0) -> Timeline:
    return Timeline(
        name="test",
        source="measured",
        world_size=rank + 1,
        spans=tuple(
            Span(name=lane, lane=lane, rank=rank, iteration=iteration, start_s=start, end_s=end)
            for lane, start, end in spans
        ),
    )


def test_one_iteration() -> None:
    (found,) = phases(
        timeline(
            ("forward", 0, 2),
            ("backward", 2, 6),
            ("push", 3, 5),
            ("push", 4, 7),
            ("wait", 6, 7),
            ("update", 8, 9),
        )
    )
    assert found == Phases(
        rank=0,
        iteration=0,
        duration_s=9,
        computation_s=7,
        communication_s=4,
        overlapped_s=3,
    )
    assert found.computation_only_s == 4
    assert found.exposed_communication_s == 1
    assert found.idle_s == 1
    assert found.overlap_ratio == 0.75
    assert found.phase_overlap_ratio == 3 / 8


def test_no_communication_hides_everything() -> None:
    (found,) = phases(timeline(("forward", 0, 1)))
    assert found.overlap_ratio == 1
    assert found.phase_overlap_ratio == 0


def test_groups_by_iteration_then_rank_and_averages() -> None:
    spans = [
        span
        for rank in (1, 0)
        for iteration in (1, 0)
        for span in timeline(
            ("forward", 0, 1 + rank), ("push", 1, 3), rank=rank, iteration=iteration
        ).spans
    ]
    found = phases(Timeline(name="t", source="measured", world_size=2, spans=tuple(spans)))
    assert [(phase.iteration, phase.rank) for phase in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    average = mean(found)
    assert (average.rank, average.iteration) == (-1, -1)
    assert average.computation_s == 1.5
    assert mean(found[:1]).rank == 0


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="no spans"):
        mean(phases(timeline()))


@given(timelines())
def test_formulas_hold_for_any_timeline(any_timeline: Timeline) -> None:
    for found in phases(any_timeline):
        slack = 1e-9 * max(found.duration_s, 1.0)
        assert 0 <= found.overlapped_s <= min(found.computation_s, found.communication_s) + slack
        assert 0 <= found.overlap_ratio <= 1 + 1e-9
        busy = found.computation_only_s + found.exposed_communication_s + found.overlapped_s
        assert busy <= found.duration_s + slack
        assert found.idle_s == pytest.approx(found.duration_s - busy, abs=slack)


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_communication_after_backward_is_exposed(compute_s: float, push_s: float) -> None:
    (found,) = phases(timeline(("backward", 0, compute_s), ("push", compute_s, compute_s + push_s)))
    assert found.overlapped_s == 0
    assert found.exposed_communication_s == pytest.approx(push_s)
