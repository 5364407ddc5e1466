"""Blame: from what every rank says about its own failure to the rank that caused it."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from syncopate.collectives.board import Board, Losses, judge
from syncopate.collectives.failure import (
    Call,
    Carried,
    Entry,
    Kind,
    PeerError,
    Post,
    blame,
    blame_silent,
    describe_slow,
    name_ranks,
)
from syncopate.collectives.lookout import Busy, Lookout
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

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = value
        return self.values[key].encode()


def test_a_dead_neighbour() -> None:
    verdict = blame({1: post("closed", 2), 0: post("closed", 1)}, 0, 4)
    assert verdict.ranks == (2,)
    assert "rank 2 was lost" in verdict.reason


def test_the_chain_ends_at_the_rank_that_never_came() -> None:
    posts = {0: post("timeout", 3), 3: post("interrupted", 2), 2: post("timeout", 1)}
    verdict = blame(posts, 0, 4)
    assert verdict.ranks == (1,)
    assert "rank 1 did not arrive within 5.00 s" in verdict.reason


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_late_rank_is_the_one_that_waited_least(rank: int) -> None:
    """It came when the others were at their limits, and was interrupted at once."""
    posts = {
        0: post("timeout", 3, waited_s=5.0),
        1: post("interrupted", 0, waited_s=4.5),
        2: post("closed", 1, waited_s=0.4),
        3: post("timeout", 2, waited_s=5.2),
    }
    verdict = blame(posts, rank, 4)
    assert verdict.ranks == (2,)
    assert verdict.reason == (
        "rank 2 did not arrive within 5.20 s, only after the others had given up"
    )


def test_ranks_that_came_late_together_are_blamed_together() -> None:
    posts = {
        0: post("timeout", 1, waited_s=5.0),
        1: post("interrupted", 2, waited_s=0.5),
        2: post("interrupted", 0, waited_s=0.7),
        3: post("interrupted", 2, waited_s=0.8),
    }
    assert blame(posts, 0, 4).ranks == (1, 2)


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


def test_different_messages_are_no_different_collectives() -> None:
    one, other = Call("message to rank 1", -1, -1), Call("message from rank 2", -1, -1)
    posts = {0: post("closed", 1, call=one), 3: post("closed", 2, call=other)}
    posts[2] = post("closed", 1)
    assert blame(posts, 3, 4, {1: "host1"}).ranks == (1,)
    assert blame(posts, 3, 4).ranks == (1,)


def test_a_broken_network_among_living_ranks() -> None:
    verdict = blame({0: post("closed", 1), 1: post("closed", 0)}, 0, 2)
    assert verdict.ranks == (1,)
    assert "every rank is alive" in verdict.reason


def test_who_died_is_to_blame_whatever_else_closed() -> None:
    """Rank 2 closed its connections because rank 1 died, and its post is late."""
    verdict = blame({3: post("closed", 2), 0: post("closed", 3)}, 3, 4, {1: "host1"})
    assert verdict.ranks == (1,)
    assert "rank 1 (host1) was lost" in verdict.reason


def test_who_posted_and_died_afterwards_is_not_to_blame() -> None:
    posts = {0: post("closed", 2), 2: post("closed", 1)}
    assert blame(posts, 0, 4, {1: "host1", 2: "host2"}).ranks == (1,)


def test_whom_somebody_waited_for_in_vain_comes_before_who_died() -> None:
    posts = {0: post("timeout", 1), 2: post("closed", 0)}
    assert blame(posts, 2, 4, {3: "host3"}).ranks == (1,)


def test_the_verdict_is_there_once_the_silent_ones_are_known_dead() -> None:
    own = post("closed", 2)
    board = Board(FakeStore({0: own, 1: post("closed", 2)}), 0, 3)
    assert judge(board, 0, own, grace_s=60).ranks == (2,)


def test_a_closed_connection_is_no_death_while_the_pulse_may_know() -> None:
    """Rank 2 has closed and its post is late; rank 1 died, which the pulse finds out later."""
    own = post("closed", 2)
    store = FakeStore({0: own, 3: post("closed", 2)})
    answers = chain([{}, {}], repeat({1: "host1"}))

    def losses() -> Losses:
        found = next(answers)
        if found:
            Board(store, 2, 4).put(post("closed", 1))
        return Losses(found, complete=True)

    assert judge(Board(store, 0, 4), 0, own, losses, grace_s=60).ranks == (1,)


def test_the_first_verdict_is_that_of_all() -> None:
    own = post("closed", 2)
    store = FakeStore({0: own, 1: post("closed", 2)})
    first = judge(Board(store, 0, 3), 0, own)
    late = post("closed", 0)
    assert judge(Board(store, 2, 3), 2, late, grace_s=60) == first


def test_judging_gives_up_after_the_grace() -> None:
    own = post("timeout", 1)
    verdict = judge(Board(FakeStore({0: own}), 0, 2), 0, own, grace_s=0.1)
    assert verdict.ranks == (1,)
    assert "did not arrive" in verdict.reason


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


def test_whose_connection_broke_is_not_whom_one_waited_for() -> None:
    broke = PeerError(1, RuntimeError("connection closed by rank 1"))
    assert PeerError(3, broke).peer == 1
    assert PeerError(3, RuntimeError("Connection closed by peer")).peer == 3


class FakeLookout(Lookout):
    """A lookout without thread or pulse, to be asked what it thinks of its board."""

    def __init__(self, board: Board) -> None:
        self._board = board


def test_messages_between_ranks_are_no_collective_to_compare() -> None:
    """Two ranks that exchange messages say different things, and neither is wrong."""
    store = FakeStore()
    out, into = Call("message to rank 1", -1, -1), Call("message from rank 0", -1, -1)
    assert FakeLookout(Board(store, 0, 2))._in_trouble([(9.0, out)]) is None
    assert FakeLookout(Board(store, 1, 2))._in_trouble([(9.0, into)]) is None


def test_the_call_in_trouble_is_the_one_that_differs() -> None:
    store = FakeStore()
    lookout = FakeLookout(Board(store, 1, 2))
    there, here = Call("barrier", 1, 0), Call("all_gather_object", 1, 0)
    assert not Board(store, 0, 2).disagrees(there)
    assert lookout._in_trouble([(9.0, CALL), (2.0, here)]) == (2.0, here)
    Board(store, 0, 2).put(post("timeout", 1))
    assert lookout._in_trouble([(9.0, CALL)]) == (9.0, CALL)


def test_ranks_in_different_collectives_find_each_other_in_one_place() -> None:
    store = FakeStore()
    other = Call("all_gather (ring)", 0, 3, 8, "float32")
    assert not Board(store, 0, 3).disagrees(CALL)
    assert not Board(store, 1, 3).disagrees(CALL)
    assert Board(store, 2, 3).disagrees(other)
    later = Call("all_gather (ring)", 0, 4, 8, "float32")
    assert not Board(store, 2, 3).disagrees(later)


def test_silent_hosts_are_named_with_their_ranks() -> None:
    verdict = blame_silent({4: "host2", 5: "host2"}, 6.0)
    assert verdict.ranks == (4, 5)
    assert verdict.reason == (
        "ranks 4, 5 (host2) are unreachable: no answer for 6.00 s; "
        "host2 is down or cut off from the network"
    )
    assert "or host1 is cut off" in blame_silent({0: "host0"}, 6.0, "host1").reason


def test_a_slow_collective_names_who_has_not_come() -> None:
    entries = {0: Entry("host0", {0: 3}), 1: Entry("host1", {0: 3}), 2: Entry("host2", {0: 2})}
    text = describe_slow(CALL, 30.0, entries, range(3))
    assert "has taken 30.00 s; waiting for rank 2 (host2), which has not come to it yet" in text
    assert "waiting for rank 2, which" in describe_slow(CALL, 30.0, {0: entries[0]}, (0, 2))
    assert "every rank is in it" in describe_slow(CALL, 30.0, entries, range(2))
    known = "host2 (rank 2) has a slow link"
    assert describe_slow(CALL, 30.0, entries, range(2), known).endswith(f"network: {known}")
    assert known not in describe_slow(CALL, 30.0, entries, range(3), known)


def test_a_board_says_where_the_ranks_are_and_what_is_wrong_with_the_network() -> None:
    store = FakeStore()
    first = Entry("host0", {0: 3}, (Carried(0, 2, 1 << 40, 0.25),), 2)
    board, other = Board(store, 0, 3), Board(store, 2, 3)
    board.put_entry(first)
    assert other.roll() == {0: first}
    other.put_entry(Entry("host2", {}))
    assert other.roll() == board.roll() == {0: first, 2: Entry("host2", {})}
    assert other.network() == ""
    board.put_network("host2 (rank 2) has a slow link")
    assert other.network() == "host2 (rank 2) has a slow link"


def test_blocks_of_messages_are_counted_at_both_ends() -> None:
    busy, block = Busy(), Call("message to rank 1", -1, -1)
    busy.enter(CALL, 0.0)
    assert busy.blocks == 0
    counts = []
    for _ in range(2):
        busy.enter(block, 0.0)
        counts.append(busy.blocks)
        busy.leave(block)
        counts.append(busy.blocks)
    assert counts == [1, 2, 3, 4]
