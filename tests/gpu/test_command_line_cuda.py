"""Commands with ``--device cuda``: one GPU for each rank, over NCCL."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.benchmark import Benchmark
from tests.children import HANGS_S

COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        COUNT < 2, reason=f"NCCL takes one rank per GPU; this machine has {COUNT} GPUs"
    ),
]


def _syncopate(*words: object) -> None:
    command = [sys.executable, "-m", "syncopate", *map(str, words), "--device", "cuda"]
    subprocess.run(command, check=True, timeout=HANGS_S)


def test_calibrate_measures_nccl(tmp_path):
    path = tmp_path / "cluster.json"
    _syncopate("calibrate", "--local", COUNT, "--budget", 5, "-o", path)
    cluster = Cluster.load(path)
    assert cluster.world_size == COUNT
    assert "nccl" in cluster.metadata["backend"]


def test_bench_verifies_what_nccl_returns(tmp_path):
    path = tmp_path / "bench.json"
    words = ("-a", "native,ring", "--sizes", "4KiB,1MiB", "-n", 3)
    _syncopate("bench", "--local", COUNT, *words, "-o", path)
    found = Benchmark.load(path)
    assert found.wrong == 0
    assert found.metadata["gpu"] == torch.cuda.get_device_name(0)
