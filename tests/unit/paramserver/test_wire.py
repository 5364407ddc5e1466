"""Wires: on what a process listens, and that who is told the address is heard there."""

from __future__ import annotations

import sys

import pytest

from syncopate.errors import ParameterServerError
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.tap import Tap
from syncopate.paramserver.wire import Wire
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits

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
    arrivals = []
    for _ in range(500):
        worker.flush()
        arrivals += server.receive(0.01)
        if arrivals:
            break
    assert [msg.decode(msg.ToServer, one.frames[0].buffer) for one in arrivals] == [msg.Query(3, 1)]


def test_elsewhere_one_listens_on_a_port(wires):
    address = wires[0].listen("0.0.0.0", 0)
    assert address.startswith("tcp://")
