"""Recorder, merge and Perfetto export."""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.timeline import LANES, Span, Timeline
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.tracing.merge import bounds_of_each, clock_offset, merge
from syncopate.tracing.perfetto import to_perfetto
from syncopate.tracing.recorder import Event, Recorder, spans_of


def span(name: str, lane: str, rank: int, start_s: float, end_s: float, **fields: Any) -> Span:
    return Span(name=name, lane=lane, rank=rank, start_s=start_s, end_s=end_s, **fields)


class TestRecorder:
    def test_spans_have_every_field(self) -> None:
        recorder = Recorder()
        recorder.add([Event("push", 1.0, 2.0, 4, 0, 1, 8, "ring", 0.75, 0.5)])
        recorder.add([Event("forward", 3.0, 4.0, 5)])
        assert spans_of(recorder.records(), recorder.texts, 3) == (
            span(
                "bucket 0", "push", 3, 1.0, 2.0, iteration=4, channel=1, nbytes=8, detail="ring",
                launched_s=0.75, ready_s=0.5,
            ),
            span("forward", "forward", 3, 3.0, 4.0, iteration=5),
        )  # fmt: skip

    def test_taking_makes_room_and_order_is_kept_around_the_end(self) -> None:
        recorder = Recorder(capacity=5)
        seen = []
        for number in range(9):
            assert recorder.add([Event("wait", float(number), 10.0)] * 2)
            if number % 2:
                seen += [row["start_s"] for row in recorder.take()]
        assert seen == [float(number) for number in range(8) for _ in range(2)]
        assert (len(recorder.records()), recorder.dropped) == (2, 0)

    def test_what_there_is_no_room_for_is_counted_and_steps_stay_whole(self) -> None:
        recorder = Recorder(capacity=3)
        assert recorder.add([Event("wait", 0.0, 1.0)] * 2)
        assert not recorder.add([Event("push", 0.0, 1.0)] * 2)
        assert recorder.add([Event("update", 0.0, 1.0)])
        assert recorder.dropped == 2
        kinds = [s.lane for s in spans_of(recorder.take(), recorder.texts, 0)]
        assert kinds == ["wait", "wait", "update"]

    def test_an_unknown_lane_is_refused(self) -> None:
        with pytest.raises(UnknownNameError, match="sideways"):
            Recorder().add([Event("sideways", 0.0, 1.0)])

    def test_threads_lose_nothing(self) -> None:
        recorder = Recorder()

        def work() -> None:
            for i in range(200):
                recorder.add([Event("push", float(i), float(i))])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(recorder.records()) == 800


class TestMerge:
    def test_one_clock_from_zero(self) -> None:
        timeline = merge(
            [[span("a", "forward", 0, 10.0, 11.0)], [span("a", "forward", 1, 110.5, 111.0)]],
            name="t",
            offsets_s=[0.0, 100.0],
            metadata={"plan": "wfbp"},
        )
        assert [(s.rank, s.start_s, s.end_s) for s in timeline.spans] == [
            (0, 0.0, 1.0),
            (1, 0.5, 1.0),
        ]
        assert timeline.world_size == 2
        assert timeline.metadata == {"plan": "wfbp"}
        assert timeline.source == "measured"

    def test_a_span_under_another_rank_is_refused(self) -> None:
        with pytest.raises(InvalidValueError, match="rank of span a"):
            merge([[span("a", "forward", 1, 0.0, 1.0)], []], name="t")

    def test_offsets_must_match_the_ranks(self) -> None:
        with pytest.raises(InvalidValueError, match="offsets_s"):
            merge([[]], name="t", offsets_s=[0.0, 1.0])

    def test_nothing_recorded(self) -> None:
        assert merge([[], []], name="t").spans == ()

    def test_clock_offset_believes_the_fastest_round_trip(self) -> None:
        trips = [(0.0, 105.9, 1.0), (2.0, 107.05, 2.1), (3.0, 108.9, 4.0)]
        assert clock_offset(trips) == pytest.approx((105.0, 0.05))
        with pytest.raises(InvalidValueError, match="round_trips"):
            clock_offset([])


class TestOffsetBounds:
    def test_collectives_bound_how_far_clocks_differ(self) -> None:
        """Rank 1's clock is 50 s ahead; both do the same two collectives, of 1 and 0.2 s."""
        own = [span("b", "push", 0, 1.0, 2.0), span("b", "push", 0, 3.0, 3.2, iteration=1)]
        others = [span("b", "push", 1, 51.5, 52.0), span("b", "push", 1, 53.1, 53.2, iteration=1)]
        low_s, high_s = bounds_of_each([own, others], ("push",))[1].between_s
        assert (low_s, high_s) == pytest.approx((53.1 - 3.2, 53.2 - 3.0))
        assert low_s < 50.0 < high_s

    def test_nothing_together_is_no_bound(self) -> None:
        apart = [[span("b", "pull", 0, 1.0, 2.0)], [span("c", "pull", 1, 1.0, 2.0)]]
        assert bounds_of_each(apart, ("pull",))[1].between_s == (-math.inf, math.inf)
        assert bounds_of_each(apart, ())[0].between_s == (-math.inf, math.inf)


def require_valid(events: list[dict[str, Any]]) -> None:
    """What Perfetto and chrome://tracing insist on."""
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    threads = defaultdict(list)
    for event in events:
        assert event["ph"] in {"M", "X", "s", "f", "C"}
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append(event)
    assert set(threads) <= named
    for group in threads.values():
        stack: list[int] = []
        latest = 0
        # Readers take equal starts in the order of the file: what holds another has to come first.
        for event in group:
            # Readers work in whole nanoseconds.
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            assert latest <= start
            latest = start
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], "spans of one thread must nest"
            stack.append(end)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            inside = threads[event["pid"], event["tid"]]
            assert any(e["ts"] <= event["ts"] <= e["ts"] + e["dur"] for e in inside)
    for start, finish in flows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert start["ts"] <= finish["ts"]
        assert start["cat"] == finish["cat"]


def timeline(spans: list[Span], world_size: int = 2) -> Timeline:
    return Timeline(name="t", source="measured", world_size=world_size, spans=tuple(spans))


class TestPerfetto:
    def test_events_of_a_small_timeline(self) -> None:
        spans = [
            span("forward", "forward", 0, 0.0, 0.001),
            span("bucket 0", "push", 0, 0.002, 0.004, nbytes=64, detail="ring", iteration=2),
            span("bucket 0", "push", 1, 0.003, 0.004, nbytes=64, detail="ring", iteration=2),
        ]
        document = json.loads(to_perfetto(timeline(spans)))
        events = document["traceEvents"]
        require_valid(events)
        assert document["otherData"]["source"] == "measured"
        push = next(e for e in events if e["ph"] == "X" and e["cat"] == "push")
        assert (push["pid"], push["ts"], push["dur"]) == (0, 2000.0, 2000.0)
        assert push["args"] == {"iteration": 2, "bytes": 64, "channel": 0, "detail": "ring"}
        names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
        assert names == {"rank 0", "rank 1", "forward", "push"}
        assert [e["pid"] for e in events if e["ph"] in "sf"] == [0, 1]

    def test_a_counter_has_the_bytes_under_way_on_each_rank(self) -> None:
        spans = [
            span("a", "push", 1, 0.0, 0.004, nbytes=64),
            span("b", "pull", 1, 0.002, 0.006, nbytes=8, channel=1),
            span("forward", "forward", 1, 0.001, 0.003),
        ]
        events = json.loads(to_perfetto(timeline(spans)))["traceEvents"]
        require_valid(events)
        counted = [(e["pid"], e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
        assert counted == [(1, 0.0, 64), (1, 2000.0, 72), (1, 4000.0, 8), (1, 6000.0, 0)]

    def test_channels_are_threads(self) -> None:
        spans = [span(f"b{c}", "push", 0, 0.0, 1.0, channel=c) for c in range(2)]
        events = json.loads(to_perfetto(timeline(spans)))["traceEvents"]
        require_valid(events)
        assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
            "push 0",
            "push 1",
        }

    def test_overlap_without_nesting_moves_to_another_thread(self) -> None:
        spans = [
            span("a", "wait", 0, 0.0, 2.0),
            span("inside", "wait", 0, 0.5, 1.0),
            span("b", "wait", 0, 1.5, 3.0),
            span("next", "wait", 0, 2.0, 3.0),
        ]
        events = json.loads(to_perfetto(timeline(spans)))["traceEvents"]
        require_valid(events)
        tids = {e["name"]: e["tid"] for e in events if e["ph"] == "X"}
        assert tids["a"] == tids["inside"] == tids["next"] != tids["b"]

    def test_of_equal_starts_the_longest_holds_the_others(self) -> None:
        spans = [
            span("shortest", "wait", 0, 1.0, 1.5),
            span("longest", "wait", 0, 1.0, 3.0),
            span("empty", "wait", 0, 1.0, 1.0),
            span("middle", "wait", 0, 1.0, 2.0),
        ]
        events = json.loads(to_perfetto(timeline(spans)))["traceEvents"]
        require_valid(events)
        complete = [e for e in events if e["ph"] == "X"]
        assert [e["name"] for e in complete] == ["longest", "middle", "shortest", "empty"]
        assert {e["tid"] for e in complete} == {0}

    def test_of_equal_starts_arrows_go_up_the_ranks(self) -> None:
        spans = [span("b", "push", rank, 1.0, 2.0) for rank in (2, 0, 1)]
        events = json.loads(to_perfetto(timeline(spans, 3)))["traceEvents"]
        require_valid(events)
        arrows = [(e["ph"], e["pid"]) for e in events if e["ph"] in "sf"]
        assert arrows == [("s", 0), ("f", 1), ("s", 1), ("f", 2)]

    def test_empty(self) -> None:
        require_valid(json.loads(to_perfetto(timeline([])))["traceEvents"])

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(LANES),
                st.integers(0, 2),
                st.floats(-1e3, 1e6),
                st.floats(0, 1),
                st.integers(0, 2),
            ),
            max_size=30,
        )
    )
    def test_any_timeline_is_valid(self, rows: list[tuple[str, int, float, float, int]]) -> None:
        spans = [
            span(f"s{i % 4}", lane, rank, start, start + length, channel=channel)
            for i, (lane, rank, start, length, channel) in enumerate(rows)
        ]
        require_valid(json.loads(to_perfetto(timeline(spans, 3)))["traceEvents"])
