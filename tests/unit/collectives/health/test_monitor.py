"""Monitor: which of the calls under way is in trouble, and what it counts."""

from __future__ import annotations

from syncopate.collectives.health.blame import Call
from syncopate.collectives.health.monitor import InFlight, Monitor
from syncopate.collectives.health.notices import Notices
from tests.unit.collectives.health.fakes import CALL, FakeStore, notice


class FakeMonitor(Monitor):
    """A monitor without thread or connections, to be asked what it thinks of its notices."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._in_flight = InFlight()


def test_messages_between_ranks_are_no_collective_to_compare() -> None:
    """Two ranks that exchange messages say different things, and neither is wrong."""
    store = FakeStore()
    out, into = Call("message to rank 1", -1, -1), Call("message from rank 0", -1, -1)
    assert FakeMonitor(Notices(store, 0, 2))._in_trouble([(9.0, out)]) is None
    assert FakeMonitor(Notices(store, 1, 2))._in_trouble([(9.0, into)]) is None


def test_the_call_in_trouble_is_the_one_that_differs() -> None:
    store = FakeStore()
    monitor = FakeMonitor(Notices(store, 1, 2))
    there, here = Call("barrier", 1, 0), Call("all_gather_object", 1, 0)
    assert not Notices(store, 0, 2).disagrees(there)
    assert monitor._in_trouble([(9.0, CALL), (2.0, here)]) == (2.0, here)
    Notices(store, 0, 2).put(notice("timeout", 1))
    assert monitor._in_trouble([(9.0, CALL)]) == (9.0, CALL)


def test_a_call_is_in_trouble_where_an_earlier_one_differs() -> None:
    store = FakeStore()
    monitor = FakeMonitor(Notices(store, 1, 2))
    calls = [Call(f"broadcast {number}", 0, number) for number in range(6)]
    for call in calls:
        monitor._in_flight.enter(call, 0.0)
    assert monitor._in_flight.before(calls[5]) == tuple(calls[2:5])
    assert monitor._in_trouble([(9.0, calls[5])]) is None
    assert not Notices(store, 0, 2).disagrees(CALL)  # number 3, and no broadcast
    assert monitor._in_trouble([(9.0, calls[5])]) == (9.0, calls[5])


def test_blocks_of_messages_are_counted_at_both_ends() -> None:
    in_flight, block = InFlight(), Call("message to rank 1", -1, -1)
    in_flight.enter(CALL, 0.0)
    assert in_flight.blocks == 0
    counts = []
    for _ in range(2):
        in_flight.enter(block, 0.0)
        counts.append(in_flight.blocks)
        in_flight.leave(block)
        counts.append(in_flight.blocks)
    assert counts == [1, 2, 3, 4]


def test_a_rank_knows_where_it_is_or_was_last() -> None:
    in_flight = InFlight()
    assert in_flight.place == ("", False)
    first, second = Call("all_reduce (ring)", 0, 0), Call("broadcast (native)", 1, 0)
    in_flight.enter(first, 0.0)
    in_flight.enter(second, 0.1)
    assert in_flight.place == (second.title, True)
    in_flight.leave(second)
    assert in_flight.place == (second.title, False)
