"""Plans that push and pull: held against brute force, every other policy, and the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.training import exchange_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning import POLICIES, Policy, compare, make_plan, predict
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.problem import Problem, Pulls, pull_channels, pull_order
from syncopate.planning.question import Draft, Question
from syncopate.planning.search.both_ways import both_ways
from syncopate.planning.search.player import Player
from syncopate.planning.search.search import search
from syncopate.planning.search.shapes import ramps
from syncopate.recipe import Recipe
from syncopate.simulation import simulate
from tests.unit.planning.instances import COSTS, linear, random_cost, random_problem
from tests.unit.planning.test_interference import partitions
from tests.unit.planning.test_planner import with_interference

PULLS = [name for name, kind in ((each, EXCHANGES[each]) for each in SERVERLESS) if kind.pull]


def drawn(rng: np.random.Generator, length: int, rooted: bool = False) -> tuple[Problem, Workload]:
    """A random problem of an exchange that pulls, and its workload."""
    kind = str(rng.choice(COSTS))
    one_way = random_problem(rng, length, kind, int(rng.integers(1, 3)))
    backward_s = np.diff(np.concatenate(([0.0], one_way.ready_s)))
    forward_s = rng.uniform(0, 3) * backward_s * rng.integers(0, 2, length)
    work = Workload(
        model="drawn",
        tensors=tuple(
            GradientTensor(name=f"w{i}", numel=1, backward_s=float(b), forward_s=float(f))
            for i, (b, f) in enumerate(zip(backward_s, forward_s, strict=True))
        ),
        forward_s=float(forward_s.sum() + rng.integers(0, 2)),
        backward_s=float(backward_s.sum()) + float(rng.choice([0.0, 1.5])),
        update_s=float(rng.integers(0, 3)),
    )
    pulls = Pulls(random_cost(rng, kind), work.needed_s, 4, rooted)
    nbytes = np.diff(one_way.offsets, axis=1)
    return Problem(work.ready_s, nbytes, one_way.cost, pulls=pulls), work


def score_s(player: Player, partition: tuple[int, ...]) -> float:
    return player.score(partition)[0]


def test_on_one_channel_with_ideal_overlap_it_is_exact() -> None:
    rng = np.random.default_rng(21)
    gained = 0
    for _ in range(125):
        problem, work = drawn(rng, int(rng.integers(1, 9)))
        player = Player(problem, work, Interference(), 1)
        stops = range(1, problem.length + 1)
        found = both_ways(problem, work.forward_s, work.forward_s + work.backward_s, stops)
        best = min(score_s(player, partition) for partition in partitions(problem.length))
        assert score_s(player, found) == pytest.approx(best, rel=1e-9)
        gained += score_s(player, optimal(problem)) > best * (1 + 1e-6)
    assert gained > 10  # what is best for pushes alone is not enough


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_search_is_close_to_brute_force(channels: int, rooted: bool) -> None:
    rng = np.random.default_rng([22, channels, rooted])
    ratios = []
    for _ in range(60):
        problem, work = drawn(rng, int(rng.integers(1, 8)), rooted)
        interference = Interference(
            compute_rate=float(rng.choice([0.6, 1.0])),
            collective_stretch=float(rng.choice([1.0, 1.5])),
        )
        player = Player(problem, work, interference, channels)
        found = score_s(player, search(player, optimal(problem)))
        best = min(score_s(player, partition) for partition in partitions(problem.length))
        ratios.append(found / best if best else 1.0)
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.01
    assert max(ratios) < (1.1 if rooted else 1.06)


def layers(count: int, numel: int, forward: float, module: int = 1) -> Workload:
    """Tensors of uneven sizes, ``module`` of them in each module."""
    tensors = tuple(
        GradientTensor(
            name=f"layer{i // module}.p{i}",
            numel=numel * (1 + 7 * i % 5),
            dtype="bfloat16" if i % 7 == 3 else "float32",
            backward_s=1e-3 * (1 + i % 3),
            forward_s=1e-3 * forward,
        )
        for i in range(count)
    )
    return Workload(
        model="layers",
        tensors=tensors,
        forward_s=count * 1e-3 * forward + 1e-3,
        backward_s=sum(tensor.backward_s for tensor in tensors) + 1e-3,
        update_s=0.01,
    )


def iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


@settings(max_examples=25)
@given(
    workload=st.builds(
        layers,
        st.integers(1, 24),
        st.sampled_from([10, 10_000, 1_000_000]),
        st.sampled_from([0.0, 0.5]),
        st.integers(1, 3),
    ),
    cluster=st.builds(
        Cluster.preset, st.sampled_from(["1gbe", "100gbe"]), st.sampled_from([1, 2, 3, 8])
    ),
    exchange=st.sampled_from(list(SERVERLESS)),
    channels=st.integers(1, 2),
    rate=st.sampled_from([1.0, 0.7]),
)
def test_no_policy_beats_optimal_and_nothing_beats_the_bound(
    workload: Workload, cluster: Cluster, exchange: str, channels: int, rate: float
) -> None:
    interference = Interference(compute_rate=rate, collective_stretch=1.0 / rate)
    cluster, nodes = with_interference(cluster, interference), cluster.world_size
    plans = compare(workload, cluster, exchange=exchange, channels=channels)
    best = plans[-1]
    assert best.policy == "optimal"
    for plan in plans:
        assert (plan.exchange, plan.channels) == (exchange, channels)
        plan.require_fit([(t.name, t.numel, t.dtype) for t in workload.tensors], nodes)
        assert Plan.from_json(plan.to_json()) == plan
        assert iteration_s(plan) >= iteration_s(best) * (1 - 1e-12)
        assert plan.prediction is not None
        assert iteration_s(plan) >= plan.prediction.bound_s * (1 - 1e-12)
        assert plan.prediction == predict(workload, plan, cluster)


@pytest.mark.parametrize("exchange", SERVERLESS)
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("policy", ["wfbp", "single", "mg-wfbp", "optimal"])
def test_a_score_is_what_the_plan_is_predicted_to_take(
    exchange: str, channels: int, policy: str
) -> None:
    workload, cluster = layers(11, 30_000, 0.3, module=2), Cluster.preset("1gbe", 4)
    costs = {exchange: exchange_costs(cluster, workload.nbytes, exchange)}
    question = Question(workload, cluster, costs, (channels,), 1)
    player = Player(question.problem, workload, cluster.interference, channels)
    pulls = question.problem.pulls is not None
    plan = make_plan(workload, cluster, policy, exchange=exchange, channels=channels)
    ends = np.cumsum([len(bucket.tensors) for bucket in plan.buckets]).tolist()
    first = sum(len(b.tensors) for b in plan.buckets if pulls and b.pull is None)
    played_s = score_s(player.replicating(first), tuple(ends))
    assert played_s == pytest.approx(iteration_s(plan), rel=1e-12)
    timeline = simulate(workload, plan, cluster, iterations=3)
    starts = [span.start_s for span in timeline.spans if span.iteration == 2]
    length = timeline.duration_s - min(starts)
    assert length == pytest.approx(iteration_s(plan), rel=1e-9)


def test_buckets_are_small_where_backward_turns_into_forward() -> None:
    """An even model whose wire takes as long as it computes: the last gradients travel alone."""
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=400_000, backward_s=0.02, forward_s=0.01)
        for i in range(50)
    )
    workload = Workload(model="even", tensors=tensors, forward_s=0.5, backward_s=1.0)
    cluster = Cluster.preset("1gbe", 8)
    plan = make_plan(workload, cluster, exchange="sharded")
    sizes = [bucket.nbytes for bucket in plan.buckets]
    assert sizes[-1] <= max(sizes) / 4
    allreduce, threshold = (
        make_plan(workload, cluster),
        make_plan(workload, cluster, "threshold", exchange="sharded"),
    )
    assert iteration_s(plan) < iteration_s(allreduce)
    assert iteration_s(plan) < iteration_s(threshold)


def test_ramps_double_away_from_the_turn() -> None:
    nbytes = np.ones(1024)
    problem = Problem(np.arange(1024.0), nbytes, random_cost(np.random.default_rng(0), "linear"))
    found = list(ramps(problem))
    assert all(partition[-1] == 1024 for partition in found)
    sizes = [[b - a for a, b in pairwise((0, *partition))] for partition in found]
    # A quarter of all is the largest, and a sixteenth of that the smallest.
    assert [16, 32, 64, 128, 256] in [one[::-1][:5] for one in sizes]
    assert [16, 32, 64, 128] in [one[:4] for one in sizes if one[:4] == one[::-1][:4]]


def test_pulls_take_the_channels_in_turn_in_the_order_of_forward() -> None:
    assert pull_order((3.0, 1.0, 2.0, 0.0)) == (3, 1, 2, 0)
    assert pull_channels((3, 1, 2, 0), 2) == {3: 0, 1: 1, 2: 0, 0: 1}
    workload = layers(8, 10_000, 1.0)
    plan = make_plan(workload, Cluster.preset("1gbe", 4), "wfbp", exchange="sharded", channels=2)
    assert [bucket.push.channel for bucket in plan.buckets] == [0, 1] * 4
    assert [bucket.pull.channel for bucket in plan.buckets if bucket.pull] == [1, 0] * 4


def test_a_plan_has_weights_pulled_in_the_order_of_forward() -> None:
    """Forward uses the tensors in another order than the reverse of backward's."""
    workload, cluster = layers(4, 400_000, 50.0), Cluster.preset("1gbe", 4)
    usual = make_plan(workload, cluster, "wfbp", exchange="sharded")
    assert usual.pull_order == ()
    other = structs.replace(workload, forward_order=(2, 3, 0, 1))
    for channels in (1, 2):
        plan = make_plan(other, cluster, "wfbp", exchange="sharded", channels=channels)
        assert plan.pull_order == (2, 3, 0, 1)
        pulls = [plan.buckets[index].pull for index in plan.pull_order]
        assert [pull.channel for pull in pulls if pull] == [0, 1 % channels] * 2
        assert Plan.from_json(plan.to_json()) == plan
        assert plan.prediction == predict(other, plan, cluster)
        last_first = structs.replace(plan, pull_order=plan.pull_order[::-1])
        late = predict(other, last_first, cluster)
        assert late.iteration_s > iteration_s(plan)
        timeline = simulate(other, plan, cluster, iterations=3)
        starts = [span.start_s for span in timeline.spans if span.iteration == 2]
        assert timeline.duration_s - min(starts) == pytest.approx(iteration_s(plan), rel=1e-9)
        assert make_plan(other, cluster, "wfbp", channels=channels).pull_order == ()
    for policy in ("optimal", "auto"):
        plan = make_plan(other, cluster, policy, exchange="rooted")
        assert plan.prediction == predict(other, plan, cluster)


def even(startup_s: float, length: int = 64) -> tuple[Problem, Workload]:
    """An even model, as much to send as to compute, and start-ups that one channel feels."""
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=1, backward_s=1.0, forward_s=1.0) for i in range(length)
    )
    total_s = float(length)
    work = Workload(model="even", tensors=tensors, forward_s=total_s, backward_s=total_s)
    cost = linear(startup_s, 1.0)
    pulls = Pulls(cost, work.needed_s, 4)
    return Problem(work.ready_s, np.ones(length), cost, pulls=pulls), work


def test_two_channels_hide_start_ups_behind_bytes() -> None:
    """What is best for one channel merges too much for two."""
    problem, work = even(0.8)
    player = Player(problem, work, Interference(), 2)
    computed_s, stops = work.forward_s + work.backward_s, range(1, problem.length + 1)
    one, two = (both_ways(problem, work.forward_s, computed_s, stops, c) for c in (1, 2))
    assert len(two) > len(one)
    assert score_s(player, two) < score_s(player, one)


def test_every_ramp_is_a_candidate() -> None:
    """Where computation is slowed down no dynamic programme is exact, and ramps can be best."""
    rng, best = np.random.default_rng(23), 0
    for _ in range(15):
        problem, work = even(float(rng.uniform(0.1, 4.0)))
        interference = Interference(
            compute_rate=float(rng.uniform(0.3, 1)), collective_stretch=float(rng.uniform(1, 3))
        )
        player = Player(problem, work, interference, 2)
        found = score_s(player, search(player, optimal(problem), most=0))
        ramp = min(score_s(player, partition) for partition in ramps(problem))
        assert found <= ramp
        best += found == ramp
    assert best


def test_roots_share_the_update_and_one_bucket_has_one() -> None:
    workload, cluster = layers(24, 50_000, 1.0), Cluster.preset("1gbe", 4)
    plan = make_plan(workload, cluster, "wfbp", exchange="rooted")
    held: Counter[int] = Counter()
    for bucket in plan.buckets:
        assert bucket.pull is not None
        assert bucket.push.root == bucket.pull.root
        held[bucket.push.root] += bucket.nbytes
    assert max(held.values()) < 0.3 * workload.nbytes
    single = make_plan(workload, cluster, "single", exchange="rooted")
    assert [bucket.push.root for bucket in single.buckets] == [0]
    assert single.prediction is not None
    assert plan.prediction is not None
    base_s = workload.forward_s + workload.backward_s
    assert single.prediction.compute_s == pytest.approx(base_s + workload.update_s)
    share = max(held.values()) / workload.nbytes
    assert plan.prediction.compute_s == pytest.approx(base_s + workload.update_s * share)


def all_plans(workload: Workload, cluster: Cluster) -> Iterator[Plan]:
    for exchange in SERVERLESS:
        for channels in (1, 2):
            yield make_plan(workload, cluster, exchange=exchange, channels=channels)


def test_auto_takes_the_best_of_every_exchange_and_says_why() -> None:
    workload, cluster = layers(30, 400_000, 1.0), Cluster.preset("1gbe", 4)
    plan = make_plan(workload, cluster, "auto")
    best = min(iteration_s(one) for one in all_plans(workload, cluster))
    assert iteration_s(plan) <= best * 1.001
    # One channel is predicted to be as good, within a thousandth.
    assert (plan.policy, plan.exchange, plan.channels) == ("auto", "decoupled", 2)
    one = make_plan(workload, cluster, exchange="decoupled", channels=1)
    assert iteration_s(one) <= iteration_s(plan) * 1.001
    assert plan.reason.startswith("decoupled: ")
    assert "(sharded), gathers hide in forward; bound " in plan.reason
    assert Plan.from_json(plan.to_json()).reason == plan.reason


def test_auto_stays_with_all_reduces_where_weights_have_nothing_to_hide_behind() -> None:
    workload = structs.replace(layers(30, 1000, 0.0), forward_s=0.0, update_s=0.0)
    plan = make_plan(workload, Cluster.preset("1gbe", 4), "auto")
    assert plan.exchange == "allreduce"
    assert "fewer start-ups" in plan.reason or "computation hides" in plan.reason
    alone = make_plan(layers(3, 100, 1.0), Cluster.preset("1gbe", 1), "auto")
    assert (alone.exchange, alone.channels) == ("allreduce", 1)
    assert "nothing to communicate" in alone.reason


def test_auto_chooses_among_what_is_left_open() -> None:
    workload, cluster = layers(30, 400_000, 1.0), Cluster.preset("1gbe", 4)
    rooted = make_plan(workload, cluster, "auto", exchange="rooted", channels=2)
    assert (rooted.exchange, rooted.channels) == ("rooted", 2)
    # Rings gather and reduce-scatter, but reduce to nobody.
    ring = make_plan(workload, cluster, "auto", algorithm="ring")
    assert ring.exchange == "decoupled"
    assert {r.algorithm for b in ring.buckets for _, r in b.recipes} == {"ring"}
    assert "rooted" not in ring.reason
    lp = make_plan(workload, cluster, "auto", algorithm="lp", channels=1)
    assert lp.exchange in ("allreduce", "rooted")


def test_of_two_ranks_rooted_plans_use_both_directions_of_the_link() -> None:
    """Roots in turn: as much goes one way as the other, and on two channels at the same time."""
    workload, cluster = layers(30, 4_000_000, 0.1), Cluster.preset("1gbe", 2)
    plans = [
        make_plan(workload, cluster, "auto", exchange="rooted", channels=count) for count in (1, 2)
    ]
    held = [
        sum(bucket.nbytes for bucket in plans[1].buckets if bucket.push.root == root)
        for root in (0, 1)
    ]
    assert held[0] == pytest.approx(held[1], rel=0.1)
    alone, both = (plan.expected_s for plan in plans)
    assert both < 0.65 * alone
    assert predict(workload, plans[1], cluster).iteration_s == both


def test_refusals_name_the_exchanges() -> None:
    workload, cluster = layers(3, 100, 1.0), Cluster.preset("1gbe", 4)
    with pytest.raises(UnknownNameError, match="unknown exchange 'ring'; known: allreduce"):
        make_plan(workload, cluster, exchange="ring")
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'ring' for reduce"):
        make_plan(workload, cluster, exchange="rooted", algorithm="ring")
    with pytest.raises(UnknownNameError, match="unknown algorithm 'rign'"):
        make_plan(workload, cluster, "auto", algorithm="rign")
    with pytest.raises(InvalidValueError, match="channels is 0"):
        make_plan(workload, cluster, "auto", channels=0)
    costs = {"all_reduce": exchange_costs(cluster, 100, "allreduce")["all_reduce"]}
    with pytest.raises(UnknownNameError, match="unknown collective 'reduce_scatter'"):
        make_plan(workload, cluster, exchange="sharded", costs=costs)
    assert make_plan(workload, cluster, "auto", costs=costs).exchange == "allreduce"


def test_a_policy_may_choose_exchange_recipes_and_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One file and one row: here, every bucket on the channel and by the algorithm it likes."""

    def by_hand(question: Question) -> Draft:
        draft = question.only("sharded", 1).draft((question.problem.length,))
        (bucket,) = draft.buckets
        push = Recipe("reduce_scatter", "ring", channel=2)
        return Draft(
            (structs.replace(bucket, push=push),),
            channels=3,
            reason="I say so",
            exchange="sharded",
        )

    row = Policy("by hand", optimal, "one bucket", "a test", plans=by_hand, chooses=True)
    monkeypatch.setitem(POLICIES, "by hand", row)
    plan = make_plan(layers(4, 1000, 1.0), Cluster.preset("1gbe", 4), "by hand")
    assert (plan.exchange, plan.channels, plan.reason) == ("sharded", 3, "I say so")
    assert plan.buckets[0].push == Recipe("reduce_scatter", "ring", channel=2)


def test_many_tensors_are_planned_deterministically_within_the_budget() -> None:
    workload, cluster = layers(500, 30_000, 0.5, module=3), Cluster.preset("1gbe", 4)
    one, again = (make_plan(workload, cluster, exchange="sharded", channels=2) for _ in range(2))
    assert one == again
    problem = Question(
        workload,
        cluster,
        {"sharded": exchange_costs(cluster, workload.nbytes, "sharded")},
        (2,),
        1 << 20,
    ).problem
    player = Player(problem, workload, cluster.interference, 2)
    search(player, optimal(problem), most=20_000)
    # The best few are played once more, and what is under way is finished.
    assert 5_000 < player.played <= 20_000 + 20 * problem.length
