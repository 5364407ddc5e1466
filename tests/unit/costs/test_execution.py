from __future__ import annotations

import numpy as np
import pytest

from syncopate.cluster import Cluster, Handling, Level
from syncopate.costs.execution import block_counts, execution_cost, execution_times
from syncopate.costs.model import schedule_cost
from syncopate.costs.price import price
from syncopate.errors import InvalidValueError
from syncopate.schedules.blocks import block_count
from syncopate.schedules.registry import build
from syncopate.units import KIB, MIB


def cluster(p: int, *, burst: float = 0.0, **handling: float) -> Cluster:
    level = Level(
        name="host", size=p, latency_s=50e-6, bandwidth_bytes_per_s=1e8, burst_bytes=burst
    )
    return Cluster(name="c", levels=(level,), handling=(Handling(**handling),) if handling else ())


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "recursive_doubling"])
def test_whole_messages_in_step_cost_what_the_papers_say(name: str):
    schedule, plain = build("all_reduce", name, 8), cluster(8)
    for nbytes in (8 * KIB, 128 * KIB):
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


def test_what_cannot_be_played_is_refused():
    schedule = build("all_reduce", "ring", 4)
    with pytest.raises(InvalidValueError, match="nbytes"):
        execution_times(schedule, cluster(4), -1.0)
    with pytest.raises(InvalidValueError, match="world size"):
        execution_times(schedule, cluster(3), 4.0)
