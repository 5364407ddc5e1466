"""The simple policies, the table of policies, and what a problem refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning import POLICIES, Policy, make_plan
from syncopate.planning.policies.single import single
from syncopate.planning.policies.threshold import threshold
from syncopate.planning.policies.wfbp import wfbp
from syncopate.planning.problem import Problem
from syncopate.planning.registry import require_policy
from tests.unit.planning.instances import linear, random_problem

MIB = 1024 * 1024


def of_sizes(*mib: float) -> Problem:
    sizes = np.array(mib) * MIB
    return Problem(np.zeros(len(sizes)), sizes, linear(1.0, 1.0))


def test_one_bucket_each_and_one_of_all() -> None:
    assert wfbp(of_sizes(1, 2, 3)) == (1, 2, 3)
    assert single(of_sizes(1, 2, 3)) == (3,)


def test_a_bucket_closes_with_the_gradient_that_fills_it() -> None:
    assert threshold(of_sizes(0.5, 0.5, 20, 10, 24, 1, 3)) == (2, 4, 6, 7)


def test_only_the_first_bucket_is_small() -> None:
    assert threshold(of_sizes(*[1] * 60)) == (1, 26, 51, 60)
    assert threshold(of_sizes(*[1] * 6), MIB // 2) == (1, 2, 3, 4, 5, 6)
    assert threshold(of_sizes(*[1] * 6), 128 * MIB) == (1, 6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(POLICIES)), st.integers(1, 3))
def test_every_policy_covers_every_gradient_once(seed: int, name: str, dtypes: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(1, 20)), "envelope", dtypes)
    partition = POLICIES[name].partition(problem)
    assert list(partition) == sorted(set(partition))
    assert partition[0] >= 1
    assert partition[-1] == problem.length
    best = problem.finish_s(POLICIES["optimal"].partition(problem))
    assert problem.finish_s(partition) >= best - 1e-9


def test_a_row_is_all_it_takes_and_optimal_and_auto_are_never_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a partition that the search does not find by itself, better than what it does find."""
    rng, ends = random.Random(2), (1, 2, 4, 5, 7, 9)
    tensors = tuple(
        GradientTensor(
            name=f"w{index}",
            numel=int(10 ** rng.uniform(3, 6)),
            backward_s=rng.uniform(0, 0.004),
            forward_s=rng.uniform(0, 0.002),
        )
        for index in range(9)
    )
    workload = Workload(
        model="m",
        tensors=tensors,
        forward_s=sum(tensor.forward_s for tensor in tensors),
        backward_s=sum(tensor.backward_s for tensor in tensors),
        update_s=0.001,
    )
    cluster = Cluster.preset("10gbe", 8)

    def planned_s(policy: str) -> float:
        plan = make_plan(workload, cluster, policy, exchange="sharded", channels=2)
        assert plan.prediction is not None
        return plan.prediction.iteration_s

    without = {policy: planned_s(policy) for policy in ("optimal", "auto")}
    row = Policy("made up", lambda problem: ends, "some ends", "a test")
    monkeypatch.setitem(POLICIES, row.name, row)
    made_up_s = planned_s(row.name)
    for policy, alone_s in without.items():
        assert made_up_s < alone_s
        assert planned_s(policy) <= made_up_s


@pytest.mark.parametrize("found", [[1, 3], np.array([1, 3]), (n for n in (1, 3))])
def test_ends_of_buckets_may_be_any_whole_numbers(found: object, monkeypatch) -> None:
    row = Policy("made up", lambda problem: found, "some ends", "a test")  # type: ignore[return-value,arg-type]
    monkeypatch.setitem(POLICIES, row.name, row)
    assert row.ends(of_sizes(1, 2, 3)) == (1, 3)


@pytest.mark.parametrize("found", [None, [1.0, 3.0], "abc", [3, 1], [1, 2], []])
def test_what_are_no_ends_is_refused_with_the_policy(found: object) -> None:
    row = Policy("made up", lambda problem: found, "some ends", "a test")  # type: ignore[return-value,arg-type]
    with pytest.raises(InvalidValueError, match="partition of policy 'made up'"):
        row.ends(of_sizes(1, 2, 3))


def test_unknown_policies_are_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match=r"policy 'best'; known: wfbp, .*optimal"):
        require_policy("best")


@pytest.mark.parametrize(
    ("ready", "nbytes", "message"),
    [
        ([], [], "one time for each tensor"),
        ([1.0, 2.0], [1], "shape of nbytes"),
        ([1.0, np.nan], [1, 1], r"ready_s\[1\] is nan"),
        ([1.0, np.inf], [1, 1], r"ready_s\[1\] is inf"),
        ([2.0, 1.0], [1, 1], "non-decreasing"),
        ([-1.0, 1.0], [1, 1], r"ready_s\[0\] is -1.0"),
        ([0.0, 1.0], [1, -1], r"nbytes\[1\] is -1.0"),
    ],
)
def test_a_problem_refuses_what_makes_no_sense(
    ready: list[float], nbytes: list[float], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Problem(ready, nbytes, linear(1.0, 1.0))


def test_a_threshold_is_at_least_one_byte() -> None:
    with pytest.raises(InvalidValueError, match="bucket_bytes is 0"):
        threshold(of_sizes(1), 0)
