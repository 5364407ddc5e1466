from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Handling, Level
from syncopate.costs.model.collective import schedule_cost
from syncopate.costs.schedule.execution import Executions, execution_cost, execution_times
from syncopate.costs.schedule.loads import block_counts, loads
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.blocks import block_count
from syncopate.schedules.registry import build, candidates
from syncopate.units import KIB, MIB


def cluster(p: int, *, burst: float = 0.0, **handling: float) -> Cluster:
    level = Level(
        name="host", size=p, latency_s=50e-6, bandwidth_bytes_per_s=1e8, burst_bytes=burst
    )
    return Cluster(name="c", levels=(level,), handling=(Handling(**handling),) if handling else ())


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "recursive_doubling"])
@pytest.mark.parametrize("nbytes", [8 * KIB, 128 * KIB])
def test_whole_messages_in_step_cost_what_the_papers_say(name: str, nbytes):
    schedule, plain = build("all_reduce", name, 8), cluster(8)
    found = float(execution_times(schedule, plain, nbytes))
    assert found == pytest.approx(price(schedule, plain, nbytes), rel=1e-9)


def test_blocks_go_on_before_the_rest_has_come():
    schedule, plain = build("broadcast", "lp", 4, blocks=1), cluster(4)
    found = float(execution_times(schedule, plain, 16 * MIB))
    assert found == pytest.approx((16 + 2) * MIB / 1e8, rel=1e-2)


def test_a_burst_hides_what_it_holds_and_processors_add_to_it():
    schedule = build("all_gather", "ring", 4)
    free = float(execution_times(schedule, cluster(4, burst=64 * KIB, call_s=1e-3), 64 * KIB))
    assert free == pytest.approx(1e-3 + 3 * 50e-6)
    busy = cluster(4, burst=64 * KIB, call_s=1e-3, round_s=2e-4)
    assert float(execution_times(schedule, busy, 64 * KIB)) == pytest.approx(1e-3 + 3 * 2e-4)


def test_transfers_are_charged_as_additions_where_they_are_added_alone():
    def added(collective: str) -> float:
        schedule = build(collective, "ring", 4)
        rounds = loads(schedule, cluster(4), np.array([64.0]), 4)
        return sum(float(work.added.sum()) for _, work in rounds)

    # Three rounds of four transfers each; an all-reduce has both kinds.
    assert added("reduce_scatter") == 12
    assert added("all_gather") == 0
    assert added("all_reduce") == 12


def test_empty_chunks_are_not_sent():
    schedule = build("all_gather", "ring", 8)
    assert float(execution_times(schedule, cluster(8), 0)) == 0
    alone = execution_times(schedule, cluster(8, round_s=8e-3), [4, 32])
    assert alone[0] == pytest.approx(alone[1] / 8)


def test_the_curve_never_decreases_and_is_the_cost_of_a_calibrated_cluster():
    measured = cluster(8, burst=60e3, call_s=1e-3, round_s=2e-4, stream_s=1e-4, byte_s=1e-9)
    pieces = execution_cost(build("all_reduce", "ring", 8), measured)
    sizes = np.geomspace(4, 1e8, 200)
    assert (np.diff(pieces(sizes)) >= 0).all()
    assert np.allclose(schedule_cost(measured, "all_reduce", "ring")(sizes), pieces(sizes))


def test_block_counts_are_the_executors():
    sizes = [0, 1, 256 * KIB, 256 * KIB + 1, 2 * MIB, 2 * MIB + 1, 64 * MIB, 100 * MIB]
    assert block_counts(np.array(sizes, float)).tolist() == [block_count(n) for n in sizes]


def test_schedules_played_side_by_side_take_what_each_takes_alone():
    """Of different lengths, ports and chunks, some of which are empty, and more than once."""
    inner = Level(name="device", size=2, latency_s=5e-6, bandwidth_bytes_per_s=2e9)
    hosts = structs.replace(cluster(4, burst=56 * KIB).levels[0], latency_s=7e-5)
    both = Cluster(name="c", levels=(inner, hosts), reduction_s_per_byte=3e-11)
    schedules = [
        build(collective, name, 8)
        for collective in ("all_reduce", "all_gather", "broadcast")
        for name in candidates(collective, both)
    ]
    sizes = [4, 40, 64 * KIB, 4 * MIB] * 2
    slow = Handling(call_s=1e-3, round_s=2e-4, stream_s=9e-5, byte_s=1e-9, exposed=0.4)
    played = Executions(schedules, both, sizes)
    for fast in (Handling(), Handling(burst_byte_s=3e-10, addition_s=4e-5, left_over=0.2)):
        entries = [slow] * 4 + [fast] * 4
        alone = [execution_times(one, both, sizes, handling=entries) for one in schedules]
        assert np.allclose(played.times(entries), alone, rtol=1e-12, atol=0)


def test_what_cannot_be_played_is_refused():
    schedule = build("all_reduce", "ring", 4)
    with pytest.raises(InvalidValueError, match="nbytes"):
        execution_times(schedule, cluster(4), -1.0)
    with pytest.raises(InvalidValueError, match="world size"):
        execution_times(schedule, cluster(3), 4.0)


MEASURED = {
    "call_s": 1e-3,
    "round_s": 2e-4,
    "stream_s": 1e-4,
    "addition_s": 5e-5,
    "byte_s": 1e-9,
    "burst_byte_s": 3e-10,
    "exposed": 0.3,
    "left_over": 0.4,
}
SIZES = (4, 4 * KIB, 100 * KIB, MIB, 5 * MIB)


@pytest.mark.parametrize("figure", MEASURED)
def test_no_figure_makes_anything_cheaper(figure: str):
    less = cluster(8, burst=56 * KIB, **MEASURED)
    more = cluster(8, burst=56 * KIB, **MEASURED | {figure: 2 * MEASURED[figure]})
    felt = False
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for name in candidates(collective, less):
            schedule = build(collective, name, 8)
            low, high = (execution_times(schedule, each, SIZES) for each in (less, more))
            assert (high >= low * (1 - 1e-12)).all(), (collective, name)
            felt |= bool((high > low).any())
    assert felt


def test_sizes_side_by_side_cost_what_they_cost_alone_with_their_own_handling():
    schedule, plain = build("all_reduce", "halving_doubling", 6), cluster(6, burst=56 * KIB)
    handling = [Handling(**MEASURED | {"call_s": k * 1e-3}) for k in range(len(SIZES))]
    together = execution_times(schedule, plain, SIZES, handling=handling)
    for nbytes, entry, found in zip(SIZES, handling, together, strict=True):
        alone = structs.replace(plain, handling=(entry,))
        assert found == pytest.approx(float(execution_times(schedule, alone, nbytes)), rel=1e-12)


def test_the_root_and_the_order_of_ranks_do_not_matter_on_one_level():
    """But for who starts last."""
    measured = cluster(7, burst=56 * KIB, **MEASURED | {"call_s": 0.0})
    expected = execution_times(build("broadcast", "mst", 7), measured, SIZES)
    for root in range(7):
        schedule = build("broadcast", "mst", 7, root, order=(3, 1, 4, 0, 5, 6, 2))
        assert execution_times(schedule, measured, SIZES) == pytest.approx(expected)


@pytest.mark.parametrize("call_s", [1e-4, 2e-3])
def test_ranks_start_one_after_the_other(call_s: float):
    """The last one at ``call_s``; some of what the others do meanwhile is done by then."""
    together = cluster(8, burst=56 * KIB, **MEASURED | {"call_s": 0.0})
    spread = cluster(8, burst=56 * KIB, **MEASURED | {"call_s": call_s})
    hidden = False
    for collective in ("all_reduce", "all_gather", "broadcast", "reduce"):
        for name in candidates(collective, spread):
            schedule = build(collective, name, 8)
            path, price = (execution_times(schedule, each, SIZES) for each in (together, spread))
            assert (price >= np.maximum(path, call_s)).all(), (collective, name)
            assert (price <= (path + call_s) * (1 + 1e-12)).all(), (collective, name)
            hidden |= bool((price < path + 0.5 * call_s).any())
    assert hidden


def test_exposed_work_keeps_busy_links_and_no_others():
    """Seven rounds, in each of which a message keeps its link for a share of its work longer."""
    schedule = build("all_gather", "ring", 8)
    hidden = cluster(8, burst=56 * KIB, stream_s=1e-4)
    half = cluster(8, burst=56 * KIB, stream_s=1e-4, exposed=0.5)
    small, large = execution_times(schedule, half, [64, 2 * MIB]) - execution_times(
        schedule, hidden, [64, 2 * MIB]
    )
    assert small == pytest.approx(0, abs=1e-9)
    assert large == pytest.approx(7 * 0.5 * 1e-4, rel=1e-6)


@pytest.mark.parametrize(("nbytes", "held_up"), [(512 * KIB, 512 * KIB), (8 * MIB, MIB)])
def test_what_is_left_over_holds_up_all_but_the_last_round(nbytes: int, held_up: int):
    """Three rounds with another partner each; no more is left over than the kernel buffers."""
    schedule = build("all_reduce", "recursive_doubling", 8)
    free, third = cluster(8, call_s=1e-3), cluster(8, call_s=1e-3, left_over=1 / 3)
    more = execution_times(schedule, third, nbytes) - execution_times(schedule, free, nbytes)
    assert more == pytest.approx(2 / 3 * held_up / 1e8, rel=1e-6)


def test_a_rank_that_stays_with_its_peer_leaves_nothing_over():
    schedule = build("all_reduce", "ring", 8)
    free, all_of_it = cluster(8, call_s=1e-3), cluster(8, call_s=1e-3, left_over=1.0)
    expected = execution_times(schedule, free, SIZES)
    assert execution_times(schedule, all_of_it, SIZES) == pytest.approx(expected)


def test_a_part_of_an_element_is_a_whole_one() -> None:
    cluster = Cluster.preset("1gbe", 4)
    tree = build("broadcast", "mst", 4)
    one, part, two = execution_times(tree, cluster, [4, 5, 8]).tolist()
    assert one < part == two
    assert execution_times(tree, cluster, 1) == one


def test_behind_a_slow_link_a_message_is_through_a_block_after_its_last_came():
    """From 0 over the slow link to 2, and on to 3 in the same host, which is 2.5 times as fast."""
    levels = tuple(
        Level(name=name, size=2, latency_s=0.0, bandwidth_bytes_per_s=rate)
        for name, rate in (("device", 2.5e8), ("host", 1e8))
    )
    hops = [Transfer(0, 0, 2, 0, 1, "copy"), Transfer(1, 2, 3, 0, 1, "copy")]
    schedule = Schedule("broadcast", "two hops", 4, 1, hops)
    nbytes = 2 * MIB
    block_bytes = nbytes / block_count(nbytes)
    assert block_count(nbytes) > 1
    found = float(execution_times(schedule, Cluster(name="c", levels=levels), nbytes))
    assert found == pytest.approx(nbytes / 1e8 + block_bytes / 2.5e8, rel=1e-9)
