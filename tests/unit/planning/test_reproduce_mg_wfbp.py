"""The reproduction of MG-WFBP's GoogLeNet simulation keeps its figures."""

from __future__ import annotations

import json

import pytest
from reproduce import mg_wfbp

SPEEDUPS = {
    2: (1.999, 1.439, 1.999, 1.999),
    4: (3.995, 2.523, 3.995, 3.995),
    8: (6.965, 4.750, 7.753, 7.757),
    16: (11.871, 9.220, 14.635, 14.650),
    32: (19.126, 18.137, 27.134, 28.173),
    64: (27.981, 35.836, 48.340, 53.564),
}
"""Nodes -> WFBP, SyncEASGD, MG-WFBP, optimal: computed once by a separate program."""


@pytest.fixture(scope="module")
def rows() -> list[mg_wfbp.Row]:
    return [mg_wfbp.simulate_row(mg_wfbp.googlenet(), nodes) for nodes in mg_wfbp.NODES]


def test_the_table_holds_the_whole_network() -> None:
    workload = mg_wfbp.googlenet()
    assert len(workload.tensors) == 64
    assert workload.nbytes == 4 * 13_379_136
    assert workload.backward_s == pytest.approx(0.205, abs=5e-4)


def test_speedups(rows: list[mg_wfbp.Row]) -> None:
    for row in rows:
        assert tuple(row.speedup[name] for name in mg_wfbp.POLICIES) == pytest.approx(
            SPEEDUPS[row.nodes], rel=0.005
        )


def test_ring_cost_of_table_ii(rows: list[mg_wfbp.Row]) -> None:
    for row in rows:
        p = row.nodes
        assert row.startup_s == pytest.approx(2 * (p - 1) * mg_wfbp.ALPHA_S)
        per_byte = (p - 1) / p * (2 * mg_wfbp.BETA_S_PER_BYTE + mg_wfbp.GAMMA_S_PER_BYTE)
        assert row.byte_time_s == pytest.approx(per_byte)


def test_the_figures_of_the_paper_at_64_nodes(rows: list[mg_wfbp.Row]) -> None:
    figures = {item.what: item for item in mg_wfbp.compare_with_paper(rows)}
    over_wfbp = figures["MG-WFBP over WFBP, 64 nodes"]
    over_single = figures["MG-WFBP over SyncEASGD, 64 nodes"]
    assert over_wfbp.ours == pytest.approx(1.728, rel=0.005)
    assert over_single.ours == pytest.approx(1.349, rel=0.005)
    assert all(abs(item.difference) < 0.035 for item in figures.values())
    at_64 = rows[-1].speedup
    assert at_64["optimal"] / at_64["mg-wfbp"] == pytest.approx(1.108, rel=0.005)


def test_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    mg_wfbp.main([])
    assert "Beside the paper" in capsys.readouterr().out
    mg_wfbp.main(["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [row["nodes"] for row in printed["rows"]] == list(mg_wfbp.NODES)
    assert len(printed["paper"]) == 5
