"""What ``make bench`` asks of every benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import HANGS_S, environment

SCRIPTS = sorted((Path(__file__).parents[3] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_can_be_quick(script):
    """``make bench ARGS=--quick`` gives all of them the option, which some share with others."""
    if '"--quick"' in script.read_text():
        return
    told = subprocess.run(
        [sys.executable, str(script), "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env=environment(),
    )
    assert "--quick" in told.stdout
