from __future__ import annotations

import math

import pytest

from syncopate.costs.model.bound import wire_s
from syncopate.costs.schedule.congestion import congestion_lines
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.lab.network import namespaces, shape_of
from syncopate.lab.topology import PLACEMENTS, TCP_GOODPUT, Topology
from syncopate.schedules.registry import build

GBIT = 1e9 / 8


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"hosts": 0}, "hosts is 0; it must be an integer in 1..250"),
        ({"hosts": 251}, "hosts is 251"),
        ({"ranks_per_host": 0}, "ranks per host is 0"),
        ({"hosts": 100, "ranks_per_host": 3}, "an integer in 1..2 on 100 hosts"),
        ({"hosts": 6, "racks": 4}, "racks is 4; it must be a divisor of the 6 hosts: 1, 2, 3, 6"),
        ({"racks": 0}, "racks is 0"),
        ({"rate_bytes_per_s": 0.0}, "between 1.00 Mbit/s and 32.00 Gbit/s"),
        ({"rate_bytes_per_s": math.nan}, "rate is nan"),
        ({"rate_bytes_per_s": 5e9}, "rate is 5000000000.0"),
        ({"uplink_bytes_per_s": GBIT}, "left out with one rack"),
        ({"hosts": 2, "racks": 2, "uplink_bytes_per_s": -1.0}, "uplink is -1.0"),
        ({"hosts": 2, "host_rates_bytes_per_s": (GBIT,)}, "one for each of 2 hosts"),
        ({"hosts": 2, "host_rates_bytes_per_s": (GBIT, 1.0)}, "rate of host 1 is 1.0"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(fields, complaint):
    with pytest.raises(InvalidValueError) as caught:
        Topology(**fields)
    assert complaint in str(caught.value)


def test_an_unknown_placement_is_refused():
    with pytest.raises(UnknownNameError, match=r"unknown placement 'random'; known: blocked, alt"):
        Topology(placement="random")


def test_ranks_fill_hosts_and_hosts_fill_racks():
    blocked = Topology(hosts=6, ranks_per_host=2, racks=3)
    assert [blocked.host_of(rank) for rank in range(12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [blocked.hosts_of(rack) for rack in range(3)] == [(0, 1), (2, 3), (4, 5)]
    alternating = Topology(hosts=6, racks=3, placement="alternating")
    assert [alternating.hosts_of(rack) for rack in range(3)] == [(0, 3), (1, 4), (2, 5)]
    with pytest.raises(InvalidValueError, match=r"rank is 12; it must be in 0\.\.11"):
        blocked.host_of(12)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_host_is_in_one_rack(placement):
    topology = Topology(hosts=8, racks=4, placement=placement)
    members = [topology.hosts_of(rack) for rack in range(4)]
    assert sorted(host for rack in members for host in rack) == list(range(8))
    assert all(topology.rack_of(host) == rack for rack in range(4) for host in members[rack])


def test_addresses_and_names_are_distinct():
    topology = Topology(hosts=250, racks=2)
    addresses = {topology.address(host) for host in range(250)}
    assert len(addresses) == 250
    assert topology.address(249) == "10.0.0.250"
    assert topology.hostname(3) == "host3"
    names = namespaces("0a1b2c", topology)
    assert len(set(names)) == 253
    assert {"syn0a1b2ch0", "syn0a1b2crack1", "syn0a1b2ccore"} <= set(names)
    assert "syn0a1b2ccore" not in namespaces("0a1b2c", Topology(hosts=2))


def test_hosts_may_have_their_own_rates():
    topology = Topology(hosts=3, rate_bytes_per_s=GBIT).with_host_rates({1: GBIT / 10})
    assert [topology.rate_of(host) for host in range(3)] == [GBIT, GBIT / 10, GBIT]
    assert topology.describe() == "3 hosts x 1 rank at 100.00 Mbit/s to 1.00 Gbit/s"
    with pytest.raises(InvalidValueError, match=r"host is 3; it must be in 0\.\.2"):
        topology.with_host_rates({3: GBIT})
    with pytest.raises(InvalidValueError, match="rate of host 0"):
        topology.with_host_rates({0: 0.0})


def test_an_uplink_is_as_wide_as_its_rack_unless_given():
    assert Topology(hosts=4, racks=2, rate_bytes_per_s=GBIT).uplink_of(0) == 2 * GBIT
    narrow = Topology(hosts=4, racks=2, uplink_bytes_per_s=GBIT / 2)
    assert narrow.uplink_of(1) == GBIT / 2
    assert narrow.describe().endswith("in 2 racks (blocked) with uplinks of 500.00 Mbit/s")


def test_a_flat_topology_is_a_cluster_of_one_level():
    cluster = Topology(hosts=4, rate_bytes_per_s=GBIT).cluster()
    (level,) = cluster.levels
    assert (level.name, level.size) == ("host", 4)
    assert level.bandwidth_bytes_per_s == pytest.approx(GBIT * TCP_GOODPUT)
    assert cluster.hosts == ("host0", "host1", "host2", "host3")


def test_the_cluster_has_the_ranks_where_the_lab_puts_them():
    topology = Topology(
        hosts=4, ranks_per_host=2, racks=2, uplink_bytes_per_s=GBIT / 2, placement="alternating"
    )
    cluster = topology.cluster()
    assert [(level.name, level.size) for level in cluster.levels] == [
        ("device", 2),
        ("host", 2),
        ("rack", 2),
    ]
    assert cluster.levels[2].bandwidth_bytes_per_s == pytest.approx(GBIT / 2 * TCP_GOODPUT)
    for a in range(8):
        for b in range(8):
            here, there = topology.host_of(a), topology.host_of(b)
            name = (
                "device"
                if here == there
                else "host"
                if topology.rack_of(here) == topology.rack_of(there)
                else "rack"
            )
            assert cluster.level_between(a, b).name == name


@pytest.mark.parametrize("uplink", [None, 2 * GBIT])
def test_an_uplink_wider_than_a_host_holds_up_no_host(uplink):
    topology = Topology(hosts=8, racks=2, rate_bytes_per_s=GBIT, uplink_bytes_per_s=uplink)
    cluster = topology.cluster()
    wide = (uplink or 4 * GBIT) * TCP_GOODPUT
    assert cluster.levels[1].bandwidth_bytes_per_s == pytest.approx(wide)
    flat = Topology(hosts=8, rate_bytes_per_s=GBIT).cluster()
    ring = build("all_reduce", "ring", 8)
    assert price(ring, cluster, 1e8) == pytest.approx(price(ring, flat, 1e8), rel=1e-2)
    assert wire_s(cluster, 1e8) == pytest.approx(wire_s(flat, 1e8))
    # Neighbours in turn: all four hosts of a rack send across its uplink.
    apart = build("all_reduce", "ring", 8, order=(0, 4, 1, 5, 2, 6, 3, 7))
    (line,) = congestion_lines(apart, cluster)
    assert line.b_s_per_byte == pytest.approx(4 * 1.75 / wide)


def test_a_slow_host_holds_up_the_nominal_cluster():
    topology = Topology(hosts=2, rate_bytes_per_s=GBIT).with_host_rates({0: GBIT / 10})
    assert topology.cluster().levels[0].bandwidth_bytes_per_s == pytest.approx(
        GBIT / 10 * TCP_GOODPUT
    )


@pytest.mark.parametrize("hosts", [1, 2])
def test_one_host_per_rack_needs_no_host_level(hosts):
    cluster = Topology(hosts=hosts, racks=hosts).cluster()
    assert [level.name for level in cluster.levels] == [["host"], ["rack"]][hosts - 1]
    assert cluster.world_size == hosts


@pytest.mark.parametrize("mbit", [1, 100, 1000, 10_000, 32_000])
def test_a_segment_always_fits_the_bucket(mbit):
    """A segment larger than the bucket would be cut up in software; see [Note: shaping]."""
    shape = shape_of(mbit * 1e6 / 8)
    assert 1514 <= shape.segment_bytes < 64 * 1024
    assert shape.segment_bytes <= shape.burst_bytes / 2
    assert shape.queue_bytes > 2 * shape.burst_bytes
