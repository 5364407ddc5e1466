"""Joining ranks: who is refused before anything hangs, and the time limit of a group made here."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from syncopate.collectives import Communicator
from syncopate.collectives.transport import group_timeout_s
from syncopate.engine.checks.connect import require_process_group
from syncopate.errors import EngineError


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [("WORLD_SIZE", "torchrun"), ("SLURM_NTASKS", "srun"), ("OMPI_COMM_WORLD_SIZE", "mpirun")],
)
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_that_nobody_joined(
    monkeypatch: pytest.MonkeyPatch, variable: str, launcher: str, count: int
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(count))
    said = rf"{variable}={count} says that {count} .*{launcher}.*start with"
    with pytest.raises(EngineError, match=said):
        require_process_group(nn.Linear(1, 1), 1.0)
    assert not dist.is_initialized()


@pytest.mark.parametrize("timeout_s", [None, 1234.0])
def test_a_group_made_here_has_torchs_own_limit_unless_one_is_given(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    require_process_group(nn.Linear(1, 1), timeout_s)
    try:
        wanted_s = 30 * 60.0 if timeout_s is None else timeout_s
        assert group_timeout_s(None) == wanted_s
        communicator = Communicator()
        assert communicator.timeout_s == wanted_s
        communicator.close()
    finally:
        dist.destroy_process_group()


def test_a_group_whose_limit_cannot_be_read_has_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opaque:
        group_name = "opaque"

    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:other")
    assert group_timeout_s(Opaque()) == 30 * 60.0  # type: ignore[arg-type]
