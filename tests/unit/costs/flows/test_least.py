"""What messages take at least, prices at a few sizes, and how little is played for them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from benchmarks.flows import drawn

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level
from syncopate.costs.flows import curve
from syncopate.costs.flows.classes import by_class
from syncopate.costs.flows.curve import CLOSE, Asked
from syncopate.costs.flows.kernel import play
from syncopate.costs.flows.least import least_seconds
from syncopate.costs.flows.traffic import traffic_of
from syncopate.costs.model.collective import collective_costs, schedule_cost
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.price import price_many
from syncopate.schedules.registry import build

SIZES = np.geomspace(1e2, 1e9, 9)


def odd(gpus: int = 5, nodes: int = 16) -> Cluster:
    """Return nodes of an odd number of GPUs, where no two ranks do the same."""
    levels = (
        Level(name="device", size=gpus, latency_s=5e-6, bandwidth_bytes_per_s=1.2e10),
        Level(name="node", size=nodes, latency_s=4.5e-5, bandwidth_bytes_per_s=1.175e9),
    )
    return Cluster(name="odd", levels=levels, reduction_s_per_byte=5e-12)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the sizes that are played for prices, of those messages that are hundreds."""
    sizes: list[float] = []
    real = curve.play

    def counted(several, nbytes, **more):
        sizes.extend(n for traffic, n in zip(several, nbytes, strict=True) if len(traffic) > 300)
        return real(several, nbytes, **more)

    monkeypatch.setattr(curve, "play", counted)
    return sizes


def _drawn(count: int):
    for one in islice(drawn(11, most_ranks=24), count):
        cluster = one.cluster
        schedule = build(one.collective, one.algorithm, cluster.world_size, one.root, **one.options)
        if len(cluster.joining) > 1 and len(schedule.table):
            yield schedule, Machines.of(cluster)._replace(levels=cluster.joining)


def test_no_traffic_takes_less_and_short_ones_take_no_more():
    nbytes = np.array([1e-6, 1e2, 1e4, 1e6, 1e9])
    for schedule, machines in _drawn(60):
        traffic = by_class(traffic_of(schedule, machines))
        took_s = play([traffic] * len(nbytes), nbytes.tolist()).seconds
        least_s = least_seconds(traffic, nbytes)
        assert (least_s <= took_s * (1 + 1e-9)).all(), schedule.title
        assert least_s[0] == pytest.approx(took_s[0], rel=1e-6), schedule.title
        # A byte of a smaller buffer takes no less, and a smaller buffer no more.
        assert (np.diff(least_s) >= 0).all()
        assert (np.diff(least_s / nbytes) <= 1e-12 * (least_s / nbytes)[1:]).all()


def test_links_that_slow_no_message_down_change_no_time():
    fewer = 0
    for schedule, machines in _drawn(60):
        every, shared = (
            by_class(traffic_of(schedule, machines, shared_only=only)) for only in (False, True)
        )
        fewer += shared.links.shape[1] < every.links.shape[1]
        sizes = SIZES.tolist()
        took_s = play([every] * len(sizes), sizes).seconds
        assert play([shared] * len(sizes), sizes).seconds == pytest.approx(took_s, rel=1e-9)
    assert fewer


def test_prices_at_a_few_sizes_are_what_playing_them_says(played):
    cluster, sizes = odd(), (3e5, 8e6, 2.6e7)
    costs = collective_costs(cluster, "all_reduce", ("halving_doubling",), Asked(sizes))
    assert sorted(played) == list(sizes)
    schedule = build("all_reduce", "halving_doubling", cluster.world_size)
    expected_s = price_many(schedule, cluster, np.array(sizes))
    assert costs(sizes) == pytest.approx(expected_s, rel=1e-9)
    assert costs.of("halving_doubling").startup_s == pytest.approx(
        float(price_many(schedule, cluster, 1e-6)), rel=1e-6
    )


def test_where_another_is_surely_faster_nothing_is_played(played):
    cluster, sizes = odd(), (1e5, 1e9)
    names = ("ring", "halving_doubling")
    costs = collective_costs(cluster, "all_reduce", names, Asked(sizes))
    assert played == [1e5]
    assert [costs.best(size) for size in sizes] == ["halving_doubling", "ring"]


def test_what_is_far_above_a_rival_is_hardly_played(played):
    cluster = odd()
    costs = collective_costs(cluster)
    of_all, ends = len(played), SIZES
    assert of_all < 50
    played.clear()
    near = collective_costs(cluster, asked=Asked(near=1.05))
    assert len(played) < of_all / 1.5
    assert near(ends) == pytest.approx(costs(ends), rel=CLOSE)
    assert [near.best(size) for size in ends] == [costs.best(size) for size in ends]
    exact = schedule_cost(cluster, "all_reduce", "recursive_doubling")
    few = ends[exact(ends) < 1.05 * costs(ends)]
    assert len(few)
    assert near.of("recursive_doubling")(few) == pytest.approx(exact(few), rel=CLOSE)
