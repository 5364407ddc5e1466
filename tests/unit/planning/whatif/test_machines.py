"""Machines: the clusters of settings, by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.whatif.machines import (
    DEVICE,
    GPU_REDUCTION_S_PER_BYTE,
    cluster_of,
    linked,
    on_device,
    setting_of,
    settled,
)
from tests.unit import examples

FLAT = Cluster.preset("10gbe", 8)
RACKS = Cluster(
    name="racks",
    levels=(
        Level(name="device", size=2, latency_s=5e-6, bandwidth_bytes_per_s=10e9),
        Level(name="host", size=4, latency_s=20e-6, bandwidth_bytes_per_s=2e9),
        Level(name="rack", size=3, latency_s=40e-6, bandwidth_bytes_per_s=4e9),
    ),
)


def _sizes(cluster: Cluster) -> list[int]:
    return [level.size for level in cluster.levels]


def _rates(cluster: Cluster) -> list[float]:
    return [level.bandwidth_bytes_per_s for level in cluster.levels]


@pytest.mark.parametrize("cluster", [FLAT, RACKS, examples.cluster()], ids=lambda c: c.name)
def test_the_setting_of_a_cluster_gives_its_links_back(cluster):
    setting = setting_of(cluster)
    assert setting.ranks == cluster.world_size
    assert cluster_of(cluster, setting).levels == cluster.levels


def test_a_setting_says_nodes_links_and_oversubscription():
    found = setting_of(RACKS, batch=16)
    assert (found.nodes, found.gpus_per_node, found.batch) == (12, 2, 16)
    assert (found.bandwidth_bytes_per_s, found.latency_s) == (2e9, 20e-6)
    assert found.oversubscription == 4 * 2e9 / 4e9


def test_what_was_measured_on_one_cluster_is_left_behind():
    found = cluster_of(examples.cluster(), setting_of(examples.cluster()))
    assert (found.curves, found.probes, found.placement, found.hosts) == ((), (), (), ())
    assert found.interference == examples.cluster().interference
    assert found.reduction_s_per_byte == examples.cluster().reduction_s_per_byte


@pytest.mark.parametrize(
    ("nodes", "sizes"), [(12, [2, 4, 3]), (24, [2, 4, 6]), (4, [2, 4, 1]), (3, [2, 3, 1])]
)
def test_more_nodes_fill_more_racks_and_fewer_a_part_of_one(nodes, sizes):
    assert _sizes(cluster_of(RACKS, replace(setting_of(RACKS), nodes=nodes))) == sizes


def test_nodes_that_fill_no_racks_are_refused():
    with pytest.raises(InvalidValueError, match="nodes is 6; it must be fewer than 4 or a multip"):
        cluster_of(RACKS, replace(setting_of(RACKS), nodes=6))


def test_a_cluster_of_unequal_racks_grows_by_copies_of_itself():
    device, host, rack = RACKS.levels
    uneven = replace(RACKS, levels=(device, replace(host, size=(3, 5)), replace(rack, size=2)))
    today = setting_of(uneven)
    assert (today.nodes, today.gpus_per_node, today.oversubscription) == (8, 2, 4 * 2e9 / 4e9)
    assert cluster_of(uneven, today).levels == uneven.levels
    assert _sizes(cluster_of(uneven, replace(today, nodes=16))) == [2, (3, 5, 3, 5), 4]
    with pytest.raises(InvalidValueError, match="nodes is 12; it must be a multiple of the 8"):
        cluster_of(uneven, replace(today, nodes=12))
    assert _sizes(cluster_of(uneven, replace(today, gpus_per_node=4))) == [4, (3, 5), 2]


def test_hosts_of_unequally_many_gpus_are_counted_in_the_mean():
    device, host, _ = RACKS.levels
    uneven = replace(RACKS, levels=(replace(device, size=(4, 1)), replace(host, size=2)))
    today = setting_of(uneven)
    assert (today.nodes, today.gpus_per_node, today.ranks) == (2, 2.5, 5)
    assert today.said("gpus_per_node") == "2.5 GPUs a node"
    assert cluster_of(uneven, replace(today, nodes=6)).world_size == 15


def test_links_keep_the_shape_of_the_network():
    found = cluster_of(
        RACKS, replace(setting_of(RACKS), bandwidth_bytes_per_s=6e9, latency_s=10e-6)
    )
    assert _rates(found) == [10e9, 6e9, 12e9]
    assert [level.latency_s for level in found.levels] == [5e-6, 10e-6, 20e-6]


def test_oversubscription_sets_the_outermost_links():
    assert _rates(cluster_of(RACKS, replace(setting_of(RACKS), oversubscription=1.0)))[2] == 8e9
    assert _rates(cluster_of(RACKS, replace(setting_of(RACKS), oversubscription=8.0)))[2] == 1e9
    with pytest.raises(InvalidValueError, match="1 on a cluster with one level of hosts"):
        cluster_of(FLAT, replace(setting_of(FLAT), oversubscription=2.0))


def test_gpus_of_a_node_get_a_level_where_there_is_none():
    found = cluster_of(FLAT, replace(setting_of(FLAT), gpus_per_node=4))
    assert found.levels[0] == replace(DEVICE, size=4)
    assert (found.world_size, found.host_count, found.ranks_per_host) == (32, 8, 4)
    assert _sizes(cluster_of(RACKS, replace(setting_of(RACKS), gpus_per_node=8))) == [8, 4, 3]
    with pytest.raises(InvalidValueError, match="gpus_per_node"):
        cluster_of(FLAT, replace(setting_of(FLAT), gpus_per_node=0))


def test_gpus_fill_whole_switches():
    inner = Level(name="switch", size=2, latency_s=8e-6, bandwidth_bytes_per_s=8e9)
    boxes = replace(RACKS, levels=(RACKS.levels[0], inner, *RACKS.levels[1:]))
    assert _sizes(cluster_of(boxes, replace(setting_of(boxes), gpus_per_node=8))) == [2, 4, 4, 3]
    with pytest.raises(InvalidValueError, match="a multiple of the 2 GPUs on each device"):
        cluster_of(boxes, replace(setting_of(boxes), gpus_per_node=5))


def test_one_level_changes_by_its_name_alone():
    levels = (("rack.bandwidth", 1e9), ("device.latency", 1e-6))
    found = cluster_of(RACKS, replace(setting_of(RACKS), levels=levels))
    assert _rates(found) == [10e9, 2e9, 1e9]
    assert found.levels[0].latency_s == 1e-6
    with pytest.raises(UnknownNameError, match=r"unknown level 'spine\.bandwidth'"):
        cluster_of(RACKS, replace(setting_of(RACKS), levels=(("spine.bandwidth", 1.0),)))


def test_ranks_of_a_typical_network_add_where_they_compute():
    assert on_device(FLAT, "cpu") is FLAT
    assert on_device(FLAT, "") is FLAT
    assert on_device(FLAT, "cuda").reduction_s_per_byte == GPU_REDUCTION_S_PER_BYTE


@pytest.mark.parametrize("what", ["bandwidth", "latency"])
def test_a_setting_says_what_its_levels_say(what):
    """A host's link by its level's name is that link alone; another link keeps the shape of all."""
    field = {"bandwidth": "bandwidth_bytes_per_s", "latency": "latency_s"}[what]
    today = setting_of(RACKS)
    link, rack = (getattr(level, field) for level in RACKS.levels[-2:])
    found = settled(RACKS, replace(today, levels=((f"host.{what}", 3 * link),)))
    assert getattr(found, field) == 3 * link
    there = cluster_of(RACKS, found)
    assert [getattr(level, field) for level in there.levels[-2:]] == [3 * link, rack]
    assert found.oversubscription == setting_of(there).oversubscription
    wider = cluster_of(RACKS, linked(RACKS, found, what, 6 * link))
    assert [getattr(level, field) for level in wider.levels[-2:]] == [6 * link, 2 * rack]
    within = settled(RACKS, replace(today, levels=((f"device.{what}", 1e-3),)))
    kept = linked(RACKS, within, what, 2 * link)
    assert kept.levels == ((f"device.{what}", 1e-3),)
    assert settled(RACKS, today) == today


def test_hosts_in_unequal_racks_may_have_other_gpus_and_unequal_hosts_not():
    racks = FLAT.in_racks((3, 5), uplink_bytes_per_s=2e9)
    today = setting_of(racks)
    assert _sizes(cluster_of(racks, replace(today, gpus_per_node=4))) == [4, (3, 5), 2]
    twice = cluster_of(racks, replace(today, gpus_per_node=4, nodes=16))
    assert _sizes(twice) == [4, (3, 5, 3, 5), 4]
    hosts = replace(racks, levels=(replace(DEVICE, size=(2,) * 7 + (3,)), *racks.levels))
    with pytest.raises(InvalidValueError, match=r"gpus_per_node is 4; it must be 2\.125, as"):
        cluster_of(hosts, replace(setting_of(hosts), gpus_per_node=4))
    assert cluster_of(hosts, setting_of(hosts)).levels == hosts.levels
