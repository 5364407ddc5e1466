"""Norms of spread gradients: looked at once, by all ranks, and not before they have to be."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import Tensor

from syncopate.engine.exchange.proxies.norms import PartialNorm
from tests.children import HANGS_S

RANKS = 3


class Meeting:
    """Ranks that are threads; counts the messages of each."""

    def __init__(self, rank: int, table: dict[int, list[Tensor | None]], bar: threading.Barrier):
        self.messages = 0
        self._rank, self._table, self._barrier = rank, table, bar

    def everyone(self, values: Tensor) -> Tensor:
        row = self._table.setdefault(self.messages, [None] * RANKS)
        self.messages += 1
        row[self._rank] = values
        self._barrier.wait(HANGS_S)
        return torch.stack([found for found in row if found is not None])


def on_ranks(ask):  # type: ignore[no-untyped-def]
    """Return what ``ask(meeting, rank)`` returns on each rank, and the messages it took."""
    table: dict[int, list[Tensor | None]] = {}
    for number in range(20):
        table[number] = [None] * RANKS
    barrier = threading.Barrier(RANKS)
    results: list[object] = [None] * RANKS
    meetings = [Meeting(rank, table, barrier) for rank in range(RANKS)]

    def run(rank: int) -> None:
        results[rank] = ask(meetings[rank], rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert len({meeting.messages for meeting in meetings}) == 1
    return results, meetings[0].messages


def parts(rank: int, dtype: torch.dtype) -> list[Tensor]:
    """Three gradients of 7, 2 and 0 elements; of the second rank 2 has none."""
    first = torch.arange(7, dtype=dtype) - 3
    second = torch.tensor([5.0, -6.0], dtype=dtype)
    cuts = [(0, 3, 0, 1), (3, 4, 1, 2), (4, 7, 2, 2)][rank]
    return [first[cuts[0] : cuts[1]], second[cuts[2] : cuts[3]], first[:0]]


def norm_of(own: Tensor, order: float, meeting: Meeting) -> PartialNorm:
    """The norm of what this rank has of a gradient, in ranges of two elements."""
    ranges = own.split(2) if own.numel() else ()
    return PartialNorm.of(own, ranges, order, None, meeting)


WHOLE = torch.cat([torch.arange(7, dtype=torch.float64) - 3, torch.tensor([5.0, -6.0]).double()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_of_norms_is_that_of_all_elements(order: float, dtype: torch.dtype) -> None:
    def ask(meeting: Meeting, rank: int) -> Tensor:
        norms = [norm_of(own, order, meeting) for own in parts(rank, dtype)]
        assert meeting.messages == 0
        stacked = torch.stack([norm.to("cpu") for norm in norms])
        assert meeting.messages == 0
        assert stacked.shape == (3,)
        found: Tensor = torch.linalg.vector_norm(stacked, order)
        assert type(found) is Tensor
        return found

    results, messages = on_ranks(ask)
    assert messages == 1
    expected = torch.linalg.vector_norm(WHOLE, order)
    for found in results:
        assert found.dtype == dtype
        assert torch.equal(found, results[0])
        rtol = max(torch.finfo(dtype).eps, 1e-12)
        torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=0)


def test_what_is_whole_here_counts_once() -> None:
    def ask(meeting: Meeting, rank: int) -> float:
        norms = [norm_of(own, 2.0, meeting) for own in parts(rank, torch.float64)]
        stacked = torch.stack([*norms, torch.tensor(7.0, dtype=torch.float64)])
        return torch.linalg.vector_norm(stacked, 2).item()

    results, messages = on_ranks(ask)
    assert messages == 1
    assert results == [pytest.approx(math.hypot(WHOLE.norm().item(), 7.0), rel=1e-12)] * RANKS


def test_a_norm_is_asked_for_once() -> None:
    """Arithmetic, comparison and printing look at it; two orders are not one."""

    def ask(meeting: Meeting, rank: int) -> list[float]:
        norm = norm_of(parts(rank, torch.float64)[0], 2.0, meeting)
        told = [float(norm), norm.item(), (norm * 2).item(), float(f"{norm:.6f}")]
        assert meeting.messages == 1
        assert bool(norm > 5)
        assert not norm.isnan()
        other = norm_of(parts(rank, torch.float64)[1], 1.0, meeting)
        stacked = torch.stack([norm, other])
        assert meeting.messages == 2
        assert type(stacked) is Tensor
        return [*told, *stacked.tolist(), torch.linalg.vector_norm(stacked, 1).item()]

    results, messages = on_ranks(ask)
    root = math.sqrt(28)
    assert messages == 2
    expected = [root, root, 2 * root, round(root, 6), root, 11.0, 11.0 + root]
    assert results == [pytest.approx(expected, rel=1e-9)] * RANKS


def test_a_stack_of_another_order_is_looked_at() -> None:
    def ask(meeting: Meeting, rank: int) -> list[float]:
        norms = [norm_of(own, 1.0, meeting) for own in parts(rank, torch.float32)]
        stacked = torch.stack(norms)
        found = torch.linalg.vector_norm(stacked, 2).item()
        return [found, *stacked.tolist()]

    results, messages = on_ranks(ask)
    assert messages == 1
    assert results == [pytest.approx([math.hypot(12, 11), 12.0, 11.0, 0.0])] * RANKS


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_somewhere_is_so_everywhere(value: float) -> None:
    def ask(meeting: Meeting, rank: int) -> bool:
        own = torch.tensor([value if rank == 1 else 1.0])
        norm = norm_of(own, 2.0, meeting)
        found = torch.linalg.vector_norm(torch.stack([norm]), 2)
        return bool(torch.logical_or(found.isnan(), found.isinf()))

    assert on_ranks(ask) == ([True] * RANKS, 1)
