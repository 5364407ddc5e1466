"""Search: every change of one cut is tried, and candidates are scored as plans are predicted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.training import training_costs
from syncopate.planning.planner import make_plan
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.search.changes import improve, neighbours
from syncopate.planning.search.player import Player
from syncopate.units import dtype_bytes
from tests.unit.planning.instances import linear


def test_cuts_are_removed_moved_both_ways_and_added() -> None:
    found = list(neighbours((2, 5), range(1, 6)))
    merged, moved = [(5,)], [(1, 5), (3, 5)]
    assert found == [*merged, *moved, (1, 2, 5), (2, 3, 5), (2, 4, 5)]
    # No cut moves onto another one, nor off the ends.
    assert [one for one in neighbours((1, 2, 3), range(1, 4)) if len(one) == 3] == []


@pytest.mark.parametrize(("start", "best"), [((1, 6), (3, 6)), ((5, 6), (3, 6))])
def test_a_cut_is_moved_to_where_it_is_best(start: Partition, best: Partition) -> None:
    """Six gradients; each step towards the middle, from either side, is shorter than the last."""

    class Steps:
        played = 0

        def score(self, partition: Partition) -> tuple[float, int]:
            # Only partitions of two buckets are any good.
            return (abs(partition[0] - 3) if len(partition) == 2 else 9.0, len(partition))

    assert improve(start, range(1, 7), Steps()) == best  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "bfloat16")])
def test_a_score_is_what_the_plan_is_predicted_to_take(
    channels: int, dtypes: tuple[str, ...]
) -> None:
    tensors = tuple(
        GradientTensor(name=f"t{i}", numel=30_000, dtype=dtypes[i % len(dtypes)], backward_s=1e-3)
        for i in range(9)
    )
    workload = Workload(model="m", tensors=tensors, forward_s=1e-3, backward_s=9e-3)
    cluster = Cluster.preset("1gbe", 4)
    plan = make_plan(workload, cluster, "wfbp", channels=channels)
    nbytes = [
        [t.numel * dtype_bytes(t.dtype) if t.dtype == dtype else 0 for t in tensors]
        for dtype in dtypes
    ]
    costs = training_costs(cluster, workload.nbytes)
    player = Player(Problem(workload.ready_s, nbytes, costs), workload, Interference(), channels)
    assert plan.prediction is not None
    score_s, buckets = player.score(tuple(range(1, 10)))
    assert score_s == pytest.approx(plan.prediction.iteration_s, rel=1e-12)
    assert buckets == len(plan.buckets) == 9


def test_a_bucket_of_two_dtypes_starts_up_twice() -> None:
    problem = Problem([0.0, 0.0], [[4.0, 0.0], [0.0, 6.0]], linear(1.0, 0.5))
    assert [problem.bucket_s(*span) for span in (*pairwise((0, 1, 2)), (0, 2))] == [3.0, 4.0, 7.0]
