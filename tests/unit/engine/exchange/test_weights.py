"""Tensors on their way: what a fork and a compilation wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from syncopate.engine.exchange.proxies import weights
from syncopate.errors import CollectiveError, EngineError, SyncopateError


class _Waiter:
    """Waits for some tensors, or raises."""

    def __init__(self, error: SyncopateError | None = None) -> None:
        self.tensors = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        self.error = error
        self.waits = 0
        weights.expect(self.tensors, self)

    def wait(self) -> None:
        self.waits += 1
        if self.error is not None:
            raise self.error
        weights.release(self.tensors)


def _fork_begins() -> None:
    weights._fork_begins()
    weights._noting.release()  # as after a fork


def _compilation_begins() -> None:
    weights._compilation_begins(None)


@pytest.mark.parametrize("begins", [_fork_begins, _compilation_begins])
def test_what_was_dropped_with_its_model_is_passed_by(begins: Callable[[], None]) -> None:
    gone, here = _Waiter(EngineError("model and optimizer are gone")), _Waiter()
    begins()
    assert gone.waits
    assert here.waits
    assert not any(isinstance(each, weights.Pending) for each in here.tensors)
    with pytest.raises(EngineError, match="are gone"):
        gone.tensors[0].sum()
    weights.release(gone.tensors)


def test_a_compilation_hears_of_a_lost_rank_and_a_fork_does_not() -> None:
    lost = _Waiter(CollectiveError("all_gather (ring)", "rank 1 is gone", [1]))
    _fork_begins()
    with pytest.raises(CollectiveError):
        _compilation_begins()
    weights.release(lost.tensors)
