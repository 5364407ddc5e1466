"""The planner benchmark runs; its figures are for quiet machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import planning


def test_prints_a_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(planning, "LENGTHS", (10, 30))
    planning.main(["--repeats", "1"])
    assert "Time to plan exactly" in capsys.readouterr().out
    written = tmp_path / "planning.json"
    planning.main(["--repeats", "2", "--json", str(written)])
    found = json.loads(written.read_text())
    assert len(found["results"]) == 2 * len(planning.KINDS)
    assert all(len(row["samples_s"]) == 2 for row in found["results"])
    with pytest.raises(SystemExit):
        planning.main(["--repeats", "0"])
