"""Explain names a slow rank and a cut link first, and what they cost, as the benchmark does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.children import environment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "explain_faults.py"


def test_a_slow_rank_and_a_cut_link_are_named_first(tmp_path: Path) -> None:
    """The exit code says so: also that the gains are near to what the faults cost."""
    told = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--only", "slow", "link"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = [row.split(" | ") for row in told.stdout.splitlines() if row.startswith("| ")]
    named = {row[0].removeprefix("| "): row[1] for row in rows[2:]}
    assert named["rank 1 computes 3x as long"].startswith("rank 1 computes longer"), told.stdout
    assert named["the link of rank 2 cut to 0.1"].startswith("rank 2 has a slow link"), told.stdout
