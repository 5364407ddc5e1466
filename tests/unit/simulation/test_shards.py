"""Unequal shards: laid out as the engine does, and priced above equal ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.artifacts.plan import EXCHANGES, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.collective import unequal_factor
from syncopate.costs.model.functions import LinearCost
from syncopate.errors import InvalidValueError
from syncopate.planning import filled_to, make_plan, predict
from syncopate.recipe import NATIVE, Recipe
from syncopate.simulation import simulate
from syncopate.simulation.shards import Part, Shards

CLUSTER = Cluster.preset("1gbe", 4)


def workload(numels: tuple[int, ...] = (900_000, 300_000, 1_100_000, 40_000)) -> Workload:
    tensors = tuple(
        GradientTensor(name=f"w{i}", numel=numel, backward_s=0.01, forward_s=0.005)
        for i, numel in enumerate(numels)
    )
    length = len(tensors)
    return Workload(
        model="uneven",
        tensors=tensors,
        forward_s=0.005 * length,
        backward_s=0.01 * length,
        update_s=0.01,
    )


def iteration_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_s


@pytest.mark.parametrize("policy", ["wfbp", "single", "optimal"])
@pytest.mark.parametrize("algorithm", ["ring", "recursive"])
@pytest.mark.parametrize("whole", [(0, 1, 2, 3), (2,)])
def test_unequal_shards_price_above_equal_ones(
    policy: str, algorithm: str, whole: tuple[int, ...]
) -> None:
    equal = workload()
    plan = make_plan(equal, CLUSTER, policy, exchange="sharded", algorithm=algorithm)
    uneven = structs.replace(equal, whole=whole)
    found = predict(uneven, plan, CLUSTER)
    assert found.iteration_s > iteration_s(plan)
    assert found.communication_s > predict(equal, plan, CLUSTER).communication_s
    timeline = simulate(uneven, plan, CLUSTER, iterations=3)
    starts = [span.start_s for span in timeline.spans if span.iteration == 2]
    assert timeline.duration_s - min(starts) == pytest.approx(found.iteration_s)
    planned = make_plan(uneven, CLUSTER, policy, exchange="sharded", algorithm=algorithm)
    assert planned.prediction == predict(uneven, planned, CLUSTER)


@pytest.mark.parametrize("exchange", ["allreduce", "rooted"])
def test_where_nothing_is_cut_whole_tensors_change_nothing(exchange: str) -> None:
    equal = workload()
    plan = make_plan(equal, CLUSTER, filled_to(4_000_000), exchange=exchange)
    assert EXCHANGES[exchange].push != "reduce_scatter"
    assert predict(structs.replace(equal, whole=(0, 2)), plan, CLUSTER) == plan.prediction


def test_one_bucket_by_hand() -> None:
    """Two ranks have a whole tensor each; the third evens them out, and goes by itself."""
    work = structs.replace(workload((60, 30, 60)), whole=(0, 1))
    plan = make_plan(work, Cluster.preset("1gbe", 2), "single", exchange="sharded")
    shards = Shards(work, plan.buckets[0].tensors, 2)
    whole, cut = shards.parts(plan.buckets[0].tensors)
    assert whole == Part(360, 4, (0, 60, 90))
    # 75 elements each: 15 more for the first, and 45 for the second.
    assert cut == Part(240, 4, (0, 15, 60))
    assert shards.largest_part == 0.5
    cost, recipe = LinearCost(LinearFit(a_s=0.5, b_s_per_byte=0.01)), Recipe("all_gather", "ring")
    cluster = Cluster.preset("1gbe", 2)
    assert cut.seconds(recipe, cost, None) == pytest.approx(2.9)
    factor = unequal_factor(cluster, recipe, (0, 15, 60), 4)
    assert factor > 1
    assert cut.seconds(recipe, cost, cluster) == pytest.approx(2.9 * factor)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ((0,), [(0, 30, 30), (0, 30, 30), (0, 0, 40)]),
        ((1,), [(0, 5, 30), (0, 5, 30), (0, 40, 40)]),
    ],
)
def test_a_tensor_in_parts_is_cut_in_each_or_has_one_owner_for_all(
    whole: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    work = workload((60, 40))
    plan = make_plan(work, Cluster.preset("1gbe", 2), "wfbp", exchange="sharded")
    first, last = plan.buckets
    halves = [structs.replace(first, nbytes=120, elements=span) for span in ((0, 30), (30, 60))]
    shards = Shards(structs.replace(work, whole=whole), (*first.tensors, *last.tensors), 2)
    found = [shards.parts(b.tensors, b.elements) for b in (*halves, last)]
    bounds = [part.bounds for parts in found for part in parts]
    assert bounds == expected


@pytest.mark.parametrize(
    ("bounds", "seconds"), [((0, 10, 20, 70, 100), 800.0), ((0, 25, 50, 75, 100), 400.0)]
)
def test_the_backends_own_pads_to_the_longest(bounds: tuple[int, ...], seconds: float) -> None:
    cost = LinearCost(LinearFit(a_s=0.0, b_s_per_byte=1.0))
    part = Part(400, 4, bounds)
    assert part.seconds(Recipe("all_gather", NATIVE), cost, CLUSTER) == seconds


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.integers(1, 6), st.data())
def test_every_element_belongs_to_one_rank(
    numels: list[int], ranks: int, data: st.DataObject
) -> None:
    work = workload(tuple(numels))
    whole = data.draw(st.sets(st.integers(0, len(numels) - 1)))
    work = structs.replace(work, whole=tuple(sorted(whole)))
    plan = make_plan(work, Cluster.preset("1gbe", ranks), filled_to(20_000), exchange="sharded")
    shards = Shards(work, [name for b in plan.buckets for name in b.tensors], ranks)
    owned = [0] * ranks
    for bucket in plan.buckets:
        parts = shards.parts(bucket.tensors, bucket.elements)
        assert sum(part.nbytes for part in parts) == bucket.nbytes
        for part in parts:
            assert len(part.bounds) == ranks + 1
            assert part.bounds[-1] * part.itemsize == part.nbytes
            for rank, (start, stop) in enumerate(pairwise(part.bounds)):
                owned[rank] += (stop - start) * part.itemsize
    rounding = 4 * len(plan.buckets)
    assert max(owned) == pytest.approx(shards.largest_part * work.nbytes, abs=rounding)
    if not work.whole:
        assert shards.largest_part == pytest.approx(1 / ranks)


def test_whole_tensors_are_named_by_their_indices() -> None:
    for wrong in ((4,), (1, 0), (0, 0), (-1,)):
        with pytest.raises(InvalidValueError, match=r"whole is .*ascending indices in 0\.\.3"):
            structs.replace(workload(), whole=wrong)
    work = structs.replace(workload(), whole=(1, 3))
    assert Workload.from_json(work.to_json()) == work
    assert work.scaled(2.0).whole == (1, 3)
