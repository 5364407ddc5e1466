"""Wires: on what a process listens, and that who is told the address is heard there."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from functools import partial
from socket import create_connection

import pytest
import torch
import zmq

from syncopate.errors import ParameterServerError
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.tensors import frame_of
from syncopate.paramserver.wire.faults import Faults
from syncopate.paramserver.wire.outbox import IN_FLIGHT_BYTES
from syncopate.paramserver.wire.sockets import Arrival, RefusalLog, Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.paramserver.wire.unadmitted import MOST_BYTES
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import CONTROL_BYTES, Limits
from tests.children import HANGS_S

KIND = "ipc" if sys.platform == "linux" else "tcp"


@pytest.fixture
def wires():
    opened = [Wire(None, Limits(), Tap(role)) for role in (msg.SERVER, msg.WORKER)]
    yield opened
    for wire in opened:
        wire.close(0)


@pytest.mark.parametrize(("host", "given"), [("127.0.0.1", False), ("::1", False), ("::1", True)])
def test_on_one_machine_one_listens_on_a_unix_socket_unless_a_port_is_given(wires, host, given):
    server, worker = wires
    port = free_port() if given else 0
    try:
        address = server.listen(host, port)
    except ParameterServerError:
        pytest.skip(f"this machine has no {host}")
    assert address.startswith(f"tcp://[{host}]:{port}" if given else f"{KIND}://")
    worker.connect(0, address)
    worker.send(0, msg.Query(3, 1))
    arrivals = _until(server, worker)
    assert [codec.decode(codec.ToServer, one.frames[0].buffer) for one in arrivals] == [
        msg.Query(3, 1)
    ]


def test_elsewhere_one_listens_on_a_port(wires):
    address = wires[0].listen("0.0.0.0", 0)
    assert address.startswith("tcp://")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says whose process a peer is")
@pytest.mark.parametrize("ours", [True, False])
def test_a_unix_socket_is_for_processes_of_its_user_alone(wires, monkeypatch, ours):
    server, worker = wires
    if not ours:
        other = os.geteuid() + 1
        monkeypatch.setattr("syncopate.paramserver.wire.security.os.geteuid", lambda: other)
    worker.connect(0, server.listen("127.0.0.1", 0))
    worker.send(0, msg.Query(3, 1))
    arrivals = []
    until_s = time.monotonic() + HANGS_S
    while not (arrivals or server.turned_away) and time.monotonic() < until_s:
        worker.flush()
        arrivals += server.receive(0.01)
    away = {} if ours else {"of another user": 1}
    assert (len(arrivals), server.turned_away) == (1 if ours else 0, away)


@pytest.mark.parametrize(
    ("delays", "keys"),
    [
        ([[0.0, 0.05], [0.0], [0.0]], [0, 1, 9, 0]),
        ([[0.0, 0.05], [0.0, 0.1], [0.0]], [0, 1, 9, 0, 1]),
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [0, 0, 1, 1, 9, 9]),
    ],
    ids=["one late", "both late", "at once"],
)
def test_a_payload_that_comes_twice_holds_up_nothing(wires, monkeypatch, delays, keys):
    server, worker = wires
    faults = Faults()
    monkeypatch.setattr(faults, "delays", iter(delays).__next__)
    monkeypatch.setattr(worker, "_faults", faults)
    worker.connect(0, server.listen("127.0.0.1", 0))
    sent, arrived = [], []
    for key in (0, 1):
        data = torch.full((IN_FLIGHT_BYTES // 2,), key, dtype=torch.uint8)
        worker.send(0, msg.Push(key, 1), 0, frame_of(data), partial(sent.append, key))
    worker.send(0, msg.Query(9, 1))
    until_s = time.monotonic() + HANGS_S
    while (len(arrived) < len(keys) or len(sent) < 2) and time.monotonic() < until_s:
        worker.flush()
        for arrival in server.receive(0.01):
            message, payload = server.opened(codec.ToServer, arrival)
            arrived.append(message.key)
            assert payload is None or set(payload.bytes) == {message.key}
    assert sorted(arrived) == sorted(keys)
    assert sorted(sent) == [0, 1]


def test_the_kernel_looks_for_dead_connections_and_a_slow_frame_is_none(wires):
    # ZeroMQ's own heartbeats would cut a connection on which a frame takes ten seconds.
    server, worker = wires
    server.listen("127.0.0.1", free_port())
    worker.connect(0, "tcp://127.0.0.1:9")
    for socket in (server._router, worker._dealers[0]):
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
        assert socket.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert socket.getsockopt(zmq.TCP_MAXRT) > 0


def test_refusals_are_logged_at_first_and_at_the_end(caplog):
    log = RefusalLog("a server")
    for counts in ({}, {"malformed": 1}, {"malformed": 2}):
        log.note(counts)
    log.note({"malformed": 3}, last=True)
    assert caplog.messages == [
        "a server refused messages: {'malformed': 1}",
        "a server refused messages: {'malformed': 3}",
    ]


def test_names_of_unix_sockets_do_not_repeat(wires):
    server, worker = wires
    assert server.listen("127.0.0.1", 0) != worker.listen("127.0.0.1", 0)


@pytest.mark.parametrize(("nbytes", "kept"), [(1000, 1), (5000, 0)])
def test_of_who_comes_early_little_is_kept(nbytes, kept):
    server = object.__new__(ParameterServer)
    server._machine, server._early = None, deque()
    server._take(Arrival(b"stranger", [zmq.Frame(bytes(nbytes))], 0.0))
    assert len(server._early) == kept


def _greeted(port):
    """Return a connection whose ZeroMQ handshake is done, byte by byte."""
    peer = create_connection(("127.0.0.1", port))
    peer.settimeout(HANGS_S)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
    came = b""
    while len(came) < 64 + 2 or len(came) < 64 + 2 + came[65]:
        came += peer.recv(4096)
    peer.settimeout(5)
    return peer


@pytest.mark.parametrize(("nbytes", "held"), [(CONTROL_BYTES, True), (60 << 20, False)])
def test_of_an_unfinished_frame_no_more_is_held_than_a_frame_may_have(wires, nbytes, held):
    """A scheduler's frames are short, and so a stranger's cannot take its memory."""
    port = free_port()
    wires[0].listen("127.0.0.1", port, CONTROL_BYTES)
    with _greeted(port) as peer:
        peer.sendall(b"\x02" + nbytes.to_bytes(8, "big") + bytes(1000))
        peer.settimeout(0.5 if held else HANGS_S)
        if held:
            with pytest.raises(TimeoutError):
                peer.recv(1)
        else:
            assert _is_closed(peer)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what was received")
def test_unadmitted_connections_send_little_and_members_as_much_as_they_like(wires):
    """Frames that never end, and messages that never do."""
    server, worker = wires
    port = free_port()
    worker.connect(0, server.listen("127.0.0.1", port))
    worker.send(0, msg.Query(3, 1))
    for arrival in _until(server, worker):
        server.admit(arrival)
    with _greeted(port) as one, _greeted(port) as other:
        one.sendall(b"\x02" + (60 << 20).to_bytes(8, "big"))
        brought = _pours(one, bytes(1 << 16)) + _pours(other, (b"\x01\xff" + bytes(255)) * 256)
    assert brought < 2 * MOST_BYTES + (64 << 20)
    assert server.turned_away["unadmitted"] >= 1
    data = torch.zeros(2 * MOST_BYTES, dtype=torch.uint8)
    worker.send(0, msg.Push(3, 1), 0, frame_of(data))
    (arrival,) = _until(server, worker)
    assert len(arrival.frames[1]) == 2 * MOST_BYTES


def _pours(peer, data):
    """Return how many bytes a peer took before it closed the connection, or read no more.

    Of a message of many parts ZeroMQ reads as many as it holds, and then nothing, not even that its
    connection was closed.
    """
    brought = 0
    while brought < 1 << 30:
        try:
            peer.sendall(data)  # whole frames, or what follows would be read as others
            brought += len(data)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return brought
    raise AssertionError("it takes everything")


def _until(server, worker):
    """Return what comes next."""
    until_s = time.monotonic() + HANGS_S
    while time.monotonic() < until_s:
        worker.flush()
        if found := list(server.receive(0.01)):
            return found
    raise AssertionError("nothing comes")


def _is_closed(peer):
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True
