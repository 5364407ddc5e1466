"""MPI as a peer: under mpirun where there is one, and what is said where MPI cannot take part."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from syncopate.artifacts.results.benchmark import Benchmark
from syncopate.benchmarking import mpi
from syncopate.benchmarking.run import bench
from syncopate.benchmarking.sweep import Effort, Sweep
from syncopate.cli.common import launcher, ranks
from syncopate.collectives import Communicator
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.schedules.conditions import CONDITIONS
from tests.children import HANGS_S, environment
from tests.multiprocess.harness import run_ranks

LAUNCHED = ("OMPI_", "PMI", "MPI_LOCAL", "SLURM_")

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="no mpi4py or no mpirun: install an MPI library, and mpi4py",
)


def _mpirun(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in environment().items() if not name.startswith(LAUNCHED)}
    version = subprocess.run(["mpirun", "--version"], check=True, capture_output=True, text=True)
    lenient = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version.stdout else []
    return subprocess.run(
        ["mpirun", *lenient, "-n", "2", sys.executable, "-m", *line.split()],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean,
        timeout=HANGS_S,
    )


@needs_mpi
def test_mpi_takes_its_turn_in_the_command(tmp_path):
    line = "syncopate bench --against gloo,mpi -a native,ring --sizes 4B,1001B -n 2 -w 1"
    done = _mpirun(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the best of ours is faster than mpi at" in done.stdout
    assert "every result verified, none wrong" in done.stdout
    assert "\x1b" not in done.stdout
    found = Benchmark.load(tmp_path / "bench.json")
    assert [(one.contender, one.peer) for one in found.series] == [
        ("native", False),
        ("ring", False),
        ("gloo", True),
        ("mpi", True),
    ]
    assert found.world_size == 2
    assert "MPI" in found.metadata["mpi"]


def every_collective() -> None:
    """What each rank of mpirun runs: all collectives against MPI, and what MPI cannot do."""
    launcher.adopt(os.environ)
    with ranks.joined(timeout_s=60) as communicator:
        for collective, needs in CONDITIONS.items():
            root = int(needs.rooted)
            for dtype in ("float32", "int16"):
                sweep = Sweep(collective, (1, 8, 4001), dtype, root, ("native",), ("mpi",))
                found = bench(communicator, sweep, Effort(1, 0))
                assert found.series[1].contender == "mpi"
                assert found.wrong == 0, (collective, dtype)
        with pytest.raises(InvalidValueError, match="one that MPI can add"):
            bench(communicator, Sweep("all_reduce", (4,), "bfloat16", against=("mpi",)))
        moved = Sweep("all_gather", (4,), "bfloat16", 0, ("native",), ("mpi",))
        assert bench(communicator, moved, Effort(1, 0)).wrong == 0


@needs_mpi
def test_every_collective_of_mpi_is_verified(tmp_path):
    done = _mpirun("tests.multiprocess.benchmarking.test_mpi", tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout


def without_mpi(rank: int, world_size: int) -> list[str]:
    sweep, effort = Sweep("all_reduce", (4,), algorithms=("ring",), against=("mpi",)), Effort(1, 0)
    found = []

    def measure(communicator: Communicator) -> None:
        with pytest.raises((CalibrationError, InvalidValueError)) as caught:
            bench(communicator, sweep, effort)
        found.append(str(caught.value))

    def missing():
        if rank == 1:
            raise CalibrationError("no such library")
        return elsewhere

    elsewhere = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1, rank=0))
    with Communicator(timeout_s=60) as communicator:
        mpi.load_mpi = missing
        measure(communicator)
        mpi.load_mpi = lambda: elsewhere
        measure(communicator)
        sweep = Sweep("reduce", (4,), "bfloat16", algorithms=("mst",), against=("mpi",))
        measure(communicator)
        assert bench(communicator, Sweep("reduce", (4,), algorithms=("mst",)), effort).wrong == 0
    return found


def test_every_rank_is_told_why_mpi_cannot_take_part():
    first, second = run_ranks(without_mpi, 2)
    assert first == second
    missing, elsewhere, dtype = first
    assert missing == "rank 1: no such library"
    assert elsewhere.startswith("MPI's world has 1 rank and this benchmark 2")
    assert "`mpirun -n 2 syncopate bench --against mpi`" in elsewhere
    assert dtype.startswith("dtype is 'bfloat16'")


def test_an_absent_library_is_one_clear_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(CalibrationError, match=r"-m pip install 'mpi4py>=4.0'"):
        mpi.load_mpi()


if __name__ == "__main__":
    every_collective()
