"""The planner benchmark runs; its figures are for quiet machines."""

from __future__ import annotations

import json

import pytest
from benchmarks import planning


def test_prints_a_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "LENGTHS", (10, 30))
    planning.main(["--repeats", "1"])
    assert "Time to plan exactly" in capsys.readouterr().out
    planning.main(["--repeats", "2", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["results"]) == 2 * len(planning.KINDS)
    assert all(len(row["samples_s"]) == 2 for row in printed["results"])
    with pytest.raises(SystemExit):
        planning.main(["--repeats", "0"])
