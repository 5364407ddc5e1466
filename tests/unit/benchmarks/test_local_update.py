"""The benchmark of local updates runs, and what it reports follows from its samples."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch
from benchmarks import local_update as bench


def test_it_runs_and_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    json_path, markdown = tmp_path / "found.json", tmp_path / "found.md"
    try:
        bench.main(
            ["--quick", "--threads", "1", "--json", str(json_path), "--markdown", str(markdown)]
        )
    finally:
        torch.set_num_threads(threads)
    found = json.loads(json_path.read_text())
    model = found["models"]["char-gpt"]
    assert set(model["updates"]) == set(model["samples_s"]) >= {"glu", "sgd", "dc-asgd-a"}
    base_s = statistics.median(model["samples_s"][bench.BASE])
    triad = model["updates"]["triad"]
    for name, row in model["updates"].items():
        assert len(model["samples_s"][name]) == 2
        assert row["median_s"] == statistics.median(model["samples_s"][name])
        assert row["ratio_to_fused"] == pytest.approx(row["median_s"] / base_s)
        moved = row["bytes_per_element"] * model["elements"]
        assert row["bound_s"] == pytest.approx(moved / triad["bytes_per_s"])
        assert f"| {name} |" in markdown.read_text()
    assert markdown.read_text().strip() == capsys.readouterr().out.strip()


def test_flat_buffers_are_ddp_s_and_hold_all_elements_once() -> None:
    sizes = [3_000_000, 1000, 9_000_000, 70_000]
    flats = bench.flats_of(sizes, before=True, squares=False)
    assert [flat.weights.numel() for flat in flats] == [9_070_000, 3_001_000]
    assert all(flat.before.numel() == flat.weights.numel() for flat in flats)
    assert not any(flat.squares.numel() for flat in flats)
