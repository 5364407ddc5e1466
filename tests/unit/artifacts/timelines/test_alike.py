"""Alike ranks: kept once, read as if each had spans of its own."""

from __future__ import annotations

import pickle

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from syncopate.analysis.collectives import collectives
from syncopate.analysis.phases import phases
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.work import works
from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.artifacts.timelines.alike import Alike, SharedSpans, shared
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing.foreign.exports.chakra import to_chakra
from syncopate.tracing.foreign.exports.hta import to_hta
from syncopate.tracing.perfetto import to_perfetto

PLAIN = (
    Span(name="forward", lane="forward", rank=0, start_s=0.0, end_s=1.0),
    Span(name="bucket 0", lane="push", rank=0, start_s=1.0, end_s=4.0, nbytes=8),
    Span(name="forward", lane="forward", rank=3, start_s=0.0, end_s=2.5),
    Span(name="bucket 0", lane="push", rank=3, start_s=2.5, end_s=4.0, nbytes=8),
)
ALIKE = (Alike(rank=0, ranks=((1, 3), (4, 6))),)


def _timeline(spans=None):
    spans = shared(Spans.of(PLAIN), ALIKE, 6) if spans is None else spans
    return Timeline(name="t", source="simulated", world_size=6, spans=spans)


def _each() -> Timeline:
    """The same with spans of each rank's own."""
    of = {0: 0, 1: 0, 2: 0, 3: 3, 4: 0, 5: 0}
    spans = [replace(s, rank=r) for r, like in of.items() for s in PLAIN if s.rank == like]
    return _timeline(Spans.of(spans))


def test_columns_are_those_of_every_rank():
    spans = _timeline().columns
    assert isinstance(spans, SharedSpans)
    assert len(spans) == 12 == len(list(spans))
    assert sorted(spans, key=repr) == sorted(_each().spans, key=repr)
    assert [span.rank for span in spans] == [0, 1, 2, 4, 5, 0, 1, 2, 4, 5, 3, 3]
    assert spans.start_s.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0, 2.5]
    assert pickle.loads(pickle.dumps(spans)) == spans
    with pytest.raises(ValueError, match="read-only"):
        spans.rank[0] = 3
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = spans.colour


def test_a_file_has_alike_ranks_once():
    timeline = _timeline()
    text = timeline.to_json()
    assert text.count(b"bucket 0") == 2
    assert msgspec.json.decode(text)["alike"] == [{"rank": 0, "ranks": [[1, 3], [4, 6]]}]
    read = Timeline.from_json(text)
    assert read == timeline
    assert (read.alike, read.kept, read.to_json()) == (ALIKE, PLAIN, text)
    assert read.duration_s == 4.0
    other = msgspec.structs.replace(read, spans=read.columns.take(np.array([0, 11])))
    assert (other.alike, [span.rank for span in other.spans]) == ((), [0, 3])


def test_a_file_of_the_version_before_is_read():
    text = _each().to_json()
    assert b'"schema_version": 2' in text
    assert b'"alike"' not in text
    before = text.replace(b'"schema_version": 2', b'"schema_version": 1')
    assert Timeline.from_json(before) == _each()
    with pytest.raises(ArtifactError, match="version 0 is not readable"):
        Timeline.from_json(text.replace(b'"schema_version": 2', b'"schema_version": 0'))


def test_ranges_are_as_few_as_there_can_be():
    assert Alike.of(2, [5, 4, 2, 7, 6, 0]) == Alike(rank=2, ranks=((0, 1), (4, 8)))
    assert Alike.of(2, [2]) == Alike(rank=2, ranks=())
    assert Alike.of(2, [5, 0]).all.tolist() == [2, 0, 5]


@pytest.mark.parametrize(
    ("alike", "complaint"),
    [
        ([Alike(rank=6, ranks=())], r"rank that others are like is 6; it must be in 0\.\.5"),
        ([Alike(rank=0, ranks=((1, 7),))], r"alike ranks is \(1, 7\)"),
        ([Alike(rank=0, ranks=((2, 2),))], r"alike ranks is \(2, 2\)"),
        ([Alike(rank=0, ranks=((1, 3), (2, 3)))], "alike rank is 2; it must be like one other"),
        ([Alike(rank=0, ranks=()), Alike(rank=0, ranks=())], "each rank once"),
        ([Alike(rank=0, ranks=((1, 4),))], "alike rank is 3; it must be one without spans"),
        ([Alike(rank=0, ranks=((0, 2),))], "alike rank is 0; it must be one without spans"),
    ],
)
def test_ranks_that_cannot_be_alike_are_refused(alike, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        shared(Spans.of(PLAIN), alike, 6)
    right = _timeline().to_json()
    wrong = msgspec.json.decode(right) | {"alike": msgspec.to_builtins(alike)}
    with pytest.raises(ArtifactError, match=complaint):
        Timeline.from_json(msgspec.json.encode(wrong))


def test_a_world_without_the_alike_ranks_is_refused():
    with pytest.raises(InvalidValueError, match=r"alike ranks is \(4, 6\)"):
        replace(_timeline(), world_size=5)


def test_analysis_finds_the_same_as_of_ranks_with_spans_of_their_own():
    one, other = _timeline(), _each()
    assert phases(one) == phases(other)
    assert works(one) == works(other)
    assert stragglers(one) == stragglers(other)
    assert list(collectives(one)) == list(collectives(other))


def test_exports_have_the_same_files():
    def kinds(timeline):
        return {span: "all_reduce" for span in timeline.spans if span.lane == "push"}

    one, other = _timeline(), _each()
    assert to_hta(one, kinds(one)) == to_hta(other, kinds(other))
    assert to_chakra(one, kinds(one)) == to_chakra(other, kinds(other))


def test_perfetto_draws_ranks_that_do_the_same_once():
    events = msgspec.json.decode(to_perfetto(_timeline()))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 and 4 others like it", "rank 3"]
    assert sum(event["ph"] == "X" for event in events) == 4


def test_of_many_ranks_few_are_looked_at():
    timeline = _timeline()
    assert timeline.few(12) is timeline
    few = timeline.few(8)
    assert np.unique(few.columns.rank).tolist() == [0, 1, 3]
    assert (few.world_size, few.ranks_in_columns, timeline.ranks_in_columns) == (6, 3, 6)
    assert few.to_json() == timeline.to_json()
    (late,) = stragglers(few)
    assert (late.rank, late.caused_s) == (3, stragglers(timeline)[0].caused_s)
