"""The address by which other ranks reach this one."""

from __future__ import annotations

import socket

import pytest

from syncopate.collectives.address import own_address


def test_the_address_follows_the_interface_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    socket.inet_aton(own_address())
