"""A command line in this process, for the tests of commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.cli import main
from tests.unit import examples


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Run a command line in a folder with a workload and a cluster; return code, out, err."""
    for name in ("RANK", "WORLD_SIZE", "SYNCOPATE_RENDEZVOUS", "SYNCOPATE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    examples.workload().save("workload.json")
    examples.cluster().save("cluster.json")
    Path("large.json").write_bytes(
        Cluster.preset("10gbe", 97).to_json().replace(b"97,", b"1000000000,")
    )

    def run(line: str | list[str]):
        words = line.split() if isinstance(line, str) else line
        monkeypatch.setattr(sys, "argv", ["syncopate", *words])
        code = main()
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run
