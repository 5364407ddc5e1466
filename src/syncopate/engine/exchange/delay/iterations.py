"""Iterations: how many steps an optimizer took, warm-up and earlier runs included.

The number is kept in the optimizer's groups. So it is saved and loaded with the optimizer's state,
in any way, and all ranks that load the same are at the same iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from torch.optim import Optimizer

_NUM = "syncopate_num"
"""The key of an optimizer's groups."""


def iterations_of(optimizer: Optimizer) -> int:
    """Return how many steps ``optimizer`` took under a delay."""
    return int(optimizer.param_groups[0].get(_NUM, 0)) if optimizer.param_groups else 0


def count_iteration(optimizer: Optimizer, steps: int = 1) -> None:
    """Add ``steps`` to the count of ``optimizer``; -1 takes its last step back."""
    taken = iterations_of(optimizer) + steps
    for group in optimizer.param_groups:
        group[_NUM] = taken


def expect_iterations(optimizers: Iterable[Optimizer]) -> None:
    """Give every group its count, so that loading by existing keys finds it."""
    for group in chain(*(optimizer.param_groups for optimizer in optimizers)):
        group.setdefault(_NUM, 0)
