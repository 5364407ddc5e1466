"""Stages of pipelines: what they lose to each other, and a rank that is slower than its stage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.collectives import collectives
from syncopate.analysis.evidence.pipeline import pipelines, stages
from syncopate.analysis.replay import Replay
from syncopate.analysis.stragglers import stragglers
from syncopate.reports.explanation import told
from tests.unit.analysis.made import made
from tests.unit.analysis.piped import MS, piped
from tests.unit.analysis.troubled import lasts_s


def gains(found):
    return {(one.kind, one.ranks): one.gain_s for one in found.causes}


def test_pipelines_and_stages_are_told_by_who_sends():
    timeline = piped()
    assert pipelines(timeline) == ((0, 1, 2), (3, 4, 5))
    assert stages(timeline) == ((0, 3), (1, 4), (2, 5))
    assert pipelines(made(4, 3)) == stages(made(4, 3)) == ()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_what_is_sent_and_received_is_one_message_of_two_stages(count):
    found = collectives(piped([10.0] * count))
    sends = [one for one in found if {span.name.split()[0] for span in one.spans} & {"send"}]
    assert len(sends) == 10 * 2 * 2 * (count - 1) * 4
    for one in sends:
        first, second = one.spans
        assert {first.name.split()[0], second.name.split()[0]} == {"send", "recv"}
        assert second.rank - first.rank == 1
        receiver = next(span for span in one.spans if span.lane == "pull")
        assert receiver.end_s - one.arrived_s == pytest.approx(0.2 * MS)


def test_a_pipeline_is_played_again_as_it_was():
    replay = Replay(piped([10.0, 14.0, 8.0], jitter=0.05))
    assert replay.iteration_s() == pytest.approx(replay.recorded_s, rel=1e-3)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("micro_batches", [2, 8])
def test_bubbles_cost_what_they_cost(replicas, micro_batches):
    """Of s even stages and m micro-batches s - 1 of m + s - 1 turns are idle."""
    timeline = piped(replicas=replicas, micro_batches=micro_batches, jitter=0.0)
    found = explanation(timeline)
    assert found.abstains == ()
    assert found.causes[0].kind == "pipeline"
    assert {kind for kind, _ in gains(found)} <= {"pipeline", "transfers"}
    assert found.causes[0].gain_s == pytest.approx(2 * 30 * MS, rel=0.05)


def test_a_long_stage_is_no_slow_rank():
    timeline = piped([10.0, 20.0, 10.0], jitter=0.0)
    found = explanation(timeline)
    assert found.abstains == ()
    first = found.causes[0]
    assert (first.kind, first.ranks) == ("pipeline", ())
    work_ms = 4 * 3 * (10 + 20 + 10) / 3 + 1
    assert first.gain_s == pytest.approx(lasts_s(timeline) - work_ms * MS, rel=0.05)
    assert (first.own, first.others) == (
        pytest.approx((4 * 3 * 20 + 1) * MS, rel=0.05),
        pytest.approx(work_ms * MS, rel=0.05),
    )
    assert "the longest computes 241.00 ms" in told(first, found)["what"]
    assert "compute" not in {one.cause for one in stragglers(timeline)}


@pytest.mark.parametrize("rank", [0, 4])
def test_a_rank_slower_than_others_of_its_stage_is_named_beside_the_pipeline(rank):
    timeline = piped(slow=(rank, 1.5))
    found = explanation(timeline)
    assert found.abstains == ()
    named = gains(found)
    assert {ranks for kind, ranks in named if kind == "compute"} == {(rank,)}
    cost_s = lasts_s(timeline) - lasts_s(piped())
    assert named["compute", (rank,)] == pytest.approx(cost_s, rel=0.15)


def test_messages_whose_other_end_is_not_known_are_of_one_rank():
    timeline = piped(replicas=1)
    spans = tuple(s for s in timeline.spans if (s.rank, s.name) != (1, "recv 0"))
    sizes = [
        len(one.spans)
        for one in collectives(replace(timeline, spans=spans))
        if one.spans[0].name.startswith(("send", "recv"))
    ]
    assert {1, 2} == set(sizes)
