"""Timeline: spans, duration, and what it refuses."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from msgspec import json, structs

from syncopate.artifacts import timeline as timelines
from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from tests.unit import strategies


def _span(start_s=1.0, end_s=3.0, lane="push", rank=0, **more):
    return Span(name="bucket 0", lane=lane, rank=rank, start_s=start_s, end_s=end_s, **more)


NO_TIME = {"lane": [0], "start_s": [0.0], "end_s": [0.0]}


def _timeline(*spans, source="measured"):
    return Timeline(name="t", source=source, world_size=2, spans=spans)


@given(strategies.timelines())
def test_round_trip(timeline):
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_a_file_has_a_span_in_each_line():
    lines = _timeline(_span(), _span(0.0, 0.5)).to_json().decode().splitlines()
    assert [line.count("bucket 0") for line in lines] == [0] * (len(lines) - 4) + [1, 1, 0, 0]
    empty = _timeline().to_json()
    assert Timeline.from_json(empty).to_json() == empty


@given(strategies.timelines(), strategies.st.integers(1, 200))
def test_a_file_is_the_same_whatever_pieces_it_is_read_in(timeline, nbytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timelines, "_PIECE_BYTES", nbytes)
        assert Timeline.from_json(timeline.to_json()) == timeline
        assert Timeline.from_json(json.format(timeline.to_json(), indent=-1)) == timeline


@pytest.mark.parametrize("nbytes", [1, 7, 40, 100, 350, 800])
def test_pieces_end_between_spans_and_not_within_names(monkeypatch, nbytes):
    monkeypatch.setattr(timelines, "_PIECE_BYTES", nbytes)
    odd = structs.replace(_span(), name='},{ "spans": [{}, {}, \\')
    timeline = Timeline(
        name='"spans": [{},{',
        source="measured",
        world_size=2,
        spans=(odd,) * 5,
        metadata={"links": '[{"},{": 1},{}]'},
    )
    text = timeline.to_json()
    assert Timeline.from_json(text) == timeline
    fields = json.decode(text)
    fields["metadata"] = fields.pop("metadata")
    assert Timeline.from_json(json.encode(fields)) == timeline, "spans need not come last"
    start = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    with pytest.raises(ArtifactError, match="JSON"):
        Timeline.from_json(text[:start] + b"," + text[start:])
    with pytest.raises(ArtifactError, match="JSON"):
        Timeline.from_json(text[: start - 3])


def test_a_file_takes_little_more_memory_while_it_is_read_than_its_columns(monkeypatch, tmp_path):
    monkeypatch.setattr(timelines, "_PIECE_BYTES", 1 << 16)
    count = 20_000
    path = _timeline(*[_span(i, i + 1.0) for i in range(count)]).save(tmp_path / "t.json")
    Timeline.load(path)
    tracemalloc.start()
    try:
        assert len(Timeline.load(path).spans) == count
        assert tracemalloc.get_traced_memory()[1] < 200 * count
    finally:
        tracemalloc.stop()


def test_durations():
    assert _span().duration_s == 2.0
    assert _timeline().duration_s == 0.0
    assert _timeline(_span(2.0, 3.0), _span(0.5, 1.0, rank=1)).duration_s == 2.5


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: _span(3.0, 1.0), "end_s of span bucket 0 is 1.0.*at least start_s, 3.0"),
        (lambda: _span(math.nan), "finite times"),
        (lambda: _span(0.0, math.inf), "finite times"),
        (lambda: _span(0.0, math.nan), "finite times"),
        (lambda: _span(0.0, 1e308), r"finite times, none further from 0 than 1e\+18"),
        (lambda: _span(-1e308, 0.0), "none further"),
        (lambda: Spans((), {"lane": [0], "start_s": [0.0], "end_s": [1e308]}), "none further"),
        (lambda: Spans((), {"lane": [0], "start_s": [0.0], "end_s": [math.nan]}), "finite times"),
        (lambda: _span(launched_s=math.inf), "launched_s of span bucket 0 is inf.*finite time"),
        (lambda: _span(ready_s=-1e308), "ready_s of span bucket 0 is -1e.308.*no further"),
        (lambda: Spans((), NO_TIME | {"ready_s": [math.inf]}), "ready_s of span  is inf"),
        (lambda: _timeline(_span(rank=2)), r"rank of span bucket 0 is 2.*in 0\.\.1"),
        (lambda: _timeline(_span(rank=-1)), "rank of span bucket 0 is -1"),
        (lambda: structs.replace(_timeline(), world_size=0), r"world_size is 0; .* in 1\.\."),
        (lambda: structs.replace(_timeline(), world_size=10**9), r"in 1\.\.1048576"),
    ],
)
def test_nonsense_is_refused(build, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        build()


def test_unknown_lanes_and_sources_are_refused():
    with pytest.raises(UnknownNameError, match="unknown lane 'gpu'; known: forward, backward"):
        _span(lane="gpu")
    with pytest.raises(UnknownNameError, match="unknown source 'dream'; known: measured, sim"):
        _timeline(source="dream")
