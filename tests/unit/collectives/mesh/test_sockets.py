"""What a kernel counts of a connection: of real ones, over loopback."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from syncopate.collectives.mesh.sockets import is_here, keep_alive, listener, sending
from tests.children import HANGS_S

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
    deadline_s = time.monotonic() + HANGS_S
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


@pytest.mark.parametrize("limit_s", [2.0, 6.0, 12.5, 600.0])
def test_a_silent_host_is_given_up_after_the_limit_whether_or_not_it_owes_an_answer(
    pair: Pair, limit_s: float
) -> None:
    """The kernel has one limit for probes and another one for what was sent."""
    near, _ = pair
    keep_alive(near, limit_s)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == limit_s * 1e3
    idle_s, period_s, probes = (
        near.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle_s + probes * period_s == pytest.approx(limit_s, abs=0.5 * period_s)
    assert period_s == max(1, round(limit_s / 60))


def test_a_host_may_be_silent_for_ever(pair: Pair) -> None:
    near, _ = pair
    keep_alive(near, 0)
    assert not near.getblocking()
    assert not near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_a_listener_is_on_the_address_asked_for_and_no_other() -> None:
    with listener("127.0.0.1") as found:
        host, port = found.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")
    with pytest.raises(OSError, match="assign"):
        listener("192.0.2.1")
