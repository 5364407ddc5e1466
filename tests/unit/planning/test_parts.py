"""Large tensors travel in parts where that is predicted to be faster, and whole elsewhere."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster, Interference, LinearFit
from syncopate.artifacts.plan import SERVERLESS, Plan, joined
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import CostFunction, Costs, Envelope, LinearCost
from syncopate.costs.model.pieces import Pieces
from syncopate.planning import make_plan
from syncopate.planning.parts import WHOLE, Message, alone, elements_of, grains, messages
from syncopate.planning.problem import Problem
from syncopate.planning.question import predict
from syncopate.planning.search.player import Player
from syncopate.planning.search.search import split
from syncopate.reports.terminal import plan_report
from syncopate.units import MIB
from tests.unit import examples

CLUSTER = Cluster.flat(4, latency_s=0.0, bandwidth_bytes_per_s=1e12)
LINEAR = LinearCost(LinearFit(a_s=2e-3, b_s_per_byte=1e-9))
BENT = CostFunction(
    Pieces.of([4.0 * MIB, math.inf], [1e-4, 1e-4 - 0.4e-9 * 4 * MIB], [1e-9, 1.4e-9])
)
"""From 4 MiB on, every byte takes longer."""


def costs(cost: CostFunction) -> Costs:
    return dict.fromkeys(
        ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"),
        Envelope({"native": cost}),
    )


def workload(*numels: int, forward_s: float = 0.02, backward_s: float = 0.04) -> Workload:
    return Workload(
        model="test",
        tensors=tuple(
            GradientTensor(
                name=f"w{i}",
                numel=numel,
                backward_s=backward_s / len(numels),
                forward_s=forward_s / len(numels),
            )
            for i, numel in enumerate(numels)
        ),
        forward_s=forward_s,
        backward_s=backward_s,
    )


def _problem(of: Workload) -> Problem:
    return Problem(of.ready_s, [tensor.nbytes for tensor in of.tensors], BENT)


TABLE = workload(300_000, 100_000_000 // 4, 500_000, 5)


def parts_of(plan: Plan) -> dict[str, int]:
    """How many parts each tensor that does not travel whole has."""
    groups = [[plan.buckets[place] for place in places] for places in joined(plan.buckets)]
    return {group[0].tensors[0]: len(group) for group in groups if group[0].elements is not None}


@pytest.mark.parametrize("exchange", ["allreduce", "sharded"])
def test_what_costs_less_in_parts_travels_in_parts(exchange: str) -> None:
    plan = make_plan(TABLE, CLUSTER, "optimal", exchange=exchange, channels=1, costs=costs(BENT))
    whole = make_plan(TABLE, CLUSTER, "wfbp", exchange=exchange, channels=1, costs=costs(BENT))
    assert set(parts_of(plan)) == {"w1"}
    (count,) = parts_of(plan).values()
    # Each part is near the bend: less costs more start-ups, more costs more for every byte.
    assert 2 * MIB <= 100_000_000 / count <= 6 * MIB
    assert plan.prediction is not None
    assert whole.prediction is not None
    saved_s = whole.prediction.iteration_s - plan.prediction.iteration_s
    of_table_s = float(BENT(100_000_000)) - count * float(BENT(100_000_000 / count))
    assert saved_s >= 0.9 * of_table_s * (2 if exchange == "sharded" else 1)
    plan.require_fit([(t.name, t.numel, t.dtype) for t in TABLE.tensors], 4)
    assert Plan.from_json(plan.to_json()) == plan
    assert predict(TABLE, plan, CLUSTER, costs(BENT)) == plan.prediction
    assert "w1 [0:" in examples.text(plan_report(plan))


@pytest.mark.parametrize("exchange", sorted(SERVERLESS))
@pytest.mark.parametrize("channels", [1, 2])
def test_where_bytes_cost_the_same_tensors_stay_whole(exchange: str, channels: int) -> None:
    told = {"exchange": exchange, "costs": costs(LINEAR)}
    plan = make_plan(TABLE, CLUSTER, "optimal", channels=channels, **told)
    assert parts_of(plan) == {}


@pytest.mark.parametrize("exchange", ["allreduce", "sharded"])
def test_parts_take_the_channels_in_turn(exchange: str) -> None:
    plan = make_plan(TABLE, CLUSTER, "optimal", exchange=exchange, channels=2, costs=costs(BENT))
    assert set(parts_of(plan)) == {"w1"}
    count = len(plan.buckets)
    assert [bucket.push.channel for bucket in plan.buckets] == [i % 2 for i in range(count)]
    pulls = [bucket.pull.channel for bucket in reversed(plan.buckets) if bucket.pull]
    assert pulls == [i % 2 for i in range(len(pulls))]
    assert bool(pulls) == (exchange == "sharded")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 20_000_000), min_size=1, max_size=8),
    st.sampled_from(["allreduce", "sharded"]),
    st.integers(1, 2),
    st.sampled_from([LINEAR, BENT]),
    st.sampled_from([1.0, 0.5]),
)
def test_no_plan_is_worse_than_the_policies_that_split_nothing(
    numels: list[int], exchange: str, channels: int, cost: CostFunction, rate: float
) -> None:
    given_ = workload(*numels)
    cluster = Cluster(
        name="test",
        levels=CLUSTER.levels,
        interference=Interference(compute_rate=rate, collective_stretch=1.0),
    )
    told = {"exchange": exchange, "channels": channels, "costs": costs(cost)}
    plan = make_plan(given_, cluster, "optimal", **told)
    plan.require_fit([(t.name, t.numel, t.dtype) for t in given_.tensors], 4)
    assert plan.prediction is not None
    for policy in ("wfbp", "single", "threshold", "mg-wfbp"):
        other = make_plan(given_, cluster, policy, **told)
        assert parts_of(other) == {}
        assert other.prediction is not None
        # What is played are equal parts; those of the plan differ by a few elements.
        limit_s = other.prediction.iteration_s * (1 + 1e-6) + 2e-6
        assert plan.prediction.iteration_s <= limit_s


@given(st.integers(1, 10**7), st.integers(1, 40))
def test_parts_tile_their_tensor(numel: int, parts: int) -> None:
    if parts > numel:
        return
    cuts = [elements_of(numel, Message(0, 0, 1, part, parts)) for part in range(parts)]
    if parts == 1:
        assert cuts == [None]
        return
    found = [cut for cut in cuts if cut is not None]
    assert (found[0][0], found[-1][1]) == (0, numel)
    assert all(start < stop for start, stop in found)
    assert all(before[1] == after[0] for before, after in pairwise(found))


def test_a_search_with_parts_ends() -> None:
    """Of many tensors no more messages are played than one grain takes beyond the limit."""
    many = workload(*[3_000_000 + 10_000 * (i % 7) for i in range(100)])
    player = Player(_problem(many), many, Interference(), 2)
    wfbp = tuple(range(1, 101))
    found, grain = split(player, wfbp, most=400)
    assert 400 < player.played <= 400 + 2 * (100 + 512)
    assert grain < WHOLE
    assert player.cut_to(grain).score(found) < player.score(wfbp)


def test_messages_of_a_partition() -> None:
    problem = Problem([1.0, 2.0, 3.0], [100, 40, 10], BENT)
    assert messages(problem, (1, 3)) == [Message(0, 0, 1), Message(1, 1, 3)]
    assert messages(problem, (1, 3), 40.0) == [
        Message(0, 0, 1, 0, 3),
        Message(0, 0, 1, 1, 3),
        Message(0, 0, 1, 2, 3),
        Message(1, 1, 3),
    ]
    assert alone(problem, (3,), 40.0) == (1, 3)
    assert alone(problem, (3,), 30.0) == (1, 2, 3)
    assert alone(problem, (2, 3), WHOLE) == (2, 3)


def test_grains_are_those_that_cost_less() -> None:
    def found(*sizes: float, cost: CostFunction = BENT) -> list[float]:
        return grains(Problem([float(index) for index in range(len(sizes))], sizes, cost))

    assert found(100, 40, 10) == found(0, 0) == found(400 * MIB, cost=LINEAR) == []
    assert found(400 * MIB)[0] == 200 * MIB
    assert min(found(400 * MIB)) == 400 * MIB / 128
    assert min(found(12 * MIB)) == 12 * MIB / 32
    # All bytes together are cut into no more messages than can be played.
    assert min(found(400 * MIB, *[4 * MIB] * 900)) == 400 * MIB / 48


@pytest.mark.parametrize("numel", [5, 200, 1000, 100_000])
def test_every_part_has_elements(numel: int) -> None:
    steep = CostFunction(Pieces.of([4.0, math.inf], [0.0, -1.0], [0.0, 1.0]))
    of = workload(numel)
    problem = Problem(of.ready_s, [tensor.nbytes for tensor in of.tensors], steep)
    found = grains(problem)
    assert bool(found) == (numel > 1000)
    for grain in found:
        cuts = [elements_of(numel, one) for one in messages(problem, (1,), grain)]
        assert len(cuts) > 1
        assert all(cut is not None and cut[0] < cut[1] for cut in cuts)
