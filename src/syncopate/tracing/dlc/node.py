"""Node: a DLC trace as it is written, one message after the other.

A worker and a server do four things with a key and a peer, always in this order: push sent and
answered, pull sent and answered. So the number of an operation, what it waited for and how long
follow from the messages and their iterations.

Source: SketchDLC, Sections 3.2.3, 4.1 and 4.3.2, Equations 5 to 8. Where a push waits for all pulls
of the iteration before, ``d_time`` is read off Fig. 8: it counts from the last message that the
worker sent before it had that key's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from syncopate.errors import InvalidValueError
from syncopate.tracing.dlc.records import (
    OF_SERVERS,
    OF_WORKERS,
    Dependency,
    Operation,
    Record,
    SetUp,
)

_FOUR = 4
_KEPT = 64
"""Operations of a key and a peer that are remembered."""

_WAITS_FOR = (
    Dependency.PUSH_ON_PULL,
    Dependency.PUSH_ON_PUSH,
    Dependency.PULL_ON_PUSH,
    Dependency.PULL_ON_PULL,
)
"""By the place of an operation among its four."""


class _Last(NamedTuple):
    """The last operation of a key and a peer.

    Attributes:
        number: its number.
        time_us: when.
        sent_us: when the node had last sent anything by then.
    """

    number: int
    time_us: int
    sent_us: int


class Node:
    """One node of a parameter server, and the records of its messages.

    Args:
        rank: among the workers, or among the servers.
        worker: whether it is a worker; else a server.
        workers: number of workers.
        servers: number of servers.
        synchronous: whether servers answer a push when all workers pushed.
    """

    def __init__(
        self, rank: int, *, worker: bool, workers: int, servers: int, synchronous: bool = True
    ) -> None:
        peers = servers if worker else workers
        if not 0 <= rank < (workers if worker else servers):
            raise InvalidValueError("rank", rank, f"in 0..{(workers if worker else servers) - 1}")
        self.id = rank if worker else workers + rank
        self.records: list[Record | SetUp] = []
        self._worker = worker
        self._peers = [f"{'s' if worker else 'w'}{peer}" for peer in range(peers)]
        self._first_peer = workers if worker else 0
        self._synchronous = synchronous
        self._order = OF_WORKERS if worker else OF_SERVERS
        # Worker 0 gives servers the first values, with two operations more.
        self._first_number = _FOUR if worker and rank == 0 else _FOUR - 2
        self._done: dict[tuple[int, int], dict[int, _Last]] = {}
        self._sent_us = 0

    def set_up(self, peer: int, *, sends: bool, length: int) -> SetUp:
        """Add a message that sets up a connection with a peer, and return its record."""
        other = self._first_peer + peer
        src, dst = (self.id, other) if sends else (other, self.id)
        record = SetUp(len(self.records), src, dst, length, 0, "SendCom_To_Servers")
        self.records.append(record)
        return record

    def add(
        self,
        operation: Operation,
        key: int,
        peer: int,
        *,
        length: int,
        num_pp: int,
        time_us: int,
        iteration: int,
    ) -> Record:
        """Add a message, and return its record.

        A request to pull may come before the push is answered; it then waited for the push alone.

        Args:
            operation: what this node did.
            key: index of the parameter.
            peer: rank of the server or worker at the other end.
            length: size of the message, bytes.
            num_pp: number of the push or pull.
            time_us: when, microseconds since the epoch.
            iteration: of the training, from 0; -1: before it.

        Raises:
            InvalidValueError: not what a worker or server does.
        """
        if operation not in self._order:
            raise InvalidValueError("operation", str(operation), " or ".join(self._order))
        done = self._done.setdefault((key, peer), {})
        place = self._order.index(operation)
        number = self._first_number + _FOUR * iteration + place
        last = _before(done, number, place)
        other = self._first_peer + peer
        src, dst = (other, self.id)
        if operation.sends:
            self._sent_us = time_us
            src, dst = (self.id, other)
        kind, waited_us, depends_on, many = self._waited(place, key, peer, last, time_us)
        record = Record(
            len(self.records), src, dst, length, num_pp, operation, key, number,
            self._peers[peer], kind, waited_us, time_us, depends_on, many,
        )  # fmt: skip
        self.records.append(record)
        done[number] = _Last(number, time_us, self._sent_us)
        if len(done) > _KEPT:
            del done[next(iter(done))]
        return record

    def _waited(
        self, place: int, key: int, peer: int, last: _Last | None, time_us: int
    ) -> tuple[Dependency, int, tuple[str, ...], bool]:
        """Return type, microseconds and records of what an operation waited for."""
        if last is None:
            return Dependency.NONE, 0, (), False
        kind = _WAITS_FOR[place]
        if self._worker and kind is Dependency.PUSH_ON_PULL:
            every = tuple(f"{last.number}-{name}" for name in self._peers)
            return kind, time_us - last.sent_us, every, True
        of_all = kind is Dependency.PUSH_ON_PULL or (
            kind is Dependency.PUSH_ON_PUSH and self._synchronous
        )
        many = of_all and not self._worker and last.number >= 0
        peers = self._peers if many else self._peers[peer : peer + 1]
        names = tuple(f"{key}-{last.number}-{name}" for name in peers)
        return kind, time_us - last.time_us, names, many


def _before(done: Mapping[int, _Last], number: int, place: int) -> _Last | None:
    """Return what an operation waited for, of this key and peer; None: it is not known."""
    if place == 0:
        pulled = range(number - 1, number - 1 - _KEPT, -_FOUR)
        return next((done[n] for n in pulled if n in done), None)
    if place == 2:
        return done.get(number - 1) or done.get(number - 2)
    return done.get(number - 1)
