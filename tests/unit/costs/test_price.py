from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.cluster import Cluster, Level
from syncopate.costs.price import levels_apart, price, price_lines, price_many
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.registry import ALGORITHMS, build


def flat(p: int, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0) -> Cluster:
    return Cluster.flat(
        p, latency_s=alpha, bandwidth_bytes_per_s=1 / beta, reduction_s_per_byte=gamma
    )


def toy(p: int, *transfers: tuple, chunks: int = 1) -> Schedule:
    return Schedule("all_reduce", "toy", p, chunks, [Transfer(*t) for t in transfers])


def replay(schedule: Schedule, cluster: Cluster, nbytes: float) -> float:
    """Play the model message by message, in plain Python, at one size."""
    p = schedule.world_size
    entered = [0.0] * p
    sent, received = entered[:], entered[:]
    messages: dict[tuple[int, int, int], list[Transfer]] = {}
    for t in schedule.transfers:
        messages.setdefault((t.round, t.src, t.dst), []).append(t)
    step = -1
    for (round_index, src, dst), parts in messages.items():
        if round_index != step:
            step = round_index
            entered = [max(pair) for pair in zip(sent, received, strict=True)]
            sent, received = entered[:], entered[:]
        level = cluster.level_between(src, dst)
        chunk = nbytes / schedule.chunks
        size = sum(t.stop - t.start for t in parts) * chunk
        added = sum(t.stop - t.start for t in parts if t.op == "reduce") * chunk
        start = max(sent[src], received[dst])
        sent[src] = start + level.latency_s + size / level.bandwidth_bytes_per_s
        received[dst] = sent[src] + added * cluster.reduction_s_per_byte
    return max(*sent, *received)


levels = st.builds(
    Level,
    name=st.just("level"),
    size=st.integers(1, 3),
    latency_s=st.sampled_from([0.0, 1.0, 5.0, 30.0]),
    bandwidth_bytes_per_s=st.sampled_from([0.5, 1.0, 10.0]),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    found = tuple(draw(st.lists(levels, min_size=1, max_size=3)))
    ranks = list(range(math.prod(level.size for level in found)))
    placement = draw(st.one_of(st.just(()), st.permutations(ranks).map(tuple)))
    gamma = draw(st.sampled_from([0.0, 0.1, 3.0]))
    return Cluster(name="any", levels=found, placement=placement, reduction_s_per_byte=gamma)


@st.composite
def schedules(draw: st.DrawFn, p: int) -> Schedule:
    """Draw any schedule: most compute nothing sensible, but all have a price."""
    ranks = st.integers(0, p - 1)
    transfers = []
    for _ in range(draw(st.integers(0, 12)) if p > 1 else 0):
        src, dst = draw(st.lists(ranks, min_size=2, max_size=2, unique=True))
        start = draw(st.integers(0, 3))
        stop = draw(st.integers(start + 1, 4))
        op = draw(st.sampled_from(["copy", "reduce"]))
        transfers.append((draw(st.integers(0, 3)), src, dst, start, stop, op))
    return toy(p, *transfers, chunks=4)


def test_a_message_costs_alpha_beta_and_where_it_is_added_gamma():
    copy, add = ((0, 0, 1, 0, 1, op) for op in ("copy", "reduce"))
    cluster = flat(2, alpha=3.0, beta=2.0, gamma=0.5)
    assert price(toy(2, copy), cluster, 10.0) == 3 + 20
    assert price(toy(2, add), cluster, 10.0) == 3 + 20 + 5


def test_chunks_are_fractions_of_the_buffer():
    assert price(toy(2, (0, 0, 1, 1, 3, "copy"), chunks=4), flat(2), 10.0) == 1 + 5


def test_both_directions_at_once():
    assert price(toy(2, (0, 0, 1, 0, 1, "copy"), (0, 1, 0, 0, 1, "copy")), flat(2), 10.0) == 11


def test_ports_are_taken_in_turn():
    fan_out = toy(3, (0, 0, 1, 0, 1, "copy"), (0, 0, 2, 0, 1, "copy"))
    fan_in = toy(3, (0, 1, 0, 0, 1, "reduce"), (0, 2, 0, 0, 1, "reduce"))
    assert price(fan_out, flat(3), 10.0) == 22
    assert price(fan_in, flat(3, gamma=1.0), 10.0) == 42


def test_transfers_between_two_ranks_in_one_round_are_one_message():
    parts = ((0, 0, 1, 0, 1, "copy"), (0, 0, 1, 2, 4, "reduce"))
    assert price(toy(2, *parts, chunks=4), flat(2, gamma=2.0), 8.0) == 1 + 6 + 2 * 4


def test_rounds_are_no_barriers():
    """Ranks 2 and 3 reach round 1 while 0 and 1 are still in round 0."""
    near = Level(name="near", size=2, latency_s=1.0, bandwidth_bytes_per_s=1e9)
    far = Level(name="far", size=2, latency_s=10.0, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="two", levels=(near, far))
    late = (0, 0, 2, 0, 1, "copy")
    apart = toy(4, (0, 0, 1, 0, 1, "copy"), (1, 0, 2, 0, 1, "copy"), (1, 1, 3, 0, 1, "copy"))
    assert price(apart, cluster, 1e-9) == pytest.approx(11)
    own_pace = toy(4, late, (1, 1, 3, 0, 1, "copy"))
    assert price(own_pace, cluster, 1e-9) == pytest.approx(10)
    waits = toy(4, late, (1, 3, 2, 0, 1, "copy"))
    assert price(waits, cluster, 1e-9) == pytest.approx(11)


def test_nothing_to_send_costs_nothing():
    for key in ALGORITHMS:
        assert price(build(*key, 1), flat(1), 1e6) == 0.0
        assert price(build(*key, 4), flat(4), 0.0) == 0.0
        assert price(build(*key, 4), flat(4), 1e-300) > 0.0


@given(st.data())
def test_the_price_is_what_playing_the_messages_takes(data):
    cluster = data.draw(clusters())
    schedule = data.draw(schedules(cluster.world_size))
    for nbytes in (1e-3, 0.3, 1.0, 7.0, 40.0, 1e4, 1e9):
        expected = replay(schedule, cluster, nbytes)
        assert price(schedule, cluster, nbytes) == pytest.approx(expected, rel=1e-11)


@given(clusters())
def test_registered_algorithms_too(cluster):
    for key in ALGORITHMS:
        schedule = build(*key, cluster.world_size)
        sizes = np.geomspace(1e-2, 1e6, 7)
        expected = [replay(schedule, cluster, nbytes) for nbytes in sizes]
        assert price_many(schedule, cluster, sizes) == pytest.approx(np.array(expected), rel=1e-11)


@given(clusters())
def test_levels_apart_is_level_between(cluster):
    ranks = np.arange(cluster.world_size)
    a, b = (grid.ravel() for grid in np.meshgrid(ranks, ranks))
    found = levels_apart(cluster.levels, cluster.placement, a, b)
    expected = [cluster.level_between(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert [cluster.levels[index] for index in found] == expected


@given(st.data())
def test_lines_bend_upwards_and_each_of_them_shows(data):
    cluster = data.draw(clusters())
    lines = price_lines(data.draw(schedules(cluster.world_size)), cluster)
    slopes = [line.b_s_per_byte for line in lines]
    assert slopes == sorted(set(slopes))
    starts = [line.a_s for line in lines]
    assert starts == sorted(set(starts), reverse=True)


def test_rounding_makes_no_lines():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 are the same start-up, whatever floats say."""
    one, two, three = (
        Level(name="level", size=2, latency_s=alpha, bandwidth_bytes_per_s=1.0)
        for alpha in (0.1, 0.2, 0.3)
    )
    outward = [(0, 0, 1, 0, 1, "copy"), (1, 1, 3, 0, 1, "copy"), (2, 3, 7, 0, 1, "copy")]
    inward = [(0, 6, 2, 0, 2, "copy"), (1, 2, 0, 0, 2, "copy"), (2, 0, 1, 0, 2, "copy")]
    (line,) = price_lines(
        toy(8, *outward, *inward, chunks=2), Cluster(name="three", levels=(one, two, three))
    )
    assert (line.a_s, line.b_s_per_byte) == pytest.approx((0.6, 3.0))


def test_many_sizes_keep_their_shape():
    schedule, cluster = build("all_reduce", "ring", 4), flat(4)
    sizes = np.array([[0, 1], [2, 3], [4, 5]])
    found = price_many(schedule, cluster, sizes)
    assert found.shape == (3, 2)
    assert found.tolist() == [[price(schedule, cluster, n) for n in row] for row in sizes.tolist()]
    assert price_many(schedule, cluster, []).shape == (0,)
    assert price_many(schedule, cluster, 8).shape == ()


def test_lines_are_remembered():
    """Clusters on the same network share them, whatever else they are called."""
    schedule = build("all_reduce", "ring", 4)
    one, two = (Cluster.flat(4, latency_s=2.5, bandwidth_bytes_per_s=7, name=n) for n in "ab")
    assert price_lines(schedule, one) is price_lines(schedule, two)


def test_a_thousand_ranks():
    """Two levels, 2^10 ranks: two million transfers for the ring."""
    device = Level(name="device", size=8, latency_s=1e-6, bandwidth_bytes_per_s=1e11)
    host = Level(name="host", size=128, latency_s=1e-5, bandwidth_bytes_per_s=1e10)
    cluster = Cluster(name="large", levels=(device, host))
    ring, halving, doubling = (
        price_many(build("all_reduce", name, 1024), cluster, [1e2, 1e9])
        for name in ("ring", "halving_doubling", "recursive_doubling")
    )
    assert ring[0] == pytest.approx(2046 * 1e-5, rel=1e-3)
    assert ring[1] == pytest.approx(2046 * (1e-5 + 1e9 / 1024 / 1e10), rel=1e-9)
    assert doubling == pytest.approx(3e-6 + 7e-5 + np.array([1e2, 1e9]) * (3e-11 + 7e-10))
    assert halving[0] < ring[0]
    assert halving[1] < ring[1]


@pytest.mark.parametrize("nbytes", [-1.0, math.nan, math.inf])
def test_impossible_sizes_are_refused(nbytes):
    with pytest.raises(InvalidValueError, match=r"nbytes is .* it must be finite and >= 0"):
        price(build("all_reduce", "ring", 2), flat(2), nbytes)


def test_another_world_is_refused():
    with pytest.raises(InvalidValueError, match="is 4; it must be that of the cluster, 2"):
        price(build("all_reduce", "ring", 4), flat(2), 1.0)
