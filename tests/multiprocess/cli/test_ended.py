"""Commands on several ranks that are ended in the midst: what they print, keep and leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.benchmark import Benchmark
from syncopate.calibration.partial import Partial
from tests.children import HANGS_S, environment, run_command

CTRL_C = signal.SIGINT
"""Reaches every process of a terminal; the others here reach the command alone."""


class Left(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str
    alive: bool


def _end(line: str, folder: Path, marker: str, number: signal.Signals) -> Left:
    """Start a command line, send it a signal once it has printed ``marker``, and wait for it."""
    out, err = folder / "out", folder / "err"
    with out.open("wb") as printed, err.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "syncopate", *line.split()],
            stdout=printed,
            stderr=said,
            cwd=folder,
            env=environment(),
            start_new_session=True,
        )
    try:
        until_s = time.monotonic() + HANGS_S
        while not re.search(marker, err.read_text(), re.MULTILINE):
            assert process.poll() is None, err.read_text()
            assert time.monotonic() < until_s, err.read_text()
            time.sleep(0.05)
        (os.killpg if number == CTRL_C else os.kill)(process.pid, number)
        code = process.wait(HANGS_S)
        alive = _alive(process.pid)
    finally:
        if _alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Left(code, out.read_text(), err.read_text(), alive)


def _alive(group: int) -> bool:
    """Say whether a group of processes has any."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(CTRL_C, 130), (signal.SIGTERM, 143)])
def test_a_benchmark_keeps_the_sizes_that_were_measured(tmp_path, number, code):
    # The last size takes longer than the test looks away.
    line = "bench --local 2 -a native,ring -n 50 --sizes 4KiB,64KiB,64MiB -o kept.json"
    left = _end(line, tmp_path, r"^all_reduce 64\.0 KiB: ", number)
    assert left.code == code, left.err
    assert not left.alive
    assert re.search(r"^ +4\.0 KiB +(native|ring) ", left.out, re.MULTILINE)
    assert re.search(r"^ +64\.0 KiB +(native|ring) ", left.out, re.MULTILINE)
    assert "64.0 MiB" not in left.out
    assert "ended after 2 of 3 sizes" in left.out
    rows = [row for row in left.err.splitlines() if row.startswith("all_reduce ")]
    assert [row.partition(":")[0] for row in rows] == ["all_reduce 4.0 KiB", "all_reduce 64.0 KiB"]
    assert left.err.splitlines()[-2:] == ["wrote kept.json", "note: ended after 2 of 3 sizes"]
    found = Benchmark.load(tmp_path / "kept.json")
    assert [point.nbytes for point in found.series[0].points] == [4096, 65536]
    assert found.metadata["ended"] == "after 2 of 3 sizes"


def test_a_calibration_goes_on_from_where_it_was_ended(tmp_path):
    line = "calibrate --local 2 --budget 20 -o cluster.json"
    left = _end(line, tmp_path, r"^calibrating: \d+%, (all_reduce|interference)", signal.SIGTERM)
    assert left.code == 143, left.err
    assert not left.alive
    assert left.out == ""
    told = r"links( and \d+ sizes? of all_reduce)? are kept in cluster\.json\.partial"
    assert re.search(told, left.err.splitlines()[-1]), left.err
    assert not (tmp_path / "cluster.json").exists()
    kept = Partial.load(tmp_path / "cluster.json.partial")

    done = run_command(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "going on from cluster.json.partial" in done.stderr
    assert not (tmp_path / "cluster.json.partial").exists()
    cluster = Cluster.load(tmp_path / "cluster.json")
    assert (cluster.levels, cluster.probes) == (kept.network.levels, kept.network.probes)
    for algorithm, points in kept.points.get("all_reduce", {}).items():
        curve = cluster.curve("all_reduce", algorithm)
        assert curve is not None
        assert all(point in curve.points for point in points)
    assert float(cluster.metadata["elapsed_s"]) > kept.spent_s
