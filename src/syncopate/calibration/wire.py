"""Wire: messages between two ranks of a communicator, outside any collective.

They travel as those of collectives do: through a mesh where there is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from syncopate.collectives import mesh, transport
from syncopate.collectives.communicator import Communicator
from syncopate.errors import CalibrationError

_TAG = 0


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


class Wire:
    """Blocking point-to-point messages among a communicator's ranks, on a group of their own.

    Every rank of the communicator must create it. Peers are ranks of the communicator. In a world
    of one rank there is nobody to write to, and no group.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank = communicator.rank
        self.device = device_of(communicator)
        self._group: dist.ProcessGroup | None = None
        self._mesh: mesh.Mesh | None = None
        if communicator.world_size == 1:
            return
        ranks = communicator.all_gather_object(dist.get_rank())
        part = ranks if len(ranks) < dist.get_world_size() else None
        self._group = transport.group_of(part, None, communicator.timeout_s)
        self._send, self._receive = transport.point_to_point(self._group, self.device)
        if self.device.type == "cpu" and transport.uses_gloo(self._group):
            self._mesh = mesh.connect(self._group, communicator.timeout_s)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send ``tensor`` to ``peer``; return when it may be changed again."""
        with _named(self.rank, peer):
            if self._mesh is not None:
                self._mesh.send(_bytes(tensor), peer, _TAG).wait()
                return
            self._send([tensor], peer, _TAG).wait()
            synchronize(self.device)

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        """Receive what ``peer`` sends into ``tensor``."""
        with _named(self.rank, peer):
            if self._mesh is not None:
                self._mesh.receive(_bytes(tensor), peer, _TAG).wait()
                return
            self._receive([tensor], peer, _TAG).wait()
            synchronize(self.device)

    def close(self) -> None:
        """Give mesh and process group back."""
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None
        if self._group is not None:
            transport.destroy_group(self._group)
            self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


@contextlib.contextmanager
def _named(rank: int, peer: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CalibrationError(
            f"the link between ranks {rank} and {peer} failed while it was measured: {error}"
        ) from error
