"""Sampling: what is sampled at which size, and what held steps say of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster
from syncopate.engine.selfplan.background.sampling import (
    MOST_ALGORITHMS,
    SMALLEST_BYTES,
    contenders,
    curves_of,
    ladder,
    sampling_plans,
)
from syncopate.profiling.timings import durations
from syncopate.recipe import NATIVE
from syncopate.units import KIB, MIB

CLUSTER = Cluster.flat(4, latency_s=3e-5, bandwidth_bytes_per_s=117e6)


def tensors_of(*sizes: int) -> list[tuple[str, int, str]]:
    return [(f"t{index}", size, "float32") for index, size in enumerate(sizes)]


def nbytes(group: object) -> int:
    return sum(4 * numel for _, numel, _ in group)  # type: ignore[attr-defined]


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60))
def test_a_ladder_holds_every_gradient_once(sizes: list[int]) -> None:
    tensors = tensors_of(*sizes)
    groups = ladder(tensors)
    assert sorted(t for group in groups for t in group) == sorted(tensors)
    assert all(groups)


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60))
def test_its_sizes_double_from_the_smallest_up(sizes: list[int]) -> None:
    *falling, longest = ladder(tensors_of(*sizes))
    rising = [nbytes(group) for group in reversed(falling)] + [nbytes(longest)]
    assert all(large >= 2 * small for small, large in pairwise(rising))
    assert len(rising) == 1 or rising[0] >= SMALLEST_BYTES


def test_a_model_of_even_gradients_is_sampled_at_every_power_of_two() -> None:
    groups = ladder(tensors_of(*[1024] * 1000))
    sizes = [nbytes(group) for group in groups]
    assert sizes[:-1] == [4 * KIB * 2**k for k in reversed(range(8))]
    assert sizes[-1] == 4 * KIB * (1000 - 255)


def test_the_backend_is_always_sampled_and_only_what_prices_near_the_best_beside() -> None:
    for size in (4 * KIB, MIB, 100 * MIB):
        found = [recipe.algorithm for recipe in contenders(CLUSTER, size)]
        assert found[0] == NATIVE
        assert 2 <= len(found) <= MOST_ALGORITHMS
        assert len(set(found)) == len(found)
    large = {recipe.algorithm for recipe in contenders(CLUSTER, 100 * MIB)}
    assert "ring" in large
    # It sends everything through one link.
    assert "flat_tree" not in large
    assert "ring" not in {recipe.algorithm for recipe in contenders(CLUSTER, 4 * KIB)}


def test_plans_sample_every_contender_at_every_size_and_all_in_one_bucket() -> None:
    tensors = tensors_of(*[1024] * 500)
    plans = sampling_plans("m", tensors, CLUSTER)
    sampled = {(bucket.push.key, bucket.nbytes) for plan in plans for bucket in plan.buckets}
    wanted = {
        (recipe.key, nbytes(group))
        for group in (*ladder(tensors), tensors)
        for recipe in contenders(CLUSTER, nbytes(group))
    }
    assert sampled == wanted
    for plan in plans:
        plan.require_fit(tensors, 4)


def test_a_model_of_one_gradient_has_one_size() -> None:
    plans = sampling_plans("m", tensors_of(50_000), CLUSTER)
    assert {len(plan.buckets) for plan in plans} == {1}


def test_collectives_back_to_back_last_from_end_to_end_in_the_mean_over_ranks() -> None:
    first = [(0, 8, 1.0, 3.0), (1, 8, 3.0001, 4.0), (2, 8, 4.0, 6.0)]
    second = [(0, 8, 2.5, 3.2), (1, 8, 3.2, 4.4), (2, 8, 4.4, 6.2)]
    assert durations([first, second]) == [
        # The second rank joined late: what the first waited is no transfer.
        3.2 - 2.5,
        ((4.0 - 3.0) + (4.4 - 3.2)) / 2,
        ((6.0 - 4.0) + (6.2 - 4.4)) / 2,
    ]


def test_one_that_a_rank_launched_late_lasts_as_long_as_on_the_last_to_join() -> None:
    first = [(0, 8, 1.0, 2.0), (1, 8, 2.0, 5.0)]
    second = [(0, 8, 1.0, 2.0), (1, 8, 4.0, 5.0)]
    assert durations([first, second]) == [1.0, 1.0]


def test_samples_become_curves_with_the_options_that_ran() -> None:
    tensors = tensors_of(*[1024] * 500)
    steps = []
    plans = sampling_plans("m", tensors, CLUSTER)
    for plan in plans * 2:
        ends_s = 0.0
        rank = []
        for index, bucket in enumerate(plan.buckets):
            start_s, ends_s = ends_s, ends_s + bucket.nbytes * 1e-8
            rank.append((index, bucket.nbytes, start_s, ends_s))
        steps.append((plan, [rank, rank]))
    curves = {curve.algorithm: curve for curve in curves_of(steps)}
    assert NATIVE in curves
    sizes = {nbytes(group) for group in ladder(tensors)} | {nbytes(tensors)}
    assert {point.nbytes for point in curves[NATIVE].points} == sizes
    for name, curve in curves.items():
        for point in curve.points:
            assert abs(point.expected_s / (point.nbytes * 1e-8) - 1) < 1e-6
            assert len(point.samples_s) >= 2
            (ran,) = (r for r in contenders(CLUSTER, point.nbytes) if r.algorithm == name)
            assert ran.options == point.options
