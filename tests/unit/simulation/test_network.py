"""Other traffic on links, and sums in switches: held against packets sent one by one."""

from __future__ import annotations

import heapq
import math

import pytest
from msgspec import structs

from syncopate.analysis.phases import last_iteration_s
from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, Level, LinearFit
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import served_s_per_byte
from syncopate.costs.model.collective import fixed_cost
from syncopate.costs.model.served import served_costs
from syncopate.delay import Delay, LocalSGD
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.planning.question import predict
from syncopate.simulation import simulate
from syncopate.simulation.network import (
    Aggregation,
    aggregated_costs,
    all_reduce_cost,
    busy,
    served_cost,
)

NBYTES = 100_000_000
PACKETS = 2_000
ALPHA_S = (1e-5, 3e-5, 5e-5)

Stream = list[float]
"""When each packet of a stream is there."""


def cluster(*levels: tuple[str, int, float]) -> Cluster:
    return Cluster(
        name="tree",
        levels=tuple(
            Level(name=name, size=size, latency_s=alpha_s, bandwidth_bytes_per_s=rate)
            for (name, size, rate), alpha_s in zip(levels, ALPHA_S, strict=False)
        ),
    )


STAR = cluster(("host", 8, 1e9))
TREE = cluster(("host", 4, 1e9), ("rack", 3, 2e9))
THIN = cluster(("host", 4, 1e9), ("rack", 3, 0.5e9))
THREE = cluster(("device", 2, 8e9), ("host", 4, 1e9), ("rack", 3, 2e9))


def over(streams: list[Stream], level: Level) -> list[Stream]:
    """Send streams over one link: a packet at a time, the first that is there first."""
    each_s, free_s = NBYTES / PACKETS / level.bandwidth_bytes_per_s, 0.0
    found: list[Stream] = [[] for _ in streams]
    for at_s, which in heapq.merge(*([(t, i) for t in one] for i, one in enumerate(streams))):
        free_s = max(free_s, at_s) + each_s
        found[which].append(free_s + level.latency_s)
    return found


def added(streams: list[Stream], rate: float) -> Stream:
    """Make one stream of several in a switch, a packet of the sum at a time."""
    free_s, found = 0.0, []
    for ready_s in map(max, zip(*streams, strict=True)):
        free_s = max(free_s, ready_s) + (NBYTES / PACKETS / rate if rate < math.inf else 0.0)
        found.append(free_s)
    return found


def sent(where: Cluster, able: Aggregation) -> float:
    """Return how long an all-reduce takes whose packets are sent one by one; units are alike."""
    streams, rate = [[0.0] * PACKETS], able.rate_bytes_per_s
    counts = []
    for level in where.levels:
        counts.append(len(streams))
        streams = over(streams, level) * level.size
        if level.name in able.levels:
            streams = [added(streams, rate)]
    (result,) = streams
    streams = [result]
    for level, count in zip(reversed(where.levels), reversed(counts), strict=True):
        # A switch that aggregates copies the result; another one passes on what is for each unit.
        copies = streams * count if level.name in able.levels else streams[:count]
        streams = over(copies, level)
    return max(max(stream) for stream in streams)


@pytest.mark.parametrize(
    ("where", "levels", "rate", "byte_s"),
    [
        (STAR, ("host",), math.inf, 1e-9),
        (STAR, ("host",), 0.4e9, 2.5e-9),
        (TREE, ("host", "rack"), math.inf, 1e-9),
        (TREE, ("host", "rack"), 0.8e9, 1.25e-9),
        (TREE, ("rack",), math.inf, 2e-9),  # four streams on 2 GB/s
        (THIN, ("host", "rack"), math.inf, 2e-9),
        (THREE, ("host", "rack"), math.inf, 2e-9),  # two devices of each host on 1 GB/s
        (THREE, ("device", "host", "rack"), math.inf, 1e-9),
        (THREE, ("rack",), math.inf, 4e-9),  # eight devices of each rack on 2 GB/s
    ],
)
def test_an_all_reduce_takes_what_its_packets_take(where, levels, rate, byte_s):
    able = Aggregation(levels, rate)
    bound_s = 2 * sum(level.latency_s for level in where.levels) + NBYTES * byte_s
    assert float(all_reduce_cost(where, able)(NBYTES)) == pytest.approx(bound_s, rel=1e-12)
    found_s = sent(where, able)
    assert bound_s <= found_s * (1 + 1e-9)
    assert found_s == pytest.approx(bound_s, rel=6 * len(where.levels) / PACKETS)


def test_what_the_outermost_switch_cannot_add_one_unit_adds():
    # The sums of three racks: that which adds them gets two over its link of 2 GB/s.
    cost = all_reduce_cost(TREE, Aggregation(("host",)))
    assert float(cost(NBYTES)) == pytest.approx(2 * 4e-5 + NBYTES * 1e-9)
    cost = all_reduce_cost(THIN, Aggregation(("host",)))
    assert float(cost(NBYTES)) == pytest.approx(2 * 4e-5 + NBYTES * 4e-9)
    # Twelve hosts' sums in all: eleven into that host, eight into its rack.
    cost = all_reduce_cost(THREE, Aggregation(("device",)))
    assert float(cost(NBYTES)) == pytest.approx(2 * 9e-5 + NBYTES * 11e-9)


UNEVEN = cluster(("host", (2, 5), 1e9), ("rack", 2, 2e9))


@pytest.mark.parametrize(
    ("where", "levels", "byte_s"),
    [
        (UNEVEN, ("host", "rack"), 1e-9),
        (UNEVEN, ("rack",), 2.5e-9),  # five streams of the larger rack on 2 GB/s
        # Three sums, of which one unit adds up the others': two over its link of 1 GB/s, and one
        # into the unit around it that holds two of the three.
        (cluster(("a", (2, 1, 1), 4e9), ("b", (1, 2), 1e9), ("c", 2, 1e9)), ("a",), 2e-9),
        (cluster(("a", (2, 1, 1), 4e9), ("b", (1, 2), 4e9), ("c", 2, 1e9)), ("a",), 1e-9),
    ],
)
def test_of_unequal_units_the_one_with_most_streams_counts(where, levels, byte_s):
    cost = all_reduce_cost(where, Aggregation(levels))
    startup_s = 2 * sum(level.latency_s for level in where.levels)
    assert float(cost(NBYTES)) == pytest.approx(startup_s + NBYTES * byte_s)


def test_servers_get_one_stream_where_switches_add():
    def cost(levels, servers, where=STAR, rate=math.inf):
        return float(served_cost(where, Aggregation(levels, rate), servers)(NBYTES))

    assert cost(("host",), 1) == pytest.approx(1e-5 + NBYTES * 1e-9)
    assert cost(("host",), 4, rate=0.5e9) == pytest.approx(1e-5 + NBYTES * 2e-9)
    # Racks that pass on four streams each, which the outermost switch adds up.
    assert cost(("rack",), 1, TREE) == pytest.approx(3e-5 + NBYTES * 2e-9)
    # Racks that add: three sums come to the server.
    assert cost(("host",), 1, TREE) == pytest.approx(3e-5 + NBYTES * 1.5e-9)
    for where in (STAR, TREE, THREE):
        none = cluster(*((f"{lv.name}s", lv.size, lv.bandwidth_bytes_per_s) for lv in where.levels))
        alone = replace_first(none)
        for servers in (1, 3, 100):
            expected_s = served_s_per_byte(alone, servers) * NBYTES
            found_s = cost(("alone",), servers, alone) - alone.levels[-1].latency_s
            assert found_s == pytest.approx(expected_s)


def replace_first(where: Cluster) -> Cluster:
    """The same behind a level of single units, whose switches have nothing to add."""
    alone = Level(name="alone", size=1, latency_s=0.0, bandwidth_bytes_per_s=1e12)
    return structs.replace(where, levels=(alone, *where.levels))


WORKLOAD = Workload(
    model="one",
    tensors=(GradientTensor(name="w", numel=NBYTES // 4, backward_s=0.01),),
    forward_s=0.01,
    backward_s=0.01,
)


def test_a_plan_is_played_on_switches_that_add():
    plan = make_plan(WORKLOAD, TREE, exchange="allreduce")
    able = Aggregation(("host", "rack"))
    costs = aggregated_costs(TREE, plan, able)
    found = simulate(WORKLOAD, plan, TREE, costs=costs)
    assert found.duration_s == pytest.approx(0.02 + 2 * 4e-5 + NBYTES * 1e-9)
    # Twelve workers' gradients go to one server over 2 GB/s; of their sum it gets one.
    served = make_plan(WORKLOAD, TREE, exchange="served", costs=served_costs(TREE, 1))
    for told, byte_s in ((None, 6e-9), (aggregated_costs(TREE, served, able), 1e-9)):
        found = simulate(WORKLOAD, served, TREE, costs=told, iterations=2)
        lasting_s = [span.duration_s for span in found.kept if span.lane == "push"]
        assert lasting_s == pytest.approx([3e-5 + NBYTES * byte_s] * 2)


@pytest.mark.parametrize("where", [STAR, TREE])
@pytest.mark.parametrize(
    ("told", "delay"),
    [
        ({"exchange": "allreduce"}, None),
        ({"exchange": "allreduce", "channels": 2}, None),
        ({"exchange": "allreduce", "wire_dtype": "bfloat16"}, None),
        ({"exchange": "allreduce"}, LocalSGD(period=4)),
        ({"exchange": "served"}, None),
        ({"exchange": "served"}, Delay(k=4)),
    ],
)
def test_switches_that_add_may_be_faster_than_ranks_could_exchange_their_gradients(
    where, told, delay
):
    plan = make_plan(WORKLOAD, where, **told)
    plan = plan if delay is None else plan.delayed(delay)
    able = Aggregation(("host", "rack")[: len(where.levels)])
    costs = aggregated_costs(where, plan, able)
    found, alone = (predict(WORKLOAD, plan, where, costs) for costs in (costs, None))
    share = 0.5 if plan.wire_dtype else 1.0
    period = 4 if isinstance(delay, LocalSGD) else 1
    assert found.bound_s == pytest.approx(max(0.02, NBYTES * 1e-9 * share / period))
    assert found.bound_s <= found.iteration_s <= alone.iteration_s
    if delay is None:
        played = simulate(WORKLOAD, plan, where, costs=costs, iterations=4)
        assert found.iteration_s == pytest.approx(last_iteration_s(played))


def test_other_exchanges_and_levels_are_refused():
    plan = make_plan(WORKLOAD, TREE, exchange="sharded")
    with pytest.raises(InvalidValueError, match="'sharded'; it must be allreduce or served"):
        aggregated_costs(TREE, plan, Aggregation(("host",)))
    with pytest.raises(UnknownNameError, match="unknown level 'pod' for tree; known: host, rack"):
        all_reduce_cost(TREE, Aggregation(("pod",)))
    with pytest.raises(InvalidValueError, match="one at least that joins several units"):
        all_reduce_cost(replace_first(TREE), Aggregation(("alone",)))
    with pytest.raises(InvalidValueError, match=r"servers is 0"):
        served_cost(TREE, Aggregation(("host",)), 0)
    with pytest.raises(InvalidValueError, match=r"levels that aggregate is \(\)"):
        Aggregation(())
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidValueError, match="switch rate"):
            Aggregation(("host",), rate)


def test_other_traffic_takes_its_share_of_a_level():
    found = busy(TREE, {"rack": 0.75})
    assert [level.bandwidth_bytes_per_s for level in found.levels] == [1e9, 0.5e9]
    assert found.metadata == {"background": "rack=0.75"}
    plan = make_plan(WORKLOAD, STAR, "single", exchange="allreduce", algorithm="ring")
    quiet, loud = (
        simulate(WORKLOAD, plan, where).duration_s for where in (STAR, busy(STAR, {"host": 0.5}))
    )
    ring_s = 14 / 8 * NBYTES * 1e-9
    assert loud - quiet == pytest.approx(ring_s)
    for share in (1.0, -0.1, math.nan):
        with pytest.raises(InvalidValueError, match=r"background on level host is"):
            busy(STAR, {"host": share})
    with pytest.raises(UnknownNameError, match="unknown level 'x' for tree; known: host"):
        busy(STAR, {"x": 0.1})


@pytest.mark.parametrize("algorithm", ["ring", "native", "recursive_doubling"])
def test_what_was_measured_lasts_longer_as_the_price_does(algorithm):
    sizes = (1_000, 1_000_000)
    curve = CollectiveCurve(
        collective="all_reduce",
        algorithm=algorithm,
        points=tuple(CurvePoint(nbytes=n, samples_s=(n * 1e-8, n * 2e-8)) for n in sizes),
        fit=LinearFit(a_s=0.0, b_s_per_byte=1.5e-8),
    )
    measured = structs.replace(STAR, curves=(curve,))
    (found,) = busy(measured, {"host": 0.5}).curves
    name = "ring" if algorithm == "native" else algorithm
    for n, point in zip(sizes, found.points, strict=True):
        slow, fast = (
            float(fixed_cost(where, "all_reduce", name, {})(n))
            for where in (busy(STAR, {"host": 0.5}), STAR)
        )
        assert point.samples_s == pytest.approx([n * 1e-8 * slow / fast, n * 2e-8 * slow / fast])
    assert found.fit.b_s_per_byte == pytest.approx(1.5e-8 * slow / fast)
    assert 1.0 < slow / fast <= 2.0
