"""Notices: what ranks tell each other through the store, and the verdict they come to."""

from __future__ import annotations

from itertools import chain, repeat

from syncopate.analysis.evidence.links import Carried, Entry
from syncopate.collectives.health.blame import Call
from syncopate.collectives.health.notices import Losses, Notices, judge
from tests.unit.collectives.health.fakes import CALL, FakeStore, notice


def test_the_verdict_is_there_once_the_silent_ones_are_known_dead() -> None:
    own = notice("closed", 2)
    notices = Notices(FakeStore({0: own, 1: notice("closed", 2)}), 0, 3)
    assert judge(notices, 0, own, grace_s=60).ranks == (2,)


def test_a_closed_connection_is_no_death_while_the_keepalive_may_know() -> None:
    """Rank 2 has closed and its notice is late; rank 1 died, which shows later."""
    own = notice("closed", 2)
    store = FakeStore({0: own, 3: notice("closed", 2)})
    answers = chain([{}, {}], repeat({1: "host1"}))

    def losses() -> Losses:
        found = next(answers)
        if found:
            Notices(store, 2, 4).put(notice("closed", 1))
        return Losses(found, complete=True)

    assert judge(Notices(store, 0, 4), 0, own, losses, grace_s=60).ranks == (1,)


def test_the_first_verdict_is_that_of_all() -> None:
    own = notice("closed", 2)
    store = FakeStore({0: own, 1: notice("closed", 2)})
    first = judge(Notices(store, 0, 3), 0, own)
    late = notice("closed", 0)
    assert judge(Notices(store, 2, 3), 2, late, grace_s=60) == first


def test_judging_gives_up_after_the_grace() -> None:
    own = notice("timeout", 1)
    verdict = judge(Notices(FakeStore({0: own}), 0, 2), 0, own, grace_s=0.1)
    assert verdict.ranks == (1,)
    assert "did not arrive" in verdict.reason


def test_notices_show_failures_but_not_departures() -> None:
    store = FakeStore()
    notices = Notices(store, 0, 2)
    notices.put(notice("left"))
    assert not notices.failed()
    notices.put(notice("timeout"))
    assert notices.failed()


def test_ranks_in_different_collectives_find_each_other_in_one_place() -> None:
    store = FakeStore()
    other = Call("all_gather (ring)", 0, 3, 8, "float32")
    assert not Notices(store, 0, 3).disagrees(CALL)
    assert not Notices(store, 1, 3).disagrees(CALL)
    assert Notices(store, 2, 3).disagrees(other)
    later = Call("all_gather (ring)", 0, 4, 8, "float32")
    assert not Notices(store, 2, 3).disagrees(later)
    # A rank that has gone on from another collective, which needed no other rank.
    assert not Notices(store, 2, 3).disagrees(later, [CALL])
    assert Notices(store, 2, 3).disagrees(later, [other])


def test_notices_say_where_the_ranks_are_and_what_is_wrong_with_the_network() -> None:
    store = FakeStore()
    first = Entry("host0", {0: 3}, (Carried(0, 2, 1 << 40, 0.25),), 2)
    notices, other = Notices(store, 0, 3), Notices(store, 2, 3)
    notices.put_entry(first)
    assert other.entries() == {0: first}
    other.put_entry(Entry("host2", {}))
    assert other.entries() == notices.entries() == {0: first, 2: Entry("host2", {})}
    assert other.network() == ""
    notices.put_network("host2 (rank 2) has a slow link")
    assert other.network() == "host2 (rank 2) has a slow link"
