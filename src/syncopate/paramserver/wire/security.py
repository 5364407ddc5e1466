"""Security: the job's key, the CURVE keys derived from it, and which connections are let in.

All processes of a job have the same key file. Two CURVE key pairs follow from it: one for what
listens (scheduler, servers) and one for what connects (servers, workers). A listener lets in the
second public key and no other; a connecting process talks to the first public key and no other.
Without the key file a stranger can do neither, so nothing of its reaches Syncopate and it reads
nothing.

[Note: users] An abstract Unix socket has no permissions: every process of its network namespace may
connect, as to a port. But the kernel says whose process that is. So where there is no key, who
listens on one lets in processes of its own user alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from syncopate.errors import ArtifactError
from syncopate.output import write_output
from syncopate.reading import read_whole

_HEAD = "syncopate-job-key-1"
_LINE = re.compile(rf"{_HEAD} ([0-9a-f]{{64}})\s*")
_MOST_BYTES = 4096
_ZAP = "inproc://zeromq.zap.01"


class KeyPair(NamedTuple):
    """A CURVE key pair, each as 40 characters of Z85."""

    public: bytes
    secret: bytes


class JobKey(NamedTuple):
    """The CURVE key pairs of a job: of those that listen, and of those that connect."""

    listener: KeyPair
    caller: KeyPair


def make_key(path: Path) -> None:
    """Write a new job key that only its owner may read.

    Raises:
        ArtifactError: the file exists, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise ArtifactError(path, "exists already; a key is not replaced") from None
    except OSError as error:
        raise ArtifactError(path, f"cannot write: {error.strerror or error}") from None
    write_output(path, f"{_HEAD} {secrets.token_hex(32)}\n".encode())


def load_key(path: Path | None) -> JobKey | None:
    """Read a job key; None for None.

    Raises:
        ArtifactError: the file cannot be read, others may read it, or it holds no key.
    """
    if path is None:
        return None
    try:
        mode, text = path.stat().st_mode, read_whole(path, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(path, f"cannot read this job key: {error}") from None
    if mode & 0o077:
        raise ArtifactError(path, f"others may read this job key: chmod 600 {path}")
    match = _LINE.fullmatch(text)
    if match is None:
        raise ArtifactError(path, "no job key; make one with `syncopate ps key FILE`")
    secret = bytes.fromhex(match[1])
    return JobKey(_pair(secret, b"listener"), _pair(secret, b"caller"))


def _pair(secret: bytes, name: bytes) -> KeyPair:
    own = z85.encode(hmac.new(secret, b"syncopate curve " + name, hashlib.sha256).digest())
    return KeyPair(zmq.curve_public(own), own)


def secure_caller(socket: zmq.Socket[bytes], key: JobKey) -> None:
    """Make ``socket`` talk only to listeners with the job's key; before it connects."""
    socket.curve_serverkey = key.listener.public
    socket.curve_secretkey = key.caller.secret
    socket.curve_publickey = key.caller.public


def watch_listener(socket: zmq.Socket[bytes], key: JobKey | None) -> None:
    """Let a :class:`Doorkeeper` decide who may talk to ``socket``; before it is bound."""
    socket.zap_domain = b"syncopate"
    if key is not None:
        socket.curve_server = True
        socket.curve_secretkey = key.listener.secret
        socket.curve_publickey = key.listener.public


class Doorkeeper:
    """A thread that tells ZeroMQ whom the listeners of a context let in (ZeroMQ RFC 27, ZAP).

    Attributes:
        turned_away: how many callers had another key, or were of another user.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: JobKey | None) -> None:
        """Start it; before anything of ``context`` is bound.

        Args:
            context: of the listeners.
            key: a process that has it is let in; None: one of this user; see [Note: users].
        """
        self.turned_away = 0
        self._known = None if key is None else z85.decode(key.caller.public)
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        self._thread = threading.Thread(target=self._run, name="syncopate-zap", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends when the context does."""
        self._thread.join()

    def _run(self) -> None:
        with suppress(zmq.ContextTerminated):
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, *rest = request
        if len(rest) > 3 and self._knows(rest[1], rest[3], rest[4:]):
            return [version, number, b"200", b"OK", b"job", b""]
        self.turned_away += 1
        return [version, number, b"400", b"not of this job", b"", b""]

    def _knows(self, address: bytes, mechanism: bytes, given: list[bytes]) -> bool:
        if self._known is not None:
            known = mechanism == b"CURVE" and len(given) == 1
            return known and hmac.compare_digest(given[0], self._known)
        # ZeroMQ appends user, group and process of the process at the other end of a Unix socket.
        said = address.rsplit(b":", 3)
        return len(said) == 4 and said[1] == str(os.geteuid()).encode()
