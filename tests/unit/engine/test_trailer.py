"""The trailer: what rides along with the last bucket arrives exactly, in every dtype."""

from __future__ import annotations

import math
from functools import reduce

import pytest
import torch
from torch import Tensor, nn

from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.collectives.messages.piggyback import riding_bytes
from syncopate.engine.model.state import Buffers
from syncopate.engine.trailer import Note, Trailer

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


def _buffers(module: nn.Module) -> Buffers:
    """The module's buffers, agreed to be as they are."""
    buffers = Buffers(module)
    buffers.take(buffers.kept)
    return buffers


def _exchange(
    dtype: torch.dtype, unreached: list[list[int]], failed: list[int], asking: list[int]
) -> list:
    """Play the ranks in one process: write every trailer, sum, deliver."""
    ranks = []
    for rank in range(RANKS):
        module = _Stateful(rank)
        buffers = _buffers(module)
        trailer = Trailer(PARAMETERS, rank, RANKS, buffers, dtype)
        memory = torch.zeros(trailer.elements + 3, dtype=dtype)
        if dtype.is_complex:
            memory = torch.view_as_real(memory).view(-1)
        trailer.attach(memory)
        ranks.append((module, trailer, memory, buffers))
    for step in range(2):  # the second exchange starts from what the first left behind
        for rank, (_, trailer, *_) in enumerate(ranks):
            fails = rank in failed and step == 1
            trailer.write(Note(unreached[rank], fails, forwards=100 * rank, asks=rank in asking))
        total = reduce(torch.add, [memory for _, _, memory, _ in ranks])
        for _, trailer, memory, _ in ranks:
            memory.copy_(total)
            trailer.deliver()
    return ranks


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64],
    ids=str,
)
def test_buffers_arrive_bit_by_bit(dtype: torch.dtype) -> None:
    source = _Stateful(0)
    for module, _, _, buffers in _exchange(dtype, [[]] * RANKS, [], []):
        large = set(buffers.loose)
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


def test_reached_failed_and_asking() -> None:
    unreached = [[0, 1], [0, 2], [0, 1, 2]]
    for _, trailer, *_ in _exchange(torch.bfloat16, unreached, [1, 2], [0, 2]):
        assert trailer.reached() == [False, True, True, True]
        # One that failed has no time to ask.
        assert trailer.hear() == ([1, 2], [0, 100, 200], False, [0])


def test_buffers_are_found_wherever_the_module_puts_them() -> None:
    module = _Stateful(0)
    buffers = _buffers(module)
    assert list(buffers.kept).count("floats") + list(buffers.kept).count("again.shared") == 1
    assert "nothing" not in buffers.kept
    module.count = torch.tensor(5)
    buffers.take(["count"])
    assert buffers.kept["count"] == 5
    # One that has another form now is not taken for the one that was agreed on.
    module.count = torch.zeros(2)
    buffers.take(["count"])
    buffers.put(["count"])
    assert buffers.kept["count"] == 5
    assert module.count.tolist() == [0, 0]
    buffers.put(["count"], replace=True)
    assert module.count.tolist() == 5


def test_a_buffer_that_changed_its_form_rides_no_more() -> None:
    ranks = []
    for rank in range(2):
        module = _Stateful(rank)
        buffers = _buffers(module)
        trailer = Trailer(1, rank, 2, buffers, torch.float32)
        memory = torch.zeros(trailer.elements)
        trailer.attach(memory)
        ranks.append((module, buffers, trailer, memory))
    sender = ranks[0][0]
    sender.brains = torch.ones(9)
    sender.signs = torch.tensor([1, 2, 3], dtype=torch.int8)
    for _, _, trailer, _ in ranks:
        trailer.write(Note())
    total = ranks[0][3] + ranks[1][3]
    for _, _, trailer, memory in ranks:
        memory.copy_(total)
        trailer.deliver()
    module, buffers, *_ = ranks[1]
    assert module.signs.tolist() == [1, 2, 3]
    assert module.brains.tolist() == [0.25]  # the value last agreed on
    assert buffers.kept["brains"].tolist() == [0.25]


def test_buffers_up_to_a_limit_ride_along() -> None:
    """1 MiB as elements of what carries them, or 4 KiB as bytes."""
    module = nn.Module()
    for name, numel, dtype in (
        ("fits", 2**18, torch.float32),
        ("too_long", 2**18 + 1, torch.float32),
        ("widened", 2**18, torch.bfloat16),
        ("widened_too_long", 2**18 + 1, torch.bfloat16),
        ("bytewise", 512, torch.int64),
        ("bytewise_too_long", 513, torch.int64),
    ):
        module.register_buffer(name, torch.zeros(numel, dtype=dtype))
    buffers = _buffers(module)
    trailer = Trailer(1, 0, 1, buffers, torch.float32)
    assert set(buffers.carried) == {"fits", "widened", "bytewise"}
    head = 1 + 2 + 1
    assert trailer.elements == head + 2 * 2**18 + 512 * 8


def test_buffers_of_a_module_that_had_none() -> None:
    module = nn.Linear(1, 1)
    buffers = Buffers(module)
    trailer = Trailer(1, 0, 1, buffers, torch.float32)
    trailer.attach(torch.zeros(trailer.elements))
    trailer.write(Note())
    assert not trailer.hear().appeared
    module.register_buffer("late", torch.ones(1))
    trailer.write(Note())
    assert trailer.hear().appeared
    assert not Buffers(module, shared=False).kept


def test_delivery_is_no_modification_to_autograd() -> None:
    norm = nn.BatchNorm1d(3).train()
    trailer = Trailer(1, 1, 2, _buffers(norm), torch.float32)
    trailer.attach(torch.zeros(trailer.elements))
    loss = norm(torch.randn(4, 3, requires_grad=True)).square().sum()
    trailer.write(Note())
    trailer.deliver()
    loss.backward()
    assert norm.running_mean.tolist() == [0.0, 0.0, 0.0]


def test_a_workload_counts_what_the_tail_takes() -> None:
    module = _Stateful(0)
    buffers = _buffers(module)
    trailer = Trailer(PARAMETERS, 0, RANKS, buffers, torch.float32)
    workload = Workload(
        model="stateful",
        tensors=tuple(GradientTensor(name=f"w{i}", numel=1) for i in range(PARAMETERS)),
        forward_s=0.0,
        backward_s=0.0,
        buffers_nbytes=riding_bytes(module.buffers()),
    )
    assert workload.beside_nbytes(RANKS) == 4 * trailer.elements
    assert riding_bytes(buffers.kept.values()) == workload.buffers_nbytes
    assert set(buffers.kept) - set(buffers.carried) == {"huge", "table"}
