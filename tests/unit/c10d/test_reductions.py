"""torch's reductions, and the elements that they are of."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from syncopate.c10d.reductions import Reduction
from syncopate.errors import InvalidValueError


@pytest.mark.parametrize(
    ("name", "dtype", "found"),
    [
        ("SUM", torch.float32, "sum"),
        ("AVG", torch.float32, "sum"),
        ("MAX", torch.int8, "max"),
        ("BXOR", torch.int64, "bxor"),
        ("SUM", torch.bool, "max"),
        ("PRODUCT", torch.bool, "min"),
        ("SUM", torch.complex64, "sum"),
    ],
)
def test_what_schedules_carry_out(name, dtype, found):
    assert Reduction("all_reduce", getattr(dist.ReduceOp, name), dtype, 3).name == found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("AVG", torch.int32),
        ("BAND", torch.float32),
        ("MAX", torch.complex64),
        ("SUM", torch.float8_e4m3fn),
    ],
)
def test_what_is_refused(name, dtype):
    with pytest.raises(InvalidValueError, match=f"reduction of {dtype} in all_reduce is '{name}'"):
        Reduction("all_reduce", getattr(dist.ReduceOp, name), dtype, 3)


def test_an_average_of_whole_numbers_is_said_to_need_floats():
    with pytest.raises(InvalidValueError, match="floating point: AVG multiplies by fractions"):
        Reduction("all_reduce", dist.ReduceOp.AVG, torch.int64, 3)


def test_an_average_is_a_sum_divided_at_its_end():
    reduction = Reduction("all_reduce", dist.ReduceOp.AVG, torch.float32, 4)
    row = torch.full((2,), 6.0)
    assert reduction.before(row) is row
    reduction.after(row)
    assert row.tolist() == [1.5, 1.5]
