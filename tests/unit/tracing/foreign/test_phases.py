"""Forwards and backwards by torch's hooks: what counts as outermost, and what is left behind."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

from syncopate.tracing.foreign.recording.phases import Phases


@pytest.fixture
def phases():
    found = Phases(100, lambda: None)
    yield found
    found.stop()
    assert not hooks._global_forward_pre_hooks


class Pair(torch.nn.Module):
    """Two layers, whose outputs come in a dictionary; the second may be run again in backward."""

    def __init__(self, again=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.again = again

    def forward(self, x):
        x = self.first(x)
        x = checkpoint(self.second, x, use_reentrant=False) if self.again else self.second(x)
        return {"x": x, "aside": [x.detach()]}


def _order(phases):
    """Return what began, in order."""
    rows = [(begin, "forward") for begin, _ in phases.forwards]
    return [what for _, what in sorted(rows + [(at, "backward") for at in phases.backwards])]


def test_the_model_and_the_loss_are_outermost_and_layers_inside_are_not(phases):
    model, loss = Pair(), torch.nn.MSELoss()
    for _ in range(2):
        loss(model(torch.ones(1, 2))["x"], torch.zeros(1, 2)).backward()
        phases.rearm()
    assert _order(phases) == ["forward", "forward", "backward"] * 2
    assert all(begin <= end for begin, end in phases.forwards)
    assert not model._forward_hooks
    assert not loss._forward_hooks


def test_micro_batches_have_a_backward_each(phases):
    model = Pair()
    for _ in range(3):
        model(torch.ones(1, 2))["x"].sum().backward()
    assert _order(phases) == ["forward", "backward"] * 3


def test_what_backward_runs_again_is_no_forward(phases):
    model = Pair(again=True)
    for _ in range(2):
        model(torch.ones(1, 2))["x"].sum().backward()
    assert _order(phases) == ["forward", "backward"] * 2


def test_a_forward_without_a_backward_counts(phases):
    model = Pair()
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert _order(phases) == ["forward"]


def test_after_a_forward_that_failed_the_next_step_goes_on(phases):
    model = Pair()
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    phases.rearm()
    model(torch.ones(1, 2))["x"].sum().backward()
    assert _order(phases) == ["forward", "backward"]
    assert not model._forward_hooks


def test_a_module_compiled_in_its_place_is_given_up(phases):
    torch._dynamo.reset()
    model = torch.nn.Linear(2, 2)
    model.compile(backend="eager")
    for _ in range(3):
        torch.nn.MSELoss()(model(torch.ones(1, 2)), torch.zeros(1, 2)).backward()
        phases.rearm()
    assert _order(phases) == []
    assert not hooks._global_forward_pre_hooks


def test_a_compiled_module_is_seen_and_torch_warns_of_nothing():
    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    with warnings.catch_warnings(record=True) as said:
        phases = Phases(100, lambda: None)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            phases.rearm()
        phases.stop()
    assert _order(phases) == ["forward", "backward"] * 3
    assert not [warning for warning in said if "global hooks" in str(warning.message)]
