"""LP's rows: a jump where a slow link comes in, Table 2, and what the text says of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

import linear_pipeline as lp
from figures import linear_pipeline as found
from figures.rows import Figure
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.schedule.price import price
from syncopate.schedules.registry import build

ROWS = found.paper().figures


def row(where: str, what: str) -> Figure:
    (one,) = (one for one in ROWS if one.where == where and one.what == what)
    return one


def test_a_chain_of_equal_links_is_the_schedule() -> None:
    for ranks in (2, 3, 4):
        priced = lp.priced("broadcast", "lp", lp.cluster(ranks), lp.NBYTES, lp.BLOCKS)
        assert found.pipelined_s(ranks) == pytest.approx(priced)
        tree_s = lp.priced("broadcast", "mst", lp.cluster(ranks), lp.NBYTES, 1)
        assert found.tree_s(ranks, lp.NBYTES, lp.ALPHA_S) == pytest.approx(tree_s)


def test_a_chain_over_a_slow_link_is_the_schedule_on_levels() -> None:
    levels = tuple(
        Level(name=name, size=size, latency_s=1e-7, bandwidth_bytes_per_s=rate)
        for name, size, rate in (("device", 4, 1e9), ("switch", 2, 0.5e9))
    )
    where = Cluster(name="two switches", levels=levels)
    rates = [1e9, 1e9, 1e9, 0.5e9, 1e9, 1e9, 1e9]
    priced = price(build("broadcast", "lp", 8, 0, blocks=100), where, 1e7)
    assert found.chain_s(rates, 1e7, 100, 1e-7) == pytest.approx(priced, rel=1e-3)


def test_a_chain_of_no_link_takes_no_time() -> None:
    assert found.chain_s([], 1e6, 4, 1e-6) == 0.0


def test_fig_4_jumps_at_five_and_nowhere_else() -> None:
    for one, other in ((3, 2), (4, 2), (6, 5)):
        flat = row("Fig. 4", f"broadcast by LP: {one} GPUs over {other}")
        assert flat.simulated == pytest.approx(1.0, abs=0.005)
    # What is put in is not shown as a result.
    jump = row("Fig. 4", "broadcast by LP: 5 GPUs over 4")
    assert jump.simulated is None
    assert found.pipelined_s(5) / found.pipelined_s(4) == pytest.approx(found.SLOWER, rel=0.01)
    trees = [found.tree_s(p, 51e6, 1e-7) for p in range(2, 7)]
    assert [b / a for a, b in pairwise(trees)] == pytest.approx([2.0, 1.0, 2.0, 1.0], rel=1e-3)


def test_the_text_contradicts_table_2() -> None:
    where = "Section 4.2, Fig. 5"
    for what, printed, table in (
        ("GoogLeNet: LP Alg.1 over BE Alg.1", 1.6, (0.334 + 0.264) / (0.02 + 0.265)),
        ("AlexNet: LP Alg.1 over MST Alg.1", 1.74, (0.77 + 0.92) / (0.084 + 0.93)),
    ):
        one = row(where, what)
        assert one.paper == printed
        assert f"its Table 2 says {table:.2f}x" in one.why
    assert "1.10x" in row("Section 1", "GoogLeNet: LP Alg.1 over MST Alg.1").why
    share = row("Section 4.2", "AlexNet: LP Alg.1's communication as a part of BE Alg.1's")
    assert "8.0%" in share.why
    assert share.simulated == pytest.approx(2 / 3, abs=0.01)


def test_table_2_has_all_cells_with_what_was_measured() -> None:
    rows = [one for one in ROWS if one.where == "Table 2" and "GB/s" not in one.what]
    assert len(rows) == 12
    for one in rows:
        assert one.measured is not None
    cell = row("Table 2", "AlexNet, LP Alg.1: communication")
    # 512 MB at 1 GB/s; the paper's 0.084 s is 6.1 GB/s.
    assert cell.paper == 0.084
    assert cell.simulated == pytest.approx(0.512, rel=0.01)


def test_fig_3_is_measured_on_four_hosts() -> None:
    rows = [one for one in ROWS if one.where == "Fig. 3"]
    assert len(rows) == 6
    for one in rows:
        assert one.measured is not None
        assert 0.7 < one.measured < 3
