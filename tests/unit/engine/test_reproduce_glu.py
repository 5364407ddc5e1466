"""reproduce/glu_stability.py: the algorithm diverges where the engine's rule does, and SGD not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reproduce.glu_stability import MOMENTUM, quadratic, train

from syncopate.delay import Delay
from syncopate.engine.exchange.delay import rules
from syncopate.engine.exchange.delay.rules import Flat, hyper_of


def with_the_engine_s_rule(curvature: float, period: int, steps: int) -> float:
    """Train as ``train`` does on a quadratic, with ``rules.glu`` as the local update."""
    weights, own = (torch.ones(1, dtype=torch.float64) for _ in range(2))
    velocity, before, updates = 0.0, own.clone(), 0
    hyper = hyper_of(Delay(k=period), {"lr": 1.0, "momentum": MOMENTUM})
    computing = own.clone()
    for num in range(steps):
        gradient = curvature * computing
        velocity = MOMENTUM * velocity - gradient
        weights = weights + velocity
        if num < period:
            computing, own, before = weights.clone(), weights.clone(), weights.clone()
            continue
        begun_with = own.clone()
        rules.apply(Flat(own, gradient, before, own[:0]), [(0, 1, hyper)])
        if updates and updates % period == 0:
            before = begun_with
        computing, updates = own.clone(), updates + 1
        if num % period == period - 1:
            own = weights.clone()
    return float(weights)


@pytest.mark.parametrize("period", [1, 2, 4])
@pytest.mark.parametrize("curvature", [0.05, 0.3])
def test_the_engine_s_rule_is_the_algorithm_s(period: int, curvature: float) -> None:
    found = train(quadratic(curvature), np.ones(1), 1.0, period, warm_up=period - 1, steps=24)
    assert found is not None
    assert with_the_engine_s_rule(curvature, period, 24) == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("period", [1, 2, 4])
def test_glu_diverges_long_before_sgd_does(period: int) -> None:
    assert train(quadratic(0.3), np.ones(1), 1.0, period, warm_up=period - 1, steps=3000) is None
    for calm in (
        train(quadratic(0.1), np.ones(1), 1.0, period, warm_up=period - 1, steps=1000),
        train(quadratic(3.7), np.ones(1), 1.0, None, warm_up=0, steps=3000),
    ):
        assert calm is not None
        assert abs(calm[0]) < 1e-3
