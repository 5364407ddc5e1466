"""State: everything an iteration changes in a model, put back afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from syncopate.artifacts.plan import plain_name


@contextmanager
def preserved(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Let the body train ``model`` and leave no trace.

    Parameters, gradients, buffers, training modes, the optimizer's state and the random state are
    as before afterwards, also when the body raises. Copies live in host memory.
    """
    parameters = [(p, p.detach().to("cpu", copy=True)) for p in model.parameters()]
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.detach().to("cpu", copy=True))
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    modes = [(module, module.training) for module in model.modules()]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
    devices = {p.device for p, _ in parameters if p.device.type == "cuda"}
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        with torch.random.fork_rng(devices=[d.index or 0 for d in devices]):
            yield
    finally:
        with torch.no_grad():
            for parameter, value in parameters:
                parameter.copy_(value)
            for module, name, buffer, value in buffers:
                buffer.copy_(value)
                module._buffers[name] = buffer
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that get a gradient, by name, a shared one once.

    A compiled model's have the names that they have without ``torch.compile``.
    """
    return {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}
