"""What explain says where several things are wrong, and where profilers note them untidily.

What faults cost is known: the same training is played without them.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.artifacts.timeline import HOSTS, Timeline
from syncopate.reports.explanation import explanation_json, verdict
from tests.unit.analysis.troubled import (
    MS,
    bad_plan,
    checkpoints,
    cost_s,
    ends_late,
    handles_late,
    late_input,
    slow_backward,
    slow_forward,
    slow_link,
    stands,
    trained,
    unequal_batches,
    with_small_spans,
    with_wrong_clocks,
)

EVERYBODY = -1
EXPOSED_S = 8 * MS
"""What transfers leave exposed of a training by a good plan."""

KINDS = {
    "input": (late_input, "input"),
    "forward": (slow_forward, "compute"),
    "backward": (slow_backward, "compute"),
    "link": (slow_link, "link"),
    "checkpoint": (checkpoints, "checkpoint"),
    "stands": (stands, "pause"),
    "batches": (lambda rank: unequal_batches(), "batches"),
    "plan": (lambda rank: bad_plan(), "transfers"),
}
NOBODYS = ("batches", "plan")

PAIRS = [
    pytest.param(one, other, where, id=f"{one}@{where[0]}-{other}@{where[1]}")
    for number, (one, other) in enumerate(combinations(KINDS, 2))
    for where in [((1, 1), (0, 1), (1, 3))[number % 3], ((0, 1), (1, 3), (1, 1))[number % 3]]
]


def named(found: Explanation) -> set[tuple[str, int]]:
    """Return kind and rank of all that is named."""
    return {(one.kind, rank) for one in found.causes for rank in one.ranks or (EVERYBODY,)}


def blamed(found: Explanation) -> set[tuple[str, int]]:
    return {one for one in named(found) if one[1] != EVERYBODY}


def expected(faults: dict[str, int]) -> set[tuple[str, int]]:
    return {(KINDS[f][1], EVERYBODY if f in NOBODYS else r) for f, r in faults.items()}


@pytest.mark.parametrize("exchange", ["allreduce", "sharded"])
@pytest.mark.parametrize(("one", "other", "where"), PAIRS)
def test_both_of_two_faults_are_named_with_what_they_cost_together(one, other, where, exchange):
    """On one rank, or on two, where they hide each other."""
    faults = [KINDS[one][0](where[0]), KINDS[other][0](where[1])]
    options = {"exchange": exchange, "iterations": 24}
    found = explanation(trained(faults, **options))
    wanted = expected(dict(zip((one, other), where, strict=True)))
    assert found.abstains == ()
    assert blamed(found) <= wanted
    assert found.causes[0].kind in {kind for kind, _ in wanted}
    missing = wanted - named(found)
    cost = cost_s(faults, **options)
    for place, fault in enumerate((one, other)):
        if missing & expected({fault: where[place]}):  # what next to nothing is lost to
            assert cost - cost_s([faults[1 - place]], **options) < 0.03 * found.iteration_s
    gains = {cause.kind: cause.gain_s for cause in found.causes}
    planned_s = gains["transfers"] - EXPOSED_S if "plan" in (one, other) else 0.0
    assert found.together_s + planned_s == pytest.approx(cost, rel=0.15)


UNTIDY = {
    "1 us late": lambda t: ends_late(t, 1e-6, ("push", "pull")),
    "100 us late": lambda t: ends_late(t, 1e-4, ("push", "pull")),
    "1 ms late": lambda t: ends_late(t, 1e-3, ("push", "pull")),
    "clocks 50 us off": lambda t: with_wrong_clocks(t, 5e-5),
    "clocks 500 us off": lambda t: with_wrong_clocks(t, 5e-4),
    "small spans": with_small_spans,
    "small spans, 1 ms late": lambda t: with_small_spans(ends_late(t, 1e-3)),
}


@pytest.mark.parametrize("way", ["allreduce", "without updates", "sharded", "decoupled"])
@pytest.mark.parametrize("untidy", UNTIDY)
def test_what_is_noted_untidily_is_told_as_it_was(untidy, way):
    """Rank 1 costs 45% of an iteration, whatever a profiler makes of it."""
    updates = way != "without updates"
    options = {"exchange": way if updates else "allreduce", "updates": updates, "iterations": 12}
    for fault, kind in ((slow_backward(1, 60.0), "compute"), (late_input(1, 60.0), "input")):
        found = explanation(UNTIDY[untidy](trained([fault], **options)))
        assert blamed(found) == {(kind, 1)}
        assert found.causes[0].gain_s == pytest.approx(cost_s([fault], **options), rel=0.07)
    healthy = explanation(UNTIDY[untidy](trained(**options)))
    assert (healthy.abstains, blamed(healthy)) == ((), set())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_in_healthy_trainings_nobody_is_blamed(ranks, seed):
    found = explanation(trained(ranks=ranks, jitter=0.03, seed=seed))
    assert [one.kind for one in found.causes] == ["transfers"]
    assert found.abstains == ()


def test_of_two_that_hide_each_other_each_has_half():
    faults = [late_input(1), slow_backward(2)]
    found = explanation(trained(faults))
    first, second = (one for one in found.causes if one.ranks)
    assert first.alone_s < 0.1 * first.gain_s
    assert second.alone_s < 0.1 * second.gain_s
    assert first.gain_s == pytest.approx(second.gain_s, rel=0.05)
    assert found.together_s == pytest.approx(cost_s(faults), rel=0.02)
    assert first.low_s < first.gain_s < first.high_s
    assert verdict(found).endswith("; 2 causes together 36%")
    said = explanation_json(found)
    assert {"together_s", "left_s", "noise_s"} <= said.keys()
    assert {"gain_s", "alone_s", "low_s", "high_s"} <= said["causes"][0].keys()


def test_two_late_ranks_are_these_two():
    for make, kind in ((late_input, "input"), (slow_backward, "compute")):
        found = explanation(trained([make(1), make(2)]))
        assert blamed(found) == {(kind, 1), (kind, 2)}
        assert found.causes[0].ranks == (1, 2)


def test_a_fault_of_all_that_is_worse_on_one_names_both():
    found = explanation(trained([late_input(EVERYBODY, 30.0), late_input(2, 30.0)]))
    gains = {one.ranks: one.gain_s for one in found.causes if one.kind == "input"}
    assert gains == {(): pytest.approx(30 * MS, rel=0.05), (2,): pytest.approx(30 * MS, rel=0.05)}


def test_batches_of_unequal_length_are_blamed_on_nobody():
    found = explanation(trained([unequal_batches()], ranks=8))
    assert {one.kind for one in found.causes} == {"batches", "transfers"}
    assert "batches of unequal length, by" in explanation_json(found)["causes"][0]["what"]


def test_stragglers_that_move_are_blamed_on_nobody():
    def moves(doing, rank, iteration, luck):
        if iteration % 4 == rank:
            doing.forward_ms *= 3
            doing.backward_ms *= 3

    found = explanation(trained([moves]))
    assert (found.abstains, blamed(found), found.causes[0].kind) == ((), set(), "batches")


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_rank_that_is_slow_now_and_then_is_named(every):
    fault = stands(1, 60.0, every)
    found = explanation(trained([fault]))
    assert {rank for _, rank in blamed(found)} == {1}
    assert found.together_s == pytest.approx(cost_s([fault]), rel=0.1)


def test_when_most_ranks_are_slow_they_are_named():
    faults = [slow_backward(rank) for rank in (1, 2, 3)]
    found = explanation(trained(faults))
    assert (found.causes[0].kind, found.causes[0].ranks) == ("compute", (1, 2, 3))
    assert found.together_s == pytest.approx(cost_s(faults), rel=0.05)


def test_a_rank_whose_messages_were_not_recorded_is_not_blamed_for_its_waits():
    found = explanation(without(trained([slow_backward(1)]), rank=2, lane="push"))
    assert found.causes == ()
    assert "no push or pull is recorded of ranks 2" in found.abstains[0]


def test_three_causes_are_named():
    faults = [late_input(0), slow_backward(1), slow_forward(3, 50.0)]
    found = explanation(trained(faults))
    assert blamed(found) == {("input", 0), ("compute", 1), ("compute", 3)}
    assert found.together_s == pytest.approx(cost_s(faults), rel=0.05)


def without(timeline: Timeline, *, rank: int, lane: str) -> Timeline:
    return replace(
        timeline,
        spans=tuple(s for s in timeline.spans if (s.rank, s.lane) != (rank, lane)),
    )


def test_a_rank_whose_forward_was_not_recorded_does_not_wait_for_input():
    found = explanation(without(trained([slow_backward(2)]), rank=1, lane="forward"))
    assert (found.abstains, blamed(found)) == ((), {("compute", 2)})


def test_clocks_that_differ_explain_nothing():
    """Rank 1 computes as the others do, and comes 40 ms later: its clock is wrong."""
    timeline = trained()
    moved = tuple(
        replace(s, start_s=s.start_s + 40 * MS, end_s=s.end_s + 40 * MS) if s.rank == 1 else s
        for s in timeline.spans
    )
    found = explanation(replace(timeline, spans=moved))
    assert found.causes == ()
    assert "over on some ranks before others begin them" in found.abstains[0]


def test_idle_time_that_no_cause_explains_is_not_explained():
    """All ranks do something between backward and update that nobody recorded."""
    timeline = trained(iterations=12)
    moved = tuple(
        replace(
            s,
            start_s=s.start_s + 20 * MS * (s.iteration + (s.lane == "update")),
            end_s=s.end_s + 20 * MS * (s.iteration + (s.lane == "update")),
        )
        for s in timeline.spans
    )
    found = explanation(replace(timeline, spans=moved))
    assert found.causes == ()
    assert found.left_s == pytest.approx(20 * MS)
    assert "22% of an iteration is idle" in found.abstains[0]


@pytest.mark.parametrize(
    ("fault", "blames"),
    [
        (slow_backward(1, by_ms=2.5), set()),
        (slow_backward(1, by_ms=6.0), {("compute", 1)}),
        (slow_forward(1, by_ms=2.5), {("compute", 1)}),
    ],
    ids=["a little in backward", "more in backward", "a little in forward"],
)
def test_messages_beside_backward_may_be_why_it_takes_a_little_longer(fault, blames):
    """They take processor time, and seldom as much on each rank; forward has none beside it."""
    assert blamed(explanation(trained([fault], ranks=2))) == blames


def test_messages_that_slow_processors_handle_late_are_a_part_of_what_these_cost():
    """Of two hosts a link is blamed on neither; a rank that is slow in all is slow there, too."""
    options = {"ranks": 2, "iterations": 24}
    faults = [slow_forward(1), slow_backward(1)]
    found = explained_of_two([*faults, handles_late(1)], options)
    assert blamed(found) == {("compute", 1)}
    cost = cost_s([*faults, handles_late(1)], **options)
    assert found.causes[0].gain_s == pytest.approx(cost, rel=0.05)
    # All messages are late by a slow link, and the network has its part.
    found = explained_of_two([*faults, slow_link(1)], options)
    assert [cause.kind for cause in found.causes] == ["compute", "transfers"]
    assert found.causes[0].gain_s == pytest.approx(cost_s(faults, **options), rel=0.1)


def explained_of_two(faults, options):
    return explanation(replace(trained(faults, **options), metadata={HOSTS: "2"}))
