"""Updates: SGD, Adagrad and Adam on some rows of a table, as torch's do with sparse gradients.

Only the rows of the gradient change, and what is remembered of them. Steps are counted for the
table, as torch counts them for a parameter. Operations are those of torch.optim's SGD, Adagrad and
SparseAdam (torch 2.13), in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from syncopate.protocol.rules import SGD, STEPS, Adagrad, Adam, Rules


def beginning(rules: Rules) -> dict[str, float]:
    """Return what is remembered of each element of a row, by name, and what it begins as."""
    first = 0.0
    if isinstance(rules.optimizer, Adagrad):
        first = rules.optimizer.initial_accumulator_value
    return {name: first for name in rules.state if name != STEPS}


class Chosen(NamedTuple):
    """Rows that are to be updated where they are.

    Attributes:
        slots: where they are, each once; shape (rows,).
        weights: of all rows, shape (slots, width).
        state: what is remembered of all rows, by name, each as ``weights``.
    """

    slots: Tensor
    weights: Tensor
    state: Mapping[str, Tensor]


def update_rows(
    rule: SGD | Adam | Adagrad, lr: float | None, rows: Chosen, gradient: Tensor, step: int
) -> None:
    """Update ``rows`` in place.

    Args:
        rule: the optimizer.
        lr: the learning rate; None: the rule's own.
        rows: which.
        gradient: shape (rows, width).
        step: counts updates of the table from 1.
    """
    rate, slots, weights = rule.lr if lr is None else lr, rows.slots, rows.weights
    if isinstance(rule, Adam):
        change = _adam(rule, rate, rows, gradient, step)
        weights.index_copy_(0, slots, weights.index_select(0, slots).add_(change))
        return
    if isinstance(rule, Adagrad):
        rate /= 1 + (step - 1) * rule.lr_decay
        total = rows.state["sum"].index_select(0, slots).add_(gradient.pow(2))
        rows.state["sum"].index_copy_(0, slots, total)
        gradient = gradient / total.sqrt_().add_(rule.eps)
    changed = weights.index_select(0, slots).add_(gradient, alpha=-rate)
    weights.index_copy_(0, slots, changed)


def _adam(rule: Adam, rate: float, rows: Chosen, gradient: Tensor, step: int) -> Tensor:
    """Update what is remembered; return what to add to the weights."""
    slots, state = rows.slots, rows.state
    first, second = rule.betas
    mean, square = (state[name].index_select(0, slots) for name in ("mean", "square"))
    mean_change = gradient.sub(mean).mul_(1 - first)
    state["mean"].index_copy_(0, slots, mean + mean_change)
    square_change = gradient.pow(2).sub_(square).mul_(1 - second)
    state["square"].index_copy_(0, slots, square + square_change)
    numerator = mean_change.add_(mean)
    denominator = square_change.add_(square).sqrt_().add_(rule.eps)
    size = rate * (1 - second**step) ** 0.5 / (1 - first**step)
    return numerator.div_(denominator).mul_(-size)
