"""Prices of recorded messages: those of the cost model, with what stands in where it has none."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.artifacts.timelines.network import Message
from syncopate.costs.model.collective import collective_costs, schedule_cost
from syncopate.costs.model.replayed import ClusterNetwork, comparable, part_of
from syncopate.costs.model.served import served_costs
from syncopate.errors import InvalidValueError, UnknownNameError
from tests.unit import examples

MIB = 1 << 20
GB = 1e9

HOSTS = Cluster(
    name="hosts",
    levels=(
        Level(name="device", size=2, latency_s=1e-6, bandwidth_bytes_per_s=10 * GB),
        Level(name="host", size=4, latency_s=1e-4, bandwidth_bytes_per_s=GB),
    ),
)


@pytest.mark.parametrize(
    ("collective", "algorithm", "stands_in"),
    [
        ("all_reduce", "ring", "ring"),
        ("all_reduce", "native", "ring"),
        ("reduce_scatter", "", "ring"),
        ("reduce", "gloo:reduce", "mst"),
        ("broadcast", "lp", "lp"),
    ],
)
def test_a_message_takes_what_its_algorithm_does(collective, algorithm, stands_in):
    price = ClusterNetwork(HOSTS).price(Message(collective, algorithm, MIB))
    cost = schedule_cost(HOSTS, collective, stands_in)
    assert price.alone_s == pytest.approx(float(cost(MIB)))
    assert 0 < price.startup_s < price.alone_s
    assert price.crowded_s == price.bytes_s


def test_measured_curves_are_believed():
    cluster = examples.cluster()
    price = ClusterNetwork(cluster).price(Message("all_reduce", "ring", MIB))
    assert price.alone_s == pytest.approx(float(collective_costs(cluster).of("ring")(MIB)))
    # Of an algorithm that was not measured, the cheapest that was.
    price = ClusterNetwork(cluster).price(Message("all_reduce", "native", MIB))
    assert price.alone_s == pytest.approx(float(collective_costs(cluster)(MIB)))


def test_only_clusters_that_know_the_same_are_compared():
    measured, other = examples.cluster(), Cluster.preset("10gbe", 4)
    assert comparable(measured, measured) == (measured, measured)
    assert [one.curves for one in comparable(measured, other)] == [(), ()]


def test_some_ranks_are_a_cluster_of_their_own():
    assert part_of(HOSTS, ()) is HOSTS
    sizes = {
        (0, 1): (2, 1),
        (0, 2, 4, 6): (1, 4),
        (0, 1, 4, 5): (2, 2),
        (0, 1, 2): ((2, 1), 2),
    }
    for ranks, expected in sizes.items():
        assert tuple(level.size for level in part_of(HOSTS, ranks).levels) == expected
    inside = ClusterNetwork(HOSTS).price(Message("all_reduce", "ring", MIB, (0, 1)))
    across = ClusterNetwork(HOSTS).price(Message("all_reduce", "ring", MIB, (0, 2)))
    assert inside.bytes_s == pytest.approx(across.bytes_s / 10, rel=1e-6)


@pytest.mark.parametrize("servers", [1, 2, 4, 8])
def test_all_workers_at_once_take_what_a_push_is_priced_at(servers):
    network = ClusterNetwork(HOSTS, servers)
    for collective in ("send", "receive"):
        price = network.price(Message(collective, "served", MIB))
        whole_s = float(
            served_costs(HOSTS, servers)[collective].of("served").fixed({"servers": servers})(MIB)
        )
        assert price.startup_s + price.crowded_s == pytest.approx(whole_s)
        # One worker alone is as fast as its own link, that of its host's two ranks, lets it be.
        assert price.bytes_s == pytest.approx(2 * MIB / GB)
    assert network.pool == pytest.approx(2 * servers)


def test_messages_of_two_ranks_and_one_by_one():
    network = ClusterNetwork(HOSTS)
    send = network.price(Message("send", "", MIB, (0, 2)))
    assert send == (1e-4, pytest.approx(MIB / GB), pytest.approx(MIB / GB))
    every = network.price(Message("all_to_all", "", MIB))
    assert every.startup_s == pytest.approx(7e-4)
    assert every.bytes_s == pytest.approx(MIB * 7 / 8 / GB)


def test_nothing_costs_nothing_and_nonsense_is_refused():
    assert ClusterNetwork(HOSTS).price(Message("all_reduce", "ring", 0)).alone_s == 0
    assert ClusterNetwork(HOSTS).price(Message("all_reduce", "ring", 9, (3,))).alone_s == 0
    with pytest.raises(UnknownNameError, match="unknown collective 'gossip'"):
        ClusterNetwork(HOSTS).price(Message("gossip", "", 1))
    with pytest.raises(InvalidValueError, match="servers is -1"):
        ClusterNetwork(HOSTS, -1)
