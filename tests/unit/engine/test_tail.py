"""The tail: what rides along with the last bucket arrives exactly, whatever carries it."""

from __future__ import annotations

import math
from functools import reduce

import pytest
import torch
from torch import Tensor, nn

from syncopate.engine.state import module_buffers
from syncopate.engine.tail import Tail

RANKS = 3
PARAMETERS = 4


class _Stateful(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.0e38, rank / 3]
        self.register_buffer("floats", torch.tensor(special))
        self.register_buffer("doubles", torch.tensor([1 / 3 + rank, 1e300], dtype=torch.float64))
        self.register_buffer("halves", torch.tensor([[1.5], [rank]], dtype=torch.float16))
        self.register_buffer("brains", torch.tensor([rank + 0.25], dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(2**53 + 1 + rank))
        self.register_buffer("bytes", torch.arange(256, dtype=torch.uint8).roll(rank))
        self.register_buffer("signs", torch.tensor([-128, 127, rank], dtype=torch.int8))
        self.register_buffer("flags", torch.tensor([True, False, rank == 0]))
        self.register_buffer("complex", torch.tensor([1 + 2j, rank * 1j]))
        self.register_buffer("empty", torch.zeros(0, 2))
        self.register_buffer("huge", torch.full((600, 700), float(rank)))
        self.register_buffer("table", torch.arange(2000) + rank)
        self.register_buffer("nothing", None)
        self.again = nn.Module()
        self.again.register_buffer("shared", self.floats)


def _exchange(dtype: torch.dtype, unreached: list[list[int]], failed: list[int]) -> list:
    """Play the ranks in one process: fill every tail, sum, deliver."""
    ranks = []
    for rank in range(RANKS):
        module = _Stateful(rank)
        tail = Tail(PARAMETERS, rank, RANKS, module_buffers(module), dtype)
        memory = torch.zeros(tail.elements + 3, dtype=dtype)
        if dtype.is_complex:
            memory = torch.view_as_real(memory).view(-1)
        tail.attach(memory)
        ranks.append((module, tail, memory))
    for step in range(2):  # the second exchange starts from what the first left behind
        for rank, (_, tail, _) in enumerate(ranks):
            tail.fill(unreached[rank], failed=rank in failed and step == 1)
        total = reduce(torch.add, [memory for _, _, memory in ranks])
        for _, tail, memory in ranks:
            memory.copy_(total)
            tail.deliver()
    return ranks


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64],
    ids=str,
)
def test_buffers_arrive_bit_by_bit(dtype: torch.dtype) -> None:
    source = _Stateful(0)
    for module, tail, _ in _exchange(dtype, [[]] * RANKS, []):
        large = {slot.name for slot in tail.broadcast}
        assert {"huge", "table"} <= large
        for name, buffer in module.named_buffers():
            if name not in large:
                assert _same(buffer, dict(source.named_buffers())[name]), name


def _same(a: Tensor, b: Tensor) -> bool:
    if a.is_floating_point():
        known = ~b.isnan()
        signs = torch.equal(a.signbit()[known], b.signbit()[known])
        return signs and torch.equal(a.isnan(), ~known) and torch.equal(a[known], b[known])
    return torch.equal(a, b)


def test_reached_and_failed() -> None:
    unreached = [[0, 1], [0, 2], [0, 1, 2]]
    for _, tail, _ in _exchange(torch.bfloat16, unreached, [1, 2]):
        assert tail.reached() == [False, True, True, True]
        assert tail.failed_ranks() == [1, 2]


def test_slots_follow_the_module() -> None:
    module = _Stateful(0)
    slots = module_buffers(module)
    assert [slot.name for slot in slots].count("floats") == 1
    assert "again.shared" not in {slot.name for slot in slots}
    module.count = torch.tensor(5)
    assert next(slot.tensor for slot in slots if slot.name == "count") == 5


def test_delivery_is_no_modification_to_autograd() -> None:
    norm = nn.BatchNorm1d(3).train()
    tail = Tail(1, 1, 2, module_buffers(norm), torch.float32)
    tail.attach(torch.zeros(tail.elements))
    loss = norm(torch.randn(4, 3, requires_grad=True)).square().sum()
    tail.fill()
    tail.deliver()
    loss.backward()
    assert norm.running_mean.tolist() == [0.0, 0.0, 0.0]
