"""torchrun starts killed workers again: the job goes on with the servers that live."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests import children
from tests.children import HANGS_S
from tests.multiprocess.paramserver.killable import require_alike
from tests.multiprocess.paramserver.servers import QUICK, LocalServers, wait_for


def _trained(folder, dies=(), *raises, meanwhile=lambda _: None):
    """Train by torchrun on servers of its own; return what each worker says in the end.

    Args:
        folder: for all that is written.
        dies: for each start a rank, and the step in which it dies.
        raises: what it raises instead.
        meanwhile: called with the servers when a worker has died.
    """
    folder.mkdir()
    with LocalServers(state=folder / "servers", limits=QUICK) as servers:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "2"]
        command += ["-m", "tests.multiprocess.paramserver.restarted", str(folder), json.dumps(dies)]
        with subprocess.Popen(
            [*command, *raises],
            env=children.environment(
                **servers.job.environment("worker"),
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
                OMP_NUM_THREADS="1",
            ),
            stderr=subprocess.PIPE,
            text=True,
        ) as torchrun:
            try:
                if dies:
                    wait_for((folder / "died").exists)
                    meanwhile(servers)
                _, said = torchrun.communicate(timeout=HANGS_S)
            except BaseException:
                torchrun.terminate()
                raise
        assert torchrun.returncode == 0, said[-4000:]
        assert servers.ended() is None
        for server in servers.servers:
            server.result()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    (began, weights), (_, other) = _trained(tmp_path_factory.mktemp("restart") / "undisturbed")
    assert began == {"began": 0, "resumed": False, "restart": 0}
    require_alike(weights, other)
    return weights


def _require_resumed(trained, step, restarts, undisturbed):
    """Require that the job went on from the step in which a worker died, with the same bits."""
    for began, weights in trained:
        assert began == {"began": step, "resumed": True, "restart": restarts}
        require_alike(weights, undisturbed)


@pytest.mark.parametrize(
    "dies",
    [[(1, 3)], [(1, 0), (0, 5)], [(0, 4), (1, -1)]],
    ids=["in a step", "twice, the first time in the first step", "and while they are started"],
)
def test_a_job_whose_worker_is_killed(tmp_path, undisturbed, dies):
    last = max(step for _, step in dies)
    _require_resumed(_trained(tmp_path / "killed", dies), last, len(dies), undisturbed)


def test_a_worker_that_raises_is_started_again_likewise(tmp_path, undisturbed):
    trained = _trained(tmp_path / "raised", [(1, 2)], "there is an error")
    _require_resumed(trained, 2, 1, undisturbed)


def test_a_server_that_is_killed_with_a_worker_is_back_in_time(tmp_path, undisturbed):
    trained = _trained(tmp_path / "both", [(1, 4)], meanwhile=lambda servers: servers.restart(0))
    _require_resumed(trained, 4, 1, undisturbed)
