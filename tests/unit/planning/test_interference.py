"""Planning where overlap is not free, or channels are several: held against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.workload import Workload
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.problem import Problem
from syncopate.planning.registry import POLICIES, rivals
from syncopate.planning.search.changes import CUTS
from syncopate.planning.search.interference import least_disturbing, overlap_pays
from syncopate.planning.search.player import Player
from syncopate.planning.search.search import search
from tests.unit.planning.instances import COSTS, random_problem
from tests.unit.simulation.workloads import workload


def workload_of(problem: Problem, tail_s: float) -> Workload:
    gaps = np.diff(np.concatenate(([0.0], problem.ready_s)))
    return workload(gaps.tolist(), tail_s=tail_s)


def iteration_s(
    problem: Problem,
    work: Workload,
    partition: tuple[int, ...],
    interference: Interference,
    channels: int = 1,
) -> float:
    return Player(problem, work, interference, channels).score(partition)[0]


def partitions(length: int) -> Iterator[tuple[int, ...]]:
    for mask in range(1 << (length - 1)):
        yield (*(i + 1 for i in range(length - 1) if mask >> i & 1), length)


def draw_interference(rng: np.random.Generator, pays: bool) -> Interference:
    rate = float(rng.choice([0.0, 0.3, 0.6, 0.9]))
    most = 1 / (1 - rate)
    stretch = rng.uniform(1, most) if pays else rng.uniform(most, most + 2)
    return Interference(compute_rate=rate, collective_stretch=float(stretch))


def test_where_overlap_pays_it_is_exact() -> None:
    rng = np.random.default_rng(11)
    gained = 0
    for _ in range(125):
        length = int(rng.integers(1, 9))
        problem = random_problem(rng, length, str(rng.choice(COSTS)), int(rng.integers(1, 3)))
        work = workload_of(problem, float(rng.choice([0.0, 1.5])))
        interference = draw_interference(rng, pays=True)
        assert overlap_pays(interference)
        found = least_disturbing(problem, work.backward_s, interference, range(1, length + 1))
        best = min(iteration_s(problem, work, p, interference) for p in partitions(length))
        assert iteration_s(problem, work, found, interference) == pytest.approx(best, rel=1e-9)
        gained += iteration_s(problem, work, optimal(problem), interference) > best * (1 + 1e-6)
    assert gained > 5  # the plain dynamic programme is not enough


def test_behind_a_forward_the_search_is_exact_where_overlap_pays() -> None:
    rng = np.random.default_rng(15)
    gained = 0
    for _ in range(150):
        length = int(rng.integers(2, 8))
        drawn = random_problem(rng, length, str(rng.choice(COSTS)))
        gaps = np.diff(np.concatenate(([0.0], drawn.ready_s))).tolist()
        forward_s = float(rng.uniform(1, 9))
        work = workload(gaps, forward_s=forward_s, tail_s=float(rng.choice([0.0, 1.5])))
        nbytes = np.diff(drawn.offsets, axis=1)
        problem = Problem(np.array(work.ready_s), nbytes, drawn.cost)
        interference = draw_interference(rng, pays=True)
        plain = optimal(problem)
        found = search(Player(problem, work, interference, 1), plain)
        best = min(iteration_s(problem, work, p, interference) for p in partitions(length))
        assert iteration_s(problem, work, found, interference) == pytest.approx(best, rel=1e-9)
        gained += iteration_s(problem, work, plain, interference) > best * (1 + 1e-6)
    assert gained > 5  # the plain dynamic programme is not enough


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_search_is_never_worse_than_any_policy(channels: int) -> None:
    rng = np.random.default_rng([12, channels])
    for _ in range(40):
        problem = random_problem(rng, int(rng.integers(1, 30)), str(rng.choice(COSTS)))
        work = workload_of(problem, float(rng.choice([0.0, 1.5])))
        interference = draw_interference(rng, pays=bool(rng.integers(0, 2)))
        found = search(Player(problem, work, interference, channels), optimal(problem), rivals())
        mine = iteration_s(problem, work, found, interference, channels)
        for policy in POLICIES.values():
            theirs = iteration_s(problem, work, policy.partition(problem), interference, channels)
            assert mine <= theirs * (1 + 1e-9), policy.name


@pytest.mark.parametrize(("channels", "tolerance"), [(1, 0.03), (2, 0.08)])
def test_the_search_is_close_to_brute_force_everywhere(channels: int, tolerance: float) -> None:
    rng = np.random.default_rng([13, channels])
    ratios = []
    for _ in range(40):
        length = int(rng.integers(1, 8))
        problem = random_problem(rng, length, str(rng.choice(COSTS)))
        work = workload_of(problem, 0.5)
        interference = draw_interference(rng, pays=False)
        found = search(Player(problem, work, interference, channels), optimal(problem), rivals())
        best = min(
            iteration_s(problem, work, p, interference, channels) for p in partitions(length)
        )
        ratios.append(iteration_s(problem, work, found, interference, channels) / best)
    assert np.mean(ratios) < 1 + tolerance / 5
    assert max(ratios) < 1 + tolerance


def test_long_workloads_are_searched_on_fewer_cuts_and_deterministically() -> None:
    rng = np.random.default_rng(14)
    problem = random_problem(rng, 4 * CUTS, "curve")
    work = workload_of(problem, 1.0)
    interference = Interference(compute_rate=0.7, collective_stretch=1.4)
    plain = optimal(problem)
    found = search(Player(problem, work, interference, 1), plain)
    assert found == search(Player(problem, work, interference, 1), plain)
    assert iteration_s(problem, work, found, interference) <= iteration_s(
        problem, work, plain, interference
    )
