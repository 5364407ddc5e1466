"""Every algorithm's price is its closed form, at every world size of the table."""

from __future__ import annotations

import pytest

from syncopate.cluster import Cluster, Level
from syncopate.costs.closed_forms import closed_form
from syncopate.costs.price import price, price_lines
from syncopate.schedules.registry import build
from tests.conformance.table import TABLE, Row

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
        schedule = build(row.collective, row.algorithm, world_size)
        terms = closed_form(row.collective, row.algorithm, world_size)
        assert len(price_lines(schedule, cluster)) == 1
        for nbytes in SIZES:
            wire_s = nbytes * terms.wire / RATE + nbytes * terms.additions * GAMMA
            expected = terms.startups * ALPHA_S + wire_s
            assert price(schedule, cluster, nbytes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_price_on_levels_lies_between_those_on_the_best_and_the_worst(row: Row):
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
                    Cluster.flat(
                        24,
                        latency_s=level.latency_s,
                        bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
                    ),
                    nbytes,
                )
                for level in (near, far)
            )
            assert low < price(schedule, cluster, nbytes) <= high * (1 + 1e-12)
