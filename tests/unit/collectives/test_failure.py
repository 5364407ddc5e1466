"""Blame: from what every rank says about its own failure to the rank that caused it."""

from __future__ import annotations

import pytest

from syncopate.collectives.board import Board, collect
from syncopate.collectives.failure import Call, Kind, Post, blame, name_ranks
from syncopate.collectives.transport import failure_kind

CALL = Call("all_reduce (ring)", 0, 3, 8, "float32")


def post(kind: Kind, *waiting_on: int, waited_s: float = 5.0, call: Call = CALL) -> Post:
    return Post(call, kind, waiting_on, waited_s)


class FakeStore:
    """A store whose content the test decides."""

    def __init__(self, posts: dict[int, Post] | None = None) -> None:
        self.values: dict[str, str] = {}
        for rank, found in (posts or {}).items():
            Board(self, rank, 8).put(found)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + amount)
        return int(self.values[key])


def test_a_dead_neighbour() -> None:
    verdict = blame({1: post("closed", 2), 0: post("closed", 1)}, 0, 4)
    assert verdict.ranks == (2,)
    assert "rank 2 was lost" in verdict.reason


def test_the_chain_ends_at_the_rank_that_never_came() -> None:
    posts = {0: post("timeout", 3), 3: post("interrupted", 2), 2: post("timeout", 1)}
    verdict = blame(posts, 0, 4)
    assert verdict.ranks == (1,)
    assert "rank 1 did not arrive within 5.00 s" in verdict.reason


def test_a_native_collective_blames_whoever_is_silent() -> None:
    verdict = blame({0: post("timeout"), 1: post("timeout"), 3: post("interrupted")}, 0, 4)
    assert verdict.ranks == (2,)


def test_two_at_once() -> None:
    verdict = blame({0: post("closed", 2, 3), 1: post("closed", 2)}, 0, 4)
    assert verdict.ranks == (2, 3)
    assert "ranks 2, 3 were lost" in verdict.reason


def test_a_rank_that_closed_its_communicator() -> None:
    verdict = blame({0: post("closed", 1), 1: post("left")}, 0, 2)
    assert verdict.ranks == (1,)
    assert "had closed the communicator" in verdict.reason


def test_a_rank_that_failed_by_itself() -> None:
    broken = Post(CALL, "error", (), 0.1, "OutOfMemoryError: 3 GiB")
    verdict = blame({0: post("closed", 1), 1: broken}, 0, 3)
    assert verdict.ranks == (1,)
    assert "OutOfMemoryError" in verdict.reason


@pytest.mark.parametrize("asks", [0, 1])
def test_one_that_came_after_the_others_gave_up(asks: int) -> None:
    posts = {0: post("timeout", 1), 1: post("closed", 0, waited_s=0.01)}
    verdict = blame(posts, asks, 2)
    assert verdict.ranks == (1,)
    assert "after the others had given up" in verdict.reason


def test_different_collectives() -> None:
    other = Call("all_gather (ring)", 0, 3, 8, "float32")
    verdict = blame({0: post("timeout", 1), 1: post("timeout", 0, call=other)}, 0, 2)
    assert verdict.ranks == ()
    assert "rank 1 in all_gather (ring) #3" in verdict.reason


def test_a_broken_network_among_living_ranks() -> None:
    verdict = blame({0: post("closed", 1), 1: post("closed", 0)}, 0, 2)
    assert verdict.ranks == (1,)
    assert "every rank is alive" in verdict.reason


def test_collecting_ends_once_the_silent_ones_are_known_dead() -> None:
    own = post("closed", 2)
    board = Board(FakeStore({0: own, 1: post("closed", 2)}), 0, 3)
    assert collect(board, 0, own, grace_s=60).keys() == {0, 1}


def test_collecting_gives_up_after_the_grace() -> None:
    own = post("timeout", 1)
    assert collect(Board(FakeStore({0: own}), 0, 2), 0, own, grace_s=0.1) == {0: own}


def test_a_board_shows_failures_but_not_departures() -> None:
    store = FakeStore()
    board = Board(store, 0, 2)
    board.put(post("left"))
    assert not board.failed()
    board.put(post("timeout"))
    assert board.failed()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", "closed"),
        ("Timed out waiting 1000ms for recv operation to complete", "timeout"),
        ("Application timeout caused pair closure", "interrupted"),
        ("Broken pipe", "closed"),
        ("CUDA error: out of memory", "error"),
    ],
)
def test_kinds_are_read_from_messages(text: str, kind: str) -> None:
    assert failure_kind(RuntimeError(text)) == kind


def test_names() -> None:
    assert name_ranks([2]) == "rank 2"
    assert name_ranks((2, 5)) == "ranks 2, 5"
