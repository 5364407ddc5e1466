"""Local rules, against scalars worked out one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from syncopate.delay import Delay
from syncopate.engine.exchange.delay import rules
from syncopate.engine.exchange.delay.rules import Flat, hyper_of, require_rule
from syncopate.errors import EngineError


def _flat(weight: Any, gradient: Any, before: Any = 0.0, squares: Any = 0.0) -> Flat:
    return Flat(*(torch.tensor([value], dtype=torch.float64) for value in
                  (weight, gradient, before, squares)))  # fmt: skip


def _group(**fields: float) -> dict[str, Any]:
    return {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01} | fields


@pytest.mark.parametrize("k", [1, 4])
def test_glu_is_equation_8_downhill(k: int) -> None:
    w, g, pre = 1.25, -0.5, 1.5
    flat = _flat(w, g, pre)
    rules.apply(flat, [(0, 1, hyper_of(Delay(k=k), _group()))])
    grad_sync = (pre - w) * (1 - 0.9) / (0.1 * k)
    expected = w - 0.4 * (2.0 * g + 0.01 * w + 0.5 * grad_sync)
    assert flat.weights.item() == pytest.approx(expected, rel=1e-14)
    assert flat.before.item() == pre


@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (True, 0.0), (False, 0.5)])
def test_glu_recovers_a_constant_gradient(nesterov: bool, dampening: float) -> None:
    """After many steps of SGD, what k of them moved the weights by tells the gradient."""
    k, gradient = 4, torch.tensor([0.3, -2.0], dtype=torch.float64)
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([weights], lr=0.05, momentum=0.9, nesterov=nesterov, dampening=dampening)
    for step in range(400):
        if step == 400 - k:
            before = weights.detach().clone()
        weights.grad = gradient.clone()
        sgd.step()
    delay = Delay(k=k, alpha=0.0, loc_lr=3.0, beta=0.5)
    local = weights.detach().clone()
    flat = Flat(local, torch.ones_like(local), before, local[:0])
    rules.apply(flat, [(0, 2, hyper_of(delay, sgd.param_groups[0]))])
    grad_sync = (weights.detach() - local) / (3.0 * 0.5)
    torch.testing.assert_close(grad_sync, gradient, rtol=1e-9, atol=0)


def test_sgd_is_plain() -> None:
    flat = _flat(2.0, 0.5)
    rules.apply(flat, [(0, 1, hyper_of(Delay(k=2, local_update="sgd"), _group()))])
    assert flat.weights.item() == pytest.approx(2.0 - 0.1 * (0.5 + 0.01 * 2.0), rel=1e-14)


def test_dc_asgd_a_compensates_by_the_square_of_the_gradient() -> None:
    w, g, pre, square = 2.0, 0.5, 1.0, 0.04
    flat = _flat(w, g, pre, square)
    delay = Delay(k=2, local_update="dc-asgd-a", lambda_0=1.5, square_decay=0.8)
    rules.apply(flat, [(0, 1, hyper_of(delay, _group()))])
    mean = 0.8 * square + 0.2 * g * g
    compensated = g + 1.5 / math.sqrt(mean + 1e-7) * g * g * (w - pre)
    assert flat.squares.item() == pytest.approx(mean, rel=1e-14)
    assert flat.weights.item() == pytest.approx(w - 0.1 * (compensated + 0.01 * w), rel=1e-14)


@pytest.mark.parametrize("rule", ["glu", "sgd", "dc-asgd-a"])
def test_what_is_maximized_ascends(rule: str) -> None:
    delay = Delay(k=1, local_update=rule)
    up, down = _flat(1.0, -0.5, 1.0), _flat(1.0, 0.5, 1.0)
    rules.apply(up, [(0, 1, hyper_of(delay, _group(maximize=True)))])
    rules.apply(down, [(0, 1, hyper_of(delay, _group()))])
    assert up.weights.item() == down.weights.item() < 1.0


def test_the_local_rate_follows_the_groups() -> None:
    assert hyper_of(Delay(k=1), _group(lr=0.05)).loc_lr == pytest.approx(0.2)
    assert hyper_of(Delay(k=1, local_update="sgd"), _group(lr=0.05)).loc_lr == 0.05
    assert hyper_of(Delay(k=1, loc_lr=0.7), _group(lr=0.05)).loc_lr == 0.7
    still = hyper_of(Delay(k=1), _group(lr=0.0))
    assert still.loc_lr == 0.0
    assert math.isfinite(still.toward)
    assert hyper_of(Delay(k=1, loc_lr=0.7), _group(lr=0.0)).toward == 0.0
    with pytest.raises(EngineError, match="no learning rate"):
        hyper_of(Delay(k=1), {"params": []})


def _drawn(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rule", ["glu", "sgd", "dc-asgd-a"])
def test_blocks_and_ranges_change_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Flat:
        return Flat(_drawn(100), _drawn(101)[:100], _drawn(102)[:100], _drawn(103)[:100].abs())

    one, other = (hyper_of(Delay(k=2, local_update=rule), _group(weight_decay=d)) for d in (0, 0.1))
    whole, cut = made(), made()
    rules.apply(whole, [(0, 40, one), (60, 100, other)])
    monkeypatch.setattr(rules, "_BLOCK_BYTES", 7 * 8)
    rules.apply(cut, [(0, 40, one), (60, 100, other)])
    for name in ("weights", "squares", "before"):
        assert torch.equal(getattr(whole, name), getattr(cut, name))
    assert torch.equal(whole.weights[40:60], _drawn(100)[40:60])
    assert not torch.equal(whole.weights[:40], _drawn(100)[:40])


class Own(torch.optim.SGD):
    """Steps as SGD does."""


class Other(torch.optim.SGD):
    """Steps in another way."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


def test_glu_goes_with_sgd_alone() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    require_rule(Delay(k=2), [Own(parameters, lr=0.1)])
    for optimizer in (torch.optim.Adam(parameters), Other(parameters, lr=0.1)):
        with pytest.raises(EngineError, match=r"GLU .*(Adam|Other).*'sgd'.*'dc-asgd-a'"):
            require_rule(Delay(k=2), [optimizer])
        require_rule(Delay(k=2, local_update="sgd"), [optimizer])


def test_a_parameter_has_one_optimizer() -> None:
    shared = torch.nn.Parameter(torch.zeros(1))
    two = [torch.optim.SGD([shared], lr=0.1), torch.optim.SGD([shared], lr=0.2)]
    with pytest.raises(EngineError, match="two optimizers"):
        require_rule(Delay(k=2), two)
