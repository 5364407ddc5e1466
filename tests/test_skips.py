"""Skips: ``--no-skips`` fails what is skipped, but for what no package mends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.children import HANGS_S, environment

_FILES = {
    "whole": "import pytest\npytest.importorskip('no_such_module')\n",
    "parts": """
import pytest

@pytest.mark.skipif(True, reason="no such program")
def test_marked(): ...

def test_calls(): pytest.skip("no such file")

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_gpu(): ...

@pytest.mark.xfail
def test_known(): assert False

def test_runs(): ...
""",
}


def _outcome(folder: Path, *options: str) -> str:
    for name, text in _FILES.items():
        (folder / f"test_{name}.py").write_text(text)
    line = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*line, "--rootdir", str(folder), *options, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=HANGS_S,
    )
    return done.stdout


def test_what_is_skipped_fails_where_that_is_asked_for(tmp_path: Path) -> None:
    assert "1 passed, 4 skipped, 1 xfailed" in _outcome(tmp_path)
    found = _outcome(tmp_path, "--no-skips", "--continue-on-collection-errors")
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors" in found
    for reason in ("no such program", "no such file", "could not import 'no_such_module'"):
        assert f"skipped with --no-skips: Skipped: {reason}" in found
