"""The best number of blocks is the best: compared with every other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulas.blocks import MAX_BLOCKS, best_blocks
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.papers.closed_forms import closed_form
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules.registry import build

RACKS = Cluster(
    name="two racks of four",
    levels=(
        Level(name="host", size=4, latency_s=3e-5, bandwidth_bytes_per_s=125e6),
        Level(name="rack", size=2, latency_s=9e-5, bandwidth_bytes_per_s=60e6),
    ),
    placement=(0, 2, 4, 6, 1, 3, 5, 7),
    reduction_s_per_byte=2.5e-10,
)


@settings(max_examples=60)
@given(
    st.sampled_from(["broadcast", "reduce", "all_reduce"]),
    st.integers(1, 40),
    st.floats(1, 1e7),
    st.floats(1e-6, 1e-2),
)
def test_no_other_number_is_cheaper_on_one_level(collective, p, nbytes, alpha):
    cluster = Cluster.flat(
        p, latency_s=alpha, bandwidth_bytes_per_s=1e9, reduction_s_per_byte=1e-10
    )
    best = best_blocks(collective, "lp", cluster, nbytes)

    def cost(blocks: int) -> float:
        terms = closed_form(collective, "lp", p, blocks=blocks)
        return terms.seconds(nbytes, alpha, 1e-9, 1e-10)

    assert cost(best) <= min(cost(blocks) for blocks in range(1, 600)) * (1 + 1e-12)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_no_other_number_is_cheaper_on_racks(collective):
    best = best_blocks(collective, "lp", RACKS, 1e5)

    def cost(blocks: int) -> float:
        schedule = build(collective, "lp", 8, order=RACKS.placement, blocks=blocks)
        return price(schedule, RACKS, 1e5)

    assert cost(best) == pytest.approx(min(cost(b) for b in range(1, 60)), rel=1e-12)


def test_the_closed_form_of_a_broadcast():
    """T(B) = (p - 2 + B) (α + n β / B) is least at sqrt((p - 2) n β / α)."""
    cluster = Cluster.flat(10, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    assert best_blocks("broadcast", "lp", cluster, 1e7) == round(math.sqrt(8 * 1e7 * 1e-9 / 1e-5))


def test_extremes():
    free = Cluster.flat(10, latency_s=0.0, bandwidth_bytes_per_s=1e9)
    assert best_blocks("broadcast", "lp", free, 1e9) == MAX_BLOCKS
    assert best_blocks("broadcast", "lp", free, 10) == 10
    assert best_blocks("broadcast", "lp", free, 0) == 1
    two = Cluster.flat(2, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    assert best_blocks("broadcast", "lp", two, 1e9) == 1
    alone = Cluster.flat(1, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    assert best_blocks("all_reduce", "lp", alone, 1e9) == 1


def test_refusals():
    with pytest.raises(
        InvalidValueError, match=r"all_reduce \(ring\)'; it must be one with blocks: all_reduce"
    ):
        best_blocks("all_reduce", "ring", RACKS, 1e6)
    with pytest.raises(UnknownNameError, match="unknown algorithm 'pipe' for reduce"):
        best_blocks("reduce", "pipe", RACKS, 1e6)
    with pytest.raises(InvalidValueError, match="nbytes is -1"):
        best_blocks("reduce", "lp", RACKS, -1)
