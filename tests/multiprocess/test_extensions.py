"""What docs/extending.md says runs on real ranks, and is refused where the package is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from tests.children import HANGS_S, environment
from tests.planted_package import PAGE, install, of_the_page

PROGRAMS = {
    "syncopate": (sys.executable, "-m", "syncopate"),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone"),
}


def block_after(text: str) -> str:
    """Return the first block of Python after a text of the page."""
    found: str = PAGE.split(text)[1].split("```python\n")[1].split("```")[0]
    return found


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of the page in a folder."""
    program, *words = line.split()
    return subprocess.run(
        [*PROGRAMS[program], *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=HANGS_S,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with the package of the page, its script, and what its commands wrote."""
    found: Path = tmp_path_factory.mktemp("page")
    module = of_the_page("star_and_halves.py")
    install(found, of_the_page("pyproject.toml"), {"star_and_halves.py": module})
    (found / "train.py").write_text(block_after("`train.py`"))
    commands = PAGE.split("## Use it")[1].split("```\n")[1].split("```")[0].splitlines()
    assert len(commands) == 6
    for line in commands:
        done = run(found, line)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert "2 buckets by star" in done.stdout
    return found


def test_the_page_runs_as_written(folder):
    cluster = Cluster.load(folder / "cluster.json")
    assert {curve.algorithm for curve in cluster.curves} == {"native", "star"}
    plan = Plan.load(folder / "plan.json")
    assert plan.policy == "halves"
    done = subprocess.run(
        [sys.executable, "-c", block_after("In Python the names")],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr


def test_a_rank_without_the_package_ends_the_job_before_a_step(folder):
    script = (folder / "train.py").read_text()
    hidden = (
        "import os, sys\n"
        "if os.environ['RANK'] == '1':\n"
        "    from importlib import metadata\n"
        "    metadata.distributions = lambda: ()\n"
    )
    (folder / "alone.py").write_text(hidden + script)
    done = run(folder, "torchrun --nproc-per-node 2 alone.py")
    assert done.returncode != 0
    assert "buckets by" not in done.stdout
    assert re.search(r"unknown algorithm 'star' for all_reduce", done.stderr), done.stderr
