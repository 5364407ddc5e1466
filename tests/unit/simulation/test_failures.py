"""Failures: what they leave of a training, by formula and drawn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError
from syncopate.simulation.failures import Failures, play_failures

YEAR_S = 365.25 * 86_400


def failures(**changed: float) -> Failures:
    given = {"host_mtbf_s": 5 * YEAR_S, "hosts": 2048, "checkpoint_s": 60.0, "restart_s": 600.0}
    return Failures(**(given | changed))  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    found = failures(host_mtbf_s=1000.0, hosts=10, checkpoint_s=2.0, restart_s=0.0, interval_s=18.0)
    assert found.mtbf_s == 100.0
    assert found.young_s == 20.0
    # sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C with C / 2M = 0.01
    assert found.daly_s == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert found.goodput() == pytest.approx(0.18 / (math.exp(0.2) - 1))
    later = failures(
        host_mtbf_s=1000.0, hosts=10, checkpoint_s=2.0, restart_s=50.0, interval_s=18.0
    )
    assert later.goodput() == pytest.approx(found.goodput() / math.exp(0.5))


def test_without_failures_checkpoints_alone_cost() -> None:
    found = failures(host_mtbf_s=1e14, interval_s=540.0)
    assert found.goodput() == pytest.approx(0.9, rel=1e-6)
    assert play_failures(found) == (pytest.approx(0.9), 0.0, 0)


@given(st.floats(1e5, 1e9), st.integers(1, 4096), st.floats(1, 600), st.floats(0, 600))
def test_no_interval_is_better_than_dalys(
    host_mtbf_s: float, hosts: int, checkpoint_s: float, restart_s: float
) -> None:
    if host_mtbf_s / hosts < 3 * max(checkpoint_s, restart_s):
        return
    found = Failures(host_mtbf_s, hosts, checkpoint_s, restart_s)
    assert found.trained_s == found.daly_s
    best = found.goodput()
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert found.goodput(factor * found.daly_s) < best
    assert found.goodput(found.young_s) <= best * (1 + 1e-3)
    assert 0 < best < 1


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"interval_s": 600.0},
        {"interval_s": 20_000.0},
        {"restart_s": 20_000.0},
        {"host_mtbf_s": 30 * 86_400.0},
    ],
)
def test_what_is_drawn_agrees_with_the_formula_within_its_error(changed: dict[str, float]) -> None:
    found = failures(**changed)
    played = play_failures(found, 40_000, seed=5)
    assert played.error < 0.01
    assert abs(played.goodput - found.goodput()) < 3 * played.error
    # Failures per interval: one attempt after another until one comes to its end.
    attempts = math.exp((found.trained_s + found.checkpoint_s) / found.mtbf_s)
    restarts = math.exp(found.restart_s / found.mtbf_s)
    expected = 40_000 * (attempts - 1) * restarts
    assert abs(played.failures - expected) < 3 * math.sqrt(expected * attempts * restarts)


def test_equal_seeds_draw_the_same_bits() -> None:
    assert play_failures(failures(), 1000, 1) == play_failures(failures(), 1000, 1)
    assert play_failures(failures(), 1000, 1) != play_failures(failures(), 1000, 2)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"hosts": 0}, "hosts is 0; it must be an integer >= 1"),
        ({"host_mtbf_s": 0.0}, r"host_mtbf_s is 0\.0; it must be above 0 s"),
        ({"checkpoint_s": math.nan}, "checkpoint_s is nan; it must be a finite number"),
        ({"interval_s": 0.0}, "interval_s is 0"),
        ({"restart_s": -1.0}, "restart_s is -1"),
        ({"interval_s": 1e7}, r"at most 9\.2 times the 7\.7e\+04 s between two failures of any of"),
        ({"restart_s": 1e7}, "training would hardly ever get on"),
    ],
)
def test_nonsense_is_refused(changed: dict[str, float], complaint: str) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        failures(**changed)


def test_too_few_intervals_and_seeds_that_there_are_not_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="intervals is 1"):
        play_failures(failures(), 1)
    with pytest.raises(InvalidValueError, match="seed is -1"):
        play_failures(failures(), 10, -1)
