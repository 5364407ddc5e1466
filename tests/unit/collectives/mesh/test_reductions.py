"""Reductions of arrays and of tensors, in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from syncopate.collectives.mesh.reductions import REDUCTIONS, SUM

WANTED = {"product": 15, "min": 3, "max": 5, "band": 1, "bor": 7, "bxor": 6}


def test_all_but_the_sum_have_a_function():
    assert {name for name, reduce in REDUCTIONS.items() if reduce is None} == {SUM}
    assert {*WANTED, SUM} == REDUCTIONS.keys()


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("of", [torch.tensor, np.array])
def test_the_first_operand_has_the_result(name, of):
    into = of([3, 5])
    REDUCTIONS[name](into, of([5, 3]))
    assert into.tolist() == [WANTED[name]] * 2
