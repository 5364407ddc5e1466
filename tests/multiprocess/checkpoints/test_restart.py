"""A rank dies; torchrun starts all again; training goes on from its checkpoint, on fewer ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import children

EXAMPLE = children.REPOSITORY / "examples" / "resume.py"


def _train(
    ranks: int, file: Path, *arguments: str, restarts: int = 0
) -> dict[tuple[int, int], float]:
    """Run the example; return the loss of every (start, step) that it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command += [str(EXAMPLE), "--file", str(file), *arguments]
    done = subprocess.run(
        command,
        env=children.environment(
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"
        ),
        capture_output=True,
        text=True,
        timeout=children.HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.findall(r"start (\d+), step (\d+): loss (\S+)", done.stdout)
    return {(int(start), int(step)): float(loss) for start, step, loss in found}


@pytest.mark.skipif(sys.platform != "linux", reason="names the loopback device")
def test_workers_that_are_started_again_go_on_from_the_last_checkpoint(tmp_path):
    file = tmp_path / "last.pt"
    often = ("--steps", "23", "--every", "8")
    died = _train(2, file, *often, "--die-at", "12", restarts=1)
    # Steps 8 to 11 are lost, and done again from the checkpoint of step 8.
    first = [step for start, step in died if start == 0]
    assert first in ([*range(12)], [*range(11)])
    assert [step for start, step in died if start == 1] == [*range(8, 23)]
    for step in first[8:]:
        assert died[1, step] == died[0, step]

    # Two ranks went on from the checkpoint of step 16, and one does so now; what they train on
    # together is the same.
    fewer = _train(1, file, *often)
    assert [step for _, step in fewer] == [*range(16, 23)]
    for (_, step), loss in fewer.items():
        assert loss == pytest.approx(died[1, step], rel=1e-4)
