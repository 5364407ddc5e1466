"""What the docstrings of the algorithms promise: rounds, bytes, ports, and the drawings."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.schedule.links import Machines
from syncopate.schedules.algorithms.linear_pipeline import DEFAULT_BLOCKS
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.factors import default_factors
from syncopate.schedules.registry import ALGORITHMS, build
from tests.unit.schedules.play import drawn_rounds

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
    log, blocks = log2_ceil(p), DEFAULT_BLOCKS
    chain = p - 2 + blocks if p > 1 else 0
    node, *nodes = default_factors(p)
    by_levels = log2_ceil(node) + sum(map(log2_ceil, nodes))
    leaders = 4 * log2_ceil(node) + 2 * (nodes[0] - 1) if nodes else 2 * (p - 1)
    expected = {
        ("all_reduce", "ring"): 2 * (p - 1),
        ("all_reduce", "recursive_doubling"): log2_floor(p) + folded,
        ("all_reduce", "halving_doubling"): 2 * log,
        ("all_reduce", "binary_tree"): 2 * log,
        ("all_reduce", "mst"): 2 * log,
        ("all_reduce", "be"): 2 * log,
        ("all_reduce", "flat_tree"): 2 * (p - 1),
        ("all_reduce", "lp"): 2 * chain - 1 if p > 2 else (p - 1) * (blocks + 1),
        ("all_reduce", "two_level"): leaders,
        ("all_reduce", "blueconnect"): 2 * by_levels,
        ("reduce_scatter", "ring"): p - 1,
        ("reduce_scatter", "recursive"): log,
        ("reduce_scatter", "hierarchical"): by_levels,
        ("all_gather", "ring"): p - 1,
        ("all_gather", "recursive"): log,
        ("all_gather", "hierarchical"): by_levels,
        ("broadcast", "mst"): log,
        ("broadcast", "flat_tree"): p - 1,
        ("broadcast", "be"): 2 * log,
        ("broadcast", "lp"): chain,
        ("reduce", "mst"): log,
        ("reduce", "flat_tree"): p - 1,
        ("reduce", "be"): 2 * log,
        ("reduce", "lp"): chain,
    }
    assert {key: build(*key, p).rounds for key in expected} == expected


@pytest.mark.parametrize("p", SIZES)
def test_bandwidth_optimal_algorithms_send_the_least_possible(p):
    for name in ("ring", "halving_doubling", "be", "blueconnect"):
        assert sent_shares(build("all_reduce", name, p)) == pytest.approx(2 * (p - 1) / p)
    for collective in ("reduce_scatter", "all_gather"):
        for name in ("ring", "recursive", "hierarchical"):
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
@pytest.mark.parametrize("p", SIZES)
def test_a_rank_sends_to_one_and_receives_from_one_in_a_round(key, p):
    table = build(*key, p).table
    messages = set(zip(table.round.tolist(), table.src.tolist(), table.dst.tolist(), strict=True))
    assert len({(step, src) for step, src, _ in messages}) == len(messages)
    assert len({(step, dst) for step, _, dst in messages}) == len(messages)


@pytest.mark.parametrize(
    "key", [("all_reduce", "halving_doubling"), ("reduce_scatter", "recursive")]
)
def test_a_message_of_halving_is_at_most_two_ranges(key):
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
    far = Machines(levels).apart(table.src.astype(int), table.dst.astype(int)) == 1
    share = (table.stop - table.start)[far].sum() / schedule.chunks / schedule.world_size
    assert share == pytest.approx(2 * (hosts - 1) / hosts / 4)


def test_mst_as_drawn():
    assert drawn_rounds(build("broadcast", "mst", 6)) == [
        "round 0  0 -> 4",
        "round 1  0 -> 2    4 -> 5",
        "round 2  0 -> 1    2 -> 3",
    ]
    assert drawn_rounds(build("reduce", "mst", 6, root=5)) == [
        "round 0  3 +> 2    4 +> 5",
        "round 1  1 +> 0    2 +> 5",
        "round 2  0 +> 5",
    ]


@pytest.mark.parametrize("hosts", [1, 2, 3, 5, 6])
def test_mst_sends_far_first_and_cuts_no_host(hosts):
    """Hosts of four: whatever the root, every host is entered once."""
    for root in range(4 * hosts):
        table = build("broadcast", "mst", 4 * hosts, root).table
        assert np.count_nonzero(table.src // 4 != table.dst // 4) == hosts - 1


def test_linear_pipeline_as_drawn():
    """LP, Fig. 2: 3 ranks and 4 blocks take 5 steps, and an all-reduce 9 rather than 10."""
    assert drawn_rounds(build("broadcast", "lp", 3, blocks=4)) == [
        "round 0  0 -> 1 [0]",
        "round 1  0 -> 1 [1]    1 -> 2 [0]",
        "round 2  0 -> 1 [2]    1 -> 2 [1]",
        "round 3  0 -> 1 [3]    1 -> 2 [2]",
        "round 4  1 -> 2 [3]",
    ]
    assert drawn_rounds(build("all_reduce", "lp", 3, blocks=4)) == [
        "round 0  2 +> 1 [0]",
        "round 1  1 +> 0 [0]    2 +> 1 [1]",
        "round 2  1 +> 0 [1]    2 +> 1 [2]",
        "round 3  1 +> 0 [2]    2 +> 1 [3]",
        "round 4  0 -> 1 [0]    1 +> 0 [3]",
        "round 5  0 -> 1 [1]    1 -> 2 [0]",
        "round 6  0 -> 1 [2]    1 -> 2 [1]",
        "round 7  0 -> 1 [3]    1 -> 2 [2]",
        "round 8  1 -> 2 [3]",
    ]


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("blocks", [1, 2, 3, 10])
def test_pipelines_at_every_number_of_blocks(p, blocks):
    chain = p - 2 + blocks
    assert build("broadcast", "lp", p, blocks=blocks).rounds == chain
    assert build("reduce", "lp", p, root=p - 1, blocks=blocks).rounds == chain
    both = 2 * chain - 1 if p > 2 and blocks > 1 else (p - 1) * (blocks + 1)
    assert build("all_reduce", "lp", p, blocks=blocks).rounds == both


@pytest.mark.parametrize("p", [3, 4, 9])
def test_no_order_along_a_chain_takes_fewer_rounds(p):
    """The root's neighbour receives 2 B blocks, from round p - 3 on, and p - 2 hops follow."""
    for blocks in (2, 5):
        table = build("all_reduce", "lp", p, blocks=blocks).table
        arrivals = np.sort(table.round[table.dst == 1])
        assert arrivals.tolist() == list(range(p - 3, p - 3 + 2 * blocks))


def test_two_level_leaders_alone_cross():
    table = build("all_reduce", "two_level", 12, factors=(4, 3)).table
    crossing = table.src // 4 != table.dst // 4
    assert set(table.src[crossing].tolist()) == {0, 4, 8}


def test_blueconnect_as_drawn():
    schedule = build("all_reduce", "blueconnect", 4)
    assert [
        (t.round, t.dst, t.stop - t.start, t.op) for t in schedule.of_rank(0) if t.src == 0
    ] == [(0, 1, 2, "reduce"), (1, 2, 1, "reduce"), (2, 2, 1, "copy"), (3, 1, 2, "copy")]


@pytest.mark.parametrize("factors", [(2, 3), (3, 2, 4), (4, 1, 3), (5, 2)])
def test_blueconnect_sends_little_over_outer_levels(factors):
    """At level i each rank sends 2 (p_i - 1) / (p_0 .. p_i) of the buffer, there and back."""
    levels = tuple(
        Level(name="", size=size, latency_s=0, bandwidth_bytes_per_s=1) for size in factors
    )
    p = int(np.prod(factors))
    for collective, name, ways in (
        ("all_reduce", "blueconnect", 2),
        ("reduce_scatter", "hierarchical", 1),
        ("all_gather", "hierarchical", 1),
    ):
        schedule = build(collective, name, p, factors=factors)
        table = schedule.table
        apart = Machines(levels).apart(table.src.astype(int), table.dst.astype(int))
        share = np.bincount(apart, table.stop - table.start, len(factors)) / schedule.chunks / p
        inner = np.cumprod((1, *factors))
        expected = [ways * (size - 1) / inner[i + 1] for i, size in enumerate(factors)]
        assert share == pytest.approx(expected)


@pytest.mark.parametrize("factors", [(2, 4), (2, 2, 2), (4, 4)])
def test_blueconnect_messages_are_ranges(factors):
    """What is left after a stage is one range, so that no message is scattered in pieces."""
    p = int(np.prod(factors))
    table = build("all_reduce", "blueconnect", p, factors=factors).table
    messages = np.stack([table.round, table.src, table.dst])
    assert np.unique(messages, axis=1).shape[1] == len(table)


def test_pipelines_keep_different_stages_busy_at_once():
    schedule = build("all_reduce", "blueconnect", 6, factors=(3, 2), pipelines=3)
    table = schedule.table
    near = table.src // 3 == table.dst // 3
    stages = [
        {
            (int(chunk), bool(inside))
            for chunk, inside in zip(table.start[now] // 6, near[now], strict=True)
        }
        for now in (table.round == step for step in range(schedule.rounds))
    ]
    assert schedule.chunks == 18
    assert stages == [
        {(0, True)},
        {(0, True)},
        {(0, False), (1, True)},
        {(1, True)},
        {(1, False), (2, True)},
        {(2, True)},
        {(0, False)},
        {(2, False)},
        {(0, True)},
        {(0, True), (1, False)},
        {(1, True)},
        {(1, True), (2, False)},
        {(2, True)},
        {(2, True)},
    ]
