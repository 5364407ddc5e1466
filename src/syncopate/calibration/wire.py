"""Wire: messages between two ranks of a communicator, on the device of its collectives.

They travel as those of collectives do, and are watched over in the same way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.messages import Exchange


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
    """Messages between ranks of a communicator, of at least two ranks.

    No collective of the communicator may run between two ranks while they exchange messages.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank = communicator.rank
        self.device = device_of(communicator)
        self._messages = communicator.messages()

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send ``tensor`` to ``peer``; return when it may be changed again.

        Raises:
            CollectiveError: a rank was lost.
        """
        self._messages.send(tensor, peer)
        synchronize(self.device)

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        """Receive what ``peer`` sends into ``tensor``.

        Raises:
            CollectiveError: a rank was lost.
        """
        self._messages.receive(tensor, peer)
        synchronize(self.device)

    def exchange(self, peer: int) -> AbstractContextManager[Exchange]:
        """Watch over a block of messages to and from ``peer`` at the same time.

        Raises:
            CollectiveError: a rank was lost.
        """
        return self._messages.exchange(peer)
