"""Contest: who takes part, who drops out, and who stays."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

from syncopate.cluster import Cluster, CollectiveCurve, CurvePoint, Interference, LinearFit
from syncopate.engine.selfplan import contest, words
from syncopate.engine.selfplan.contest import Asked, Contender
from syncopate.engine.selfplan.safe import safe_plan
from syncopate.plan import Plan
from syncopate.units import KIB, MIB
from syncopate.workload import GradientTensor, Workload


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


@functools.cache
def _once(shardable: bool) -> tuple[Contender, ...]:
    return tuple(contest.proposals(WORKLOAD, CLUSTER, Asked(), DDP, shardable=shardable))


def proposed(*, shardable: bool = False) -> list[Contender]:
    """What competes where nothing is asked for: planned once, without samples every time."""
    return [Contender(one.name, one.plan, []) for one in _once(shardable)]


def rival(name: str, *samples_s: float) -> Contender:
    return Contender(name, DDP, list(samples_s))


def test_the_proposals_are_distinct_and_all_are_predicted() -> None:
    found = proposed()
    names = [one.name for one in found]
    assert names[:3] == [contest.DDP, contest.IDEAL, contest.EQUAL]
    # Here every gradient alone is the best plan on two channels, and that of equal buckets.
    assert names[3:] == [contest.TWO_CHANNELS, contest.NATIVE_SMALL]
    larger = replace(CLUSTER, curves=(curve("native", 20e-3, 1.3e-8),))
    names = [one.name for one in contest.proposals(WORKLOAD, larger, Asked(), DDP)]
    others = [contest.TWO_CHANNELS, contest.EQUAL_TWO_CHANNELS, contest.NATIVE_SMALL]
    assert names[3:] == others
    for one in found:
        one.plan.require_fit([(t.name, t.numel, t.dtype) for t in WORKLOAD.tensors], 4)
        assert one.plan.prediction is not None
        assert one.plan.prediction.iteration_s >= one.plan.prediction.bound_s
    assert [one.plan.channels for one in found] == [1, 1, 1, 2, 1]
    sizes = [bucket.nbytes for bucket in found[2].plan.buckets]
    assert max(sizes) <= 2 * min(sizes)


def test_sharded_plans_compete_where_the_step_can_be_spread() -> None:
    found = proposed(shardable=True)
    sharded = [one for one in found if one.plan.exchange == "sharded"]
    by_name = {one.name for one in found}
    names = [contest.SHARDED_PLAN, contest.SHARDED_RINGS, contest.SHARDED_SMALL]
    assert [one.name for one in sharded] == [name for name in names if name in by_name]
    assert len(sharded) >= 2
    recipes = [r for b in sharded[-1].plan.buckets for _, r in b.recipes]
    assert {recipe.algorithm for recipe in recipes} == {"ring"}
    assert found[0].name == contest.DDP
    for one in sharded:
        assert one.plan.channels == 2
        assert one.plan.prediction is not None
        assert one.plan.prediction.iteration_s >= one.plan.prediction.bound_s
    # Weights that arrive while forward computes cost less than gradients that come after backward.
    assert expected_s(sharded[0].plan) < expected_s(found[1].plan)
    without = proposed()
    assert {one.plan.exchange for one in without} == {"allreduce"}
    asked = contest.proposals(WORKLOAD, CLUSTER, Asked(exchange="sharded"), DDP, shardable=True)
    assert [one.name for one in asked] == [contest.DDP, *(one.name for one in sharded)]
    asked = contest.proposals(WORKLOAD, CLUSTER, Asked(exchange="allreduce"), DDP, shardable=True)
    assert {one.plan.exchange for one in asked} == {"allreduce"}


def test_no_ring_competes_where_none_was_measured() -> None:
    cluster = replace(CLUSTER, curves=CLUSTER.curves[:1])
    found = contest.proposals(WORKLOAD, cluster, Asked(), DDP, shardable=True)
    assert contest.SHARDED_PLAN in {one.name for one in found}
    algorithms = {r.algorithm for one in found for b in one.plan.buckets for _, r in b.recipes}
    assert algorithms == {"native"}


def test_the_exchange_asked_for_stays_even_where_ddp_is_faster() -> None:
    found = contest.proposals(WORKLOAD, CLUSTER, Asked(exchange="sharded"), DDP, shardable=True)
    for place, one in enumerate(found):
        one.samples_s += [0.1 if one.name == contest.DDP else 0.5 - 0.1 * place] * 6
    assert contest.winner(found, "sharded").name == contest.SHARDED_SMALL
    assert contest.winner(found).name == contest.DDP


def test_equal_buckets_are_as_small_as_their_start_up_allows() -> None:
    cheap = proposed()[2]
    dear = replace(CLUSTER, curves=(curve("native", 50e-3, 1.3e-8),))
    few = contest.proposals(WORKLOAD, dear, Asked(), DDP)[2]
    assert len(few.plan.buckets) < len(cheap.plan.buckets) == 21


def test_a_policy_that_chooses_exchanges_is_asked_for_one_at_a_time() -> None:
    """An optimizer whose step cannot be spread over the ranks gets no plan that spreads it."""
    for shardable, exchanges in ((False, {"allreduce"}), (True, {"allreduce", "sharded"})):
        found = contest.proposals(WORKLOAD, CLUSTER, Asked("auto"), DDP, shardable=shardable)
        assert {one.plan.exchange for one in found} == exchanges
        slowed = replace(CLUSTER, interference=Interference(compute_rate=0.8))
        for one in found:
            one.samples_s.append(1.0)
        again = contest.with_interference(found, WORKLOAD, slowed, Asked("auto"))
        assert {one.plan.exchange for one in again} == exchanges


def test_what_the_user_asked_for_is_all_that_competes_with_ddp() -> None:
    asked = contest.proposals(WORKLOAD, CLUSTER, Asked("wfbp", 1), DDP)
    assert [one.name for one in asked] == [contest.DDP, contest.IDEAL]
    assert asked[1].plan.policy == "wfbp"
    assert len(asked[1].plan.buckets) == 40
    both = contest.proposals(WORKLOAD, CLUSTER, Asked(None, 2), DDP)
    assert {one.plan.channels for one in both if one.name != contest.DDP} == {2}


def test_a_plan_that_trains_like_one_before_does_not_compete() -> None:
    same = replace(DDP, policy="another name")
    assert contest.distinct([rival("a"), Contender("b", same)]) == [rival("a")]
    moved = replace(DDP, channels=2)
    assert len(contest.distinct([rival("a"), Contender("b", moved)])) == 2
    other = replace(DDP, buckets=DDP.buckets[::-1])
    assert len(contest.distinct([rival("a"), Contender("b", other)])) == 2


def test_measured_interference_brings_a_plan_of_its_own_and_new_expectations() -> None:
    running = proposed()
    for one in running:
        one.samples_s.append(1.0)
    ideal = contest.with_interference(running, WORKLOAD, CLUSTER, Asked())
    assert [one.name for one in ideal] == [one.name for one in running]
    slow = replace(CLUSTER, interference=Interference(compute_rate=0.2, collective_stretch=1.5))
    found = contest.with_interference(running, WORKLOAD, slow, Asked())
    assert found[-1].name == contest.MEASURED
    assert found[-1].samples_s == []
    for before, after in zip(running, found, strict=False):
        assert before.samples_s == after.samples_s
        assert expected_s(after.plan) > expected_s(before.plan)


def test_what_the_others_took_beyond_their_predictions_is_added_to_the_winner() -> None:
    everyone = proposed()
    for one, beyond_s in zip(everyone, (0.1, 0.2, 0.9, 0.3, 0.2), strict=True):
        one.samples_s.append(expected_s(one.plan) + beyond_s)
    # Its own samples say nothing: what is predicted was not measured.
    found = contest.explained(everyone[2], everyone, WORKLOAD, CLUSTER)
    assert found.name == everyone[2].name
    assert expected_s(found.plan) == pytest.approx(expected_s(everyone[2].plan) + 0.2)
    for one in everyone:
        one.samples_s[:] = [1e-3]
    plan = contest.explained(everyone[2], everyone, WORKLOAD, CLUSTER).plan
    assert plan.prediction is not None
    assert expected_s(plan) == plan.prediction.bound_s
    alone = contest.explained(everyone[0], everyone[:1], WORKLOAD, CLUSTER)
    assert alone.plan == everyone[0].plan


def expected_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


def test_the_slower_half_drops_out_but_never_ddp() -> None:
    rivals = [rival(contest.DDP, 9.0), rival("a", 3.0), rival("b", 1.0), rival("c", 2.0)]
    after = contest.faster_half(rivals)
    assert [one.name for one in after] == [contest.DDP, "b", "c"]
    assert [one.name for one in contest.faster_half(after)] == [contest.DDP, "b"]
    assert [one.name for one in contest.faster_half(contest.faster_half(after))] == [
        contest.DDP,
        "b",
    ]


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


@pytest.mark.parametrize("shardable", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(policy="wfbp"),
        Asked(channels=1),
        Asked(policy="wfbp", channels=2),
        Asked(exchange="allreduce"),
        Asked(exchange="sharded"),
        Asked(policy="wfbp", channels=2, exchange="sharded"),
    ],
)
def test_no_more_plans_compete_than_are_announced(asked: Asked, shardable: bool) -> None:
    larger = replace(
        CLUSTER, curves=(curve("native", 20e-3, 1.3e-8), curve("ring", 25e-3, 1.29e-8))
    )
    found = contest.proposals(WORKLOAD, larger, asked, DDP, shardable=shardable)
    most = contest.most(asked, shardable=shardable)
    # Some may be alike.
    assert most - 2 <= len(found) <= most


def test_the_steps_of_a_contest_are_those_of_its_rounds() -> None:
    # Rounds of 4, 3 and 2 plans: 1 turn of 2 + 2 steps, 2 of 2 + 2, 3 of 2 + 3.
    assert contest.ROUNDS == ((1, 2), (2, 2), (3, 3))
    assert contest.UNCOUNTED == 2
    assert contest.steps_of(4) == 4 * 4 + 3 * 8 + 2 * 15


def test_who_trains_sharded_is_told_how_to_save() -> None:
    found = proposed(shardable=True)
    for one in found:
        one.samples_s.append(0.5)
        told = "model.syncopate.state_dict(optimizer)" in words.verdict(one, found[0], 1.0)
        assert told == (one.plan.exchange == "sharded")
