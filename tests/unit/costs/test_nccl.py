"""NCCL: which way it takes by size, and its curves on other clusters."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.model.collective import collective_costs
from syncopate.costs.nccl.curves import Measured, carried, curve_of, priced, with_native
from syncopate.costs.nccl.tuning import (
    LL,
    NVLINK,
    RING,
    SIMPLE,
    TREE,
    Layout,
    Way,
    believed_bytes_per_s,
    chosen,
    expected_s,
)
from syncopate.errors import InvalidValueError, UnknownNameError

BOXES = Layout(nodes=8, per_node=4, link_bytes_per_s=1.25e9)


def test_what_nccl_expects_is_its_formula_by_hand():
    """8 nodes of 4, a link that NCCL takes for 1.2 GB/s: 1200 bytes a microsecond."""
    ring_us = 8.4 + 62 * 6.6 + 1e6 / (1200 * 32 / 62)
    assert expected_s(1e6, BOXES, Way(RING, SIMPLE)) == pytest.approx(ring_us * 1e-6)
    # 4096 / 64 is the 6th power of two, for which LL trees reach 0.7 of their bandwidth.
    tree_us = 4.4 + 2 * (3 * 1.0 + 3 * 5.0) + 4096 / (1200 * 0.9 / 3 / 2 * 0.7)
    assert expected_s(4096, BOXES, Way(TREE, LL)) == pytest.approx(tree_us * 1e-6)


def test_inside_one_node_steps_take_what_its_links_do():
    one = Layout(nodes=1, per_node=4, link_bytes_per_s=12e9, inside=NVLINK)
    assert expected_s(64, one, Way(RING, LL)) == pytest.approx(
        (3.6 + 6 * 0.4 + 64 / (12000 / 4 * 4 / 6)) * 1e-6
    )


@pytest.mark.parametrize(
    ("nodes", "last_tree", "last_ll"), [(8, 8192, 65536), (4, 1024, 32768), (2, 0, 16384)]
)
def test_trees_carry_small_messages_of_many_nodes_and_rings_the_rest(nodes, last_tree, last_ll):
    layout = BOXES._replace(nodes=nodes)
    ways = {2**power: chosen(2**power, layout) for power in range(6, 31)}
    assert {n for n, way in ways.items() if way.algorithm == TREE} == {
        n for n in ways if n <= last_tree
    }
    assert {n for n, way in ways.items() if way.protocol == LL} == {n for n in ways if n <= last_ll}


def test_nccl_believes_a_link_to_have_a_speed_of_its_table():
    believed = [believed_bytes_per_s(rate) for rate in (1.25e9, 12.5e9, 1e6, 50e9)]
    assert believed == [1.2e9, 12e9, 0.12e9, 24e9]


def test_steps_and_bytes_that_cross_the_network():
    assert Way(RING, LL).network_steps(2, 4) == 3.5
    assert Way(TREE, LL).network_steps(2, 4) == 2
    assert Way(RING, SIMPLE).network_steps(1, 4) == 0
    assert Way(RING, SIMPLE).network_bytes(32, 32) == 62
    assert Way(TREE, LL).network_bytes(32, 32) == 128


def test_a_measured_curve_stays_as_it_was_on_its_own_cluster():
    points = ((64, 2.4e-4), (16384, 9e-4), (1 << 27, 0.2219))
    curve = carried(Measured(BOXES, points), BOXES)
    assert [point.nbytes for point in curve.points] == [64, 16384, 1 << 27]
    assert [point.expected_s for point in curve.points] == pytest.approx([s for _, s in points])
    assert (curve.collective, curve.algorithm) == ("all_reduce", "native")


def test_on_fewer_nodes_steps_become_fewer_and_bytes_less():
    rate = 62 / 32 * (1 << 27) / 0.2219
    seconds = dict.fromkeys((64, 1 << 20), 5e-3) | {1 << 27: 0.2219}
    curve = carried(Measured(BOXES, tuple(seconds.items())), BOXES._replace(nodes=2))
    small, middle, large = (point.expected_s for point in curve.points)
    # A tree of 6 steps becomes a ring with 3.5 steps across the network.
    assert small == pytest.approx((5e-3 - 2 * 2 * 64 / rate) * 3.5 / 6 + 2 * 14 / 8 * 64 / rate)
    assert middle == pytest.approx(
        (5e-3 - 62 / 32 * (1 << 20) / rate) * 7 / 31 + 14 / 8 * (1 << 20) / rate
    )
    assert large == pytest.approx(14 / 8 * (1 << 27) / rate)


def test_another_network_of_the_same_transport_has_its_own_bandwidth():
    measured = Measured(BOXES, ((1 << 20, 5e-3), (1 << 27, 0.2219)))
    other = BOXES._replace(link_bytes_per_s=12.5e9)
    curve = carried(measured, other, bus_bytes_per_s=2.4e9)
    assert curve.points[-1].expected_s == pytest.approx(62 / 32 * (1 << 27) / 2.4e9)
    beside_s = 5e-3 - 62 / 32 * (1 << 20) / measured.bus_bytes_per_s
    assert curve.points[0].expected_s == pytest.approx(beside_s + 62 / 32 * (1 << 20) / 2.4e9)


def levels(nodes: int, per_node: int = 4) -> Cluster:
    return Cluster(
        name="boxes",
        levels=(
            Level(name="device", size=per_node, latency_s=3e-6, bandwidth_bytes_per_s=12e9),
            Level(name="host", size=nodes, latency_s=40e-6, bandwidth_bytes_per_s=1.25e9),
        ),
    )


def test_a_price_is_the_latency_of_each_step_and_the_bytes_of_the_narrowest_link():
    points = {point.nbytes: point.expected_s for point in priced(levels(8)).points}
    tree_s = 6 * 40e-6 + 6 * 3e-6 + 4 * 64 / 1.25e9
    assert points[64] == pytest.approx(tree_s)
    ring_s = 15.5 * 40e-6 + 46.5 * 3e-6 + 62 / 32 * (1 << 24) / 1.25e9
    assert points[1 << 24] == pytest.approx(ring_s)


def test_a_cluster_with_a_native_curve_is_priced_by_it_alone():
    cluster = with_native(levels(8), curve_of([(4, 1e-3), (1 << 20, 2e-3), (1 << 24, 32e-3)]))
    costs = collective_costs(cluster)
    assert costs.names == ("native",)
    assert float(costs(1 << 20)) == 2e-3
    assert float(costs(17 << 19)) == pytest.approx(17e-3)  # half way to 16 MiB


def test_what_nccl_cannot_run_on_is_refused():
    with pytest.raises(InvalidValueError, match="at least two GPUs"):
        chosen(64, Layout(nodes=1, per_node=1, link_bytes_per_s=1e9))
    with pytest.raises(InvalidValueError, match="nbytes is 0"):
        chosen(0, BOXES)
    with pytest.raises(UnknownNameError, match="known: pcie, nvlink"):
        chosen(64, BOXES._replace(inside="usb"))
    with pytest.raises(InvalidValueError, match="at least 2: steps cross a network"):
        carried(Measured(BOXES, ((64, 1e-3),)), BOXES._replace(nodes=1))
    with pytest.raises(InvalidValueError, match="at least one size"):
        carried(Measured(BOXES, ()), BOXES)
    with pytest.raises(InvalidValueError, match="bus_bytes_per_s is 0"):
        carried(Measured(BOXES, ((64, 1e-3),)), BOXES, bus_bytes_per_s=0)
