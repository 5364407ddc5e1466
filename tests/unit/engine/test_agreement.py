"""Agreement among ranks that are threads: what one says is what the others hear."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from syncopate.engine.agreement import Fact, require_same, together
from syncopate.errors import EngineError, SyncopateError

RANKS = 3
LIMIT_S = 20.0


class Board:
    """Where the ranks lay down what they gather, in turns that all of them take."""

    def __init__(self) -> None:
        self.laid: dict[int, Any] = {}
        self.barrier = threading.Barrier(RANKS, timeout=LIMIT_S)
        self.turns = [0] * RANKS


class Rank:
    """One rank's communicator."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.rank = rank

    def all_gather_object(self, obj: Any) -> list[Any]:
        board = self._board
        board.laid[self.rank] = obj
        board.barrier.wait()
        everyone = [board.laid[rank] for rank in range(RANKS)]
        board.turns[self.rank] += 1
        board.barrier.wait()
        return everyone


def on_every_rank(function: Callable[[Any], Any]) -> tuple[list[Any], list[int]]:
    """Return what became of every rank, a result or an error, and how often each gathered."""
    board = Board()

    def run(rank: int) -> Any:
        try:
            return function(Rank(board, rank))
        except Exception as error:  # the test looks at it
            return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS))), board.turns


def test_a_check_that_passes_everywhere_gives_everyone_its_own() -> None:
    found, turns = on_every_rank(lambda rank: together(rank, lambda: rank.rank * 10))
    assert found == [0, 10, 20]
    assert turns == [1] * RANKS


def test_a_check_that_fails_on_one_rank_fails_on_all() -> None:
    def check(rank: int) -> int:
        if rank:
            raise SyncopateError(f"too cold for {rank}")
        return rank

    (first, second, third), turns = on_every_rank(
        lambda rank: together(rank, lambda: check(rank.rank))
    )
    assert isinstance(first, EngineError)
    assert str(first) == "rank 1 refuses: too cold for 1"
    assert (str(second), str(third)) == ("too cold for 1", "too cold for 2")
    assert not isinstance(second, EngineError)
    assert turns == [1] * RANKS


def test_equal_facts_are_said_once_and_briefly() -> None:
    found, turns = on_every_rank(lambda rank: require_same(rank, [("x", 1), ("y", 2)]))
    assert found == [None] * RANKS
    assert turns == [1] * RANKS


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        ([("x", 1), ("y", 3)], "y is 3 there and 2 on rank 0"),
        ([("x", 1)], "it has no y"),
        ([("x", 1), ("y", 2), ("z", 0)], "it has z, which rank 0 has not"),
        ([("y", 2), ("x", 1)], "the same parts stand in another order"),
    ],
)
def test_the_rank_that_differs_is_named_on_all(theirs: Sequence[Fact], difference: str) -> None:
    ours: Sequence[Fact] = [("x", 1), ("y", 2)]
    found, turns = on_every_rank(
        lambda rank: require_same(rank, theirs if rank.rank == 2 else ours)
    )
    said = f"rank 2 differs from rank 0: {difference}. Every rank must"
    assert all(isinstance(error, EngineError) and str(error).startswith(said) for error in found)
    assert turns == [2] * RANKS
