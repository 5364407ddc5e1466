"""Prices of algorithms that compete: right where they may win, and far above where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, Size
from syncopate.costs.flows import curve
from syncopate.costs.flows.classes import by_class
from syncopate.costs.flows.curve import CLOSE, FAR
from syncopate.costs.flows.rails import RAILED, rail_pieces
from syncopate.costs.flows.traffic import traffic_of
from syncopate.costs.model.collective import (
    collective_costs,
    cost_at_s,
    fixed_cost,
    schedule_cost,
    variants,
)
from syncopate.costs.model.functions import Envelope
from syncopate.costs.model.pieces import Pieces
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.price import price_many
from syncopate.schedules.registry import build, candidates, fitted

SIZES = np.geomspace(1, 1e10, 41)


def racks(*sizes: Size, gamma: float = 1e-11) -> Cluster:
    rates = (2e11, 2.5e10, 1.2e10, 6e9)
    levels = tuple(
        Level(name="", size=size, latency_s=(1 + index) * 3e-6, bandwidth_bytes_per_s=rate)
        for index, (size, rate) in enumerate(zip(sizes, rates, strict=False))
    )
    return Cluster(name="racks", levels=levels, reduction_s_per_byte=gamma)


ODD, UNEQUAL = racks(3, 5), racks(2, (1, 3), 2)


@pytest.mark.parametrize("cluster", [ODD, UNEQUAL], ids=["3x5", "2x1+3x2"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "broadcast"])
def test_the_cheapest_is_who_it_is_among_prices_that_are_right_everywhere(cluster, collective):
    names = candidates(collective, cluster)
    competing = collective_costs(cluster, collective)
    exact = Envelope({name: schedule_cost(cluster, collective, name) for name in names})
    assert competing.names == exact.names == names
    assert competing(SIZES) == pytest.approx(exact(SIZES), rel=1e-9)
    assert [competing.best(size) for size in SIZES] == [exact.best(size) for size in SIZES]


def test_a_price_is_right_up_to_far_above_its_rival_and_beyond_is_above_that_too(monkeypatch):
    schedule = build("all_reduce", "recursive_doubling", 15)
    traffic = by_class(traffic_of(schedule, Machines(ODD.joining, (), 1e-11)))
    rival = Pieces.of([np.inf], [4e-5], [1e-12])
    played: list[float] = []
    play = curve.play

    def counted(several, sizes, **more):
        played.extend(sizes)
        return play(several, sizes, **more)

    monkeypatch.setattr(curve, "play", counted)
    (exact,) = curve.played_pieces([traffic])
    everywhere = len(played)
    (partly,) = curve.played_pieces([traffic], rival)
    assert len(played) - everywhere < everywhere
    near = exact(SIZES) <= FAR * rival(SIZES)
    assert near.any()
    assert partly(SIZES[near]) == pytest.approx(exact(SIZES[near]), rel=1e-9)
    assert not near.all()
    assert (partly(SIZES[~near]) > FAR * (1 - CLOSE) * rival(SIZES[~near])).all()


@pytest.mark.parametrize("name", ["recursive_doubling", "ring", "blueconnect"])
@pytest.mark.parametrize("cluster", [ODD, UNEQUAL], ids=["3x5", "2x1+3x2"])
def test_the_cost_at_one_size_is_that_of_all_sizes(name, cluster):
    for nbytes in (1.0, 1e5, 1e9):
        expected_s = float(schedule_cost(cluster, "all_reduce", name)(nbytes))
        assert cost_at_s(cluster, "all_reduce", name, nbytes) == pytest.approx(
            expected_s, rel=CLOSE
        )


@pytest.mark.parametrize("key", sorted(RAILED), ids="-".join)
@pytest.mark.parametrize("stages", [None, ("ring", "recursive"), ("recursive", "ring")])
@pytest.mark.parametrize("sizes", [(2, (1, 3), 2), (3, (2, 1, 2), 3), (4, (3, 2), (1, 1), 2)])
def test_a_rail_stands_for_all(key, stages, sizes):
    """The formula and one rail of the groups against every message that is played."""
    sizes = tuple(size if size != (1, 1) else 1 for size in sizes)
    cluster = racks(*sizes)
    options = fitted(*key, cluster) | ({"stages": stages} if stages else {})
    rail = rail_pieces(cluster, *key, options)
    played_s = price_many(build(*key, cluster.world_size, **options), cluster, SIZES)
    assert rail(SIZES) == pytest.approx(played_s, rel=CLOSE)
    assert fixed_cost(cluster, *key, options)(SIZES) == pytest.approx(rail(SIZES), rel=1e-12)


def test_there_are_no_rails_where_they_do_not_fit():
    key = ("all_reduce", "blueconnect")
    options = fitted(*key, UNEQUAL)
    assert rail_pieces(UNEQUAL, *key, options) is not None
    assert rail_pieces(UNEQUAL, "all_reduce", "ring", {}) is None
    assert rail_pieces(ODD, *key, fitted(*key, ODD)) is None
    assert rail_pieces(UNEQUAL, *key, options | {"factors": (4, 2)}) is None
    assert rail_pieces(UNEQUAL, *key, options | {"pipelines": 2}) is None
    inner = racks((1, 3), 2)
    assert rail_pieces(inner, *key, fitted(*key, inner)) is None
    scrambled = replace(UNEQUAL, placement=(1, 0, 2, 3, 4, 5, 6, 7))
    assert rail_pieces(scrambled, *key, options) is None


def test_message_chunks_are_considered_where_they_are_few():
    assert len(variants(UNEQUAL, "all_reduce", "blueconnect")) > 1
    many = racks(8, (12, 20) * 4, 8)
    assert len(variants(many, "all_reduce", "blueconnect")) == 1
    assert len(variants(racks(8, 16, 8), "all_reduce", "blueconnect")) > 1
