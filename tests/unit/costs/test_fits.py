"""Fits recover the truth, and stragglers do not move them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncopate.costs.model.fits import fit_linear, isotonic
from syncopate.errors import CalibrationError

SIZES = 4.0 ** np.arange(3, 13)


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-7, 1e-1), st.floats(1e-13, 1e-6))
def test_recovers_an_exact_line(a: float, b: float) -> None:
    fit = fit_linear(SIZES, a + b * SIZES)
    assert fit.a_s + fit.b_s_per_byte * SIZES == pytest.approx(a + b * SIZES, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-5, 1e-2), st.floats(1e-10, 1e-7))
@example(5143, 1e-05, 6.067947748565034e-08)
def test_stragglers_do_not_move_the_line(seed: int, a: float, b: float) -> None:
    """Of every size a quarter of the samples is up to 50 times too slow."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat(SIZES, 9)
    truth = a + b * sizes
    times = truth * rng.normal(1.0, 0.01, len(sizes)).clip(0.95)
    # More than half of one size would be no stragglers but the rule.
    late = np.argsort(rng.random((len(SIZES), 9)), axis=1).ravel() < 9 // 4
    times[late] *= rng.uniform(3, 50, late.sum())
    fit = fit_linear(sizes, times)
    assert fit.a_s + fit.b_s_per_byte * SIZES == pytest.approx(a + b * SIZES, rel=0.1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 100)), min_size=1, max_size=12))
def test_never_negative_nor_worse_than_a_constant(samples: list[tuple[int, float]]) -> None:
    sizes, times = (np.array(column) for column in zip(*samples, strict=True))
    fit = fit_linear(sizes, times)
    assert fit.a_s >= 0
    assert fit.b_s_per_byte >= 0
    one_each = len(set(sizes.tolist())) == len(sizes) > 1
    if times.min() > max(1e-3 * times.max(), 1e-15) and one_each:
        loss = np.abs(fit.a_s + fit.b_s_per_byte * sizes - times) / times
        constants = [np.abs(c - times) / times for c in times]
        assert loss.sum() <= min(c.sum() for c in constants) * (1 + 1e-6) + 1e-9


def test_one_size_alone() -> None:
    fit = fit_linear([100, 100, 100], [1.0, 2.0, 9.0])
    assert (fit.a_s, fit.b_s_per_byte) == (0.0, 0.02)
    assert fit_linear([0, 0], [1.0, 1.0]).a_s == 1.0


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ([], [], "at least one"),
        ([1, 2], [1], "one length"),
        ([1, 2], [1, np.nan], "NaN"),
        ([1, -2], [1, 1], "negative"),
    ],
)
def test_refuses_what_cannot_be_fitted(
    sizes: list[float], times: list[float], message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        fit_linear(sizes, times)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_isotonic_never_decreases_and_keeps_the_mean(values: list[float]) -> None:
    pooled = isotonic(values, np.ones(len(values)))
    assert (np.diff(pooled) >= 0).all()
    assert pooled.mean() == pytest.approx(np.mean(values), abs=1e-6)
    if values == sorted(values):
        assert pooled == pytest.approx(values)
