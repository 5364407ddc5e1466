"""Contest: who takes part, who drops out, and who stays."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Interference,
    LinearFit,
)
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.engine.selfplan import contest, log_lines
from syncopate.engine.selfplan.background import proposals
from syncopate.engine.selfplan.contest import Ability, Contender
from syncopate.engine.selfplan.ddp_buckets import safe_plan
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.units import KIB, MIB


def curve(name: str, start_s: float, s_per_byte: float) -> CollectiveCurve:
    sizes = [4 * KIB * 4**k for k in range(8)]
    points = tuple(
        CurvePoint(nbytes=size, samples_s=(start_s + s_per_byte * size,)) for size in sizes
    )
    return CollectiveCurve(
        collective="all_reduce",
        algorithm=name,
        points=points,
        fit=LinearFit(a_s=start_s, b_s_per_byte=s_per_byte),
    )


ABLE, NOT_ABLE = Ability(defers=True, shards=True), Ability()

CLUSTER = replace(
    Cluster.flat(4, latency_s=3e-5, bandwidth_bytes_per_s=117e6),
    curves=(curve("native", 4e-3, 1.3e-8), curve("ring", 1e-3, 1.29e-8)),
)
WORKLOAD = Workload(
    model="m",
    tensors=tuple(GradientTensor(name=f"t{i}", numel=MIB // 4, backward_s=0.01) for i in range(40)),
    forward_s=0.2,
    backward_s=0.41,
)
DDP = safe_plan("m", [(t.name, t.numel, t.dtype) for t in WORKLOAD.tensors], 4)
KNOWN = {contest.DDP: DDP}


@functools.cache
def _once(able: Ability, exchange: str | None) -> tuple[Contender, ...]:
    return tuple(proposals.proposals(WORKLOAD, CLUSTER, Wishes(exchange=exchange), KNOWN, able))


def proposed(able: Ability = NOT_ABLE, exchange: str | None = None) -> list[Contender]:
    """What competes where nothing else is asked for: planned once, without samples every time."""
    return [Contender(one.name, one.plan, []) for one in _once(able, exchange)]


def rival(name: str, *samples_s: float) -> Contender:
    return Contender(name, DDP, list(samples_s))


def test_the_proposals_are_distinct_and_all_are_predicted() -> None:
    found = proposed()
    names = [one.name for one in found]
    assert names[:3] == [contest.DDP, contest.IDEAL, proposals.EQUAL]
    # Here every gradient alone is the best plan on two channels, and that of equal buckets.
    assert names[3:] == [proposals.TWO_CHANNELS, proposals.NATIVE_SMALL]
    larger = replace(CLUSTER, curves=(curve("native", 20e-3, 1.3e-8),))
    names = [one.name for one in proposals.proposals(WORKLOAD, larger, Wishes(), KNOWN, NOT_ABLE)]
    others = [proposals.TWO_CHANNELS, proposals.EQUAL_TWO_CHANNELS, proposals.NATIVE_SMALL]
    assert names[3:] == others
    for one in found:
        one.plan.require_fit([(t.name, t.numel, t.dtype) for t in WORKLOAD.tensors], 4)
        assert one.plan.prediction is not None
        assert one.plan.prediction.iteration_s >= one.plan.prediction.bound_s
    assert [one.plan.channels for one in found] == [1, 1, 1, 2, 1]
    sizes = [bucket.nbytes for bucket in found[2].plan.buckets]
    assert max(sizes) <= 2 * min(sizes)


def in_two_halves(exchange: str, asked: str | None) -> None:
    found = proposed(ABLE, asked)
    spread = [one for one in found if one.plan.exchange == exchange]
    assert len(spread) >= 2
    recipes = [r for b in spread[-1].plan.buckets for _, r in b.recipes]
    assert {recipe.algorithm for recipe in recipes} == {"ring"}
    assert found[0].name == contest.DDP
    for one in spread:
        assert one.plan.channels == 2
        assert one.plan.prediction is not None
        assert one.plan.prediction.iteration_s >= one.plan.prediction.bound_s
    # What arrives while forward computes costs less than what comes after backward.
    assert expected_s(spread[0].plan) < expected_s(proposed()[1].plan)


def test_decoupled_plans_compete_where_steps_can_be_deferred() -> None:
    in_two_halves("decoupled", None)
    assert {one.plan.exchange for one in proposed()} == {"allreduce"}
    shards = Ability(shards=True)
    assert {one.plan.exchange for one in proposed(shards)} == {"allreduce"}


def test_sharded_plans_compete_where_they_are_asked_for_alone() -> None:
    assert {one.plan.exchange for one in proposed(ABLE)} == {"allreduce", "decoupled"}
    in_two_halves("sharded", "sharded")
    assert {one.plan.exchange for one in proposed(ABLE, "sharded")[1:]} == {"sharded"}
    assert {one.plan.exchange for one in proposed(ABLE, "decoupled")[1:]} == {"decoupled"}
    assert {one.plan.exchange for one in proposed(ABLE, "allreduce")} == {"allreduce"}


def test_one_plan_needs_no_measurement() -> None:
    tensors = [(t.name, t.numel, t.dtype) for t in WORKLOAD.tensors]
    plan = proposals.unmeasured("m", tensors, 4, Wishes())
    assert plan is not None
    plan.require_fit(tensors, 4)
    assert (plan.exchange, plan.channels, plan.prediction) == ("decoupled", 2, None)
    assert max(bucket.nbytes for bucket in plan.buckets) <= 2 * MIB
    for asked in (Wishes(policy="wfbp"), Wishes(exchange="allreduce"), Wishes(exchange="sharded")):
        assert proposals.unmeasured("m", tensors, 4, asked) is None


def test_no_ring_competes_where_none_was_measured() -> None:
    cluster = replace(CLUSTER, curves=CLUSTER.curves[:1])
    found = proposals.proposals(WORKLOAD, cluster, Wishes(exchange="sharded"), KNOWN, ABLE)
    assert proposals.SHARDED_PLAN in {one.name for one in found}
    algorithms = {r.algorithm for one in found for b in one.plan.buckets for _, r in b.recipes}
    assert algorithms == {"native"}


def test_the_exchange_asked_for_stays_even_where_ddp_is_faster() -> None:
    found = proposed(ABLE, "sharded")
    for place, one in enumerate(found):
        one.samples_s += [0.1 if one.name == contest.DDP else 0.5 - 0.1 * place] * 6
    assert contest.winner(found, "sharded").name == proposals.SHARDED_SMALL
    assert contest.winner(found).name == contest.DDP


def test_equal_buckets_are_as_small_as_their_start_up_allows() -> None:
    cheap = proposed()[2]
    dear = replace(CLUSTER, curves=(curve("native", 50e-3, 1.3e-8),))
    few = proposals.proposals(WORKLOAD, dear, Wishes(), KNOWN, NOT_ABLE)[2]
    assert len(few.plan.buckets) < len(cheap.plan.buckets) == 21


def test_a_policy_that_chooses_exchanges_is_asked_for_one_at_a_time() -> None:
    """An optimizer whose step cannot be deferred gets no plan that defers it."""
    for able, exchanges in ((NOT_ABLE, {"allreduce"}), (ABLE, {"allreduce", "decoupled"})):
        found = proposals.proposals(WORKLOAD, CLUSTER, Wishes("auto"), KNOWN, able)
        assert {one.plan.exchange for one in found} == exchanges
        slowed = replace(CLUSTER, interference=Interference(compute_rate=0.8))
        for one in found:
            one.samples_s.append(1.0)
        again = proposals.with_interference(found, WORKLOAD, slowed, Wishes("auto"))
        assert {one.plan.exchange for one in again} == exchanges


def test_what_the_user_asked_for_is_all_that_competes_with_ddp() -> None:
    asked = proposals.proposals(WORKLOAD, CLUSTER, Wishes("wfbp", 1), KNOWN, NOT_ABLE)
    assert [one.name for one in asked] == [contest.DDP, contest.IDEAL]
    assert asked[1].plan.policy == "wfbp"
    assert len(asked[1].plan.buckets) == 40
    both = proposals.proposals(WORKLOAD, CLUSTER, Wishes(None, 2), KNOWN, NOT_ABLE)
    assert {one.plan.channels for one in both if one.name != contest.DDP} == {2}


def test_a_plan_that_trains_like_one_before_does_not_compete() -> None:
    same = replace(DDP, policy="another name")
    assert proposals.distinct([rival("a"), Contender("b", same, [])]) == [rival("a")]
    moved = replace(DDP, channels=2)
    assert len(proposals.distinct([rival("a"), Contender("b", moved, [])])) == 2
    other = replace(DDP, buckets=DDP.buckets[::-1])
    assert len(proposals.distinct([rival("a"), Contender("b", other, [])])) == 2


def test_measured_interference_brings_a_plan_of_its_own_and_new_expectations() -> None:
    running = proposed()
    for one in running:
        one.samples_s.append(1.0)
    ideal = proposals.with_interference(running, WORKLOAD, CLUSTER, Wishes())
    assert [one.name for one in ideal] == [one.name for one in running]
    slow = replace(CLUSTER, interference=Interference(compute_rate=0.2, collective_stretch=1.5))
    found = proposals.with_interference(running, WORKLOAD, slow, Wishes())
    assert found[-1].name == proposals.MEASURED
    assert found[-1].samples_s == []
    for before, after in zip(running, found, strict=False):
        assert before.samples_s == after.samples_s
        assert expected_s(after.plan) > expected_s(before.plan)


def test_what_the_others_took_beyond_their_predictions_is_added_to_the_winner() -> None:
    everyone = proposed()
    for one, beyond_s in zip(everyone, (0.1, 0.2, 0.9, 0.3, 0.2), strict=True):
        one.samples_s.append(expected_s(one.plan) + beyond_s)
    # Its own samples say nothing: what is predicted was not measured.
    found = proposals.explained(everyone[2], everyone, WORKLOAD, CLUSTER)
    assert found.name == everyone[2].name
    assert expected_s(found.plan) == pytest.approx(expected_s(everyone[2].plan) + 0.2)
    for one in everyone:
        one.samples_s[:] = [1e-3]
    plan = proposals.explained(everyone[2], everyone, WORKLOAD, CLUSTER).plan
    assert plan.prediction is not None
    assert expected_s(plan) == plan.prediction.bound_s
    alone = proposals.explained(everyone[0], everyone[:1], WORKLOAD, CLUSTER)
    assert alone.plan == everyone[0].plan


def expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


def test_the_slower_half_drops_out_but_never_ddp() -> None:
    rivals = [rival(contest.DDP, 9.0), rival("a", 1.2), rival("b", 1.0), rival("c", 1.05)]
    after = contest.faster_half(rivals)
    assert [one.name for one in after] == [contest.DDP, "b", "c"]
    assert [one.name for one in contest.faster_half(after)] == [contest.DDP, "b"]
    assert [one.name for one in contest.faster_half(contest.faster_half(after))] == [
        contest.DDP,
        "b",
    ]
    assert contest.faster_half(rivals[:1]) == rivals[:1]


def test_what_is_far_behind_drops_out_at_once_unless_it_may_be_noise() -> None:
    others = [rival("d", 2.0, 2.0), rival("e", 2.0, 2.0), rival("f", 2.0, 2.0)]
    scattered = rival("c", 0.9, 1.4)
    rivals = [rival(contest.DDP, 9.0), rival("b", 1.0, 1.0), scattered, *others]
    assert [one.name for one in contest.faster_half(rivals)] == [contest.DDP, "b", "c"]


@pytest.mark.parametrize(("turns", "stays"), [(1, True), (2, False)])
def test_one_turn_alone_may_have_been_disturbed(turns: int, stays: bool) -> None:
    rivals = [rival(name, *[s] * 2 * turns) for name, s in [(contest.DDP, 9.0), ("b", 1.0)]]
    rivals += [rival("c", *[1.18, 1.19] * turns), rival("d", *[2.0] * 2 * turns)]
    found = contest.faster_half(rivals)
    assert [one.name for one in found] == [contest.DDP, "b", *(["c"] if stays else [])]


@pytest.mark.parametrize(
    ("ddp_s", "plan_s", "stays"),
    [
        ([1.0] * 12, [0.9] * 12, "plan"),
        ([1.0] * 12, [0.995] * 12, contest.DDP),
        ([0.9] * 12, [1.0] * 12, contest.DDP),
        # Of few steps, a difference of 3% is noise.
        ([1.0, 1.001, 1.0], [0.97, 0.971, 0.999], contest.DDP),
    ],
)
def test_ddp_has_to_be_beaten_beyond_noise(
    ddp_s: list[float], plan_s: list[float], stays: str
) -> None:
    assert contest.winner([rival(contest.DDP, *ddp_s), rival("plan", *plan_s)]).name == stays


def test_the_plan_before_defends_itself_where_there_is_one() -> None:
    before = [rival(contest.DDP, 9.0), rival(contest.BEFORE, 5.0), rival("a", 1.2), rival("b", 1.0)]
    # DDP's buckets are one of the others.
    assert [one.name for one in contest.faster_half(before)] == [contest.BEFORE, "a", "b"]
    close = [
        rival(contest.DDP, 1.0, 1.0),
        rival(contest.BEFORE, 1.01, 1.01),
        rival("a", 0.99, 0.99),
    ]
    assert contest.winner(close).name == contest.BEFORE
    close[0].samples_s[:] = [0.8, 0.8]
    assert contest.winner(close).name == contest.DDP


def test_the_plan_before_takes_part_unless_it_is_one_of_ddp_s() -> None:
    asked, kept = Wishes(), proposed(ABLE)[-1].plan
    found = proposals.proposals(WORKLOAD, CLUSTER, asked, KNOWN | {contest.BEFORE: kept}, ABLE)
    assert [one.name for one in found[:2]] == [contest.DDP, contest.BEFORE]
    assert len([one for one in found if contest.alike(one.plan, kept)]) == 1
    found = proposals.proposals(WORKLOAD, CLUSTER, asked, KNOWN | {contest.BEFORE: DDP}, ABLE)
    assert contest.BEFORE not in {one.name for one in found}
    assert contest.defender(found).name == contest.DDP


def test_what_the_plan_before_was_expected_to_take_stands_where_its_algorithm_was_not_held() -> (
    None
):
    kept = proposed(ABLE, "decoupled")[-1].plan
    native = replace(CLUSTER, curves=CLUSTER.curves[:1])
    found = proposals.proposals(WORKLOAD, native, Wishes(), KNOWN | {contest.BEFORE: kept}, ABLE)
    assert found[1].name == contest.BEFORE
    assert found[1].plan == kept


def test_the_most_promising_compete_and_ddp_always() -> None:
    found = proposed(ABLE)
    others = [one for one in found if one.name != contest.DDP]
    found += [Contender(f"{one.name} again", one.plan, []) for one in others]
    kept = proposals.promising(found)
    assert len(kept) == 1 + contest.MOST < len(found)
    assert kept[0].name == contest.DDP
    left = [expected_s(one.plan) for one in found if one not in kept]
    assert max(expected_s(one.plan) for one in kept[1:]) <= min(left)


def test_the_steps_of_a_contest_are_those_of_its_rounds() -> None:
    # Rounds of 4, 3 and 2 plans: 1 turn of 2 + 2 steps, 2 of 2 + 2, 3 of 2 + 3.
    assert contest.ROUNDS == ((1, 2), (2, 2), (3, 3))
    assert contest.UNCOUNTED == 2
    assert contest.steps_of(4) == 4 * 4 + 3 * 8 + 2 * 15


def test_who_trains_sharded_is_told_how_to_save() -> None:
    found = [*proposed(ABLE), *proposed(ABLE, "sharded")]
    for one in found:
        one.samples_s.append(0.5)
        told = "model.syncopate.state_dict(optimizer)" in log_lines.verdict(one, found[0], 1.0)
        assert told == (one.plan.exchange == "sharded")


def test_a_forward_is_spread_over_layers_as_backward_is_and_lasts_as_long() -> None:
    backward = (0.1, 0.3)
    tensors = tuple(
        GradientTensor(name=f"t{i}", numel=4, backward_s=s) for i, s in enumerate(backward)
    )
    work = Workload(model="m", tensors=tensors, forward_s=0.2, backward_s=0.4)
    spread = proposals.with_forward(work)
    assert [tensor.forward_s for tensor in spread.tensors] == pytest.approx([0.05, 0.15])
    assert [tensor.backward_s for tensor in spread.tensors] == list(backward)
    assert proposals.with_forward(spread) is spread


def test_sharding_is_worth_a_word_where_it_gains_more_than_predictions_err() -> None:
    def turned(late_s: dict[str, float]) -> list[Contender]:
        return [
            Contender(one.name, one.plan, [expected_s(one.plan) + late_s.get(one.name, 0.0)])
            for one in proposed()
        ]

    exact = turned({})
    ddp = exact[0]
    gain_s = proposals.gain_of_sharded(ddp, exact, WORKLOAD, CLUSTER)
    assert 0.05 * ddp.step_s < gain_s < ddp.step_s
    # All steps took longer alike: the one without a measurement would, too.
    later = turned(dict.fromkeys((one.name for one in exact), 0.3))
    assert proposals.gain_of_sharded(later[0], later, WORKLOAD, CLUSTER) == pytest.approx(gain_s)
    # Predictions were further off than what would be gained.
    wrong = turned({exact[1].name: 1.2 * gain_s})
    assert proposals.gain_of_sharded(ddp, wrong, WORKLOAD, CLUSTER) == 0
    assert proposals.gain_of_sharded(ddp, [], WORKLOAD, CLUSTER) == 0
