"""Schedules made out of schedules: groups, other names, other orders."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.errors import InvalidValueError
from syncopate.schedules.algorithms import ring
from syncopate.schedules.base import (
    COPY,
    REDUCE,
    Schedule,
    Transfers,
    rounds_of,
    rows,
    stacked,
)
from syncopate.schedules.checker import check
from syncopate.schedules.compose import (
    by_element,
    embedded,
    in_turn,
    relabelled,
    renamed,
    shifted,
    topology_order,
)
from syncopate.schedules.factors import cluster_factors, default_factors
from syncopate.schedules.registry import build

PAIR = rows(0, [0, 1], [1, 0], ([1, 0], [2, 1]), REDUCE)


def level(size: int) -> Level:
    return Level(name="", size=size, latency_s=0.0, bandwidth_bytes_per_s=1.0)


def test_groups_run_at_once():
    found = embedded(PAIR, [[0, 2], [1, 3]], [[[0, 1], [2, 3]], [[4, 5], [6, 7]]])
    assert found.tolist() == [
        [0, 0, 2, 2, 4, REDUCE],
        [0, 1, 3, 6, 8, REDUCE],
        [0, 2, 0, 0, 2, REDUCE],
        [0, 3, 1, 4, 6, REDUCE],
    ]


def test_scattered_chunks_stay_apart_and_adjacent_ones_are_joined():
    whole = rows(0, 0, 1, (0, 4), COPY)
    assert renamed(whole, [5, 6], [0, 1, 3, 4]).tolist() == [
        [0, 5, 6, 0, 2, COPY],
        [0, 5, 6, 3, 5, COPY],
    ]
    assert renamed(whole, [5, 6], [3, 2, 1, 0]).tolist() == [[0, 5, 6, 0, 4, COPY]]


def test_nothing_composed_is_nothing():
    nothing = stacked([])
    assert len(embedded(nothing, [[0]], [[[0]]])) == 0
    assert len(in_turn([])) == len(in_turn([nothing, nothing])) == 0


def test_in_turn_and_shifted():
    both = in_turn([PAIR, PAIR])
    assert rounds_of(both) == 2
    assert (both[2:] == shifted(PAIR, 1)).all()
    assert shifted(PAIR, 3, 10)[:, :5].tolist() == [[3, 0, 1, 11, 12], [3, 1, 0, 10, 11]]
    assert rounds_of(PAIR) == 1


def test_relabelling_keeps_the_shard_with_the_rank():
    for name in ("ring", "recursive", "hierarchical"):
        for collective in ("reduce_scatter", "all_gather"):
            check(relabelled(build(collective, name, 6), (3, 1, 5, 0, 4, 2)))


def test_a_shard_of_several_chunks_moves_as_a_whole():
    table = ring.reduce_scatter(3).table.table
    twice = embedded(table, [[0, 1, 2]], [[[0, 1], [2, 3], [4, 5]]])
    schedule = Schedule("reduce_scatter", "ring", 3, 6, Transfers(twice))
    check(schedule)
    found = relabelled(schedule, (2, 0, 1))
    check(found)
    assert (found.algorithm, found.chunks) == ("ring", 6)
    assert relabelled(found, (1, 2, 0)) == schedule


def test_relabelling_moves_the_root():
    found = relabelled(build("broadcast", "lp", 4, root=1, blocks=2), (2, 0, 3, 1))
    assert found.root == 0
    check(found)
    assert build("broadcast", "lp", 4, root=3, order=(2, 0, 3, 1)).root == 3


def test_relabelling_and_back():
    order = np.array([4, 2, 0, 1, 3])
    schedule = build("all_gather", "ring", 5)
    back = np.argsort(order).tolist()
    assert relabelled(relabelled(schedule, order.tolist()), back) == schedule


def test_a_ring_in_topology_order_enters_every_rack_once():
    cluster = Cluster(name="", levels=(level(4), level(2)), placement=(0, 2, 4, 6, 1, 3, 5, 7))
    order = topology_order(cluster)
    table = build("all_reduce", "ring", 8, order=order).table
    crossing = {(a, b) for a, b in zip(table.src.tolist(), table.dst.tolist(), strict=True)}
    assert {(a, b) for a, b in crossing if a % 2 != b % 2} == {(6, 1), (7, 0)}
    assert topology_order(Cluster(name="", levels=(level(3),))) == (0, 1, 2)


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_no_order(order):
    with pytest.raises(InvalidValueError, match=r"a permutation of the ranks 0\.\.2"):
        relabelled(ring.all_reduce(3), order)


def test_by_element():
    found = by_element(ring.all_gather(3), (0, 4, 4, 9))
    # Nobody sends chunk 1, which is empty.
    assert [(t.round, t.src, t.dst, t.start, t.stop) for t in found.transfers] == [
        (0, 0, 1, 0, 4),
        (0, 2, 0, 4, 9),
        (1, 0, 1, 4, 9),
        (1, 1, 2, 0, 4),
    ]
    assert (found.collective, found.algorithm, found.chunks) == ("all_gather", "ring", 9)


@pytest.mark.parametrize("numel", [0, 2**31])
def test_elements_that_no_table_can_count(numel):
    with pytest.raises(InvalidValueError, match="count in larger units"):
        by_element(ring.all_gather(2), (0, numel // 3, numel))


def test_factors():
    assert [default_factors(p) for p in (1, 2, 4, 6, 7, 12, 16, 17, 192)] == [
        (1,),
        (2,),
        (2, 2),
        (2, 3),
        (7,),
        (3, 4),
        (4, 4),
        (17,),
        (12, 16),
    ]
    assert cluster_factors(Cluster(name="", levels=(level(1), level(4), level(2)))) == (4, 2)
