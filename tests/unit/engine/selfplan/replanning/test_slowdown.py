"""Slowdown: which courses of windows are a reason to plan again, and what is said to be slower."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from syncopate.engine.selfplan.replanning.slowdown import (
    COMPUTATION,
    LINKS,
    PATIENCE,
    QUIET,
    REFERENCE,
    Change,
    Slowdown,
    Window,
    causes_of,
)

USUAL = [1.0] * REFERENCE


def asked_at(windows: Iterable[float], measured_s: float = 0.0, quiet: int = 0) -> list[int]:
    """Return the places of the windows after which a rank asks."""
    slowdown = Slowdown(measured_s, quiet)
    found = []
    for place, step_s in enumerate(windows):
        slowdown.add(Window(step_s))
        if slowdown.lasts:
            found.append(place)
    return found


def drawn(count: int, sigma: float, seed: int = 0) -> list[float]:
    """Return windows of equal steps with some noise."""
    chance = random.Random(seed)
    return [chance.gauss(1.0, sigma) for _ in range(count)]


@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_reason(sigma: float, seed: int) -> None:
    assert asked_at(drawn(1000, sigma, seed)) == []


def test_a_step_is_one_once_enough_windows_in_a_row_have_it() -> None:
    slow = [1.5] * 10
    first = REFERENCE + PATIENCE - 1
    assert asked_at(USUAL + slow) == list(range(first, REFERENCE + 10))
    # It asks until it is over.
    assert asked_at(USUAL + slow + [1.0] * 10)[-1] == REFERENCE + 9


@pytest.mark.parametrize("length", range(1, PATIENCE))
def test_spikes_are_none_however_high_and_many(length: int) -> None:
    assert asked_at(USUAL + ([100.0] * length + [1.0]) * 50) == []


def test_a_spike_among_the_first_windows_makes_no_difference() -> None:
    first = [1.0, 1.0, 80.0, 1.0, 90.0]
    assert asked_at(first + [1.0] * 50) == []
    assert asked_at(first + [1.5] * PATIENCE) == [REFERENCE + PATIENCE - 1]


def test_what_grows_slowly_is_noticed_and_what_stays_within_noise_is_not() -> None:
    growing = [1.0 + 0.01 * place for place in range(100)]
    (first, *_) = asked_at(growing)
    # The usual window is the third.
    assert growing[first - PATIENCE + 1] > 1.2 * growing[2] >= growing[first - PATIENCE]
    assert asked_at([1.0 + 0.001 * place for place in range(200)]) == []


def test_it_must_be_slower_by_more_than_windows_differ_anyway() -> None:
    uneven = [1.0, 1.2, 0.8, 1.2, 0.8]
    assert asked_at(uneven + [1.5] * 20) == []
    assert asked_at(uneven + [2.5] * 20) != []


def test_faster_windows_are_the_usual_ones_from_then_on() -> None:
    faster = [0.5] * PATIENCE
    assert asked_at(USUAL + faster + [0.5] * 20) == []
    assert asked_at(USUAL + faster + [1.0] * PATIENCE) == [REFERENCE + 2 * PATIENCE - 1]
    # A single fast one says nothing.
    assert asked_at([*USUAL, 0.5, *[1.0] * 20]) == []


def test_a_plan_that_was_slower_from_the_start_than_when_it_was_chosen() -> None:
    assert asked_at([2.0] * 20, measured_s=1.0)[0] == REFERENCE + PATIENCE - 1
    assert asked_at([1.1] * 20, measured_s=1.0) == []
    # One that was measured slower is compared with what it took since.
    assert asked_at(USUAL + [1.5] * 20, measured_s=1.4) != []


def test_nothing_is_asked_for_a_while_after_a_plan_that_stayed() -> None:
    slow = USUAL + [1.5] * 20
    assert asked_at(slow, quiet=QUIET)[0] == REFERENCE + QUIET - 1
    assert asked_at(slow, quiet=1) == asked_at(slow)


def change(step_s: Sequence[float], waiting_s: Sequence[float]) -> Change:
    return Change(Window(step_s[0], waiting_s[0]), Window(step_s[1], waiting_s[1]))


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        pytest.param([change((1, 2), (0.2, 1.2))] * 2, (LINKS,), id="messages"),
        pytest.param([change((1, 2), (0.2, 0.2))] * 2, (COMPUTATION,), id="computation"),
        pytest.param([change((1, 3), (0.2, 1.2))] * 2, (LINKS, COMPUTATION), id="both"),
        # Rank 1 computes for a second longer, and rank 0 waits for it.
        pytest.param(
            [change((1, 2), (0.2, 1.2)), change((1, 2), (0.2, 0.2))], (COMPUTATION,), id="straggler"
        ),
        pytest.param([change((1, 2), (0.2, 0.2)), Change(Window(1), Window(2))], (), id="unknown"),
        # Hidden messages are exposed no more, and computation takes much longer.
        pytest.param([change((1, 2.5), (0.5, 0.0))] * 2, (COMPUTATION,), id="longer, less waiting"),
    ],
)
def test_what_is_slower(changes: list[Change], causes: tuple[str, ...]) -> None:
    assert causes_of(changes) == causes


def test_a_change_is_known_once_there_is_something_to_compare_with() -> None:
    slowdown = Slowdown()
    for step_s in USUAL:
        slowdown.add(Window(step_s, 0.25))
        assert slowdown.change is None
    for step_s in (3.0, 2.0, 2.5):
        slowdown.add(Window(step_s, step_s - 0.75))
    assert slowdown.change == Change(Window(1.0, 0.25), Window(2.5, 1.75))
