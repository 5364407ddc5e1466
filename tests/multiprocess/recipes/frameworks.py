"""What tests of recipes for other frameworks share: launched ranks, a small task, comparisons."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.artifacts.plan import DECOUPLED
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"
RANKS = 2
INPUTS = 8

DDP = "ddp"
OURS = (DECOUPLED, "default")
"""What a training goes by besides the framework's own DDP."""


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where a framework is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed (pip install '.[frameworks]')",
    )


def launched(rank: int, world_size: int, folder: Path) -> None:
    """Be what torchrun would have started, in a folder of the rank's own.

    Accelerate is told, as its launcher would, to compute in 16 bits.
    """
    for name, number in (("RANK", rank), ("WORLD_SIZE", world_size)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(number)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "tests"}
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    own = folder / str(rank)
    own.mkdir()
    os.chdir(own)


def small() -> tuple[nn.Module, torch.utils.data.TensorDataset]:
    """Return a model and 48 samples for it."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 3))
    data = torch.utils.data.TensorDataset(torch.randn(48, INPUTS), torch.randint(0, 3, (48,)))
    return model, data


class Classifier(nn.Module):
    """The same model with its loss, as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, _ = small()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the outputs."""
        outputs = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


def options(name: str, model: nn.Module, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return what ``distribute`` is given, by the name of an exchange or in :data:`OURS`."""
    plan = {} if name in (DDP, "default") else {"plan": plan_of(model, RANKS, exchange=name)}
    return {**plan, "timeout_s": timeout_s}


def weights_of(model: nn.Module) -> list[Tensor]:
    """Return copies of all parameters."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Compare weights, up to the rounding of sums, and with those of the other ranks."""
    identical_everywhere(ours)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def require_same(ours: Any, theirs: Any, place: str = "") -> None:
    """Assert that two nested states are the same, tensors bit for bit."""
    if isinstance(theirs, Tensor):
        assert torch.equal(ours, theirs), f"{place} differs"
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for key, value in theirs.items():
            require_same(ours[key], value, f"{place}[{key!r}]")
    elif isinstance(theirs, Sequence) and not isinstance(theirs, str):
        assert len(ours) == len(theirs), place
        for index, value in enumerate(theirs):
            require_same(ours[index], value, f"{place}[{index}]")
    else:
        assert ours == theirs, place
