"""``optimal`` is exact: equal to brute force over all partitions, whatever the costs."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.planning.policies.optimal import optimal
from syncopate.planning.problem import Problem
from tests.unit.planning.instances import (
    COSTS,
    brute_force_s,
    linear,
    random_problem,
    reference_s,
)


def assert_partition(partition: tuple[int, ...], length: int) -> None:
    assert list(partition) == sorted(set(partition))
    assert partition[0] >= 1
    assert partition[-1] == length


@pytest.mark.parametrize("dtypes", [1, 2])
@pytest.mark.parametrize("kind", COSTS)
def test_equals_brute_force_over_all_partitions(kind: str, dtypes: int) -> None:
    """500 instances for each kind of cost, with one and with two dtypes: 5,000 in all."""
    rng = np.random.default_rng([COSTS.index(kind), dtypes])
    for instance in range(500):
        problem = random_problem(rng, int(rng.integers(1, 13)), kind, dtypes)
        partition = optimal(problem)
        assert_partition(partition, problem.length)
        assert problem.finish_s(partition) == pytest.approx(
            brute_force_s(problem), rel=1e-12, abs=1e-12
        ), f"instance {instance} of {kind}, {dtypes} dtypes"


@pytest.mark.parametrize("dtypes", [1, 2, 3])
@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("length", [60, 150, 300])
def test_equals_the_literal_recurrence_on_long_instances(
    kind: str, dtypes: int, length: int
) -> None:
    rng = np.random.default_rng([7, COSTS.index(kind), dtypes])
    problem = random_problem(rng, length, kind, dtypes)
    partition = optimal(problem)
    assert_partition(partition, length)
    assert problem.finish_s(partition) == pytest.approx(reference_s(problem), rel=1e-11, abs=1e-12)


def test_all_gradients_ready_at_once_and_a_start_up_give_one_bucket() -> None:
    assert optimal(Problem(np.zeros(50), np.arange(50), linear(1.0, 0.1))) == (50,)


def test_empty_buckets_join_the_next() -> None:
    problem = Problem([0, 1, 2, 9, 10], [0, 5, 0, 0, 5], linear(0.1, 0.1))
    assert optimal(problem) == (2, 5)


def test_long_gaps_give_one_bucket_each() -> None:
    partition = optimal(Problem(np.arange(1, 6) * 100.0, np.full(5, 3), linear(1.0, 0.1)))
    assert partition[-1] == 5
    assert partition[-2] == 4


def test_one_gradient() -> None:
    assert optimal(Problem([2.0], [8], linear(1.0, 1.0))) == (1,)


def test_nothing_to_send_costs_nothing() -> None:
    problem = Problem([1.0, 2.0, 3.0], [0, 0, 0], linear(5.0, 1.0))
    assert problem.finish_s(optimal(problem)) == 3.0


def test_what_was_sent_by_the_moment_a_gradient_is_ready_travels_alone() -> None:
    """Every bucket takes 2 s; the first has been sent at the very moment the second is ready."""
    for ready_s in ([0.0, 2.0], [0.0, 2.5]):
        assert optimal(Problem(ready_s, [1.0, 1.0], linear(2.0, 0.0))) == (1, 2)
    assert optimal(Problem([0.0, 1.5], [1.0, 1.0], linear(2.0, 0.0))) == (2,)
