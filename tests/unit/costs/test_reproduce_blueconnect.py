"""The reproduction of BlueConnect's experiment keeps its figures."""

from __future__ import annotations

import json

import pytest
from reproduce import blueconnect

from syncopate.schedules.registry import candidates


def test_the_cluster_is_the_papers() -> None:
    where = blueconnect.cluster()
    assert where.world_size == 192
    assert [level.size for level in where.levels] == [4, 16, 3]


def test_the_equations_by_hand() -> None:
    ring, two_level, staged = (
        row.formula_s for row in blueconnect.equations(blueconnect.cluster())
    )
    alpha, n, nvlink, port = 5e-6, 100e6, 32e9, 12.5e9
    assert ring == pytest.approx(2 * 191 * (alpha + n / 192 / port))
    inside = 2 * 2 * 3 / 4 * n / nvlink + 2 * (2 + 3) * alpha
    assert two_level == pytest.approx(inside + 2 * 47 * (alpha + n / 48 / port))
    stages = 3 / 4 * n / nvlink + 15 / 16 * n / 4 * 4 / port + 2 / 3 * n / 64 * 4 / port
    assert staged == pytest.approx(2 * (stages + (2 + 4 + 2) * alpha))


def test_equations_are_the_prices_of_their_schedules() -> None:
    ring, two_level, staged = blueconnect.equations(blueconnect.cluster())
    assert ring.schedule_s == pytest.approx(ring.formula_s)
    assert staged.schedule_s == pytest.approx(staged.formula_s)
    # Eq. 4 counts one start-up more in the node, there and back.
    assert two_level.formula_s - two_level.schedule_s == pytest.approx(2 * 5e-6)


def test_the_figures_of_the_paper() -> None:
    rows = blueconnect.equations(blueconnect.cluster())
    figures = {item.what: item for item in blueconnect.compare_with_paper(rows)}
    assert figures["BlueConnect over GLOO"].paper == pytest.approx(1.87, abs=0.005)
    assert figures["BlueConnect over GLOO"].ours == pytest.approx(1.25, abs=0.005)
    assert abs(figures["BlueConnect without 10 ms of jitter"].difference) < 0.05


def test_stages_that_overlap_beat_the_ring_unless_uplinks_are_thin() -> None:
    ranked = blueconnect.choices(blueconnect.cluster())
    assert [choice.algorithm for choice in ranked[:3]] == [
        "blueconnect",
        "ring",
        "halving_doubling",
    ]
    assert ranked[0].options["pipelines"] > 1
    thin = blueconnect.choices(blueconnect.cluster(rack_rate=blueconnect.INFINIBAND))
    assert [choice.algorithm for choice in thin[:2]] == ["ring", "blueconnect"]


def test_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    blueconnect.main([])
    printed = capsys.readouterr().out
    assert "What a planner chooses there" in printed
    assert "What auto takes there" in printed
    blueconnect.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert [len(report[key]) for key in ("equations", "paper")] == [3, 5]
    considered = {row["algorithm"] for row in report["choices"]}
    assert considered == set(candidates("all_reduce", blueconnect.cluster()))
    by_size = [row["algorithm"] for row in report["auto"]]
    assert by_size[0] == "recursive_doubling"
    assert "blueconnect" in by_size
