"""Reductions: what is made of the elements of two ranks where a schedule reduces.

Each of them is commutative, so two ranks that exchange what they have end with the same bits. A sum
has a way of its own in the executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Reduce = Callable[[Any, Any], None]
"""Reduces the second operand into the first one, in place; both numpy arrays or both tensors."""

SUM = "sum"
"""The reduction that gradients have."""


def _in_place(of_arrays: Callable[..., Any], of_tensors: Callable[..., Any]) -> Reduce:
    def reduce(into: Any, other: Any) -> None:
        (of_tensors if isinstance(into, torch.Tensor) else of_arrays)(into, other, out=into)

    return reduce


REDUCTIONS: dict[str, Reduce | None] = {
    SUM: None,
    "product": _in_place(np.multiply, torch.mul),
    "min": _in_place(np.minimum, torch.minimum),
    "max": _in_place(np.maximum, torch.maximum),
    "band": _in_place(np.bitwise_and, torch.bitwise_and),
    "bor": _in_place(np.bitwise_or, torch.bitwise_or),
    "bxor": _in_place(np.bitwise_xor, torch.bitwise_xor),
}
"""Name -> what reduces; None for the sum."""
