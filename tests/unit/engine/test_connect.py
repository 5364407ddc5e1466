"""Processes that a launcher started and nobody joined are refused before anything hangs."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from syncopate.engine.connect import require_process_group
from syncopate.errors import EngineError


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [("WORLD_SIZE", "torchrun"), ("SLURM_NTASKS", "srun"), ("OMPI_COMM_WORLD_SIZE", "mpirun")],
)
def test_several_processes_that_nobody_joined(
    monkeypatch: pytest.MonkeyPatch, variable: str, launcher: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "4")
    with pytest.raises(EngineError, match=rf"{variable}=4 says that 4 .*{launcher}.*start with"):
        require_process_group(nn.Linear(1, 1), 1.0)
    assert not dist.is_initialized()
