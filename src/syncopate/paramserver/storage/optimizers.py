"""Optimizers: SGD, Adam and Adagrad on one slice, step for step as torch.optim computes them.

A state is a dict of tensors, so that it can be written to disk and read again like weights. The
number of steps is a tensor, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.paramserver.tensors import cpu_bytes, joined, part_of, parted
from syncopate.protocol import messages as msg
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import (
    MEAN_SQUARE,
    SGD,
    STEPS,
    Adagrad,
    Adam,
    Compensation,
)

State = dict[str, Tensor]
"""What an optimizer remembers of one slice; empty at first."""

States = Mapping[str, Mapping[str, Tensor]]
"""What it remembers of whole tensors, by name."""


def step(
    rule: SGD | Adam | Adagrad, lr: float | None, weights: Tensor, gradient: Tensor, state: State
) -> None:
    """Update ``weights`` and ``state`` in place.

    Args:
        rule: the optimizer.
        lr: the learning rate; None: the rule's own.
        weights: shape (elements,).
        gradient: shape (elements,); may be overwritten.
        state: of the slice.
    """
    rate = rule.lr if lr is None else lr
    if isinstance(rule, Adam):
        _adam(rule, rate, weights, gradient, state)
    elif isinstance(rule, Adagrad):
        _adagrad(rule, rate, weights, gradient, state)
    elif rule.form == "mxnet":
        _sgd_mxnet(rule, rate, weights, gradient, state)
    else:
        _sgd(rule, rate, weights, gradient, state)


def compensate(
    rule: Compensation, gradient: Tensor, weights: Tensor, backup: Tensor, state: State
) -> Tensor:
    """Return ``gradient`` as it might be on ``weights``; it was computed on ``backup``.

    All are of shape (elements,). See :class:`~syncopate.protocol.rules.Compensation`.
    """
    squared = gradient * gradient
    mean_square = state.get(MEAN_SQUARE)
    if mean_square is None:
        mean_square = state[MEAN_SQUARE] = torch.zeros_like(weights)
    mean_square.mul_(rule.decay).add_(squared, alpha=1 - rule.decay)
    strength = (mean_square + rule.eps).sqrt_().reciprocal_().mul_(rule.lambda_0)
    return strength.mul_(squared).mul_(weights - backup).add_(gradient)


def clip(gradient: Tensor, norm: float, most: float) -> None:
    """Scale ``gradient`` in place, as ``torch.nn.utils.clip_grad_norm_`` does.

    Args:
        gradient: a part of the whole gradient.
        norm: of the whole.
        most: its norm afterwards, at most.
    """
    factor = most / (norm + 1e-6)
    gradient.mul_(1.0 if factor > 1 else factor)  # with NaN where the norm is


def _sgd(rule: SGD, lr: float, weights: Tensor, gradient: Tensor, state: State) -> None:
    if rule.weight_decay != 0:
        gradient = gradient.add_(weights, alpha=rule.weight_decay)
    if rule.momentum != 0:
        velocity = state.get("momentum")
        if velocity is None:
            velocity = state["momentum"] = gradient.clone()
        else:
            velocity.mul_(rule.momentum).add_(gradient, alpha=1 - rule.dampening)
        gradient = gradient.add_(velocity, alpha=rule.momentum) if rule.nesterov else velocity
    weights.add_(gradient, alpha=-lr)


def _sgd_mxnet(rule: SGD, lr: float, weights: Tensor, gradient: Tensor, state: State) -> None:
    if rule.weight_decay != 0:
        gradient = gradient.add_(weights, alpha=rule.weight_decay)
    velocity = state.get("momentum")
    if velocity is None:
        velocity = state["momentum"] = torch.zeros_like(weights)
    velocity.mul_(rule.momentum).add_(gradient, alpha=-lr)
    weights.add_(velocity)


def _adam(rule: Adam, lr: float, weights: Tensor, gradient: Tensor, state: State) -> None:
    if STEPS not in state:
        state[STEPS] = torch.zeros(1, dtype=torch.int64)
        state["mean"] = torch.zeros_like(weights)
        state["square"] = torch.zeros_like(weights)
    state[STEPS] += 1
    steps = int(state[STEPS].item())
    first, second = rule.betas
    if rule.weight_decay != 0:
        if rule.decoupled:
            weights.mul_(1 - lr * rule.weight_decay)
        else:
            gradient = gradient.add_(weights, alpha=rule.weight_decay)
    state["mean"].lerp_(gradient, 1 - first)
    state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    root = (1 - second**steps) ** 0.5
    denominator = (state["square"].sqrt() / root).add_(rule.eps)
    weights.addcdiv_(state["mean"], denominator, value=-(lr / (1 - first**steps)))


def _adagrad(rule: Adagrad, lr: float, weights: Tensor, gradient: Tensor, state: State) -> None:
    if STEPS not in state:
        state[STEPS] = torch.zeros(1, dtype=torch.int64)
        state["sum"] = torch.full_like(weights, rule.initial_accumulator_value)
    state[STEPS] += 1
    if rule.weight_decay != 0:
        gradient = gradient.add_(weights, alpha=rule.weight_decay)
    rate = lr / (1 + (int(state[STEPS].item()) - 1) * rule.lr_decay)
    state["sum"].addcmul_(gradient, gradient, value=1)
    weights.addcdiv_(gradient, state["sum"].sqrt().add_(rule.eps), value=-rate)


def with_state(
    piece: Slice, tensor: Tensor, state: Mapping[str, Tensor], known: Sequence[str]
) -> tuple[tuple[str, ...], Tensor]:
    """Return what a slice begins with: its weights, and what an optimizer remembers behind them.

    Args:
        piece: of ``tensor``.
        tensor: the whole one.
        state: of it; each entry flat, as many elements of the same type, or ``steps``.
        known: what the optimizer remembers.

    Returns:
        Names in the order of the payload, and its bytes.

    Raises:
        UnknownNameError: the optimizer remembers no such thing.
        InvalidValueError: an entry is not as the tensor is.
    """
    parts = [part_of(cpu_bytes(tensor), piece)]
    for name, given in state.items():
        if name not in known:
            raise UnknownNameError("state of a servers' optimizer", name, known, piece.name)
        dtype, numel = (torch.int64, 1) if name == STEPS else (tensor.dtype, tensor.numel())
        if (given.dtype, given.numel()) != (dtype, numel):
            rule = f"{numel} elements of {dtype}"
            raise InvalidValueError(
                f"{name} of {piece.name}", f"{given.numel()} of {given.dtype}", rule
            )
        data = cpu_bytes(given)
        parts.append(data if name == STEPS else part_of(data, piece))
    return tuple(state), joined(parts)


def collecting(
    piece: Slice, members: Sequence[Slice], found: dict[int, State]
) -> Callable[..., None]:
    """Return what puts the state that comes of a slice, or of a bundle's, into ``found``.

    Args:
        piece: what is pulled.
        members: the slices in it, one behind the other; itself where it is no bundle.
        found: by the slices' keys.
    """

    def take(data: Tensor, answer: msg.State) -> None:
        names = answer.state
        state = parted(data, piece.carried(names))
        begin = 0
        for member in members:
            end = begin + member.numel
            found[member.key] = {
                name: state[name] if name == STEPS else state[name][begin:end] for name in names
            }
            begin = end

    return take


def whole_state(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state of a tensor of that of its slices, in their order."""
    return {
        name: value if name == STEPS else torch.cat([part[name] for part in parts])
        for name, value in parts[0].items()
    }
