"""The command line on several ranks: what is printed, written, and left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from tests.children import HANGS_S, environment
from tests.unit import examples


def _syncopate(line: str, folder: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    command = [*(launcher or (sys.executable,)), "-m", "syncopate", *line.split()]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=HANGS_S,
    )


def _remarks(text: str) -> str:
    """Return what was printed besides results, less how far it was every ten seconds."""
    return re.sub(r"^[a-z ]+: \d+%.*\n", "", text, flags=re.MULTILINE)


def test_from_calibration_to_a_plan_on_local_ranks(tmp_path):
    line = "calibrate --local 2 --budget 1 --sizes 1KiB,64KiB --algorithms native,ring"
    done = _syncopate(f"{line} --collectives all_reduce,broadcast", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("linear fits") == 2
    assert done.stderr.splitlines()[-1] == "wrote cluster.json"
    cluster = Cluster.load(tmp_path / "cluster.json")
    assert cluster.world_size == 2
    measured = [c for c in cluster.curves if c.collective == "all_reduce"]
    assert {curve.algorithm for curve in measured} == {"native", "ring"}
    assert [point.nbytes for point in measured[0].points] == [1024, 65536]
    assert cluster.curve("broadcast", "native") is not None

    line = "profile tests.multiprocess.builders:small --local 2 --iterations 2 --warmup 1"
    done = _syncopate(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gradient tensors") == 1
    assert Workload.load(tmp_path / "workload.json").metadata["ranks"] == "2"

    done = _syncopate("plan -w workload.json -c cluster.json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert Plan.load(tmp_path / "plan.json").world_size == 2


def test_under_torchrun_rank_0_prints_and_writes(tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    line = "profile tests.multiprocess.builders:small --iterations 1 --warmup 0 --json"
    done = _syncopate(line, tmp_path, *torchrun, "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    workload = Workload.load(tmp_path / "workload.json")
    assert Workload.from_json(done.stdout) == workload
    assert workload.metadata["ranks"] == "2"


def test_one_refusal_is_printed_when_one_rank_refuses(tmp_path):
    done = _syncopate("profile tests.multiprocess.builders:refuses_on_rank_1 --local 2", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert _remarks(done.stderr).startswith("error: rank 1: ")
    assert "no data on this host" in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "workload.json").exists()


def test_a_killed_rank_is_named(tmp_path):
    done = _syncopate("profile tests.multiprocess.builders:dies_on_rank_1 --local 2", tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.strip().endswith("error: rank 1 ended by signal SIGKILL")


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["ctrl-c", "sigterm"],
)
def test_an_interrupt_ends_all_ranks(tmp_path, number, whole_group, code):
    line = "profile tests.multiprocess.builders:tells_that_it_waits --local 2"
    process = subprocess.Popen(
        [sys.executable, "-m", "syncopate", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
    )
    try:
        ranks = [_pid(tmp_path / f"waiting.{rank}") for rank in range(2)]
        (os.killpg if whole_group else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=HANGS_S)
    finally:
        process.kill()
    assert process.returncode == code
    assert (out, _remarks(err)) == ("", "")
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


def _pid(path: Path) -> int:
    deadline = time.monotonic() + HANGS_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.05)
    return int(path.read_text())


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "--help",
        "demo --help",
        "plan -w workload.json --network 10gbe --nodes 64",
        "choose --network 10gbe --nodes 64",
        "convert --network 10gbe --nodes 64 --to open-mpi",
    ],
)
def test_commands_that_need_no_torch_start_without_it(tmp_path, line):
    examples.workload().save(tmp_path / "workload.json")
    script = textwrap.dedent(f"""
        import sys
        from syncopate.cli import main
        sys.argv = ["syncopate", *{line.split()!r}]
        code = main()
        assert "torch" not in sys.modules
        sys.exit(code)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
