"""torchrun starts killed workers again: the job goes on with the servers that live."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests import children
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

LIMIT_S = 150.0


def _trained(folder, dies=(), restarts=2):
    """Train by torchrun on servers of its own; return what each worker says in the end."""
    folder.mkdir()
    with LocalServers(state=folder / "servers", limits=QUICK) as servers:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
        command += ["-m", "tests.multiprocess.paramserver.restarted", str(folder), json.dumps(dies)]
        done = subprocess.run(
            command,
            env=children.environment(
                **servers.job.environment("worker"),
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
                OMP_NUM_THREADS="1",
            ),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert servers.ended() is None
        for server in servers.servers:
            server.result()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    (began, weights), (_, other) = _trained(tmp_path_factory.mktemp("restart") / "undisturbed")
    assert began == {"began": 0, "resumed": False, "restart": 0}
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    return weights


@pytest.mark.parametrize(
    "dies",
    [[(1, 3)], [(1, 0), (0, 5)], [(0, 4), (1, -1)]],
    ids=["in a step", "twice, the first time in the first step", "and while they are started"],
)
def test_a_job_whose_worker_is_killed(tmp_path, undisturbed, dies):
    last = max(step for _, step in dies)
    # The job goes on from the step in which the worker died, with the same bits.
    for began, weights in _trained(tmp_path / "killed", dies):
        assert began == {"began": last, "resumed": True, "restart": len(dies)}
        assert weights.keys() == undisturbed.keys()
        assert all(torch.equal(weights[name], undisturbed[name]) for name in weights)
