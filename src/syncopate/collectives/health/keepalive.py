"""Keep-alive: which ranks of a group are still there, as the kernels of their hosts see it.

[Note: why the kernel probes] A host that loses power or its cable closes no connection: TCP
just goes silent, and would for a quarter of an hour. Ranks could send each other signs of life,
but a thread that sends them stops whenever another holds Python's lock, in a long import, a
garbage collection or a debugger, and a living rank would be given up. So each rank holds one idle
connection to rank 0, the *hub*, and lets the kernels exchange TCP keep-alive probes on it, one a
second. A kernel answers for a process that computes, sleeps or is stopped; only a host that is
down or cut off does not. It costs a few packets per rank and second, and no time of any rank.

The hub learns who is silent and tells the others; they learn from their own connection when the
hub is silent, or died. A rank that was silent and comes back connects again. When the hub gives a
collective up it says why before it raises, for its end takes the rendezvous store along, from
which the others would have learnt it. A rank that leaves in good order says so, and one that ends
because a collective failed says that: of all ranks whose connection closes, only those that said
nothing are lost.

The hub lets in whom :mod:`syncopate.collectives.mesh.admission` lets in, and says so: until then a
rank whose connection closes tries again. Only where its address no longer listens has the hub died.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from syncopate.collectives.mesh import sockets
from syncopate.collectives.mesh.address import addresses_towards
from syncopate.collectives.mesh.admission import WELCOME_BYTES, Admission, Newcomer, Secret
from syncopate.errors import InvalidValueError

VARIABLE = "SYNCOPATE_HEARTBEAT_S"
"""The environment variable for the seconds of silence after which a host is given up; 0: never.

A host that is suspended for longer, or a network that is repaired, asks for more.
"""

SILENCE_S = 6.0
"""How long a host may be silent unless :data:`VARIABLE` says otherwise."""

HUB = 0
"""The rank to which all others hold a connection."""

_SHORTEST_S = 2.0
_CONNECT_S = 1.0
_PATIENCE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 0.02
_SETTLE_S = 1.0
_ATTEMPTS = 5
_READ_BYTES = 64 * 1024


class Meeting(msgspec.Struct, frozen=True):
    """Where the hub waits for the others.

    Attributes:
        addresses: the hub's addresses and ports, the best one first.
        nonce: the number that callers have to know, in hexadecimal.
        host: the hub's host name.
    """

    addresses: tuple[tuple[str, int], ...]
    nonce: str
    host: str


class News(msgspec.Struct, frozen=True):
    """What one end tells the other; a later one replaces it.

    Attributes:
        silent: from the hub: the ranks whose hosts do not answer it, with the hosts' names.
        lost: from the hub: the ranks that died, with the hosts' names.
        ranks: from the hub: the ranks held responsible for the end of the communicator.
        reason: why it ended; empty as long as it is whole.
        left: whether this end leaves in good order.
        failed: to the hub: whether a collective failed here, so that this end closes for a reason.
    """

    silent: dict[int, str] = {}
    lost: dict[int, str] = {}
    ranks: tuple[int, ...] = ()
    reason: str = ""
    left: bool = False
    failed: bool = False


def silence_s() -> float:
    """Return how long a host may be silent, in seconds; 0 for as long as it likes.

    Raises:
        InvalidValueError: the environment says something else.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        seconds = float(text) if text else SILENCE_S
    except ValueError:
        seconds = math.nan
    if not (seconds == 0 or _SHORTEST_S <= seconds < math.inf):
        rule = f"a number of seconds >= {_SHORTEST_S:g}, or 0 to wait for ever"
        raise InvalidValueError(VARIABLE, text, rule)
    return seconds


class KeepAlive:
    """One rank's end of the connections: :meth:`look` belongs to one thread, the rest to all.

    As it is here it has none.

    Attributes:
        silent: ranks whose hosts do not answer this one, with the hosts' names.
        doubtful: whether it may as well be this host that the others do not hear.
        lost: ranks that died, with their hosts' names and when, by ``time.monotonic``.
        news: what the hub said last.
    """

    def __init__(self) -> None:
        self.silent: dict[int, str] = {}
        self.doubtful = False
        self.lost: dict[int, tuple[str, float]] = {}
        self.news = News()

    @property
    def connected(self) -> bool:
        """Whether this end would learn of any other rank's death."""
        return False

    def look(self) -> None:
        """Take note of what the kernel found out; blocks for a second or two at most."""

    def tell(self, news: News) -> None:
        """Tell the other ends."""

    def close(self) -> None:
        """Close the connections; they need not be open."""


class _Line:
    """One connection, with the half of a message that has not all come yet.

    Args:
        connection: to the other end.
        limit_s: how long that may be silent.
        welcome: what it says first of all, if anything.

    Attributes:
        fault: the error of a connection that is at its end; 0 when the other end closed it.
        welcomed: whether it has said what it says first.
    """

    def __init__(self, connection: socket.socket, limit_s: float, welcome: bytes = b"") -> None:
        self.connection = connection
        self.fault: int | None = None
        self.welcomed = not welcome
        self._welcome = welcome
        self._heard = b""
        sockets.keep_alive(connection, limit_s)

    def read(self) -> list[News]:
        """Return what came; sets :attr:`fault` at the end."""
        try:
            data = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.fault = error.errno or errno.EIO
            return []
        if not data:
            self.fault = 0
        self._heard += data
        if not self.welcomed:
            if len(self._heard) < WELCOME_BYTES:
                return []
            said, self._heard = self._heard[:WELCOME_BYTES], self._heard[WELCOME_BYTES:]
            if not hmac.compare_digest(said, self._welcome):
                self.fault = errno.EPROTO
                return []
            self.welcomed = True
        *lines, self._heard = self._heard.split(b"\n")
        try:
            return [msgspec.json.decode(line, type=News) for line in lines]
        except msgspec.DecodeError:
            self.fault = errno.EPROTO
            return []

    def write(self, news: News) -> None:
        """Send without waiting; what the kernel does not take at once is dropped."""
        with suppress(OSError):
            self.connection.send(msgspec.json.encode(news) + b"\n")


class Hub(KeepAlive):
    """The end of rank 0.

    Args:
        store_address: host and port of the rendezvous store, by which the others find this host.
        limit_s: how long a host may be silent.
        secret: of the run.
        world_size: number of ranks.

    Raises:
        OSError: this host's network offers nothing to listen on.
    """

    def __init__(
        self, store_address: tuple[str, int], limit_s: float, secret: Secret, world_size: int
    ) -> None:
        super().__init__()
        self._limit_s = limit_s
        listeners = [sockets.listener(host) for host in addresses_towards(store_address)]
        self._admission = Admission(listeners, secret, world_size)
        self.meeting = Meeting(
            addresses=tuple(listener.getsockname()[:2] for listener in listeners),
            nonce=self._admission.nonce.hex(),
            host=socket.gethostname(),
        )
        self._found: dict[int, str] = {}
        self._found_s = 0.0
        self._lines: dict[_Line, tuple[int, str]] = {}
        self._failed: set[int] = set()
        self._last: News | None = None
        self._lock = threading.Lock()

    @property
    def connected(self) -> bool:
        """See :attr:`KeepAlive.connected`."""
        return True

    def look(self) -> None:
        """See :meth:`KeepAlive.look`."""
        lost = self.lost
        with self._lock:
            for newcomer in self._admission.admit():
                self._greet(newcomer)
            of = {line.connection: line for line in self._lines}
            for connection in sockets.signalled(of):
                self._read(of[connection])
        # Together: the kernel finds the ranks of one host silent within a second of each other.
        if self._found != self.silent and time.monotonic() - self._found_s > _SETTLE_S:
            others = {host for _, host in self._lines.values()} - {self.meeting.host}
            self.doubtful = not others - set(self._found.values())
            self.silent = dict(self._found)
        elif self.lost == lost:
            return
        self.tell(
            News(silent=self.silent, lost={rank: host for rank, (host, _) in self.lost.items()})
        )

    def tell(self, news: News) -> None:
        """See :meth:`KeepAlive.tell`; after a reason no other news count."""
        with self._lock:
            if self._last is None or not self._last.reason:
                self._last = news
                for line in self._lines:
                    line.write(news)

    def close(self) -> None:
        """See :meth:`KeepAlive.close`."""
        with self._lock:
            for newcomer in self._admission.admit():  # who came last hears the last news, too
                self._greet(newcomer)
            self._admission.close()
            for line in self._lines:
                # What is left unread would have the kernel take back what was told.
                line.read()
                line.connection.close()

    def _greet(self, newcomer: Newcomer) -> None:
        """Take in a new connection: note its rank, read from it, and send it the latest news."""
        line = _Line(newcomer.connection, self._limit_s)
        self._lines[line] = (newcomer.rank, newcomer.text)
        self._found.pop(newcomer.rank, None)
        self._read(line)
        if line in self._lines:
            with suppress(OSError):  # the next look finds out
                newcomer.connection.sendall(newcomer.welcome)
            if self._last is not None:
                line.write(self._last)

    def _read(self, line: _Line) -> None:
        news = line.read()
        left = any(each.left for each in news)
        if any(each.failed for each in news):
            self._failed.add(self._lines[line][0])
        if line.fault is None and not left:
            return
        rank, host = self._lines.pop(line)
        line.connection.close()
        if left or rank in self._failed or any(rank == other for other, _ in self._lines.values()):
            return
        if line.fault in sockets.SILENCE:
            self._found[rank] = host
            self._found_s = time.monotonic()
        else:
            self.lost = {**self.lost, rank: (host, time.monotonic())}


class Spoke(KeepAlive):
    """The end of every other rank.

    Made before any collective can fail, so that the hub knows of every rank that dies.

    Args:
        find: returns what the hub published; None when it has not yet, or the store is silent.
        rank: this rank.
        limit_s: how long a host may be silent.
        secret: of the run.
    """

    def __init__(
        self, find: Callable[[], Meeting | None], rank: int, limit_s: float, secret: Secret
    ) -> None:
        super().__init__()
        self.doubtful = True
        self._find = find
        self._rank = rank
        self._limit_s = limit_s
        self._secret = secret
        self._meeting: Meeting | None = None
        self._line: _Line | None = None
        self._reached = False
        self._attempts_left = _ATTEMPTS
        deadline_s, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S
        while (found := find()) is None and time.monotonic() < deadline_s:
            # The hub is a moment behind, and every start waits for it.
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._meeting = found
        self._connect()

    @property
    def connected(self) -> bool:
        """See :attr:`KeepAlive.connected`."""
        return self._line is not None

    def look(self) -> None:
        """See :meth:`KeepAlive.look`."""
        line = self._line
        if line is None:
            self._connect()
            return
        if not sockets.signalled([line.connection]):
            return
        for self.news in line.read():
            self._note_lost()
        if line.fault is None:
            return
        line.connection.close()
        self._line = None
        if line.fault in sockets.SILENCE:
            self.silent = {HUB: self._host}
            self._attempts_left = -1  # until it answers again
        elif line.welcomed:
            self._attempts_left = 0
            if not self.news.left:
                self._lose_hub()

    def tell(self, news: News) -> None:
        """See :meth:`KeepAlive.tell`."""
        line = self._line
        if line is not None:
            line.write(news)

    def close(self) -> None:
        """See :meth:`KeepAlive.close`."""
        line = self._line
        if line is not None:
            line.connection.close()

    def _note_lost(self) -> None:
        for rank, host in self.news.lost.items():
            if rank not in self.lost and rank != self._rank:
                self.lost = {**self.lost, rank: (host, time.monotonic())}

    @property
    def _host(self) -> str:
        return self._meeting.host if self._meeting else ""

    def _lose_hub(self) -> None:
        self.lost = {**self.lost, HUB: (self._host, time.monotonic())}

    def _connect(self) -> None:
        if not self._attempts_left:
            return
        self._meeting = self._meeting or self._find()
        if self._meeting is None:
            return
        self._attempts_left -= 1
        refused = 0
        for address in self._meeting.addresses:
            try:
                self._line = self._call(address)
                self._reached = True
                self.silent = {}
                return
            except ConnectionRefusedError:
                refused += 1
            except OSError:
                pass
        if self._reached and refused == len(self._meeting.addresses) and not self.silent:
            self._attempts_left = 0
            self._lose_hub()

    def _call(self, address: tuple[str, int]) -> _Line:
        """Return a connection to the hub, which has been told who calls.

        Raises:
            OSError: no process listens there.
        """
        assert self._meeting is not None
        hello = self._secret.hello(
            bytes.fromhex(self._meeting.nonce), self._rank, socket.gethostname()
        )
        connection = socket.create_connection(address, timeout=_CONNECT_S)
        try:
            connection.sendall(hello)
        except OSError:
            connection.close()
            raise
        return _Line(connection, self._limit_s, self._secret.welcome(hello))
