"""Machine: the hosts of the ranks, and this rank's processor and device."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import torch
import torch.distributed as dist

from syncopate.collectives.communicator import Communicator


def hosts_of(communicator: Communicator) -> tuple[str, ...]:
    """Return the host name of every rank, in rank order; every rank must call it."""
    return tuple(communicator.all_gather_object(socket.gethostname()))


def device_of(communicator: Communicator) -> torch.device:
    """Return where the buffers of collectives live: CUDA with NCCL, else host memory."""
    several = communicator.world_size > 1 and torch.cuda.is_available()
    if several and "nccl" in str(dist.get_backend_config()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Return when the work queued on ``device`` is done; on a CPU it already is."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cpu_name() -> str:
    """Return the processor's model as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
