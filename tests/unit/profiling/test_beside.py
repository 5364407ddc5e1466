"""What overlap costs a model is read off its iterations with traffic beside them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from syncopate.artifacts.cluster import Interference
from syncopate.profiling import beside
from syncopate.profiling.beside import ROUNDS, Backward, interference_beside
from syncopate.units import MIB

BACKWARD_S, ALONE_S = 1.0, 0.1


class Rank:
    """One of two alike ranks, by a clock of its own; its all-reduces run back to back.

    Args:
        stretch: how many times as long an all-reduce takes beside computation.
        added_s: what each second of traffic adds to backward.
    """

    rank, world_size = 0, 2

    def __init__(self, stretch: float = 1.0, added_s: float = 0.0) -> None:
        self.stretch, self.added_s = stretch, added_s
        self.now_s, self.until_s = 100.0, 0.0
        self.computing = False
        self.sent: list[tuple[bool, int, str]] = []

    def all_reduce(self, tensor: torch.Tensor, *, algorithm: str, async_op: bool) -> Any:
        assert async_op
        self.sent.append((self.computing, tensor.numel() * tensor.element_size(), algorithm))
        start_s = max(self.until_s, self.now_s)
        self.until_s = start_s + ALONE_S * (self.stretch if self.computing else 1.0)
        return SimpleNamespace(wait=self.wait, started_s=start_s, finished_s=self.until_s)

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.until_s)

    def iterate(self, begun: Callable[[], None]) -> Backward:
        self.computing = True
        start_s = self.now_s
        begun()
        seconds = BACKWARD_S + self.added_s * max(self.until_s - start_s, 0.0)
        self.now_s += seconds
        self.computing = False
        return Backward(seconds, (start_s, start_s + seconds))

    def barrier(self) -> None:
        pass

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value, value]

    def broadcast_object(self, value: Any) -> Any:
        return value


def found(rank: Rank, nbytes: int = 16 * MIB) -> Interference:
    communicator: Any = rank
    return interference_beside(communicator, nbytes, rank.iterate, lambda _: None)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "device_of", lambda _: torch.device("cpu"))


def test_a_model_that_leaves_the_machine_idle_has_none() -> None:
    assert found(Rank()).is_ideal


@pytest.mark.parametrize("stretch", [1.5, 2.0])
def test_all_reduces_that_computation_slows_down(stretch: float) -> None:
    interference = found(Rank(stretch=stretch))
    assert interference.compute_rate == 1.0
    assert interference.collective_stretch == pytest.approx(stretch)


@pytest.mark.parametrize("added_s", [0.25, 0.5])
def test_computation_that_traffic_slows_down(added_s: float) -> None:
    assert found(Rank(added_s=added_s)).compute_rate == pytest.approx(1 - added_s)


@pytest.mark.parametrize("nbytes", [1, 4 * MIB, 10 * MIB, 500 * MIB])
def test_each_turn_sends_what_the_gradients_take(nbytes: int) -> None:
    rank = Rank()
    found(rank, nbytes)
    beside_computation = [size for computing, size, _ in rank.sent if computing]
    alone = [size for computing, size, _ in rank.sent if not computing]
    assert sum(beside_computation) == pytest.approx(ROUNDS * max(nbytes, 4), rel=1e-4)
    assert len(alone) * ROUNDS == len(beside_computation) * (ROUNDS + 1)
    assert {algorithm for *_, algorithm in rank.sent} == {"ring"}
