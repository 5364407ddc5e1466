"""Wire: messages between two ranks of a communicator, on the device of its collectives.

They travel as those of collectives do, and are supervised in the same way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import device_of, synchronize
from syncopate.collectives.messages.tensors import Exchange


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
        """Supervise a block of messages to and from ``peer`` at the same time.

        Raises:
            CollectiveError: a rank was lost.
        """
        return self._messages.exchange(peer)
