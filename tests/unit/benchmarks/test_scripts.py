"""What ``make bench`` asks of every benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[3] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_can_be_quick(script):
    """``make bench ARGS=--quick`` gives all of them the option."""
    assert '"--quick"' in script.read_text()
