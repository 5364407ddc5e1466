"""Messages: tensors from one rank of a group to another, outside any collective."""

from __future__ import annotations

import torch

from syncopate.collectives.runner import Runner
from syncopate.collectives.watch import Watch


class Messages:
    """Blocking messages on a channel of a communicator, watched over as its collectives are.

    They travel as those of collectives do. While two ranks exchange messages, no collective may
    run between them on that channel.

    Args:
        runner: the channel's.
        watch: the communicator's.
    """

    def __init__(self, runner: Runner, watch: Watch) -> None:
        self._runner = runner
        self._watch = watch

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send ``tensor`` to rank ``peer``; return when it may be changed again.

        Raises:
            CollectiveError: a rank was lost.
        """
        with self._watch.beside(f"message to rank {peer}"):
            self._runner.send(tensor, peer)

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        """Receive what rank ``peer`` sends into ``tensor``.

        Raises:
            CollectiveError: a rank was lost.
        """
        with self._watch.beside(f"message from rank {peer}"):
            self._runner.receive(tensor, peer)
