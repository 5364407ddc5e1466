"""Admission: only ranks of this run may connect to a rank.

[Note: one secret per run] The first rank that needs it draws a secret and leaves it in the
rendezvous store, where all others find it. A rank that connects says in one *hello* which rank it
is, and proves by the secret that it belongs to this run (HMAC-SHA256 over what it says and a number
that the listener drew). Strangers, ranks of an earlier run, and hellos that were overheard and said
again are turned away. The links themselves are neither encrypted nor signed: see
``docs/security.md``.

[Note: side by side] A connection that has not said all of its hello waits beside the others and
keeps none of them waiting. It has a few seconds, and where too many wait the oldest one has to go.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from syncopate.collectives.mesh import sockets

HELLO_S = 3.0
"""How long a connection may take to say its hello."""

WELCOME_BYTES = 32
"""Length of the answer to a hello, by which a caller knows that it reached a rank of its run."""

MOST_WAITING = 64
"""How many connections may wait without a hello; twice the ranks, where that is more."""

_MAGIC = b"syncopat"
_NONCE_BYTES = 16
_PROOF_BYTES = 32
_RUN_BYTES = 8
_HEAD = struct.Struct(f"!{len(_MAGIC)}s{_RUN_BYTES}sIB")  # magic, run, rank, length of the text
_LONGEST = 255
_ACCEPTED_AT_ONCE = 1024
_log = logging.getLogger("syncopate")


class Secret:
    """What only the ranks of a run know.

    Args:
        key: random bytes.

    Attributes:
        run: names the run without giving the key away.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.run = hashlib.sha256(b"run" + key).digest()[:_RUN_BYTES]

    def hello(self, nonce: bytes, rank: int, text: str = "") -> bytes:
        """Return what ``rank`` says to the listener that drew ``nonce``.

        Args:
            nonce: the listener's number.
            rank: the one that says it.
            text: what else it says; cut after some 250 bytes.
        """
        said = text.encode()[:_LONGEST]
        head = _HEAD.pack(_MAGIC, self.run, rank, len(said))
        body = head + said + os.urandom(_NONCE_BYTES)
        return body + self._proof(b"hello", nonce, body)

    def welcome(self, hello: bytes) -> bytes:
        """Return the answer to a hello."""
        return self._proof(b"welcome", b"", hello)

    def proves(self, nonce: bytes, hello: bytes) -> bool:
        """Say whether a hello was made for the listener that drew ``nonce``, by this secret."""
        body, proof = hello[:-_PROOF_BYTES], hello[-_PROOF_BYTES:]
        return hmac.compare_digest(proof, self._proof(b"hello", nonce, body))

    def _proof(self, what: bytes, nonce: bytes, said: bytes) -> bytes:
        return hmac.digest(self._key, what + nonce + said, "sha256")


def secret_of(store: Store) -> Secret:
    """Return the secret of the run that ``store`` belongs to; drawn here if no rank has done it."""
    key = store.compare_set("secret", "", secrets.token_hex(32))
    return Secret(bytes.fromhex(key.decode()))


class Newcomer(NamedTuple):
    """A rank that was let in.

    Attributes:
        rank: which.
        text: what else it said.
        connection: to it; does not block. What it said after its hello is still to be read.
        welcome: the answer to its hello, which it has not got yet.
    """

    rank: int
    text: str
    connection: socket.socket
    welcome: bytes


class _Waiting:
    """A connection that has not said all of its hello."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection = connection
        self.address = address
        self.since_s = time.monotonic()
        self.said = b""

    def read(self) -> bool:
        """Read what came of the hello and nothing after it; say whether that is all of it.

        Raises:
            _RefusedError: it will not become a hello.
        """
        while missing := self._missing():
            try:
                came = self.connection.recv(missing)
            except BlockingIOError:
                return False
            except OSError:
                came = b""
            if not came:
                raise _RefusedError("closed without a hello")
            self.said += came
            if not _MAGIC.startswith(self.said[: len(_MAGIC)]):
                raise _RefusedError("said something else than a rank does")
        return True

    def _missing(self) -> int:
        if len(self.said) < _HEAD.size:
            return _HEAD.size - len(self.said)
        rest = _HEAD.unpack_from(self.said)[-1] + _NONCE_BYTES + _PROOF_BYTES
        return int(_HEAD.size + rest - len(self.said))


class _RefusedError(Exception):
    """Why a connection is turned away."""


class Admission:
    """Lets ranks in at one rank's listeners; used by one thread at a time.

    Args:
        listeners: do not block.
        secret: of the run.
        world_size: number of ranks.

    Attributes:
        nonce: the number that callers have to know.
        refused: how many connections were turned away, by reason.
    """

    def __init__(self, listeners: Sequence[socket.socket], secret: Secret, world_size: int) -> None:
        self.nonce = os.urandom(_NONCE_BYTES)
        self.refused: Counter[str] = Counter()
        self._listeners = listeners
        self._secret = secret
        self._world_size = world_size
        self._most = max(MOST_WAITING, 2 * world_size)
        self._waiting: dict[socket.socket, _Waiting] = {}
        self._heard: set[bytes] = set()

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets on which something may come."""
        return [*self._listeners, *self._waiting]

    def admit(self) -> list[Newcomer]:
        """Return the ranks that have said their hello since the last time; does not block."""
        found: list[Newcomer] = []
        for listener in self._listeners:
            for _ in range(_ACCEPTED_AT_ONCE):
                try:
                    connection, address = listener.accept()
                except OSError:
                    break
                connection.setblocking(False)
                if len(self._waiting) >= self._most:
                    found += self._read()
                if len(self._waiting) >= self._most:
                    self._refuse(next(iter(self._waiting.values())), "one of too many at once")
                self._waiting[connection] = _Waiting(connection, str(address[0]))
        found += self._read()
        now_s = time.monotonic()
        for waiting in list(self._waiting.values()):
            if now_s - waiting.since_s > HELLO_S:
                self._refuse(waiting, f"said no hello within {HELLO_S:g} s")
        return found

    def turn_away(self, newcomer: Newcomer) -> None:
        """Close the connection of a rank that has no business here."""
        address = ""
        with suppress(OSError):
            address = str(newcomer.connection.getpeername()[0])
        self._note(address, f"came as rank {newcomer.rank} out of turn")
        newcomer.connection.close()

    def close(self) -> None:
        """Close the listeners, and the connections that wait."""
        for connection in self.sockets:
            connection.close()
        self._waiting.clear()

    def _read(self) -> list[Newcomer]:
        found = []
        for connection in sockets.signalled(self._waiting):
            waiting = self._waiting[connection]
            try:
                if waiting.read():
                    found.append(self._let_in(waiting))
                    del self._waiting[connection]
            except _RefusedError as error:
                self._refuse(waiting, str(error))
        return found

    def _let_in(self, waiting: _Waiting) -> Newcomer:
        said = waiting.said
        _, run, rank, length = _HEAD.unpack_from(said)
        if not hmac.compare_digest(run, self._secret.run):
            raise _RefusedError("a rank of another run")
        if not self._secret.proves(self.nonce, said) or rank >= self._world_size:
            raise _RefusedError("did not know the secret of the run")
        if said in self._heard:
            raise _RefusedError("said again what was said before")
        self._heard.add(said)
        text = said[_HEAD.size : _HEAD.size + length].decode(errors="replace")
        return Newcomer(rank, text, waiting.connection, self._secret.welcome(said))

    def _refuse(self, waiting: _Waiting, reason: str) -> None:
        del self._waiting[waiting.connection]
        waiting.connection.close()
        self._note(waiting.address, reason)

    def _note(self, address: str, reason: str) -> None:
        if not self.refused:
            _log.warning(
                "refused a connection from %s: %s. Only ranks of this run may connect; further "
                "refusals are counted and not logged",
                address,
                reason,
            )
        self.refused[reason] += 1
