"""A rank dies; torchrun starts all again; training goes on from its checkpoint, on fewer ranks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import children

EXAMPLE = children.REPOSITORY / "examples" / "resume.py"
LIMIT_S = 150.0


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
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.findall(r"start (\d+), step (\d+): loss (\S+)", done.stdout)
    return {(int(start), int(step)): float(loss) for start, step, loss in found}


@pytest.mark.skipif(sys.platform != "linux", reason="names the loopback device")
def test_workers_that_are_started_again_go_on_from_the_last_checkpoint(tmp_path):
    file = tmp_path / "last.pt"
    died = _train(3, file, "--steps", "15", "--die-at", "12", restarts=1)
    # Steps 10 and 11 are lost, and done again from the checkpoint of step 10.
    first = [step for start, step in died if start == 0]
    assert first in ([*range(12)], [*range(11)])
    assert [step for start, step in died if start == 1] == [*range(10, 15)]
    for step in (10, *first[11:]):
        assert died[1, step] == died[0, step]

    # Three ranks and two go on from the same file; what they train on together is the same.
    copy = tmp_path / "copy.pt"
    shutil.copy(file, copy)
    uninterrupted = _train(3, file, "--steps", "22")
    fewer = _train(2, copy, "--steps", "22")
    assert [step for _, step in fewer] == [*range(15, 22)]
    assert fewer == pytest.approx(uninterrupted, rel=1e-4)
