"""What a kernel counts of a connection: of real ones, over loopback."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from syncopate.collectives.sockets import sending

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it, others do not")

LONG = 32 << 20

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def counted(connection: socket.socket) -> tuple[int, float]:
    found = sending(connection)
    assert found is not None
    return found


def until_acknowledged(connection: socket.socket, nbytes: int) -> None:
    deadline_s = time.monotonic() + 30
    while counted(connection)[0] < nbytes:
        assert time.monotonic() < deadline_s, counted(connection)
        time.sleep(0.01)


def test_bytes_that_arrived_are_counted(pair: Pair) -> None:
    near, far = pair
    assert counted(near)[0] < LONG
    sender = threading.Thread(target=near.sendall, args=(bytes(LONG),))
    sender.start()
    left, piece = LONG, bytearray(1 << 20)
    while left:
        left -= far.recv_into(piece, min(left, len(piece)))
    sender.join()
    until_acknowledged(near, LONG)
    nbytes, busy_s = counted(near)
    assert LONG <= nbytes <= LONG + 1  # the handshake counts as a byte
    assert busy_s >= 0
    assert counted(far)[0] <= 1


def test_time_without_room_at_the_other_end_does_not_count(pair: Pair) -> None:
    """A receiver that does not read makes no link slow."""
    near, _ = pair
    near.setblocking(False)
    pieces = 0
    for _ in range(10_000):
        try:
            near.send(bytes(1 << 16))
        except BlockingIOError:
            break
        pieces += 1
    assert 0 < pieces < 10_000
    time.sleep(0.3)  # what the other end had room for has arrived
    _, before_s = counted(near)
    time.sleep(0.5)
    nbytes, after_s = counted(near)
    assert nbytes < pieces << 16
    assert after_s - before_s < 0.25


def test_nothing_is_known_of_what_is_no_connection(pair: Pair) -> None:
    near, _ = pair
    near.close()
    assert sending(near) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert sending(datagrams) is None


def test_a_kernel_that_says_less_says_nothing() -> None:
    class Old:
        """A connection of a kernel whose figures end earlier."""

        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            return bytes(size - 8)

    assert sending(Old()) is None  # type: ignore[arg-type]
