"""Tensors of any shape and strides as one row, and back."""

from __future__ import annotations

import pytest
import torch

from syncopate.c10d.rows import Rows, raw, require_writable
from syncopate.errors import InvalidValueError


def test_a_lone_contiguous_tensor_is_its_row():
    tensor = torch.arange(6.0).view(2, 3)
    rows = Rows("x", [tensor])
    assert rows.take().data_ptr() == rows.room().data_ptr() == tensor.data_ptr()
    assert rows.copy().data_ptr() != tensor.data_ptr()
    assert rows.shape == "6 float32"
    rows.put(rows.take().mul_(2))
    assert torch.equal(tensor, 2 * torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).view(3, 4).t(),
        lambda: torch.arange(24.0)[::2],
        lambda: torch.arange(4.0).expand(3, 4).clone().t(),
        lambda: torch.view_as_complex(torch.arange(24.0).view(12, 2)).conj(),
        lambda: torch.tensor(3.0),
        lambda: torch.empty(0, 4),
    ],
)
def test_any_strides_go_there_and_back(make):
    tensor = make()
    before = tensor.clone()
    rows = Rows("x", [tensor])
    row = rows.take()
    assert torch.equal(row, before.reshape(-1).resolve_conj())
    changed = row + 1
    rows.put(changed)
    assert torch.equal(tensor, before + 1)


def test_several_tensors_are_one_row():
    tensors = [torch.ones(2, 2), torch.zeros(0), torch.full((3,), 2.0)]
    rows = Rows("x", tensors)
    assert rows.bounds == (0, 4, 4, 7)
    assert not rows.equal
    rows.put(rows.take() + 1)
    assert tensors[2].tolist() == [3, 3, 3]


def test_bytes_of_any_dtype():
    for dtype in (torch.bool, torch.complex64, torch.float16, torch.float8_e5m2, torch.int64):
        row = torch.zeros(3, dtype=dtype)
        assert raw(row).numel() == 3 * dtype.itemsize
        assert raw(row).data_ptr() == row.data_ptr()


def test_elements_that_share_memory_cannot_be_filled():
    shared = torch.ones(3, 1).expand(3, 4)
    with pytest.raises(InvalidValueError, match=r"tensor of x is .*\(3, 4\) and strides \(1, 0\)"):
        require_writable("x", [torch.ones(2), shared])
    fine = (torch.ones(3, 4).t(), torch.ones(1).expand(1, 1), torch.ones(1).expand(0, 1))
    require_writable("x", [*fine, shared.clone(), torch.eye(2).to_sparse(), torch.tensor(1.0)])


def test_what_cannot_be_carried_is_refused():
    with pytest.raises(InvalidValueError, match="dense"):
        Rows("broadcast", [torch.eye(2).to_sparse()])
    with pytest.raises(InvalidValueError, match="one dtype"):
        Rows("broadcast", [torch.ones(1), torch.ones(1, dtype=torch.int8)])
    with pytest.raises(InvalidValueError, match="NCCL"):
        Rows("broadcast", [torch.ones(1, device="meta")])
