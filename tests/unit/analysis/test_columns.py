"""Figures taken of columns are those of the plain formulas, span by span, of any timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.analysis import exposure as exposure_module
from syncopate.analysis.collectives import bandwidths, collectives
from syncopate.analysis.exposure import exposures
from syncopate.analysis.intervals import length_s, union
from syncopate.analysis.phases import phases
from syncopate.analysis.ranks.arrivals import arrivals
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.sweep import union as union_of_columns
from syncopate.analysis.work import works
from syncopate.artifacts.plan import ALLREDUCE, SERVED, SHARDED
from syncopate.artifacts.timeline import LANES, PAUSES, Span, Timeline
from tests.unit.analysis import plain

times_s = st.integers(0, 24).map(lambda quarter: quarter / 4)
COLUMN_BY_COLUMN = {"rel": 1e-12, "abs": 1e-12}


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw a timeline in which everything may overlap everything."""
    world_size = draw(st.integers(1, 4))
    spans = []
    for _ in range(draw(st.integers(0, 24))):
        start_s, end_s = sorted((draw(times_s), draw(times_s)))
        lane = draw(st.sampled_from(LANES))
        names = ("bucket 1", "bucket 0") if lane in ("push", "pull") else ("x", *PAUSES[:2])
        spans.append(
            Span(
                name=draw(st.sampled_from(names)),
                lane=lane,
                rank=draw(st.integers(0, world_size - 1)),
                start_s=start_s,
                end_s=end_s,
                iteration=draw(st.integers(0, 2)),
                channel=draw(st.integers(0, 1)),
                nbytes=draw(st.integers(0, 9)),
            )
        )
    exchange = draw(st.sampled_from((ALLREDUCE, SHARDED, SERVED)))
    return Timeline(
        name="drawn",
        source="measured",
        world_size=world_size,
        spans=tuple(spans),
        metadata={"exchange": exchange},
    )


def any_timeline(test: Callable[[Timeline], None]) -> Callable[[], None]:
    """Call a test with a few timelines: what matters are overlaps, and each has many."""
    return settings(max_examples=25)(given(timelines())(test))


def apart(timeline: Timeline) -> dict[str, bool]:
    """Say whether messages are of one rank or of all."""
    return {"together": timeline.metadata["exchange"] != SERVED}


@any_timeline
def test_phases(timeline: Timeline) -> None:
    found = [
        (p.iteration, p.rank, p.duration_s, p.computation_s, p.communication_s, p.overlapped_s)
        for p in phases(timeline)
    ]
    expected = plain.phases(timeline)
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, **COLUMN_BY_COLUMN)


@any_timeline
def test_collectives(timeline: Timeline) -> None:
    found = collectives(timeline)
    expected = plain.messages(timeline, **apart(timeline))
    assert [spans for _, spans in found] == expected
    assert found.arrived_s.tolist() == [plain.arrived_s(spans) for spans in expected]
    assert collectives(timeline) is found


@any_timeline
def test_exposures_and_who_caused_them(timeline: Timeline) -> None:
    found = exposures(timeline)
    expected = plain.exposures(timeline, **apart(timeline))
    caused: dict[int, float] = defaultdict(float)
    for one, (span, waiting_s, transferring_s, charged) in zip(found, expected, strict=True):
        key = (span.iteration, span.rank, span.lane, span.name, span.nbytes)
        assert (one.iteration, one.rank, one.lane, one.name, one.nbytes) == key
        assert one.waiting_s == pytest.approx(waiting_s, **COLUMN_BY_COLUMN)
        assert one.transferring_s == pytest.approx(transferring_s, **COLUMN_BY_COLUMN)
        assert one.waited_for_s == pytest.approx(charged, **COLUMN_BY_COLUMN)
        for rank, waited_s in charged.items():
            caused[rank] += waited_s
    charged_s: dict[int, float] = defaultdict(float)
    for _, ranks, seconds_s in found.charges():
        for rank, waited_s in zip(ranks.tolist(), seconds_s.tolist(), strict=True):
            charged_s[rank] += waited_s
    assert charged_s == pytest.approx(caused)
    exposed_s = sum(one.exposed_s for one in found.by_message())
    count = len({(one.iteration, one.rank) for one in found})
    assert exposed_s * count == pytest.approx(sum(row[1] + row[2] for row in expected))


@any_timeline
def test_stragglers_are_charged_what_others_wait(timeline: Timeline) -> None:
    computed = {span.iteration for span in timeline.spans if span.lane in plain.COMPUTATION}
    caused: dict[int, float] = defaultdict(float)
    for span, _, _, charged in plain.exposures(timeline, **apart(timeline)):
        if span.iteration in computed:
            for rank, waited_s in charged.items():
                caused[rank] += waited_s / (timeline.world_size - 1) / len(computed)
    assert {one.rank: one.caused_s for one in stragglers(timeline)} == pytest.approx(caused)


@any_timeline
def test_bandwidths(timeline: Timeline) -> None:
    moving = plain.transferring(timeline, **apart(timeline))
    found = bandwidths(timeline)
    nbytes = sum(s.nbytes for _, spans in collectives(timeline) for s in spans)
    kinds: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for kind, spans in collectives(timeline):
        kinds[kind] |= {(s.iteration, s.rank) for s in spans}
    assert [one.collective for one in found] == sorted(kinds)
    sent = sum(one.nbytes * len(kinds[one.collective]) for one in found)
    assert sent == pytest.approx(nbytes)
    if len(found) == 1:
        expected_s = sum(map(length_s, moving.values())) / len(moving)
        assert found[0].transferring_s == pytest.approx(expected_s)


@any_timeline
def test_arrivals(timeline: Timeline) -> None:
    whole = [
        one
        for one in plain.messages(timeline, **apart(timeline))
        if len(one) >= max(timeline.world_size, 2)
    ]
    took_s = [max(s.end_s for s in one) - plain.arrived_s(one) for one in whole]
    found = arrivals(timeline)
    assert (found.collectives, found.together_s) == (len(whole), sum(took_s))
    assert found.bound_s == sum(min(s.duration_s for s in one) for one in whole)


@any_timeline
def test_work(timeline: Timeline) -> None:
    found = {(work.iteration, work.rank): work.computation_s for work in works(timeline)}
    assert found == pytest.approx(plain.worked(timeline))


@any_timeline
def test_a_union_of_columns(timeline: Timeline) -> None:
    spans = timeline.columns
    expected = union((span.start_s, span.end_s) for span in timeline.spans)
    assert union_of_columns(spans, np.ones(len(spans), bool)) == expected


def test_it_does_not_matter_how_many_are_looked_at_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = tuple(
        Span(name=f"bucket {i}", lane="push", rank=rank, start_s=i + rank / 8, end_s=i + 2.0)
        for i in range(9)
        for rank in range(4)
    )
    timeline = Timeline(name="t", source="measured", world_size=4, spans=spans)
    whole = tuple(exposures(timeline))
    monkeypatch.setattr(exposure_module, "_AT_ONCE", 5)
    few = Timeline(name="t", source="measured", world_size=4, spans=spans)
    assert tuple(exposures(few)) == whole
    assert exposures(few) is not exposures(timeline)
