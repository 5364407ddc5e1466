"""Spans: the same as columns and one by one, and what they refuse."""

from __future__ import annotations

import math
import pickle
from collections import defaultdict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from tests.unit import strategies

RING = Span(
    name="bucket 0", lane="push", rank=1, start_s=0.5, end_s=1.5, iteration=7, channel=2, nbytes=8,
    detail="ring", launched_s=0.25, ready_s=0.125,
)  # fmt: skip
ALONE = Span(name="forward", lane="forward", rank=0, start_s=0.0, end_s=1.0)


@given(strategies.timelines())
def test_columns_hold_what_spans_say(timeline):
    columns = Spans.of(timeline.spans)
    assert tuple(columns) == timeline.spans == tuple(columns[i] for i in range(len(columns)))
    assert columns == timeline.spans == columns[:]
    assert Spans.of(columns) is columns
    read = Timeline.from_json(timeline.to_json())
    assert isinstance(read.spans, Spans)
    assert read == timeline
    assert read.to_json() == timeline.to_json()


@given(st.lists(strategies.timelines(), max_size=3))
def test_joined_spans_stand_one_behind_the_other(timelines):
    joined = Spans.joined([timeline.columns for timeline in timelines])
    assert joined == tuple(span for timeline in timelines for span in timeline.spans)
    assert len(set(joined.texts)) == len(joined.texts)


def test_a_column_for_every_field_and_defaults_for_what_is_left_out():
    spans = Spans.of([RING, ALONE])
    assert [spans.texts[place] for place in spans.name] == ["bucket 0", "forward"]
    assert (spans.nbytes.tolist(), spans.channel.tolist()) == ([8, 0], [2, 0])
    assert math.isnan(spans.ready_s[1])
    columns = {"lane": [0], "name": [0], "rank": [0], "start_s": [0.0], "end_s": [1.0]}
    assert Spans(["forward"], columns) == (ALONE,)
    assert spans[-1] == ALONE
    assert spans[1:] == (ALONE,) != spans
    assert pickle.loads(pickle.dumps(spans)) == spans
    with pytest.raises(IndexError):
        spans[2]
    with pytest.raises(ValueError, match="read-only"):
        spans.rank[0] = 3


def test_the_empty_text_may_be_one_of_the_texts():
    for texts in ((), ("",), ("a", ""), ("", "a")):
        columns = {"lane": [0], "start_s": [0.0], "end_s": [0.0]}
        for detail in ({}, {"detail": [len(texts)]}):
            one = Spans(texts, columns | detail)[0]
            assert (one.name, one.detail) == ((*texts, "")[0], "")


def test_texts_that_are_given_twice_are_one():
    columns = {"lane": [2, 2], "name": [0, 1], "rank": [0, 0], "start_s": [0, 1], "end_s": [1, 2]}
    spans = Spans(["b", "b"], columns)
    assert spans.name.tolist() == [0, 0]
    assert [span.detail for span in spans] == ["", ""]


def test_rows_are_found_by_lane_name_and_rank():
    spans = Spans.of([RING, ALONE, RING])
    assert spans.in_lanes("push", "pull").tolist() == [True, False, True]
    assert spans.named(("forward",)).tolist() == [False, True, False]
    assert spans.take(np.array([1])) == (ALONE,)
    order = spans.text_order
    assert sorted(spans.texts, key=lambda text: order[spans.texts.index(text)]) == sorted(
        spans.texts
    )


@given(strategies.timelines())
def test_the_nth_of_a_rank_that_agree_has_the_number_n(timeline):
    spans = timeline.columns
    code, nth = spans.numbered("lane", "iteration", "name")
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, span in enumerate(timeline.spans):
        groups[span.lane, span.iteration, span.name].append(row)
    assert len(set(code.tolist())) == len(groups)
    for rows in groups.values():
        assert len({int(code[row]) for row in rows}) == 1
        for rank in {timeline.spans[row].rank for row in rows}:
            mine = [row for row in rows if timeline.spans[row].rank == rank]
            mine.sort(key=lambda row: timeline.spans[row].start_s)
            assert [int(nth[row]) for row in mine] == list(range(len(mine)))


def test_many_large_numbers_still_tell_spans_apart():
    spans = Spans.of(
        [
            Span(name=name, lane="push", rank=0, start_s=0.0, end_s=1.0, iteration=i, nbytes=n)
            for name in "ab"
            for i in (-(1 << 62), 0, 1 << 62)
            for n in (0, 1 << 62)
        ]
    )
    code, nth = spans.numbered("iteration", "nbytes", "name")
    assert len(set(code.tolist())) == len(spans)
    assert not nth.any()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"start_s": [2.0]}, r"end_s of span forward is 1\.0.*at least start_s, 2\.0"),
        ({"end_s": [math.inf]}, "finite times"),
        ({"lane": [6]}, "lane of a span is 6; it must be below 6"),
        ({"detail": [9]}, "detail of a span is 9"),
    ],
)
def test_columns_that_no_span_has_are_refused(columns, complaint):
    right = {"lane": [0], "name": [0], "rank": [0], "start_s": [0.0], "end_s": [1.0]}
    with pytest.raises(InvalidValueError, match=complaint):
        Spans(["forward"], right | columns)


def test_spans_that_no_column_holds_are_refused():
    huge = Span(name="b", lane="push", rank=0, start_s=0.0, end_s=1.0, nbytes=1 << 63)
    with pytest.raises(InvalidValueError, match="nbytes of a span is 9223372036854775808"):
        Spans.of([huge])
    row = Timeline(name="t", source="measured", world_size=1, spans=(ALONE,)).to_json()
    with pytest.raises(ArtifactError, match=r"\$\.spans: iteration of a span"):
        Timeline.from_json(row.replace(b'"end_s"', b'"iteration":36893488147419103232,"end_s"'))
    with pytest.raises(ArtifactError, match=r"\$\.spans\[0\]: unknown lane 'gpu'"):
        Timeline.from_json(row.replace(b'"lane":"forward"', b'"lane":"gpu"'))
    with pytest.raises(UnknownNameError, match="unknown lane 'gpu'"):
        Spans.of([Duck("gpu")])


class Duck:
    """Has what a span has."""

    name, rank, start_s, end_s, iteration, channel, nbytes, detail = "d", 0, 0.0, 1.0, 0, 0, 0, ""
    launched_s = ready_s = None

    def __init__(self, lane: str) -> None:
        self.lane = lane


def test_what_is_kept_of_a_timeline_is_not_kept_of_its_copies():
    timeline = Timeline(name="t", source="measured", world_size=2, spans=(RING, ALONE))
    assert (timeline.columns is timeline.columns, timeline.duration_s) == (True, 1.5)
    copy = msgspec.structs.replace(timeline, spans=(ALONE,))
    assert (copy.columns, copy.duration_s) == ((ALONE,), 1.0)
