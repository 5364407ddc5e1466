"""Every algorithm's price is its closed form, at every world size of the table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.papers.closed_forms import closed_form
from syncopate.costs.schedule.congestion import busiest_s_per_byte
from syncopate.costs.schedule.price import path_lines, price
from syncopate.schedules.compose import by_element
from syncopate.schedules.conditions import CONDITIONS
from syncopate.schedules.registry import build
from tests.conformance.drawn import Drawn, drawn, drawn_bounds
from tests.conformance.table import TABLE, Row
from tests.unit.costs.flows.oracle import replay

ALPHA_S, RATE, GAMMA = 45.26e-6, 9.4e9 / 8, 2.5e-10
SIZES = (1.0, 1e3, 1e6, 1e9)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_price_is_the_closed_form(row: Row):
    for world_size in row.proved:
        cluster = Cluster.flat(
            world_size,
            latency_s=ALPHA_S,
            bandwidth_bytes_per_s=RATE,
            reduction_s_per_byte=GAMMA,
        )
        for options in ({}, *row.variants(world_size)):
            schedule = build(row.collective, row.algorithm, world_size, **options)
            terms = closed_form(row.collective, row.algorithm, world_size, **options)
            assert len(path_lines(schedule, cluster)) == 1
            for nbytes in SIZES:
                wire_s = nbytes * terms.wire / RATE + nbytes * terms.additions * GAMMA
                expected = terms.startups * ALPHA_S + wire_s
                assert price(schedule, cluster, nbytes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("world_size", [2, 3, 6, 8, 12])
def test_price_on_one_level_does_not_depend_on_the_root_or_the_order(row: Row, world_size):
    rooted = CONDITIONS[row.collective].rooted
    cluster = Cluster.flat(world_size, latency_s=ALPHA_S, bandwidth_bytes_per_s=RATE)
    (line,) = path_lines(build(row.collective, row.algorithm, world_size), cluster)
    for root in range(world_size if rooted else 1):
        order = [(5 + 7 * rank) % world_size for rank in range(world_size)]
        order = order if len(set(order)) == world_size else list(range(world_size))[::-1]
        schedule = build(row.collective, row.algorithm, world_size, root, order=order)
        (found,) = path_lines(schedule, cluster)
        assert found.a_s == pytest.approx(line.a_s, rel=1e-12)
        assert found.b_s_per_byte == pytest.approx(line.b_s_per_byte, rel=1e-12)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_price_on_levels_lies_between_those_on_the_best_and_the_worst(row: Row):
    """The worst: four ranks share the link of every host, all the time."""
    near = Level(name="device", size=4, latency_s=5e-6, bandwidth_bytes_per_s=1e10)
    far = Level(name="host", size=6, latency_s=50e-6, bandwidth_bytes_per_s=1e9)
    placed = tuple((7 * rank) % 24 for rank in range(24))
    schedule = build(row.collective, row.algorithm, 24)
    for placement in ((), placed):
        cluster = Cluster(name="both", levels=(near, far), placement=placement)
        for nbytes in SIZES:
            low, high = (
                price(
                    schedule,
                    Cluster.flat(24, latency_s=level.latency_s, bandwidth_bytes_per_s=rate),
                    nbytes,
                )
                for level, rate in (
                    (near, near.bandwidth_bytes_per_s),
                    (far, far.bandwidth_bytes_per_s / 4),
                )
            )
            assert low < price(schedule, cluster, nbytes) <= high * (1 + 1e-12)


@settings(max_examples=200)
@given(case=drawn(64), nbytes=st.floats(1e-3, 1e12), gamma=st.sampled_from([0.0, GAMMA]))
def test_any_price_on_one_level_is_its_closed_form(
    case: Drawn, nbytes: float, gamma: float
) -> None:
    cluster = Cluster.flat(
        case.world_size,
        latency_s=ALPHA_S,
        bandwidth_bytes_per_s=RATE,
        reduction_s_per_byte=gamma,
    )
    assume(case.options.get("pipelines", 1) == 1)  # there is no closed form for more
    options = {name: value for name, value in case.options.items() if name != "order"}
    terms = closed_form(case.collective, case.algorithm, case.world_size, **options)
    expected = terms.startups * ALPHA_S + nbytes * (terms.wire / RATE + terms.additions * gamma)
    assert price(case.schedule(), cluster, nbytes) == pytest.approx(expected, rel=1e-12)


def drawn_cluster(data: st.DataObject, world_size: int) -> Cluster:
    splits = [(1, world_size)]
    splits += [(a, world_size // a) for a in (2, 3, 4) if world_size % a == 0]
    # Units of unequal size: a small one or two, and the rest.
    splits += [((a, world_size - a), 2) for a in (1, 2, 3) if 2 * a < world_size]
    splits += [((1, a, world_size - a - 1), 3) for a in (1, 2, 3) if 2 * a + 1 < world_size]
    sizes = data.draw(st.sampled_from(splits))
    rates = data.draw(st.tuples(*[st.sampled_from([0.5, 1.0, 10.0]) for _ in sizes]))
    levels = tuple(
        Level(name="level", size=size, latency_s=1.0, bandwidth_bytes_per_s=rate)
        for size, rate in zip(sizes, rates, strict=True)
    )
    placement = data.draw(st.just(()) | st.permutations(range(world_size)).map(tuple))
    return Cluster(name="any", levels=levels, placement=placement, reduction_s_per_byte=0.25)


@settings(max_examples=60)
@given(case=drawn(16), data=st.data())
def test_any_price_on_levels_is_what_playing_the_messages_takes(
    case: Drawn, data: st.DataObject
) -> None:
    cluster = drawn_cluster(data, case.world_size)
    nbytes = data.draw(st.sampled_from([0.3, 7.0, 1e4]))
    schedule = case.schedule()
    expected = replay(schedule, cluster, nbytes)
    assert price(schedule, cluster, nbytes) == pytest.approx(expected, rel=1e-11)


@settings(max_examples=60)
@given(case=drawn(16, sharded=True), data=st.data())
def test_any_price_with_shards_of_any_length_too(case: Drawn, data: st.DataObject) -> None:
    """Here chunk r is rank r's shard, so that the bounds are the chunks' lengths."""
    cluster = drawn_cluster(data, case.world_size)
    bounds = data.draw(drawn_bounds(case.world_size, least=1))
    schedule = case.schedule()
    found = price(by_element(schedule, bounds), cluster, 4.0 * bounds[-1])
    expected = replay(schedule, cluster, 4.0 * bounds[-1], bounds)
    assert found == pytest.approx(expected, rel=1e-11)
    longest = max(end - begin for begin, end in pairwise(bounds))
    padded = price(schedule, cluster, 4.0 * longest * case.world_size)
    busiest_s = busiest_s_per_byte(by_element(schedule, bounds), cluster) * 4.0 * bounds[-1]
    assert found <= padded * (1 + 1e-11)
    if len(cluster.joining) == 1:
        assert found >= busiest_s * (1 - 1e-11)
