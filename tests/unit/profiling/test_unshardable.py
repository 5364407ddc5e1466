"""What an optimizer looks at whole, by the optimizer itself and by its name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from syncopate.errors import UnknownNameError
from syncopate.profiling.profile import profile
from syncopate.profiling.unshardable import looked_at_whole
from syncopate.zoo import Task


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))


def whole(optimizer: torch.optim.Optimizer | str | None, of: nn.Module | None = None) -> set[str]:
    return set(looked_at_whole(dict((of or model()).named_parameters()), optimizer))


def test_by_name() -> None:
    assert whole(None) == whole("SGD") == whole("element") == set()
    assert whole("Adafactor") == whole("tensor") == {"0.weight", "0.bias", "1.weight", "1.bias"}
    # It takes nothing but matrices.
    assert whole("Muon") == {"0.weight", "1.weight"}


def test_a_name_that_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown optimizer 'Lamb'; known: SGD.*tensor"):
        whole("Lamb")


def test_an_optimizer_looks_at_its_own_parameters() -> None:
    net = model()
    assert whole(torch.optim.SGD(net.parameters(), lr=0.1), net) == set()
    assert whole(torch.optim.Adafactor(net[1].parameters()), net) == {"1.weight", "1.bias"}


def test_the_step_tells_a_subclass() -> None:
    class Named(torch.optim.Adafactor):
        pass

    class Other(torch.optim.Adafactor):
        def step(self, closure=None):
            return None

    net = model()
    assert len(whole(Named(net.parameters()), net)) == 4
    assert whole(Other(net.parameters()), net) == set()


def test_a_profile_says_what_is_looked_at_whole() -> None:
    net = model()
    task = Task(net, torch.ones(3, 4))
    assert profile(task, warmup=0, iterations=1).whole == ()
    for optimizer in ("Muon", torch.optim.Adafactor([net[0].weight, net[1].weight])):
        found = profile(task, warmup=0, iterations=1, optimizer=optimizer)
        assert [found.tensors[i].name for i in found.whole] == ["1.weight", "0.weight"]
