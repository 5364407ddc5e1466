"""Interference: read off steps whose durations are known."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Interference
from syncopate.profiling.interference import NOISE, Observed, interference_of


def step(
    backward_s: float, *timings: tuple[float, float], ranks: int = 2, known: bool = True
) -> list[Observed]:
    """A step whose backward begins at 0, alike on all ranks."""
    collectives = tuple((i, 8, start, end) for i, (start, end) in enumerate(timings))
    span = (0.0, backward_s) if known else None
    return [Observed(backward_s, span, collectives)] * ranks


HELD = step(1.0, (1.0, 1.2), (1.2, 1.4))


def test_a_model_that_leaves_the_processors_idle_has_none() -> None:
    assert interference_of([HELD], [step(1.0, (0.4, 0.6), (0.8, 1.0))]) == Interference()
    assert interference_of([HELD], [step(1.0 + 0.9 * NOISE, (0.4, 0.6))]) == Interference()


def test_backward_that_takes_longer_beside_collectives_slows_down_by_their_time() -> None:
    found = interference_of([HELD], [step(1.1, (0.2, 0.4), (0.4, 0.6))])
    # 0.1 s more, of 0.4 s in which a collective was under way.
    assert found.compute_rate == pytest.approx(0.75)
    assert found.collective_stretch == 1.0


def test_only_the_part_of_a_collective_inside_backward_counts() -> None:
    found = interference_of([HELD], [step(1.1, (0.2, 0.4), (1.0, 9.0))])
    assert found.compute_rate == pytest.approx(1 - 0.1 / 0.3)


def test_collectives_at_the_same_time_are_under_way_once() -> None:
    found = interference_of([HELD], [step(1.1, (0.2, 0.4), (0.2, 0.4))])
    assert found.compute_rate == pytest.approx(0.5)


def test_collectives_inside_backward_that_take_longer_stretch() -> None:
    found = interference_of([HELD], [step(1.0, (0.2, 0.5), (0.9, 1.1))])
    # The second ended after backward, so it says nothing.
    assert found.collective_stretch == pytest.approx(0.3 / 0.2)


def test_the_median_step_speaks() -> None:
    steps = [step(1.1, (0.2, 0.4), (0.4, 0.6)), step(9.0, (0.2, 0.4)), step(1.1, (0.2, 0.6))]
    assert interference_of([HELD], steps).compute_rate == pytest.approx(0.75)


def test_on_a_device_whose_clock_is_its_own_collectives_count_as_a_whole() -> None:
    found = interference_of([HELD], [step(1.1, (50.2, 50.4), (50.4, 50.6), known=False)])
    assert found.compute_rate == pytest.approx(0.75)
    assert found.collective_stretch == 1.0


def test_nothing_is_ever_slower_than_standing_still() -> None:
    assert interference_of([HELD], [step(5.0, (0.2, 0.4))]).compute_rate == 0.0
