"""Groups of commands: a closed pipe is no error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.children import HANGS_S, environment
from tests.unit import examples


def _started(line, **streams):
    """Run a command line whose streams are closed pipes; return how it ended."""
    mine, others = os.pipe()
    os.close(mine)
    try:
        return subprocess.run(
            [sys.executable, "-m", "syncopate", *line.split()],
            check=False,
            env=environment(),
            timeout=HANGS_S,
            **{name: others if stream is None else stream for name, stream in streams.items()},
        )
    finally:
        os.close(others)


@pytest.mark.parametrize("line", ["--help", "plan --help", "--version", "plan -w {w} -c {c}"])
def test_a_closed_standard_output_ends_a_command_quietly(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    examples.workload().save("w.json")
    examples.cluster().save("c.json")
    done = _started(line.format(w="w.json", c="c.json"), stdout=None, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert done.stderr == b"" or done.stderr.startswith(b"wrote ")


def test_a_closed_standard_error_ends_no_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples.workload().save("w.json")
    examples.cluster().save("c.json")
    done = _started("plan -w w.json -c c.json", stdout=subprocess.PIPE, stderr=None)
    assert done.returncode == 0
    assert b"plans; bound" in done.stdout
