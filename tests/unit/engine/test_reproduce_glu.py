"""reproduce/glu_stability.py: the algorithm diverges where the engine's rule does."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reproduce.glu_stability import (
    MOMENTUM,
    PAPER,
    PERIODS,
    REGION,
    Rule,
    largest_stable,
    quadratic,
    radius,
    region,
    train,
)

from syncopate.delay import Delay
from syncopate.engine.exchange.delay import rules
from syncopate.engine.exchange.delay.rules import Flat, hyper_of

PAGE = Path(__file__).parents[3] / "docs" / "ssd_sgd.md"


def with_the_engine_s_rule(curvature: float, period: int, steps: int, rule: Rule = PAPER) -> float:
    """Train as ``train`` does on a quadratic, with ``rules.glu`` as the local update."""
    weights, own = (torch.ones(1, dtype=torch.float64) for _ in range(2))
    velocity, before, updates = 0.0, own.clone(), 0
    delay = Delay(k=period, alpha=rule.alpha, beta=rule.beta, loc_lr=rule.times)
    hyper = hyper_of(delay, {"lr": 1.0, "momentum": MOMENTUM})
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
@pytest.mark.parametrize("rule", [PAPER, Rule(1.0, 1.5), Rule(times=1.0)])
def test_the_engine_s_rule_is_the_algorithm_s(period: int, curvature: float, rule: Rule) -> None:
    found = train(
        quadratic(curvature), np.ones(1), 1.0, period, warm_up=period - 1, steps=24, rule=rule
    )
    assert found is not None
    ours = with_the_engine_s_rule(curvature, period, 24, rule)
    assert ours == pytest.approx(found[0], rel=1e-9)


def test_the_default_is_the_paper_s() -> None:
    delay = Delay(k=4)
    hyper = hyper_of(delay, {"lr": 1.0, "momentum": MOMENTUM})
    assert Rule(delay.alpha, delay.beta, hyper.loc_lr) == PAPER


@pytest.mark.parametrize("name", REGION)
@pytest.mark.parametrize("period", [1, 2, 4, 8])
def test_the_engine_s_rule_converges_within_the_region_and_not_beyond(
    name: str, period: int
) -> None:
    rule = REGION[name]
    most = largest_stable(period, rule)
    for curvature, converges in ((0.9 * most, True), (1.1 * most + 0.01, False)):
        growth = float(radius(np.array([curvature]), period, rule)[0])
        assert (growth < 1) == converges
        periods = math.ceil(abs(math.log(1e4) / math.log(growth)))
        end = abs(with_the_engine_s_rule(curvature, period, (periods + 20) * period, rule))
        assert (end < 1e-2) == converges
        assert (end > 1e2) != converges


def test_much_shorter_local_steps_diverge_where_the_default_converges() -> None:
    rules = (PAPER, Rule(1.0, 1.5), Rule(times=1.0), Rule(alpha=0.5))
    ends = [abs(with_the_engine_s_rule(0.15, 4, 2000, rule)) for rule in rules]
    assert max(ends[:2]) < 1e-20
    assert min(ends[2:]) > 1e9


def test_the_page_has_the_region() -> None:
    assert region() in PAGE.read_text()
    assert len(REGION) * len(PERIODS) == 80


@pytest.mark.parametrize("period", [1, 2, 4])
def test_glu_diverges_long_before_sgd_does(period: int) -> None:
    assert train(quadratic(0.3), np.ones(1), 1.0, period, warm_up=period - 1, steps=3000) is None
    for calm in (
        train(quadratic(0.1), np.ones(1), 1.0, period, warm_up=period - 1, steps=1000),
        train(quadratic(3.7), np.ones(1), 1.0, None, warm_up=0, steps=3000),
    ):
        assert calm is not None
        assert abs(calm[0]) < 1e-3
