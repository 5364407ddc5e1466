"""Stages of pipelines: what they lose to each other, and a rank that is slower than its stage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.collectives import collectives
from syncopate.analysis.evidence.pipeline import pipelines, stages
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.replay import Replay
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
    sends = [spans for _, spans in found if {span.name.split()[0] for span in spans} & {"send"}]
    assert len(sends) == 10 * 2 * 2 * (count - 1) * 4
    for first, second in sends:
        assert {first.name.split()[0], second.name.split()[0]} == {"send", "recv"}
        assert second.rank - first.rank == 1
        receiver = next(span for span in (first, second) if span.lane == "pull")
        arrived_s = max(first.start_s, second.start_s)
        assert receiver.end_s - arrived_s == pytest.approx(0.2 * MS)


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
    assert list(gains(found))[:2] == [("pipeline", ()), ("stages", ())]
    pipeline, first = found.causes[:2]
    even = piped([40 / 3] * 3, jitter=0.0)
    assert first.gain_s == pytest.approx(lasts_s(timeline) - lasts_s(even), rel=0.05)
    work_ms = 4 * 3 * (10 + 20 + 10) / 3 + 1
    assert pipeline.gain_s == pytest.approx(lasts_s(even) - work_ms * MS, rel=0.05)
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
        len(found)
        for _, found in collectives(replace(timeline, spans=spans))
        if found[0].name.startswith(("send", "recv"))
    ]
    assert {1, 2} == set(sizes)


def noted_late(span):
    """A profiler notes that a receive ends a little after the stage went on."""
    return replace(span, end_s=span.end_s + 0.1 * MS) if span.name.startswith("recv") else span


def called_together(spans):
    """Let each send end with the receive that its stage calls next, as one call of both does."""
    ends_s = {}
    for span in sorted(spans, key=lambda one: -one.start_s):
        key = span.rank, span.iteration
        if span.name.startswith("recv"):
            ends_s[key] = span.end_s
        elif span.lane in {"forward", "backward"}:
            ends_s.pop(key, None)
        sent = span.name.startswith("send")
        yield replace(span, end_s=max(span.end_s, ends_s.get(key, 0.0))) if sent else span


@pytest.mark.parametrize("micro_batches", [4, 8])
@pytest.mark.parametrize(
    "untidy",
    [lambda spans: map(noted_late, spans), called_together],
    ids=["ends that are late", "calls of a send and a receive"],
)
def test_a_slow_stage_of_one_replica_is_found_in_an_untidy_trace(untidy, micro_batches):
    timeline = piped(slow=(3, 2.0), micro_batches=micro_batches, jitter=0.0)
    found = explanation(replace(timeline, spans=tuple(untidy(timeline.spans))))
    assert found.abstains == ()
    cost_s = lasts_s(timeline) - lasts_s(piped(micro_batches=micro_batches, jitter=0.0))
    assert gains(found)["compute", (3,)] == pytest.approx(cost_s, rel=0.05)


def test_what_is_idle_before_a_message_and_not_recorded_is_no_bubble():
    """All ranks begin the all-reduce 300 ms after their last backward."""
    late_s = 300 * MS

    def later(span):
        shift_s = late_s * (span.iteration + (span.lane == "update"))
        if span.name.startswith("all_reduce"):
            shift_s += late_s
        return replace(span, start_s=span.start_s + shift_s, end_s=span.end_s + shift_s)

    timeline = piped(jitter=0.0)
    found = explanation(replace(timeline, spans=tuple(map(later, timeline.spans))))
    assert found.causes == ()
    assert "nothing recorded says why" in found.abstains[0]


def test_micro_batches_of_unequal_length_are_batches():
    timeline = piped(uneven=0.3, jitter=0.0, micro_batches=8, iterations=20)
    found = explanation(timeline)
    assert found.abstains == ()
    cost_s = lasts_s(timeline) - lasts_s(piped(jitter=0.0, micro_batches=8, iterations=20))
    (batches_s,) = (gain_s for (kind, _), gain_s in gains(found).items() if kind == "batches")
    # The first stage does all its forwards at a stretch: when it sends within that stays as it was.
    assert 0.5 * cost_s < batches_s < 1.05 * cost_s


def test_a_pipeline_of_which_no_computation_is_recorded_is_none_to_explain():
    """As where a tool does not know the names of what these ranks compute."""
    timeline = piped(slow=(1, 1.5))
    spans = tuple(span for span in timeline.spans if span.rank < 3 or span.lane in {"push", "pull"})
    found = explanation(replace(timeline, spans=spans))
    assert found.iterations == 9
    assert all(set(cause.ranks) <= {0, 1, 2} for cause in found.causes)
