"""The closed forms are MG-WFBP's Table II for powers of two, and the stated ones elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from formulas import blueconnect
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, Size, unit_counts
from syncopate.costs.model.bound import line_s_per_byte
from syncopate.costs.model.collective import NARROW, collective_costs, fixed_cost, variants
from syncopate.costs.papers.closed_forms import (
    CLOSED_FORMS,
    closed_form,
    closed_lines,
)
from syncopate.costs.schedule.price import price_many
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules.registry import ALGORITHMS, build, fitted
from tests.unit.strategies import fan_outs

ALPHA, BETA, GAMMA = 45.26e-6, 8 / 9.4e9, 2.5e-10


def table_ii(algorithm: str, n: int) -> tuple[float, float]:
    """Return a and b as MG-WFBP prints them, N = n."""
    log = math.log2(n)
    return {
        "binary_tree": (2 * ALPHA * log, (2 * BETA + GAMMA) * log),
        "recursive_doubling": (ALPHA * log, (BETA + GAMMA) * log),
        "halving_doubling": (2 * ALPHA * log, 2 * BETA - (2 * BETA + GAMMA) / n + GAMMA),
        "ring": (2 * (n - 1) * ALPHA, 2 * (n - 1) / n * BETA + (n - 1) / n * GAMMA),
    }[algorithm]


@pytest.mark.parametrize(
    "algorithm", ["binary_tree", "recursive_doubling", "halving_doubling", "ring"]
)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 64, 1024])
def test_powers_of_two_are_table_ii(algorithm, world_size):
    terms = closed_form("all_reduce", algorithm, world_size)
    found = (terms.startups * ALPHA, terms.wire * BETA + terms.additions * GAMMA)
    assert found == pytest.approx(table_ii(algorithm, world_size), rel=1e-12, abs=1e-20)


def test_other_world_sizes():
    assert closed_form("all_reduce", "recursive_doubling", 5) == (4, 4, 3)
    assert closed_form("all_reduce", "recursive_doubling", 7) == (4, 4, 3)
    assert closed_form("all_reduce", "recursive_doubling", 9) == (5, 5, 4)
    assert closed_form("all_reduce", "binary_tree", 5) == (6, 6, 3)
    assert closed_form("all_reduce", "halving_doubling", 5) == (6, 1.6, 0.8)
    assert closed_form("all_reduce", "ring", 5) == (8, 1.6, 0.8)


@pytest.mark.parametrize(("whole", "half"), [("ring", "ring"), ("halving_doubling", "recursive")])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(whole, half):
    for p in range(1, 20):
        scatter = closed_form("reduce_scatter", half, p)
        gather = closed_form("all_gather", half, p)
        both = [x + y for x, y in zip(scatter, gather, strict=True)]
        assert closed_form("all_reduce", whole, p) == pytest.approx(tuple(both))


def test_one_rank_costs_nothing():
    assert all(closed_form(*key, 1) == (0, 0, 0) for key in CLOSED_FORMS)


def test_every_registered_algorithm_has_one():
    assert set(CLOSED_FORMS) == set(ALGORITHMS)


def test_options():
    assert closed_form("broadcast", "lp", 4, blocks=10) == (12, 1.2, 0.0)
    assert closed_form("reduce", "lp", 4, blocks=10) == (12, 1.2, 1.2)
    assert closed_form("all_reduce", "lp", 3, blocks=4) == (9, 9 / 4, 5 / 4)
    assert closed_form("all_reduce", "lp", 2, blocks=4) == (5, 5 / 4, 1.0)
    assert closed_form("all_reduce", "lp", 3, blocks=1) == (4, 4, 2)
    assert closed_form("all_reduce", "two_level", 12, factors=(4, 3)) == pytest.approx(
        (8 + 4, 3 + 4 / 3, 3 / 4 + 2 / 3)
    )
    rings = closed_form("all_reduce", "blueconnect", 12, factors=(4, 3), stages=("ring", "ring"))
    assert rings == pytest.approx((2 * (3 + 2), 11 / 6, 11 / 12))
    assert closed_form("all_reduce", "ring", 4, order=(3, 2, 1, 0)) == (6, 1.5, 0.75)


def test_bad_questions_are_refused():
    with pytest.raises(UnknownNameError, match=r"option 'blocks' for all_reduce \(ring\)"):
        closed_form("all_reduce", "ring", 4, blocks=2)
    with pytest.raises(InvalidValueError, match="pipelines is 2; it must be 1 for a closed form"):
        closed_form("all_reduce", "blueconnect", 4, pipelines=2)
    with pytest.raises(
        UnknownNameError, match=r"unknown algorithm 'tree' for all_reduce; known: .*ring"
    ):
        closed_form("all_reduce", "tree", 4)
    with pytest.raises(UnknownNameError, match="unknown collective 'scan'; known: all_reduce, red"):
        closed_form("scan", "ring", 4)
    with pytest.raises(InvalidValueError, match="world_size is 0"):
        closed_form("all_reduce", "ring", 0)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three levels, equal or not; any may join nothing, and ranks are placed in any way."""
    times = st.floats(1e-6, 1e-3)
    most = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    levels = tuple(
        Level(
            name=f"level {index}",
            size=size,
            latency_s=draw(times),
            bandwidth_bytes_per_s=draw(st.floats(1e8, 1e11)),
        )
        for index, size in enumerate(draw(fan_outs(most)))
    )
    ranks = range(unit_counts(levels)[0])
    placement = tuple(draw(st.permutations(ranks))) if draw(st.booleans()) else ()
    gamma = draw(st.sampled_from([0.0, 2.5e-10]))
    return Cluster(name="any", levels=levels, placement=placement, reduction_s_per_byte=gamma)


@settings(max_examples=60)
@given(clusters(), st.sampled_from(sorted(ALGORITHMS)))
def test_formulas_of_clusters_are_the_prices_of_the_schedules(cluster, key):
    assume(cluster.world_size <= 30)
    sizes = np.geomspace(1, 1e9, 4)
    for options in variants(cluster, *key)[:3]:
        if closed_lines(cluster, *key, options):
            schedule = build(*key, cluster.world_size, **options)
            priced_s = price_many(schedule, cluster, sizes)
            assert fixed_cost(cluster, *key, options)(sizes) == pytest.approx(priced_s, rel=1e-9)


def racks(*sizes: Size, gamma: float = 1e-11) -> Cluster:
    rates = (2e11, 2.5e10, 1.2e10, 6e9)
    levels = tuple(
        Level(name="", size=size, latency_s=(1 + index) * 3e-6, bandwidth_bytes_per_s=rate)
        for index, (size, rate) in enumerate(zip(sizes, rates, strict=False))
    )
    return Cluster(name="racks", levels=levels, reduction_s_per_byte=gamma)


@pytest.mark.parametrize("key", [key for key in ALGORITHMS if key[1] == "flat_tree"], ids=str)
def test_a_flat_tree_has_its_root_where_the_schedule_has_it(key):
    """An all-reduce's is the first of the order, which need not be in rank 0's unit."""
    uneven = replace(racks((4, 2), 2), placement=(5, 4, 3, 2, 1, 0))
    options = fitted(*key, uneven)
    assert options["order"].index(0) == 5
    sizes = np.geomspace(1, 1e9, 4)
    priced_s = price_many(build(*key, 6, **options), uneven, sizes)
    assert closed_lines(uneven, *key, options)
    assert fixed_cost(uneven, *key, options)(sizes) == pytest.approx(priced_s, rel=1e-9)


def test_powers_of_two_have_formulas_on_levels_and_others_most():
    assert all(closed_lines(racks(2, 4), *key, fitted(*key, racks(2, 4))) for key in ALGORITHMS)
    odd = racks(3, 2)
    known = {key for key in ALGORITHMS if closed_lines(odd, *key, fitted(*key, odd))}
    few = ("ring", "flat_tree", "lp", "two_level", "blueconnect", "hierarchical")
    assert known == {key for key in ALGORITHMS if key[1] in few}
    far = {"order": (0, 3, 1, 4, 2, 5)}
    assert closed_lines(odd, "all_reduce", "ring", far) == ()
    assert closed_lines(odd, "all_reduce", "blueconnect", {"factors": (2, 3)}) == ()


def test_unequal_units_have_formulas_where_ranks_follow_one_another():
    uneven = racks(2, (3, 5), 2)
    assert fitted("all_reduce", "blueconnect", uneven) == {"factors": (2, 8)}
    known = {key for key in ALGORITHMS if closed_lines(uneven, *key, fitted(*key, uneven))}
    few = ("ring", "flat_tree", "lp", "two_level")
    assert known == {key for key in ALGORITHMS if key[1] in few}
    outer = racks((3, 5), 2)
    assert fitted("all_reduce", "two_level", outer) == {"factors": (8,)}
    assert not ALGORITHMS["all_reduce", "two_level"].applies(outer)


@pytest.mark.parametrize("key", [key for key in ALGORITHMS if key[1] in NARROW], ids=str)
def test_formulas_on_levels_are_the_prices_of_4096_ranks(key):
    """4 x 16 x 64 ranks and 10 MB: the formula against messages that are played."""
    cluster = racks(4, 16, 64)
    lines = closed_lines(cluster, *key, {})
    played_s = price_many(build(*key, 4096), cluster, 1e7)
    assert max(x.a_s + x.b_s_per_byte * 1e7 for x in lines) == pytest.approx(played_s, rel=1e-9)


@pytest.mark.parametrize("sizes", [(8, 8), (4, 16, 64), (8, 32, 64), (6, 10, 50)])
def test_blueconnect_on_levels_is_the_papers(sizes):
    """Eqs. 6 and 7 know no γ; their stages are recursive for powers of two, and else rings."""
    cluster = racks(*sizes, gamma=0.0)
    options = {"factors": sizes, "stages": blueconnect.stages(cluster)}
    cost = fixed_cost(cluster, "all_reduce", "blueconnect", options)
    for nbytes in (1.0, 1e5, 1e9):
        expected = blueconnect.blueconnect_s(cluster, nbytes)
        assert float(cost(nbytes)) == pytest.approx(expected, rel=1e-9)


def test_16384_ranks_on_three_levels_have_a_price_of_everything():
    cluster = racks(8, 32, 64)
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"):
        costs = collective_costs(cluster, collective).costs
        for name, cost in costs.items():
            least_s = line_s_per_byte(cluster, collective) * 1e8
            assert least_s * (1 - 1e-9) <= float(cost(1e8)) < math.inf, name
    # Chunks in several stages at once hide inner levels behind outer ones.
    whole, chunked = (
        float(
            fixed_cost(cluster, "all_reduce", "blueconnect", {"factors": (8, 32, 64)} | more)(1e8)
        )
        for more in ({}, {"pipelines": 8})
    )
    assert chunked < 0.95 * whole


def test_schedules_that_have_no_room_are_refused():
    cluster = racks(8, 512)
    assert fixed_cost(cluster, "all_reduce", "ring", {})(1e6) > 0
    with pytest.raises(InvalidValueError, match="ranks is 4096; it must be at most 2048: all_redu"):
        fixed_cost(cluster, "all_reduce", "blueconnect", {"factors": (4, 1024)})
