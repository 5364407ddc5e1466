"""What the docstrings of the algorithms promise: rounds, bytes, ports, and the drawings."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.cluster import Cluster, Level
from syncopate.costs.price import levels_apart
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.registry import ALGORITHMS, build

SIZES = (*range(1, 20), 24, 31, 32, 33, 96, 100)


def log2_floor(p: int) -> int:
    return p.bit_length() - 1


def log2_ceil(p: int) -> int:
    return (p - 1).bit_length()


def sent_shares(schedule: Schedule) -> np.ndarray:
    """Return what each rank sends, in buffers."""
    table = schedule.table
    chunks = np.bincount(table.src, weights=table.stop - table.start, minlength=schedule.world_size)
    return chunks / schedule.chunks


@pytest.mark.parametrize("p", SIZES)
def test_rounds(p):
    folded = 0 if p & (p - 1) == 0 else 2
    expected = {
        ("all_reduce", "ring"): 2 * (p - 1),
        ("all_reduce", "recursive_doubling"): log2_floor(p) + folded,
        ("all_reduce", "halving_doubling"): 2 * log2_ceil(p),
        ("all_reduce", "binary_tree"): 2 * log2_ceil(p),
        ("reduce_scatter", "ring"): p - 1,
        ("reduce_scatter", "recursive"): log2_ceil(p),
        ("all_gather", "ring"): p - 1,
        ("all_gather", "recursive"): log2_ceil(p),
    }
    assert {key: build(*key, p).rounds for key in ALGORITHMS} == expected


@pytest.mark.parametrize("p", SIZES)
def test_bandwidth_optimal_algorithms_send_the_least_possible(p):
    for name in ("ring", "halving_doubling"):
        assert sent_shares(build("all_reduce", name, p)) == pytest.approx(2 * (p - 1) / p)
    for collective in ("reduce_scatter", "all_gather"):
        for name in ("ring", "recursive"):
            assert sent_shares(build(collective, name, p)) == pytest.approx((p - 1) / p)


@pytest.mark.parametrize("p", SIZES)
def test_tree_sends(p):
    doubling = sent_shares(build("all_reduce", "recursive_doubling", p))
    if p & (p - 1) == 0:
        assert (doubling == log2_floor(p)).all()
    tree = sent_shares(build("all_reduce", "binary_tree", p))
    assert tree.sum() == 2 * (p - 1)
    assert tree[0] == log2_ceil(p)


@pytest.mark.parametrize("key", list(ALGORITHMS), ids="-".join)
def test_a_rank_sends_to_one_and_receives_from_one_in_a_round(key):
    for p in SIZES:
        table = build(*key, p).table
        messages = set(
            zip(table.round.tolist(), table.src.tolist(), table.dst.tolist(), strict=True)
        )
        assert len({(step, src) for step, src, _ in messages}) == len(messages)
        assert len({(step, dst) for step, _, dst in messages}) == len(messages)


def test_a_message_of_halving_is_at_most_two_ranges():
    for key in (("all_reduce", "halving_doubling"), ("reduce_scatter", "recursive")):
        for p in SIZES:
            table = build(*key, p).table
            _, counts = np.unique(np.stack([table.round, table.src]), axis=1, return_counts=True)
            assert counts.max(initial=1) <= (1 if p & (p - 1) == 0 else 2)


def test_ring_as_drawn():
    chunks = {
        rank: [t.start for t in build("all_reduce", "ring", 4).transfers if t.src == rank]
        for rank in range(4)
    }
    assert chunks == {
        0: [3, 2, 1, 0, 3, 2],
        1: [0, 3, 2, 1, 0, 3],
        2: [1, 0, 3, 2, 1, 0],
        3: [2, 1, 0, 3, 2, 1],
    }


def test_recursive_doubling_folds_neighbours():
    assert tuple(build("all_reduce", "recursive_doubling", 3).transfers) == (
        Transfer(0, 1, 0, 0, 1, "reduce"),
        Transfer(1, 0, 2, 0, 1, "reduce"),
        Transfer(1, 2, 0, 0, 1, "reduce"),
        Transfer(2, 0, 1, 0, 1, "copy"),
    )


def test_halving_doubling_as_drawn():
    schedule = build("all_reduce", "halving_doubling", 4)
    assert [
        (t.round, t.dst, t.stop - t.start, t.op) for t in schedule.of_rank(0) if t.src == 0
    ] == [
        (0, 1, 2, "reduce"),
        (1, 2, 1, "reduce"),
        (2, 2, 1, "copy"),
        (3, 1, 2, "copy"),
    ]


@pytest.mark.parametrize("hosts", [2, 3, 5, 6, 8])
def test_halving_doubling_exchanges_the_large_messages_within_the_host(hosts):
    """With 2^k ranks per host only 1/2^k of the buffer is left when messages leave the host."""
    levels = (
        Level(name="device", size=4, latency_s=0, bandwidth_bytes_per_s=1),
        Level(name="host", size=hosts, latency_s=0, bandwidth_bytes_per_s=1),
    )
    schedule = build("all_reduce", "halving_doubling", Cluster(name="", levels=levels).world_size)
    table = schedule.table
    far = levels_apart(levels, (), table.src.astype(int), table.dst.astype(int)) == 1
    share = (table.stop - table.start)[far].sum() / schedule.chunks / schedule.world_size
    assert share == pytest.approx(2 * (hosts - 1) / hosts / 4)
