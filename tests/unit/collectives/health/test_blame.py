"""Blame: from what every rank says about its own failure to the rank that caused it."""

from __future__ import annotations

import pytest

from syncopate.collectives.health.blame import (
    Call,
    Entry,
    Notice,
    PeerError,
    blame,
    blame_silent,
    describe_slow,
    name_ranks,
)
from syncopate.collectives.transport import failure_kind
from tests.unit.collectives.health.fakes import CALL, notice


def test_a_dead_neighbour() -> None:
    verdict = blame({1: notice("closed", 2), 0: notice("closed", 1)}, 0, 4)
    assert verdict.ranks == (2,)
    assert "rank 2 was lost" in verdict.reason


def test_the_chain_ends_at_the_rank_that_never_came() -> None:
    notices = {0: notice("timeout", 3), 3: notice("interrupted", 2), 2: notice("timeout", 1)}
    verdict = blame(notices, 0, 4)
    assert verdict.ranks == (1,)
    assert "rank 1 did not arrive within 5.00 s" in verdict.reason


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_late_rank_is_the_one_that_waited_least(rank: int) -> None:
    """It came when the others were at their limits, and was interrupted at once."""
    notices = {
        0: notice("timeout", 3, waited_s=5.0),
        1: notice("interrupted", 0, waited_s=4.5),
        2: notice("closed", 1, waited_s=0.4),
        3: notice("timeout", 2, waited_s=5.2),
    }
    verdict = blame(notices, rank, 4)
    assert verdict.ranks == (2,)
    assert verdict.reason == (
        "rank 2 did not arrive within 5.20 s, only after the others had given up"
    )


def test_ranks_that_came_late_together_are_blamed_together() -> None:
    notices = {
        0: notice("timeout", 1, waited_s=5.0),
        1: notice("interrupted", 2, waited_s=0.5),
        2: notice("interrupted", 0, waited_s=0.7),
        3: notice("interrupted", 2, waited_s=0.8),
    }
    assert blame(notices, 0, 4).ranks == (1, 2)


def test_a_native_collective_blames_whoever_is_silent() -> None:
    verdict = blame({0: notice("timeout"), 1: notice("timeout"), 3: notice("interrupted")}, 0, 4)
    assert verdict.ranks == (2,)


def test_two_at_once() -> None:
    verdict = blame({0: notice("closed", 2, 3), 1: notice("closed", 2)}, 0, 4)
    assert verdict.ranks == (2, 3)
    assert "ranks 2, 3 were lost" in verdict.reason


def test_a_rank_that_closed_its_communicator() -> None:
    verdict = blame({0: notice("closed", 1), 1: notice("left")}, 0, 2)
    assert verdict.ranks == (1,)
    assert "had closed the communicator" in verdict.reason


def test_a_rank_that_failed_by_itself() -> None:
    broken = Notice(CALL, "error", (), 0.1, "OutOfMemoryError: 3 GiB")
    verdict = blame({0: notice("closed", 1), 1: broken}, 0, 3)
    assert verdict.ranks == (1,)
    assert "OutOfMemoryError" in verdict.reason


@pytest.mark.parametrize("asks", [0, 1])
def test_one_that_came_after_the_others_gave_up(asks: int) -> None:
    notices = {0: notice("timeout", 1), 1: notice("closed", 0, waited_s=0.01)}
    verdict = blame(notices, asks, 2)
    assert verdict.ranks == (1,)
    assert "after the others had given up" in verdict.reason


def test_different_collectives() -> None:
    other = Call("all_gather (ring)", 0, 3, 8, "float32")
    verdict = blame({0: notice("timeout", 1), 1: notice("timeout", 0, call=other)}, 0, 2)
    assert verdict.ranks == ()
    assert "rank 1 in all_gather (ring) #3" in verdict.reason


@pytest.mark.parametrize("asks", [0, 1])
def test_different_collectives_of_which_one_rank_has_gone_on(asks: int) -> None:
    sent = Call("broadcast (mst, root 0)", 0, 3, 2, "uint8")
    later = Call("all_gather (ring)", 0, 4, 8, "float32")
    ahead = Notice(later, "interrupted", (), 1.0, before=(sent,))
    verdict = blame({0: ahead, 1: notice("timeout", 0)}, asks, 2)
    assert verdict.ranks == ()
    assert "rank 0 in all_gather (ring) #4" in verdict.reason
    assert "rank 1 in all_reduce (ring) #3" in verdict.reason
    same = Notice(later, "closed", (1,), 1.0, before=(CALL,))
    assert "different" not in blame({0: same, 1: notice("timeout", 0)}, asks, 2).reason


def test_different_messages_are_no_different_collectives() -> None:
    one, other = Call("message to rank 1", -1, -1), Call("message from rank 2", -1, -1)
    notices = {0: notice("closed", 1, call=one), 3: notice("closed", 2, call=other)}
    notices[2] = notice("closed", 1)
    assert blame(notices, 3, 4, {1: "host1"}).ranks == (1,)
    assert blame(notices, 3, 4).ranks == (1,)


def test_a_broken_network_among_living_ranks() -> None:
    verdict = blame({0: notice("closed", 1), 1: notice("closed", 0)}, 0, 2)
    assert verdict.ranks == (1,)
    assert "every rank is alive" in verdict.reason


def test_who_died_is_to_blame_whatever_else_closed() -> None:
    """Rank 2 closed its connections because rank 1 died, and its post is late."""
    verdict = blame({3: notice("closed", 2), 0: notice("closed", 3)}, 3, 4, {1: "host1"})
    assert verdict.ranks == (1,)
    assert "rank 1 (host1) was lost" in verdict.reason


def test_who_posted_and_died_afterwards_is_not_to_blame() -> None:
    notices = {0: notice("closed", 2), 2: notice("closed", 1)}
    assert blame(notices, 0, 4, {1: "host1", 2: "host2"}).ranks == (1,)


def test_whom_somebody_waited_for_in_vain_comes_before_who_died() -> None:
    notices = {0: notice("timeout", 1), 2: notice("closed", 0)}
    assert blame(notices, 2, 4, {3: "host3"}).ranks == (1,)


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


def test_a_slow_collective_says_where_late_ranks_are() -> None:
    other, before = "broadcast (native) #4 of channel 1", "all_reduce (ring) #2 of channel 0"
    entries = {
        0: Entry("host0", {0: 3}),
        1: Entry("host1", {0: 2, 1: 4}, call=other, inside=True),
        2: Entry("host2", {0: 2}, call=before),
        3: Entry("host3", {0: 2}, call=before),
        4: Entry("host4", {}),
    }
    text = describe_slow(CALL, 30.0, entries, range(5))
    assert text.endswith(
        f"not come to it yet; rank 1 is in {other}; ranks 2, 3 were last in {before}"
    )
    alone = describe_slow(CALL, 30.0, {rank: entries[rank] for rank in (0, 2)}, (0, 2))
    assert alone.endswith(f"; rank 2 was last in {before}")


def test_who_did_not_arrive_is_said_with_the_longest_wait_for_it() -> None:
    notices = {
        0: notice("timeout", 3, waited_s=3.0),
        1: notice("timeout", 3, waited_s=5.0),
        2: notice("timeout", 3, waited_s=4.0),
    }
    assert blame(notices, 0, 4).reason == "rank 3 did not arrive within 5.00 s"
