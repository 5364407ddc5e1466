"""Agreement among ranks that are threads: what one says is what the others hear."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from syncopate.collectives.health.blame import DIFFERENT
from syncopate.engine.checks.agreement import Checks, Fact, agree, explaining, require_same
from syncopate.errors import CollectiveError, EngineError, SyncopateError
from tests.children import HANGS_S

RANKS = 3


class Board:
    """Where the ranks lay down what they gather, in turns that all of them take."""

    def __init__(self) -> None:
        self.laid: dict[int, Any] = {}
        self.barrier = threading.Barrier(RANKS, timeout=HANGS_S)
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


def alone(check: Callable[[], int]) -> Checks[int]:
    """One check without facts."""
    yield from ()
    return check()


def test_a_check_that_passes_everywhere_gives_everyone_its_own() -> None:
    found, turns = on_every_rank(lambda rank: agree(rank, alone(lambda: rank.rank * 10))[0])
    assert found == [0, 10, 20]
    assert turns == [1] * RANKS


def test_a_check_that_fails_on_one_rank_fails_on_all() -> None:
    def check(rank: int) -> int:
        if rank:
            raise SyncopateError(f"too cold for {rank}")
        return rank

    (first, second, third), turns = on_every_rank(
        lambda rank: agree(rank, alone(lambda: check(rank.rank)))[0]
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
    said = f"rank 2 differs from rank 0: {difference}. Give every rank"
    assert all(isinstance(error, EngineError) and str(error).startswith(said) for error in found)
    assert turns == [2] * RANKS


def row(failing: dict[int, int], facts: dict[int, object], rank: int) -> Checks[int]:
    """Return three checks; ``failing`` says at which a rank fails, the second compares facts."""
    for place in range(3):
        if failing.get(rank) == place:
            raise SyncopateError(f"rank {rank} at {place}")
        yield [("x", facts.get(rank))] if place == 1 else ()
    return rank * 10


def agreed(
    failing: dict[int, int], facts: dict[int, object] | None = None
) -> tuple[list[Any], list[int]]:
    return on_every_rank(
        lambda rank: agree(rank, row(failing, facts or {}, rank.rank), f"host {rank.rank}")
    )


def test_many_checks_are_one_exchange_and_tell_something_beside() -> None:
    found, turns = agreed({})
    hosts = [f"host {rank}" for rank in range(RANKS)]
    assert found == [(0, hosts), (10, hosts), (20, hosts)]
    assert turns == [1] * RANKS


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ({1: 2}, ["rank 1 refuses: rank 1 at 2", "rank 1 at 2", "rank 1 refuses: rank 1 at 2"]),
        # The earliest check decides, not the lowest rank nor a rank's own failure.
        ({0: 2, 1: 1, 2: 0}, ["rank 2 refuses: rank 2 at 0"] * 2 + ["rank 2 at 0"]),
        ({1: 1, 2: 1}, ["rank 1 refuses: rank 1 at 1", "rank 1 at 1", "rank 2 at 1"]),
    ],
)
def test_the_earliest_check_that_failed_decides(failing, expected) -> None:
    found, turns = agreed(failing)
    assert [str(error) for error in found] == expected
    kinds = [SyncopateError if "refuses" not in said else EngineError for said in expected]
    assert [type(error) for error in found] == kinds
    assert turns == [1] * RANKS


def test_facts_are_compared_in_their_turn() -> None:
    found, turns = agreed({0: 2}, {1: "other"})
    assert all(str(e).startswith("rank 1 differs from rank 0: x is other there") for e in found)
    assert turns == [2] * RANKS
    found, turns = agreed({0: 1}, {1: "other"})
    assert [str(error) for error in found] == ["rank 0 at 1"] + ["rank 0 refuses: rank 0 at 1"] * 2
    assert turns == [1] * RANKS


@pytest.mark.parametrize("ranks_in", ["all_gather (ring)", "broadcast (mst)"])
def test_ranks_in_different_collectives_are_explained_once(ranks_in: str) -> None:
    lost = CollectiveError("all_reduce (ring)", f"{DIFFERENT}: rank 1 in {ranks_in}", [1])
    with pytest.raises(CollectiveError) as caught, explaining(), explaining():
        raise lost
    reason = f"{DIFFERENT}: rank 1 in {ranks_in}. A rank in a"
    assert str(caught.value).startswith(f"all_reduce (ring): {reason}")
    assert str(caught.value).count("A rank in a") == 1
    assert (caught.value.collective, caught.value.ranks) == (lost.collective, (1,))
    assert caught.value.__cause__ is lost


def test_any_other_failure_passes_as_it_is_and_is_not_its_own_cause() -> None:
    lost = CollectiveError("all_reduce (ring)", "rank 1 is gone", [1])
    with pytest.raises(CollectiveError) as caught, explaining():
        raise lost
    assert caught.value is lost
    assert lost.__cause__ is None
