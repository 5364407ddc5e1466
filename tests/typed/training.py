"""A user's program, for mypy: what ``distribute`` returns keeps its types. It is never run."""

from __future__ import annotations

from typing import reveal_type

import torch
from torch import Tensor, nn

import syncopate


class Net(nn.Module):
    """A model with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output."""
        outputs: Tensor = self.layer(inputs)
        return outputs


def train() -> syncopate.Plan:
    """Distribute a model, with one optimizer, with several and with none."""
    net = Net()
    adamw = torch.optim.AdamW(net.parameters())
    model, optimizer = syncopate.distribute(net, adamw, delay=4)
    reveal_type(model)
    reveal_type(optimizer)
    reveal_type(syncopate.distribute(net, [adamw])[1])
    reveal_type(syncopate.distribute(net))
    reveal_type(model.layer)
    assert isinstance(model, syncopate.Distributed)
    reveal_type(model.layer)
    reveal_type(model.syncopate)
    with model.no_sync(), model.syncopate.global_weights():
        model(torch.zeros(1, 4))
    return model.syncopate.plan
