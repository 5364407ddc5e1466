"""Admission: real connections of ranks, strangers and ranks of other runs to one listener."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from syncopate.collectives.mesh import admission, sockets
from syncopate.collectives.mesh.admission import Admission, Newcomer, Secret, secret_of
from tests.children import HANGS_S

SECRET = Secret(b"k" * 32)
WORLD_SIZE = 4


class Door:
    """An admission, and the connections to it that a test has made."""

    def __init__(self) -> None:
        listener = sockets.listener("127.0.0.1")
        self.address = listener.getsockname()
        self.admission = Admission([listener], SECRET, WORLD_SIZE)
        self.nonce = self.admission.nonce
        self.connections: list[socket.socket] = []

    def come(self, *said: bytes) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=HANGS_S)
        self.connections.append(connection)
        for part in said:
            connection.sendall(part)
        return connection

    def admit(self, count: int, *, refused: int = 0) -> list[Newcomer]:
        """Return newcomers once ``count`` have come and so many in all been refused."""
        found: list[Newcomer] = []
        deadline_s = time.monotonic() + HANGS_S / 2
        while len(found) < count or self.admission.refused.total() < refused:
            found += self.admission.admit()
            assert time.monotonic() < deadline_s, (found, self.admission.refused)
        self.connections += [newcomer.connection for newcomer in found]
        return found

    def close(self) -> None:
        self.admission.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    # No limit passes while a busy machine lets a test wait.
    monkeypatch.setattr(admission, "HELLO_S", HANGS_S)
    made = Door()
    yield made
    made.close()


def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_a_rank_is_let_in_and_told_so(door: Door) -> None:
    hello = SECRET.hello(door.nonce, 3, "host3")
    caller = door.come(hello, b"and more")
    (newcomer,) = door.admit(1)
    assert (newcomer.rank, newcomer.text) == (3, "host3")
    assert newcomer.welcome == SECRET.welcome(hello)
    assert newcomer.connection.recv(100) == b"and more"
    newcomer.connection.sendall(newcomer.welcome)
    assert caller.recv(100) == SECRET.welcome(hello)
    assert not door.admission.refused


def test_a_hello_in_pieces_is_waited_for_and_those_after_it_are_not_kept(door: Door) -> None:
    hello = SECRET.hello(door.nonce, 1, "x" * 300)
    slow = door.come(hello[:5])
    door.come(SECRET.hello(door.nonce, 2))
    (second,) = door.admit(1)
    for byte in range(5, len(hello)):
        slow.sendall(hello[byte : byte + 1])
        door.admission.admit() if byte < len(hello) - 1 else None
    (first,) = door.admit(1)
    assert (first.rank, first.text) == (1, "x" * 255)
    assert second.rank == 2


@pytest.mark.parametrize("before", [1, 20])
def test_the_silent_keep_nobody_waiting(door: Door, before: int) -> None:
    for _ in range(before):
        door.come()
    for rank in range(WORLD_SIZE):
        door.come(SECRET.hello(door.nonce, rank))
    assert sorted(newcomer.rank for newcomer in door.admit(WORLD_SIZE)) == [0, 1, 2, 3]
    assert len(door.admission._waiting) == before
    assert not door.admission.refused  # not one limit has passed meanwhile


def test_the_silent_have_a_limit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELLO_S", 0.0)
    silent = door.come()
    half = door.come(SECRET.hello(door.nonce, 1)[:-1])
    door.admit(0, refused=2)
    assert door.admission.refused == {"said no hello within 0 s": 2}
    assert is_closed(silent)
    assert is_closed(half)


Words = Callable[[bytes], bytes]
REFUSED: dict[str, tuple[Words, str]] = {
    "garbage": (lambda nonce: b"GET / HTTP/1.1\r\n\r\n", "said something else than a rank does"),
    "zeros": (lambda nonce: bytes(1000), "said something else than a rank does"),
    "another run": (lambda nonce: Secret(b"x" * 32).hello(nonce, 1), "a rank of another run"),
    "another listener": (
        lambda nonce: SECRET.hello(b"y" * 16, 1),
        "did not know the secret of the run",
    ),
    "another rank": (
        # Rank 1's own, in the name of rank 2.
        lambda nonce: SECRET.hello(nonce, 1).replace(b"\0\0\0\1", b"\0\0\0\2", 1),
        "did not know the secret of the run",
    ),
    "the name of the run alone": (
        lambda nonce: SECRET.hello(nonce, 1)[:-32] + bytes(32),
        "did not know the secret of the run",
    ),
    "no such rank": (
        lambda nonce: SECRET.hello(nonce, WORLD_SIZE),
        "did not know the secret of the run",
    ),
}


@pytest.mark.parametrize("who", REFUSED)
def test_others_are_turned_away(door: Door, who: str) -> None:
    words, reason = REFUSED[who]
    other = door.come(words(door.nonce))
    door.come(SECRET.hello(door.nonce, 3))
    assert [newcomer.rank for newcomer in door.admit(1, refused=1)] == [3]
    assert door.admission.refused == {reason: 1}
    assert is_closed(other)


def test_what_was_overheard_is_of_no_use(door: Door) -> None:
    hello = SECRET.hello(door.nonce, 1)
    door.come(hello)
    door.admit(1)
    again = door.come(hello)
    door.admit(0, refused=1)
    assert door.admission.refused == {"said again what was said before": 1}
    assert is_closed(again)


def test_a_rank_out_of_turn_is_turned_away(door: Door) -> None:
    caller = door.come(SECRET.hello(door.nonce, 1))
    (newcomer,) = door.admit(1)
    door.admission.turn_away(newcomer)
    assert door.admission.refused == {"came as rank 1 out of turn": 1}
    assert is_closed(caller)


def test_no_more_wait_than_so_many_and_ranks_among_them_are_let_in(door: Door) -> None:
    strangers = [door.come() for _ in range(admission.MOST_WAITING)]
    door.come(SECRET.hello(door.nonce, 1))
    strangers += [door.come() for _ in range(admission.MOST_WAITING)]
    door.come(SECRET.hello(door.nonce, 2))
    assert {newcomer.rank for newcomer in door.admit(2)} == {1, 2}
    assert len(door.admission._waiting) <= admission.MOST_WAITING
    refused = door.admission.refused["one of too many at once"]
    assert refused >= admission.MOST_WAITING
    assert all(is_closed(stranger) for stranger in strangers[:refused])


def test_refusals_are_counted_and_logged_once(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "syncopate"):
        for _ in range(3):
            door.come(b"GET / HTTP/1.1\r\n\r\n")
        door.admit(0, refused=3)
    assert door.admission.refused.total() == 3
    (record,) = caplog.records
    assert "refused a connection from 127.0.0.1: said something else than" in record.getMessage()


def test_the_ranks_of_a_run_share_a_secret_and_those_of_another_have_another() -> None:
    class Store(dict[str, str]):
        def compare_set(self, key: str, expected: str, value: str) -> bytes:
            assert expected == ""
            return self.setdefault(key, value).encode()

    first, second = Store(), Store()
    nonce = b"n" * 16
    hello = secret_of(first).hello(nonce, 1)
    assert secret_of(first).proves(nonce, hello)
    assert not secret_of(second).proves(nonce, hello)
    assert secret_of(first).run == secret_of(first).run != secret_of(second).run
    assert len(bytes.fromhex(first["secret"])) == 32
    assert bytes.fromhex(first["secret"]) not in hello
