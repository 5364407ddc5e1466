"""What timelines made by hand say of exposure, stragglers, the critical path and bandwidth."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.analysis.collectives import bandwidths, collectives
from syncopate.analysis.exposure import exposures
from syncopate.analysis.path import critical_path
from syncopate.analysis.phases import phases
from syncopate.analysis.ranks.arrivals import handing_over_s
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.work import works
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError
from tests.unit import strategies
from tests.unit.analysis.made import UNDISTURBED_S, made


def exposed(timeline: Timeline, rank: int) -> list[tuple[str, float, float]]:
    return [(e.name, e.waiting_s, e.transferring_s) for e in exposures(timeline) if e.rank == rank]


def path(timeline: Timeline, iteration: int = 0) -> list[tuple[int, str, float]]:
    return [(s.rank, s.kind, s.duration_s) for s in critical_path(timeline, iteration)]


def test_nobody_is_late_and_only_the_last_bucket_is_exposed():
    timeline = made()
    assert exposed(timeline, 2) == [("bucket 0", 0.0, 0.0), ("bucket 1", 0.0, 2.0)]
    assert stragglers(timeline) == ()
    assert path(timeline) == [
        (0, "forward", 2.0),
        (0, "backward", 4.0),
        (0, "transfer", 2.0),
        (0, "update", 1.0),
    ]


def test_a_rank_three_times_as_slow_is_waited_for():
    """Rank 2 computes 6 + 12 + 3 s; its bucket 1 is ready at 18, that of others at 6."""
    slow = {"forward_s": 6.0, "backward_s": 12.0, "update_s": 3.0}
    timeline = made(change=lambda rank, _: slow if rank == 2 else {})
    # Bucket 0 is ready at 4 and at 12: backward hides 2 s of it. Then one second of transfer; then
    # bucket 1 from 13 to 18 waits, and to 20 is transferred.
    assert exposed(timeline, 0) == [("bucket 0", 6.0, 1.0), ("bucket 1", 5.0, 2.0)]
    assert exposed(timeline, 2) == [("bucket 0", 0.0, 0.0), ("bucket 1", 0.0, 2.0)]
    (found,) = stragglers(timeline)
    assert (found.rank, found.caused_s, found.share, found.cause) == (2, 11.0, 1.0, "compute")
    assert found.excess_s["compute"] == 14.0
    assert path(timeline) == [
        (2, "forward", 6.0),
        (2, "backward", 12.0),
        (2, "transfer", 2.0),
        (2, "update", 3.0),
    ]


def test_two_late_ranks_share_what_others_wait():
    """Ranks 1 and 3 are 4 s and 2 s late: up to 2 s both are waited for, then rank 1 alone."""
    late = {1: {"forward_s": 6.0}, 3: {"forward_s": 4.0}}
    timeline = made(change=lambda rank, _: late.get(rank, {}))
    # Bucket 0: ready at 4, 8, 4, 6; backward of ranks 0 and 2 hides up to 6, that of 3 up to 8.
    # Bucket 1: from 9, ready at 10 of rank 1.
    assert exposed(timeline, 0) == [("bucket 0", 2.0, 1.0), ("bucket 1", 1.0, 2.0)]
    worst = stragglers(timeline)
    assert [(one.rank, one.cause) for one in worst] == [(1, "compute")]


def test_waiting_is_charged_to_all_that_are_missing():
    late = {1: {"forward_s": 8.0}, 3: {"forward_s": 8.0}}
    timeline = made(change=lambda rank, _: late.get(rank, {}))
    found = stragglers(timeline)
    assert [(one.rank, one.share, one.caused_s) for one in found] == [
        (1, 0.5, found[0].caused_s),
        (3, 0.5, found[0].caused_s),
    ]
    # Two ranks wait from 6 to 10 and, the channel free at 11, from 11 to 12: 5 s each.
    assert found[0].caused_s == pytest.approx(2 * 5.0 / 2 / 3)


def test_a_sleep_in_one_backward_is_a_pause_of_that_iteration():
    timeline = made(3, 5, lambda r, i: {"backward_s": 14.0} if (r, i) == (1, 3) else {})
    (found,) = stragglers(timeline)
    assert (found.rank, found.cause, found.iterations) == (1, "pause", (3,))
    # Bucket 0 is ready at 9 instead of 4 and bucket 1 at 16: 3 s and 6 s, in one of 4 iterations
    # (the first does not count).
    assert found.caused_s == pytest.approx((3.0 + 6.0) / 4)
    assert found.excess_s == {"pause": pytest.approx(10.0 / 4)}


def test_a_recorded_pause_has_its_name():
    stopped = {"backward_s": 14.0, "pause": ("garbage collection", 10.0)}
    timeline = made(3, 5, lambda r, i: stopped if (r, i) == (1, 3) else {})
    (found,) = stragglers(timeline)
    assert (found.rank, found.cause) == (1, "garbage collection")
    work = next(w for w in works(timeline) if (w.rank, w.iteration) == (1, 3))
    assert work.computing_s["backward"] == pytest.approx(4.0)
    assert work.paused_s == {"garbage collection": pytest.approx(10.0)}


def test_slow_input_is_named():
    timeline = made(2, 3, lambda rank, _: {"input_s": 5.0} if rank == 1 else {})
    (found,) = stragglers(timeline)
    assert (found.rank, found.cause, found.excess_s) == (1, "input", {"input": 5.0})
    # Bucket 0 is ready at 4 and 9, hidden up to 6; bucket 1 from 10, ready at 11.
    assert found.caused_s == pytest.approx(3.0 + 1.0)
    assert path(timeline, 1)[0] == (1, "input", 5.0)


def test_a_slow_link_is_told_from_slow_computation():
    """Rank 3 has each message 3 s after the others, so its channel takes bucket 1 up late."""
    timeline = made(change=lambda rank, _: {"tail_s": 3.0} if rank == 3 else {})
    (found,) = stragglers(timeline)
    assert (found.rank, found.cause, found.excess_s) == (3, "link", {"link": 6.0})
    # Bucket 0 from 4 to 5, on rank 3 to 8: bucket 1 of the others waits from 6 to 8.
    assert found.caused_s == pytest.approx(2.0)
    assert path(timeline) == [
        (0, "forward", 2.0),
        (0, "backward", 2.0),
        (3, "transfer", 4.0),
        (3, "transfer", 5.0),
        (3, "update", 1.0),
    ]


def test_exposure_adds_up_to_that_of_the_phases():
    timeline = made(3, 2, lambda rank, i: {"forward_s": 2.0 + rank, "tail_s": float(i)})
    for phase in phases(timeline):
        mine = [
            e for e in exposures(timeline) if (e.rank, e.iteration) == (phase.rank, phase.iteration)
        ]
        exposed_s = sum(e.waiting_s + e.transferring_s for e in mine)
        assert exposed_s == pytest.approx(phase.exposed_communication_s)
        for one in mine:
            assert sum(one.waited_for_s.values()) == pytest.approx(one.waiting_s)
            assert one.rank not in one.waited_for_s


def test_messages_under_way_together_share_what_is_exposed():
    spans = [
        Span(name=f"bucket {k}", lane="push", rank=0, start_s=k, end_s=3.0, channel=k)
        for k in range(2)
    ]
    timeline = Timeline(name="t", source="measured", world_size=1, spans=tuple(spans))
    assert exposed(timeline, 0) == [("bucket 0", 0.0, 2.0), ("bucket 1", 0.0, 1.0)]


def test_bandwidth_is_that_of_transfers_without_the_waiting():
    timeline = made(4, 2, lambda rank, _: {"forward_s": 9.0} if rank == 0 else {})
    (found,) = bandwidths(timeline)
    assert (found.collective, found.nbytes, found.transferring_s) == ("all_reduce", 300, 3.0)
    assert found.bytes_per_s == 100.0
    assert found.bus_bytes_per_s == pytest.approx(150.0)  # 2 (p - 1) / p


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        ("", {"push": "reduce_scatter", "pull": "all_gather"}),
        ("rooted", {"push": "reduce", "pull": "broadcast"}),
        ("served", {"push": "send", "pull": "receive"}),
    ],
)
def test_the_exchange_says_what_a_message_is(exchange, expected):
    spans = tuple(
        Span(name="bucket 0", lane=lane, rank=rank, start_s=rank, end_s=3.0)
        for lane in ("push", "pull")
        for rank in range(2)
    )
    metadata = {"exchange": exchange} if exchange else {}
    timeline = Timeline(name="t", source="measured", world_size=2, spans=spans, metadata=metadata)
    found = collectives(timeline)
    assert {spans[0].lane: kind for kind, spans in found} == expected
    # A rank that sends to servers waits for no other rank.
    assert len(found) == (4 if exchange == "served" else 2)


def test_a_wait_for_weights_in_a_forward_is_on_the_path():
    spans = (
        Span(name="update", lane="update", rank=0, start_s=0.0, end_s=1.0, iteration=0),
        Span(name="bucket 0", lane="pull", rank=0, start_s=1.0, end_s=4.0, iteration=1),
        Span(name="forward", lane="forward", rank=0, start_s=1.0, end_s=2.0, iteration=1),
        Span(name="forward", lane="forward", rank=0, start_s=4.5, end_s=6.0, iteration=1),
    )
    timeline = Timeline(name="t", source="simulated", world_size=1, spans=spans)
    assert path(timeline, 1) == [(0, "transfer", 3.0), (0, "idle", 0.5), (0, "forward", 1.5)]


def test_the_path_of_an_unknown_iteration_is_refused():
    with pytest.raises(InvalidValueError, match=r"iteration is 7.*with computation: 0, 1"):
        critical_path(made(2, 2), 7)


def test_the_path_is_as_long_as_the_iteration():
    timeline = made(3, 4, lambda rank, i: {"forward_s": 2.0 + (rank == i % 3), "input_s": 0.5})
    for iteration in range(1, 4):
        found = critical_path(timeline, iteration)
        assert all(a.end_s == pytest.approx(b.start_s) for a, b in pairwise(found))
        assert found[-1].end_s - found[0].start_s == pytest.approx(UNDISTURBED_S + 1.5)


@settings(max_examples=30)
@given(strategies.timelines(), st.integers(0, 99))
def test_any_timeline_has_an_answer(timeline, iteration):
    for one in exposures(timeline):
        assert one.waiting_s >= 0
        assert one.transferring_s >= 0
    assert sum(one.share for one in stragglers(timeline)) == pytest.approx(1) or not stragglers(
        timeline
    )
    for number in {work.iteration for work in works(timeline)}:
        for segment in critical_path(timeline, number):
            assert segment.duration_s >= 0


def test_a_wait_in_the_midst_of_a_forward_is_no_computation():
    """A recorded forward is one span; the wait for weights within it is another."""
    spans = (
        Span(name="forward", lane="forward", rank=0, start_s=0.0, end_s=6.0),
        Span(name="bucket 0", lane="wait", rank=0, start_s=1.0, end_s=4.0),
        Span(name="bucket 0", lane="pull", rank=0, start_s=0.5, end_s=4.0),
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    (phase,) = phases(timeline)
    assert (phase.computation_s, phase.exposed_communication_s) == (3.0, 3.0)
    assert exposed(timeline, 0) == [("bucket 0", 0.0, 3.0)]
    assert works(timeline)[0].computing_s == {"forward": 3.0}
    # What the forward did before the pull began is not on the path.
    assert path(timeline) == [(0, "forward", 0.5), (0, "transfer", 3.5), (0, "forward", 2.0)]


def test_handing_over_is_in_the_mean_over_the_buckets_that_nobody_else_copied():
    """Of four buckets one is copied by another thread, until behind the next; the last may be."""

    def push(bucket, takes_s, iteration):
        at_s = 1.0 * iteration + 0.1 * bucket
        return Span(
            name=f"bucket {bucket}", lane="push", rank=0, start_s=at_s + takes_s, end_s=at_s + 0.2,
            iteration=iteration, ready_s=at_s, launched_s=at_s + takes_s,
        )  # fmt: skip

    spans = tuple(
        push(bucket, takes_s, iteration)
        for iteration in range(3)
        for bucket, takes_s in enumerate((0.001, 0.002, 0.14, 0.003))
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    assert handing_over_s(timeline) == pytest.approx((0.0015, 0.006))
    assert handing_over_s(made(2, 2)) == (0.0, 0.0)
