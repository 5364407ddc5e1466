"""The reproduction of LP's Table 1 and Fig. 4 keeps its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reproduce import linear_pipeline

import bsp_sgd_table
from syncopate.errors import ArtifactError


def test_table_1_prints_at_most_three_steps_too_many() -> None:
    entries = linear_pipeline.table_one()
    assert len(entries) == 9
    step_s = linear_pipeline.ALPHA_S + linear_pipeline.NBYTES / linear_pipeline.BLOCKS / 1e9
    for entry in entries:
        extra = {"broadcast": 1, "reduce": 1, "all_reduce": 3}[entry.collective]
        steps = extra if entry.algorithm == "lp" else 0
        ring = linear_pipeline.ALPHA_S if entry.collective == "broadcast" else 0.0
        more_s = entry.formula_s - entry.schedule_s - steps * step_s
        assert more_s == pytest.approx(ring if entry.algorithm == "be" else 0.0, abs=1e-12)


def test_the_cost_of_lp_does_not_depend_on_the_number_of_ranks() -> None:
    rows = linear_pipeline.scaling((2, 3, 4, 16))
    by = {(row.collective, row.ranks): row for row in rows}
    for collective in ("broadcast", "reduce"):
        two, sixteen = by[collective, 2].seconds, by[collective, 16].seconds
        assert sixteen["lp"] / two["lp"] == pytest.approx(1.0, abs=0.02)
        assert sixteen["mst"] / two["mst"] == pytest.approx(4.0)
        assert sixteen["be"] / two["be"] == pytest.approx(1.875, rel=1e-3)
        assert by[collective, 16].best_s < sixteen["lp"]
    three, sixteen = by["all_reduce", 3].seconds, by["all_reduce", 16].seconds
    assert sixteen["lp"] / three["lp"] == pytest.approx(1.0, abs=0.02)
    # Of an all-reduce every middle rank has 2 n to receive, of BE's 2 (p - 1) / p n.
    assert sixteen["be"] < sixteen["lp"]


def test_the_figures_of_the_paper() -> None:
    figures = linear_pipeline.compare_with_paper(linear_pipeline.scaling((4,)))
    for item in figures:
        if "steps" in item.what:
            assert item.difference == 0
        if "theory" in item.what:
            assert abs(item.difference) < 0.01
    assert len(figures) == 10


def measurement(tmp_path: Path, **changes: object) -> Path:
    point = {"collective": "broadcast", "world_size": 4, "nbytes": 1e6, "seconds": 0.02}
    whole = {
        "name": "lab",
        "latency_s": 1e-4,
        "bandwidth_bytes_per_s": 1e8,
        "points": [
            point | {"algorithm": "lp"},
            point | {"algorithm": "lp", "blocks": 4},
            point | {"algorithm": "mst"},
        ],
    }
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(whole | changes))
    return path


def test_a_measurement_beside_its_prices(tmp_path: Path) -> None:
    measured = linear_pipeline.read_measured(measurement(tmp_path))
    best, four, tree = linear_pipeline.compare_with_measured(measured)
    assert best.what == "broadcast (lp, 14 blocks), 4 ranks, 976.6 KiB"
    assert best.paper == pytest.approx(20.0)
    assert best.ours < four.ours == pytest.approx(6 * (0.1 + 2.5))
    assert tree.ours == pytest.approx(2 * (0.1 + 10))


def test_what_is_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArtifactError, match="No such file"):
        linear_pipeline.read_measured(tmp_path / "nothing.json")
    with pytest.raises(ArtifactError, match=r"no measurement: .* at `\$.points`"):
        linear_pipeline.read_measured(measurement(tmp_path, points=3))
    with pytest.raises(SystemExit):
        linear_pipeline.main(["--measured", str(measurement(tmp_path, latency_s=-1.0))])
    assert "latency_s is -1.0" in capsys.readouterr().err


def test_prints_tables_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_pipeline, "scaling", lambda: SMALL)
    path = str(measurement(tmp_path))
    linear_pipeline.main([])
    assert "Fig. 4 measured" in capsys.readouterr().out
    linear_pipeline.main(["--measured", path])
    printed = capsys.readouterr().out
    assert "Beside the paper" in printed
    assert "Measured on lab" in printed
    assert "Table 2: AlexNet" in printed
    linear_pipeline.main(["--json", "--measured", path])
    report = json.loads(capsys.readouterr().out)
    counts = {key: len(rows) for key, rows in report.items()}
    labs = map(bsp_sgd_table.Lab.load, bsp_sgd_table.committed())
    assert counts == {
        "table_1": 9,
        "scaling": 6,
        "paper": 10,
        "measured_ms": 3,
        "measured_scaling": 2,
        "table_2": len(bsp_sgd_table.as_json(labs)),
    }


SMALL = linear_pipeline.scaling((2, 4))


def test_the_committed_measurements_are_read() -> None:
    paths = list(linear_pipeline.DATA.parent.glob(linear_pipeline.MEASURED))
    assert paths
    for path in paths:
        rows = linear_pipeline.beside_prices(linear_pipeline.read_measured(path))
        ratios = [row.over_fewest[0] for row in rows if row.collective == "broadcast"]
        assert len(ratios) >= 3
        assert ratios[0] == 1.0
