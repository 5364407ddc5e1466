"""Tensors from one rank of a group to another, outside any collective."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from syncopate.collectives.health.blame import PeerError
from syncopate.collectives.health.detector import FailureDetector
from syncopate.collectives.runner import Runner


class Exchange:
    """Messages to and from one rank, several under way at the same time.

    The other rank starts and finishes as many. Made by :meth:`Messages.exchange`.

    Args:
        runner: the channel's.
        peer: the other rank.
    """

    def __init__(self, runner: Runner, peer: int) -> None:
        self._runner = runner
        self._peer = peer
        self._under_way: deque[Callable[[], None]] = deque()

    def start(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        """Start to send ``outgoing`` and to receive into ``incoming``, at the same time.

        Raises:
            PeerError: the connection is lost.
        """
        self._under_way.append(self._runner.start({self._peer: outgoing}, {self._peer: incoming}))

    def finish(self) -> None:
        """Wait for what was started first: its incoming tensor is there, the other may be changed.

        Raises:
            PeerError: the connection is lost.
        """
        try:
            self._under_way.popleft()()
        except RuntimeError as error:
            raise PeerError(self._peer, error) from error


class Messages:
    """Messages on a channel of a communicator, supervised as its collectives are.

    They travel as those of collectives do. While two ranks exchange messages, no collective may
    run between them on that channel.

    Args:
        runner: the channel's.
        detector: the communicator's.
    """

    def __init__(self, runner: Runner, detector: FailureDetector) -> None:
        self._runner = runner
        self._detector = detector

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send ``tensor`` to rank ``peer``; return when it may be changed again.

        Raises:
            CollectiveError: a rank was lost.
        """
        with self._detector.beside(f"message to rank {peer}"):
            self._runner.start({peer: tensor}, {})()

    def receive(self, tensor: torch.Tensor, peer: int) -> None:
        """Receive what rank ``peer`` sends into ``tensor``.

        Raises:
            CollectiveError: a rank was lost.
        """
        with self._detector.beside(f"message from rank {peer}"):
            self._runner.start({}, {peer: tensor})()

    @contextmanager
    def exchange(self, peer: int) -> Iterator[Exchange]:
        """Supervise a block of messages to and from rank ``peer`` at the same time.

        Raises:
            CollectiveError: a rank was lost.
        """
        with self._detector.beside(f"messages to and from rank {peer}"):
            yield Exchange(self._runner, peer)
