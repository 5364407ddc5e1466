"""Ports: a range for listeners, and what is said where none of it is free."""

from __future__ import annotations

import errno
import socket

import pytest

from syncopate.collectives.mesh.sockets import listener
from syncopate.errors import InvalidValueError
from syncopate.ports import VARIABLE, bound, ports_of


@pytest.mark.parametrize(
    ("text", "ports"),
    [("29600-29602", range(29600, 29603)), ("1", range(1, 2)), (" 5-5 ", range(5, 6))],
)
def test_a_text_names_a_range(text, ports):
    assert ports_of(text) == ports


@pytest.mark.parametrize("text", ["", "0-5", "9-8", "70000", "a-b", "1-70000", "1,2"])
def test_what_is_no_range_is_refused_with_an_example(text):
    with pytest.raises(InvalidValueError, match=r"SYNCOPATE_PORTS is .* such as 29600-29699"):
        ports_of(text)


def test_without_a_range_the_kernel_chooses(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert bound(lambda port: port) == 0


def test_the_first_free_port_of_the_range_is_taken(monkeypatch):
    monkeypatch.setenv(VARIABLE, "10-20")

    def bind(port):
        if port < 12:
            raise OSError(errno.EADDRINUSE, "taken")
        return port

    assert bound(bind) == 12


def test_listeners_take_ports_of_the_range_and_say_when_there_are_none_left(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(VARIABLE, f"{port}-{port}")
        with pytest.raises(
            OSError, match=rf"none of the 1 ports {port}-{port} \(SYNCOPATE_PORTS\)"
        ):
            listener("127.0.0.1")
    with listener("127.0.0.1") as found:
        assert found.getsockname() == ("127.0.0.1", port)
