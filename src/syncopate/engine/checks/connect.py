"""Connect: a process group to work in, initialised here when the program has not done it."""

from __future__ import annotations

import atexit
import datetime
import os

import torch.distributed as dist
from torch import nn

from syncopate.errors import EngineError
from syncopate.ranks import require_sound

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = {
    "WORLD_SIZE": "an incomplete torchrun environment",
    "SLURM_NTASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}


def require_process_group(model: object, timeout_s: float | None) -> None:
    """Make sure that ``torch.distributed`` is initialised.

    Under torchrun the group is made from its environment, with Gloo for the CPU and NCCL when the
    model is on CUDA devices. A process that no launcher started is a world of one rank. Without
    ``timeout_s`` the group's time limit is torch's own.

    Raises:
        EngineError: another launcher started several processes and did not join them.
        CollectiveError: torchrun's variables say what no job can be.
    """
    if dist.is_initialized():
        return
    cuda = isinstance(model, nn.Module) and any(p.is_cuda for p in model.parameters())
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    timeout = None if timeout_s is None else datetime.timedelta(seconds=timeout_s)
    if all(name in os.environ for name in _TORCHRUN):
        require_sound(os.environ, meet=True)
        dist.init_process_group(backend, timeout=timeout)
    else:
        _refuse_lonely()
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    atexit.register(_leave)


def _refuse_lonely() -> None:
    for variable, launcher in _LAUNCHERS.items():
        count = os.environ.get(variable, "1")
        if count.isdigit() and int(count) > 1:
            missing = [name for name in _TORCHRUN if name not in os.environ]
            raise EngineError(
                f"{variable}={count} says that {count} processes were started ({launcher}), but "
                f"torch.distributed is not initialised and {', '.join(missing)} are not set; "
                "start with torchrun, or call torch.distributed.init_process_group first"
            )


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
