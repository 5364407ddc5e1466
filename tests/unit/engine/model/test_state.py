"""Tensors of rank 0 on every rank: in what pieces, and to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.engine.model import state
from syncopate.engine.model.state import Buffers, broadcast_tensors


class Rank:
    """A communicator that keeps what rank 0 sends, and plays it back to another rank."""

    def __init__(self, rank: int, sent: list[Tensor]) -> None:
        self.rank = rank
        self.sent = sent
        self._next = iter(list(sent))

    def broadcast(self, tensor: Tensor, src: int, channel: int) -> None:
        assert (src, channel) == (0, 0)
        if self.rank == 0:
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(next(self._next))


def passed_on(mine: list[Tensor], theirs: list[Tensor]) -> list[int]:
    """Bring ``theirs`` to ``mine``; return the bytes of every message."""
    sent: list[Tensor] = []
    first: Any = Rank(0, sent)
    broadcast_tensors(first, mine)
    second: Any = Rank(1, sent)
    broadcast_tensors(second, theirs)
    return [tensor.nbytes for tensor in sent]


def test_every_dtype_and_layout_arrives_to_the_bit() -> None:
    mine = [
        torch.tensor([1, 2, 3], dtype=torch.uint8),
        torch.tensor([float("nan"), -0.0, 1e-45]),
        torch.tensor(7, dtype=torch.int64),
        torch.empty(0),
        torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t(),
        torch.tensor([True, False, True]),
        torch.tensor([1 + 2j], dtype=torch.complex64),
        torch.tensor([0.5, 2.0], dtype=torch.bfloat16),
    ]
    theirs = [torch.zeros_like(tensor) for tensor in mine]
    passed_on(mine, theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert torch.equal(
            one.contiguous().reshape(-1).view(torch.uint8),
            other.contiguous().reshape(-1).view(torch.uint8),
        )


def test_messages_are_as_long_as_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_CHUNK_BYTES", 100)
    sizes = [60, 40, 1, 0, 99, 101, 50, 50, 50]
    mine = [torch.full((size,), index, dtype=torch.uint8) for index, size in enumerate(sizes)]
    theirs = [torch.zeros_like(tensor) for tensor in mine]
    # Exactly the limit is one message; what is longer alone is one by itself.
    assert passed_on(mine, theirs) == [100, 100, 101, 100, 50]
    assert all(map(torch.equal, mine, theirs))
    assert passed_on([], []) == []


class Source:
    """Rank 0, whose buffers have other forms and are zero, as rank 1 meets it."""

    rank, world_size = 1, 2

    def __init__(self, forms: state.Forms) -> None:
        self.forms = forms
        self.sent = [1, 0]  # the forms are others; all values are zero

    def broadcast(self, tensor: Tensor, *_: object, **__: object) -> None:
        tensor.fill_(self.sent.pop(0))

    def broadcast_object(self, *_: object) -> state.Forms:
        return self.forms


def with_buffers(**values: float) -> nn.Module:
    model = nn.Module()
    for name, value in values.items():
        model.register_buffer(name, torch.full((2,), value))
    return model


def test_a_rank_gets_its_own_buffers_back_by_their_names() -> None:
    """Also where the source has one more now, in front of them."""
    mine = with_buffers(mean=1.0, scale=2.0)
    buffers = Buffers(mine)
    source: Any = Source(Buffers(with_buffers(early=5.0, mean=3.0, scale=4.0))._forms)
    own = buffers.copies()
    buffers.refresh(source)
    assert {name: held.tolist() for name, held in mine.named_buffers()} == {
        "early": [0.0, 0.0],
        "mean": [0.0, 0.0],
        "scale": [0.0, 0.0],
    }
    buffers.put_back(own)
    assert mine.get_buffer("mean").tolist() == [1.0, 1.0]
    assert mine.get_buffer("scale").tolist() == [2.0, 2.0]
    assert mine.get_buffer("early").tolist() == [0.0, 0.0]
