from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.schedule.links import Machines
from syncopate.costs.schedule.price import path_lines, price, price_many
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.compose import topology_order
from syncopate.schedules.registry import ALGORITHMS, build, fitted
from tests.unit.costs.flows.oracle import replay


def flat(p: int, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0) -> Cluster:
    return Cluster.flat(
        p, latency_s=alpha, bandwidth_bytes_per_s=1 / beta, reduction_s_per_byte=gamma
    )


def toy(p: int, *transfers: tuple, chunks: int = 1) -> Schedule:
    return Schedule("all_reduce", "toy", p, chunks, [Transfer(*t) for t in transfers])


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


@pytest.mark.parametrize("key", ALGORITHMS)
def test_nothing_to_send_costs_nothing(key):
    assert price(build(*key, 1), flat(1), 1e6) == 0.0
    assert price(build(*key, 4), flat(4), 0.0) == 0.0
    assert price(build(*key, 4), flat(4), 1e-300) > 0.0


@settings(max_examples=50)
@given(st.data())
def test_the_price_is_what_playing_the_messages_takes(data):
    cluster = data.draw(clusters())
    schedule = data.draw(schedules(cluster.world_size))
    sizes = np.array([1e-3, 1.0, 7.0, 40.0, 1e9])
    expected = [replay(schedule, cluster, nbytes) for nbytes in sizes]
    assert price_many(schedule, cluster, sizes) == pytest.approx(np.array(expected), rel=1e-9)


@settings(max_examples=30)
@given(clusters(), st.sampled_from(list(ALGORITHMS)))
def test_registered_algorithms_too(cluster, key):
    assume(cluster.world_size <= 12)
    options = {"blocks": 3} if "blocks" in ALGORITHMS[key].options else {}
    if "pipelines" in ALGORITHMS[key].options:
        options = fitted(*key, cluster) | {"pipelines": 2}
    schedule = build(*key, cluster.world_size, **options)
    sizes = np.geomspace(1e-2, 1e6, 3)
    expected = [replay(schedule, cluster, nbytes) for nbytes in sizes]
    assert price_many(schedule, cluster, sizes) == pytest.approx(np.array(expected), rel=1e-9)


@given(clusters())
def test_levels_apart_is_level_between(cluster):
    ranks = np.arange(cluster.world_size)
    a, b = (grid.ravel() for grid in np.meshgrid(ranks, ranks))
    found = Machines.of(cluster).apart(a, b)
    expected = [cluster.level_between(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert [cluster.levels[index] for index in found] == expected


@given(st.data())
def test_lines_bend_upwards_and_each_of_them_shows(data):
    cluster = data.draw(clusters())
    lines = path_lines(data.draw(schedules(cluster.world_size)), cluster)
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
    (line,) = path_lines(
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
    assert path_lines(schedule, one) is path_lines(schedule, two)


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
    # The eight ranks of a host share its link.
    assert doubling == pytest.approx(3e-6 + 7e-5 + np.array([1e2, 1e9]) * (3e-11 + 7 * 8e-10))
    # An eighth of the buffer is left when messages leave the host, eight at a time.
    inside, across = 2 * 7 / 8 / 1e11, 2 * 127 / 128 / 1e10
    assert halving == pytest.approx(6e-6 + 14e-5 + np.array([1e2, 1e9]) * (inside + across))


def network(*sizes: int, rates: tuple[float, ...], placement: tuple[int, ...] = ()) -> Cluster:
    found = tuple(
        Level(name="", size=size, latency_s=0.0, bandwidth_bytes_per_s=rate)
        for size, rate in zip(sizes, rates, strict=True)
    )
    return Cluster(name="", levels=found, placement=placement)


def test_the_ranks_of_a_host_share_its_link():
    """Four hosts of two: both ranks of host 0 send to host 1 at once, then to different hosts."""
    hosts = network(2, 4, rates=(10.0, 1.0))
    alone = toy(8, (0, 0, 2, 0, 1, "copy"))
    both = toy(8, (0, 0, 2, 0, 1, "copy"), (0, 1, 3, 0, 1, "copy"))
    apart = toy(8, (0, 0, 2, 0, 1, "copy"), (0, 1, 4, 0, 1, "copy"))
    opposite = toy(8, (0, 0, 2, 0, 1, "copy"), (0, 3, 1, 0, 1, "copy"))
    later = toy(8, (0, 0, 2, 0, 1, "copy"), (1, 1, 3, 0, 1, "copy"))
    inside = toy(8, (0, 0, 2, 0, 1, "copy"), (0, 3, 1, 0, 1, "copy"), (0, 4, 5, 0, 1, "copy"))
    assert price(alone, hosts, 10.0) == 10
    assert price(both, hosts, 10.0) == 20
    assert price(apart, hosts, 10.0) == 20
    assert price(opposite, hosts, 10.0) == 10
    assert price(later, hosts, 10.0) == 20  # rounds are no barriers: both are on their way at once
    assert price(inside, hosts, 10.0) == 10


def test_a_small_message_is_through_before_a_large_one():
    hosts = network(2, 2, rates=(1e9, 1.0))
    small, large = (0, 0, 2, 0, 1, "copy"), (0, 1, 3, 0, 3, "copy")
    after_small = toy(4, small, large, (1, 2, 3, 0, 4, "copy"), chunks=4)
    assert price(toy(4, small, large, chunks=4), hosts, 4.0) == 4
    assert price(after_small, hosts, 4.0) == pytest.approx(4, rel=1e-6)
    own_pace = toy(4, small, large, (1, 2, 0, 0, 1, "copy"), chunks=4)
    assert price(own_pace, hosts, 4.0) == 4  # small through at 2, its answer at 3


def test_a_rack_is_no_faster_than_its_hosts():
    """A fat up-link carries many hosts at once, but no host faster than its own link."""
    racks = network(4, 2, rates=(1.0, 4.0))
    assert price(toy(8, (0, 0, 4, 0, 1, "copy")), racks, 8.0) == 8
    all_cross = toy(8, *[(0, r, r + 4, 0, 1, "copy") for r in range(4)])
    assert price(all_cross, racks, 8.0) == 8
    assert price(all_cross, network(4, 2, rates=(1.0, 1.0)), 8.0) == 32


def test_levels_work_at_the_same_time_and_share_the_ranks_own_link():
    inner, outer = (0, 0, 1, 0, 1, "copy"), (0, 0, 2, 0, 1, "copy")
    fast = network(2, 2, rates=(10.0, 1.0))
    assert price(toy(4, inner, outer), fast, 10.0) == 10
    equal = network(2, 2, rates=(1.0, 1.0))
    assert price(toy(4, inner, outer), equal, 10.0) == 20


@pytest.mark.parametrize("key", ALGORITHMS)
def test_one_rank_per_host_costs_what_a_flat_network_costs(key):
    """Levels of one unit have no links, wherever they are."""
    schedule = build(*key, 6)
    plain = network(6, rates=(2.0,))
    single = network(1, 6, 1, rates=(0.1, 2.0, 0.1))
    assert path_lines(schedule, plain) == path_lines(schedule, single)


ZIGZAG = (0, 2, 4, 6, 1, 3, 5, 7)
"""Two racks of four hosts, launched alternately: even ranks in one, odd ranks in the other."""


def test_a_ring_that_zigzags_between_racks_takes_four_times_as_long():
    racks = network(4, 2, rates=(125e6, 125e6), placement=ZIGZAG)
    zigzag = price(build("all_reduce", "ring", 8), racks, 1e8)
    ordered = price(build("all_reduce", "ring", 8, order=topology_order(racks)), racks, 1e8)
    assert zigzag == pytest.approx(4 * ordered)
    assert ordered == pytest.approx(2 * 7 / 8 * 1e8 / 125e6)


@pytest.mark.parametrize(("inner_rate", "blueconnect_wins"), [(125e6, False), (1e9, True)])
def test_blueconnect_pays_off_where_inner_links_are_faster(inner_rate, blueconnect_wins):
    racks = network(4, 2, rates=(inner_rate, 125e6), placement=ZIGZAG)
    ring, blueconnect, flat = (
        price(build("all_reduce", name, 8, **fitted("all_reduce", name, racks)), racks, 1e8)
        for name in ("ring", "blueconnect", "halving_doubling")
    )
    assert (blueconnect < ring) == blueconnect_wins
    assert blueconnect == pytest.approx(2 * (3 / 4 / inner_rate + 1 / 2 / 125e6) * 1e8)
    assert blueconnect == pytest.approx(flat)


def test_pipelines_pay_off_where_levels_take_as_long():
    """Inner and outer stages of two message chunks overlap; on equal links they cannot."""
    overlap = network(2, 2, rates=(2.0, 1.0))
    one, four = (
        price(build("all_reduce", "blueconnect", 4, factors=(2, 2), pipelines=m), overlap, 8.0)
        for m in (1, 4)
    )
    assert four < 0.9 * one


@pytest.mark.parametrize("nbytes", [-1.0, math.nan, math.inf])
def test_impossible_sizes_are_refused(nbytes):
    with pytest.raises(InvalidValueError, match=r"nbytes is .* it must be finite and >= 0"):
        price(build("all_reduce", "ring", 2), flat(2), nbytes)


def test_another_world_is_refused():
    with pytest.raises(InvalidValueError, match="is 4; it must be that of the cluster, 2"):
        price(build("all_reduce", "ring", 4), flat(2), 1.0)
