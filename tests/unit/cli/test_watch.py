"""``syncopate watch``: one table, lines, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from syncopate.tracing.trace_file import read_trace
from tests.children import HANGS_S, environment
from tests.unit.analysis.troubled import slow_backward, trained
from tests.unit.analysis.written import written
from tests.unit.tracing.served_cases import Job


@pytest.fixture
def watching():
    """Start the command in a process of its own; return it."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "syncopate", "watch", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_once_prints_one_table_and_ends(run, tmp_path: Path) -> None:
    written(tmp_path / "a", trained([slow_backward(2)]))
    code, out, err = run("watch a --once --last 12")
    assert code == 0
    for text in ("a: plan allreduce", "iteration", "busbw", "rank 2 computes longer"):
        assert text in out
    assert "the last 12 iterations are shown" in err


def test_a_parameter_server_s_nodes_are_shown(run, tmp_path: Path) -> None:
    job = Job()
    job.connect(0.0)
    job.first_values(0.1)
    for number in range(8):
        job.iteration(number, 1.0 + number)
    (tmp_path / "a").mkdir()
    job.write(tmp_path / "a")
    code, out, _ = run("watch a --once --json")
    assert code == 0
    nodes = {one["node"]: one for one in json.loads(out)["nodes"]}
    assert set(nodes) >= {"w0", "w1", "s0"}
    assert nodes["s0"]["pushes_per_s"] > 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("watch none --once", "none: does not exist yet"),
        ("watch workload.json --once", "no directory"),
        ("watch . --interval 0", "--interval is 0.0"),
        ("watch . --once --last 0", "last is 0"),
        ("watch . --once --metrics 9464", "--metrics is '9464'"),
        ("watch . --metrics 99999", "--metrics is '99999'"),
    ],
)
def test_what_cannot_be_watched_is_refused(run, line, said) -> None:
    code, _, err = run(line)
    assert code == 2
    assert said in err


def test_it_waits_for_a_run_prints_a_line_for_each_look_and_ends_by_an_interrupt(
    watching, tmp_path: Path
) -> None:
    directory = tmp_path / "a"
    process = watching(directory, "--interval", "0.05")
    assert "does not exist yet" in process.stderr.readline()
    written(tmp_path / "b", trained(iterations=6)).rename(directory)
    for _ in range(2):
        assert f"{directory}: iteration 5, step " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, err) == (0, "")


def test_lines_of_json_can_be_read_one_by_one(watching, tmp_path: Path) -> None:
    process = watching(written(tmp_path / "a", trained()), "--interval", "0.05", "--json")
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [one["iteration"] for one in seen] == [23, 23, 23]


def test_figures_are_published_while_it_looks(watching, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", trained())
    process = watching(directory, "--interval", "0.05", "--metrics", "127.0.0.1:0")
    address = process.stderr.readline().rpartition(" ")[2].strip()
    process.stdout.readline()
    with urllib.request.urlopen(address, timeout=HANGS_S) as answer:
        lines = answer.read().decode().splitlines()
    of_rank_2 = f'{{run="{directory}",rank="2"}}'
    assert f"syncopate_run_iteration{of_rank_2} 23" in lines
    names = {line.partition("{")[0] for line in lines if of_rank_2 in line}
    assert {"syncopate_run_step_seconds", "syncopate_run_waiting_seconds"} <= names
    assert "syncopate_run_bus_bytes_per_second" in names
    assert any(line.startswith("syncopate_run_quiet_seconds{") for line in lines)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANGS_S)
    assert process.returncode == 0


def test_it_changes_nothing_in_the_directory(run, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", trained())
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    run("watch a --once")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert len(read_trace(directory / "rank-0.trace").records)
