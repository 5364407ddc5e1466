"""Replay: any workload as a module that takes its time and makes its gradients.

Forward sleeps, backward sleeps and hands out gradients of the right size and dtype in the
workload's ready order. The parameters are real, so hooks, data-parallel engines and the network see
exactly what the model would give them, without the model, its data or a device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import InvalidValueError
from syncopate.zoo.task import Task

_SHORTEST_SLEEP_S = 50e-6
_LARGEST_DEBT_S = 0.05


class _Sleeper:
    """Sleeps so that the total is right although every single sleep overshoots.

    What one sleep takes too long is a debt that later sleeps pay back. Only time between ``start``
    and the end of ``spend`` counts, so what hooks and collectives take in between is never repaid.
    A stall beyond ``_LARGEST_DEBT_S`` is not the clock's overshoot and is forgiven.
    """

    def __init__(self) -> None:
        self.debt_s = 0.0

    def spend(self, duration_s: float, started_s: float) -> None:
        """Return at ``started_s + duration_s``, on average."""
        remaining_s = started_s + duration_s - self.debt_s - time.perf_counter()
        if remaining_s > _SHORTEST_SLEEP_S:
            time.sleep(remaining_s)
        elapsed_s = time.perf_counter() - started_s
        self.debt_s = min(self.debt_s + elapsed_s - duration_s, _LARGEST_DEBT_S)


class _Layer(torch.autograd.Function):
    """One link of the chain: passes the token on, and in backward makes one gradient."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, parameter: Tensor, replay: Replay, index: int) -> Tensor:
        """Take the forward time of tensor ``index``, unless that has been taken."""
        ctx.replay, ctx.index = replay, index
        ctx.shape, ctx.dtype = parameter.shape, parameter.dtype
        if not replay._uses_apart:
            replay._use(parameter, index)
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Take the backward time of tensor ``index``; making the gradient is part of it."""
        started_s = time.perf_counter()
        (grad,) = grads
        gradient = grad.to(ctx.dtype).expand(ctx.shape).clone(memory_format=torch.contiguous_format)
        ctx.replay._take_backward(ctx.index, started_s)
        return grad, gradient, None, None


class _Tail(torch.autograd.Function):
    """The start of the chain: in backward, the time that is left after the last gradient."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, replay: Replay) -> Tensor:
        """Pass the token on."""
        ctx.replay = replay
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Take the rest of the backward time."""
        ctx.replay._take_backward(len(ctx.replay.workload.tensors), time.perf_counter())
        return grads[0], None


class _Part(nn.Module):
    """One module of the replayed model: called in forward, as the model would call it.

    So a wait for weights before the module that needs them is where it would be there.
    """

    def forward(self, token: Tensor, replay: Replay, links: _Links) -> Tensor:
        """Take the forward time of this module's own parameters."""
        return _chain(token, replay, self, links)


_Links = tuple[tuple[int, str], ...]
"""Indices of tensors, and what their module calls them, in forward order."""


def _chain(token: Tensor, replay: Replay, owner: nn.Module, links: _Links) -> Tensor:
    for index, leaf in links:
        if replay._uses_apart:
            replay._use(getattr(owner, leaf), index)
            continue
        token = _Layer.apply(token, getattr(owner, leaf), replay, index)  # type: ignore[no-untyped-call]
    return token


class Replay(nn.Module):
    """A workload as a module; the output is a scalar loss that depends on every parameter.

    Every element of every gradient equals the gradient of what is back-propagated with respect to
    the output: 1 for ``replay().backward()``, so a test can scale the loss per rank and check sums.

    Parameters are one-dimensional, zero, and keep their names: ``"layer1.0.conv1.weight"`` becomes
    parameter ``weight`` in nested submodules. A name that no module can hold (it is a prefix of
    another, or a method's name) is altered; ``workload`` then has the names as they are here.
    Forward calls the submodules in the workload's order of forward, each for its own parameters.
    Backward goes the reverse way of what autograd was shown; where that is another order, autograd
    is shown the parameters at the end of forward.

    Attributes:
        workload: the workload as replayed; plan for this one. What overlap cost the model is not
            in it: ranks that sleep and messages do not slow each other down.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        for tensor in workload.tensors:
            if not _torch_dtype(tensor.dtype).is_floating_point:
                raise InvalidValueError(
                    f"dtype of {tensor.name}", tensor.dtype, "a floating-point one to be replayed"
                )
        # Definition order is forward order, the reverse of ready order: DDP cuts its first
        # buckets by it.
        names = [
            _register(self, tensor, index)
            for index, tensor in reversed(list(enumerate(workload.tensors)))
        ][::-1]
        tensors = tuple(
            replace(tensor, name=name) for name, tensor in zip(names, workload.tensors, strict=True)
        )
        self.workload = Workload(
            model=workload.model,
            tensors=tensors,
            forward_s=workload.forward_s,
            backward_s=workload.backward_s,
            update_s=workload.update_s,
            forward_order=workload.forward_order,
            metadata=dict(workload.metadata),
        )
        order = tuple(reversed(range(len(names))))
        self._uses_apart = workload.forward_order not in ((), order)
        self._calls = _calls(names, workload.forward_order or order)
        self._names = names
        self._forward_s = _shares(workload.forward_s, [t.forward_s for t in tensors])
        self._backward_s = _shares(workload.backward_s, [t.backward_s for t in tensors])
        self._sleeper = _Sleeper()

    def forward(self, inputs: Any = None) -> Tensor:
        """Take the forward time and return the loss, 0; ``inputs`` are not looked at."""
        del inputs
        device = next(self.parameters()).device
        token = _Tail.apply(torch.zeros((), device=device, requires_grad=True), self)  # type: ignore[no-untyped-call]
        for owner, links in self._calls:
            module = self.get_submodule(owner)
            token = module(token, self, links) if owner else _chain(token, self, self, links)
        if self._uses_apart:
            for index, name in reversed(list(enumerate(self._names))):
                token = _Layer.apply(token, self.get_parameter(name), self, index)  # type: ignore[no-untyped-call]
        self._take_forward(len(self.workload.tensors))
        loss: Tensor = token
        return loss

    def update(self) -> None:
        """Take the update time of one iteration; :meth:`optimizer` calls it in every step."""
        self._sleeper.spend(self.workload.update_s, time.perf_counter())

    def optimizer(self) -> ReplayOptimizer:
        """Return an optimizer whose step takes ``update_s`` and leaves the parameters alone."""
        return ReplayOptimizer(self)

    def task(self) -> Task:
        """Return the replay as a task, to be profiled or trained like any other."""
        return Task(model=self, inputs=(), name=self.workload.model)

    def _use(self, parameter: Tensor, index: int) -> None:
        # A layer computes with its weights; where they are on their way it waits for them here.
        parameter.detach()
        self._take_forward(index)

    def _take_forward(self, index: int) -> None:
        if self._forward_s[index] > 0:
            self._sleeper.spend(self._forward_s[index], time.perf_counter())

    def _take_backward(self, index: int, started_s: float) -> None:
        self._sleeper.spend(self._backward_s[index], started_s)


class ReplayOptimizer(torch.optim.Optimizer):
    """An optimizer that takes the update time of a replayed workload and changes nothing."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay.parameters(), {})
        self._replay = replay

    def step(self, closure: Any = None) -> Any:
        """Take ``update_s``; return the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._replay.update()
        return loss


def replay(workload: Workload) -> Replay:
    """Return ``workload`` as a module; see :class:`Replay`."""
    return Replay(workload)


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _shares(total_s: float, parts_s: Sequence[float]) -> tuple[float, ...]:
    """Return ``parts_s`` and, last, what is left of ``total_s``; scaled down if they exceed it."""
    together_s = sum(parts_s)
    if together_s > total_s:
        parts_s = [part_s * (total_s / together_s) for part_s in parts_s]
        together_s = total_s
    return (*parts_s, total_s - together_s)


def _calls(names: Sequence[str], order: Sequence[int]) -> tuple[tuple[str, _Links], ...]:
    """Return the modules in the order that forward calls them, each with its tensors of that call.

    Args:
        names: dotted names of the parameters in ready order.
        order: their indices in the order of forward.
    """
    calls: list[tuple[str, _Links]] = []
    for index in order:
        owner, _, leaf = names[index].rpartition(".")
        before: _Links = calls.pop()[1] if calls and calls[-1][0] == owner else ()
        calls.append((owner, (*before, (index, leaf))))
    return tuple(calls)


def _register(root: nn.Module, tensor: GradientTensor, index: int) -> str:
    """Add the parameter under its own dotted name where a module allows it; return its name."""
    parameter = nn.Parameter(torch.zeros(tensor.numel, dtype=_torch_dtype(tensor.dtype)))
    *path, leaf = tensor.name.split(".")
    module = root
    for part in path:
        child = module._modules.get(part)
        if child is None:
            if not part or hasattr(module, part):
                break
            child = _Part()
            module.add_module(part, child)
        module = child
    else:
        if leaf and not hasattr(module, leaf):
            module.register_parameter(leaf, parameter)
            return tensor.name
    name = f"tensor{index}_{tensor.name.replace('.', '_')}"
    root.register_parameter(name, parameter)
    return name
