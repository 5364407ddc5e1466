"""The servers' optimizers: bit for bit those of torch, and the papers' formulas."""

from __future__ import annotations

import pytest
import torch

from syncopate.paramserver.storage import optimizers
from syncopate.protocol.rules import SGD, Adagrad, Adam, Compensation

STEPS = 7
RULES = [
    (SGD(lr=0.1), torch.optim.SGD, {}),
    (SGD(lr=0.1, weight_decay=0.01), torch.optim.SGD, {"weight_decay": 0.01}),
    (SGD(lr=0.1, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (
        SGD(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=1e-3),
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3},
    ),
    (
        SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    ),
    (Adam(lr=0.1), torch.optim.Adam, {}),
    (Adam(lr=0.1, weight_decay=0.01), torch.optim.Adam, {"weight_decay": 0.01}),
    (
        Adam(lr=0.1, betas=(0.8, 0.99), eps=1e-6),
        torch.optim.Adam,
        {"betas": (0.8, 0.99), "eps": 1e-6},
    ),
    (
        Adam(lr=0.1, weight_decay=0.01, decoupled=True),
        torch.optim.AdamW,
        {"weight_decay": 0.01},
    ),
    (Adagrad(lr=0.1), torch.optim.Adagrad, {}),
    (
        Adagrad(lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.5, eps=1e-5),
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5, "eps": 1e-5},
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rule", "kind", "options"), RULES)
@pytest.mark.parametrize("numel", [0, 1, 37, 5000])
def test_an_update_is_torchs(rule, kind, options, dtype, numel):
    torch.manual_seed(numel)
    theirs = torch.nn.Parameter(torch.randn(numel, dtype=dtype))
    ours = theirs.detach().clone()
    # Two slices of one tensor are updated each by itself.
    cut = numel // 3 // 64 * 64
    parts = [(ours[:cut], {}), (ours[cut:], {})]
    optimizer = kind([theirs], lr=0.1, foreach=False, **options)
    for step in range(STEPS):
        rate = 0.1 / (1 + step // 3)
        optimizer.param_groups[0]["lr"] = rate
        theirs.grad = torch.randn(numel, dtype=dtype)
        split = theirs.grad.clone().split([cut, numel - cut])
        for (part, state), gradient in zip(parts, split, strict=True):
            optimizers.step(rule, rate, part, gradient, state)
        optimizer.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("given", "expected"), [(None, 1 - 0.5), (0.25, 1 - 0.25)])
def test_the_learning_rate_is_the_rules_unless_a_push_says_another(given, expected):
    weights = torch.ones(3)
    optimizers.step(SGD(lr=0.5), given, weights, torch.ones(3), {})
    assert torch.equal(weights, torch.full((3,), expected))


def test_the_papers_momentum_takes_the_learning_rate_in():
    """``mom = m mom - lr (grad + wd w)``, ``w = w + mom`` (SSD-SGD, Section 3.2.1)."""
    rule = SGD(lr=0.1, momentum=0.9, weight_decay=0.01, form="mxnet")
    weights, state = torch.randn(50, dtype=torch.float64), {}
    expected, momentum = weights.clone(), torch.zeros_like(weights)
    for rate in (0.1, 0.1, 0.02, 0.02):
        gradient = torch.randn_like(weights)
        momentum = 0.9 * momentum - rate * (gradient + 0.01 * expected)
        expected = expected + momentum
        optimizers.step(rule, rate, weights, gradient.clone(), state)
    torch.testing.assert_close(weights, expected, rtol=1e-14, atol=1e-14)


def test_both_forms_are_one_while_the_learning_rate_is():
    found = []
    for form in ("torch", "mxnet"):
        torch.manual_seed(0)
        weights, state = torch.randn(50, dtype=torch.float64), {}
        for _ in range(5):
            rule = SGD(lr=0.1, momentum=0.9, weight_decay=0.01, form=form)
            optimizers.step(rule, None, weights, torch.randn(50, dtype=torch.float64), state)
        found.append(weights)
    torch.testing.assert_close(*found, rtol=1e-13, atol=1e-13)


def test_delay_compensation_is_the_papers():
    """``g + lambda_t g g (w - w_bak)``, ``lambda_t = lambda_0 / sqrt(MeanSquare + eps)``."""
    rule = Compensation(lambda_0=2.0, decay=0.95, eps=1e-7)
    state, mean_square = {}, torch.zeros(40, dtype=torch.float64)
    for _ in range(4):
        gradient, weights, backup = torch.randn(3, 40, dtype=torch.float64)
        mean_square = 0.95 * mean_square + 0.05 * gradient**2
        strength = 2.0 / torch.sqrt(mean_square + 1e-7)
        expected = gradient + strength * gradient * gradient * (weights - backup)
        before = gradient.clone(), weights.clone(), backup.clone()
        found = optimizers.compensate(rule, gradient, weights, backup, state)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, before, (gradient, weights, backup)))


def test_without_delay_there_is_nothing_to_compensate():
    gradient, weights = torch.randn(2, 40)
    found = optimizers.compensate(Compensation(), gradient, weights, weights, {})
    assert torch.equal(found, gradient)
