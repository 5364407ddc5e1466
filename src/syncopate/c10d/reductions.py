"""Reductions: torch's reductions, as those that schedules carry out.

===============  ===================================================================================
torch's          how
===============  ===================================================================================
``SUM``          the elements are added
``AVG``          a sum, divided by the number of ranks at its end; of floating point
``PREMUL_SUM``   a sum of what was multiplied by the factor before
``PRODUCT``      ``MIN``, ``MAX`` too: of any numbers but complex ones
``BAND``         ``BOR``, ``BXOR`` too: of integers and truth values
===============  ===================================================================================

Truth values are numbers 0 and 1, whose sum is 1 where any is: a sum is a maximum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from syncopate.c10d.torch_compat import reduction_of
from syncopate.collectives.request import DTYPES
from syncopate.errors import InvalidValueError, UnknownNameError

_OF_NUMBERS = {"SUM": "sum", "PRODUCT": "product", "MIN": "min", "MAX": "max"}
_OF_BITS = {"BAND": "band", "BOR": "bor", "BXOR": "bxor"}
_SCALED = ("AVG", "PREMUL_SUM")
_OF_TRUTH = {**_OF_NUMBERS, **_OF_BITS, "SUM": "max", "PRODUCT": "min"}


class Reduction:
    """What a collective makes of elements of one dtype.

    Args:
        what: the collective, for errors.
        op: torch's reduction.
        dtype: of the elements.
        world_size: number of ranks.

    Attributes:
        name: of what schedules carry out.
        label: for labels; empty for a sum.

    Raises:
        UnknownNameError: no such reduction.
        InvalidValueError: elements of this dtype are not reduced that way.
    """

    def __init__(self, what: str, op: Any, dtype: torch.dtype, world_size: int) -> None:
        torchs, self._factor = reduction_of(op)
        known = (*_OF_NUMBERS, *_OF_BITS, *_SCALED)
        if torchs not in known:
            raise UnknownNameError("reduction", torchs, known, what)
        table = _OF_TRUTH if dtype == torch.bool else {**_OF_NUMBERS, **_OF_BITS}
        self.name = "sum" if torchs in _SCALED else table[torchs]
        self.label = "" if torchs == "SUM" else f" {torchs}"
        self._divisor = world_size if torchs == "AVG" else 0
        self._truth = dtype == torch.bool
        fits = dtype in DTYPES or self._truth
        if torchs in _SCALED:
            fits &= dtype.is_floating_point
        elif torchs in _OF_BITS:
            fits &= not (dtype.is_floating_point or dtype.is_complex)
        elif torchs != "SUM":
            fits &= not dtype.is_complex
        if not fits:
            of_floats = torchs in _SCALED and not dtype.is_floating_point
            rule = "SUM, or another reduction of such elements; other dtypes have to be converted"
            if of_floats:
                rule = f"SUM, or the tensor of floating point: {torchs} multiplies by fractions"
            raise InvalidValueError(f"reduction of {dtype} in {what}", torchs, rule)

    def before(self, row: Tensor) -> Tensor:
        """Return what is reduced of a row, in its memory where that is not to be kept as it is."""
        if self._factor is not None:
            row.mul_(self._factor)
        return row.view(torch.uint8) if self._truth else row

    def after(self, row: Tensor) -> None:
        """Make the result of what was reduced."""
        if self._divisor:
            row.div_(self._divisor)
