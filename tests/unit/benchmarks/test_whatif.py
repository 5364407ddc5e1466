"""The benchmark of sweeps runs; its figures are for quiet machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import whatif


def test_prints_a_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(whatif, "QUICK", {"nodes": "2,4", "gpu_speed": [1, 2]})
    written = tmp_path / "whatif.json"
    whatif.main(["--quick", "--json", str(written)])
    found = json.loads(written.read_text())
    assert found["settings"] == 4
    assert found["sweep_s"] > 0
    assert found["answers_s"] > 0
    assert "answers" in capsys.readouterr().out
