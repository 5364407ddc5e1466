"""What shards of any length cost, against what the messages of the schedules come to by hand."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Handling,
    Level,
    LinearFit,
)
from syncopate.costs.model.collective import unequal_factor
from syncopate.costs.schedule.execution import execution_times
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.compose import by_element
from syncopate.schedules.registry import build

ALPHA_S, RATE = 3.0, 2.0
FLAT = Cluster.flat(4, latency_s=ALPHA_S, bandwidth_bytes_per_s=RATE)
ALL_AT_0 = (0, 100, 100, 100, 100)
SHARDED = ("reduce_scatter", "all_gather")


def on_the_wire(elements: int) -> float:
    return ALPHA_S + 4 * elements / RATE


def measured(algorithm: str, s_per_byte: float) -> Cluster:
    """Return the cluster with a collective that takes so long by measurement."""
    points = tuple(
        CurvePoint(nbytes=n, samples_s=(n * s_per_byte,)) for n in (4, 400, 4000, 1 << 30)
    )
    curves = tuple(
        CollectiveCurve(
            collective=collective,
            algorithm=algorithm,
            points=points,
            fit=LinearFit(a_s=0.0, b_s_per_byte=s_per_byte),
        )
        for collective in SHARDED
    )
    return structs.replace(FLAT, curves=curves)


@pytest.mark.parametrize("collective", SHARDED)
@pytest.mark.parametrize(("algorithm", "hops"), [("ring", 3), ("recursive", 2)])
def test_one_owner_by_hand(collective: str, algorithm: str, hops: int) -> None:
    """The ring carries all of it over three links in turn, the tree over two."""
    even_s = {"ring": 3 * on_the_wire(25), "recursive": on_the_wire(50) + on_the_wire(25)}
    factor = unequal_factor(FLAT, Recipe(collective, algorithm), ALL_AT_0, 4)
    assert factor * even_s[algorithm] == pytest.approx(hops * on_the_wire(100))


def test_a_ring_of_three_by_hand() -> None:
    """Rank r passes chunk r - 1, then r - 2; chunk 1 is empty, so rank 2 has one message only."""
    cluster = Cluster.flat(3, latency_s=ALPHA_S, bandwidth_bytes_per_s=RATE)
    factor = unequal_factor(cluster, Recipe("reduce_scatter", "ring"), (0, 60, 60, 90), 4)
    # Chunk 0 goes from 1 by 2 to 0, chunk 2 from 0 by 1 to 2, where 1 is busy with chunk 0 first.
    assert factor * 2 * on_the_wire(30) == pytest.approx(2 * on_the_wire(60))


def test_more_elements_than_a_table_counts() -> None:
    factor = unequal_factor(FLAT, Recipe("all_gather", "ring"), (0, 0, 2**33, 2**33, 2**33), 4)
    assert factor == pytest.approx(4.0)


@pytest.mark.parametrize("bounds", [(0, 25, 50, 75, 100), (0, 26, 51, 76, 101), (0, 0, 0, 0, 0)])
def test_equal_shards_cost_what_they_cost(bounds: tuple[int, ...]) -> None:
    assert unequal_factor(FLAT, Recipe("all_gather", "ring"), bounds, 4) == 1.0


@pytest.mark.parametrize("options", [{"factors": (2, 2)}, {"factors": (4,), "order": (2, 3, 0, 1)}])
def test_options_and_handling_count(options: dict[str, tuple[int, ...]]) -> None:
    levels = tuple(
        Level(name=name, size=2, latency_s=ALPHA_S, bandwidth_bytes_per_s=rate)
        for name, rate in (("device", 10 * RATE), ("host", RATE))
    )
    by_hand = Cluster(name="by hand", levels=levels)
    handling = Handling(call_s=0.5, round_s=0.3, stream_s=0.2, byte_s=1e-3)
    calibrated = structs.replace(by_hand, handling=(handling,))
    recipe = Recipe("reduce_scatter", "hierarchical", options=options)
    bounds = (0, 10, 10, 70, 100)
    even = build(recipe.collective, recipe.algorithm, 4, 0, **options)
    unequal = by_element(even, bounds)
    ways = ((by_hand, price), (calibrated, execution_times))
    for cluster, seconds in ways:
        factor = unequal_factor(cluster, recipe, bounds, 4)
        ratio = float(seconds(unequal, cluster, 400)) / float(seconds(even, cluster, 400))
        assert factor == pytest.approx(ratio)
        assert factor > 1


@pytest.mark.parametrize("collective", SHARDED)
def test_the_busiest_link_takes_its_bytes_at_line_rate(collective: str) -> None:
    """In a ring every shard passes all links but one, so an empty one leaves one link them all."""
    bounds = (0, 0, 0, 10_000, 100_000)
    busiest_s = 4 * 100_000 / RATE
    fast = measured("ring", 1e-3 / RATE)
    factor = unequal_factor(fast, Recipe(collective, "ring"), bounds, 4)
    assert factor * 400_000 * 1e-3 / RATE == pytest.approx(busiest_s)
    slow = measured("ring", 1e3 / RATE)
    modelled = unequal_factor(FLAT, Recipe(collective, "ring"), bounds, 4)
    assert unequal_factor(slow, Recipe(collective, "ring"), bounds, 4) == pytest.approx(modelled)


def test_a_burst_passes_faster_than_the_line() -> None:
    fast = measured("ring", 1e-3 / RATE)
    (level,) = fast.levels
    bursting = structs.replace(fast, levels=(structs.replace(level, burst_bytes=300),))
    recipe = Recipe("all_gather", "ring")
    for cluster, least_s in ((fast, 400 / RATE), (bursting, 100 / RATE)):
        factor = unequal_factor(cluster, recipe, ALL_AT_0, 4)
        assert factor * 400 * 1e-3 / RATE == pytest.approx(least_s)


def test_what_has_no_shards_or_no_cost_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="one with shards"):
        unequal_factor(FLAT, Recipe("all_reduce", "ring"), ALL_AT_0, 4)
    with pytest.raises(InvalidValueError, match="5 element offsets"):
        unequal_factor(FLAT, Recipe("all_gather", "ring"), (0, 50, 100), 4)
    for cluster in (FLAT, measured(NATIVE, 1.0)):
        with pytest.raises(UnknownNameError, match="native"):
            unequal_factor(cluster, Recipe("all_gather"), ALL_AT_0, 4)
