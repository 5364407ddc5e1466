"""The address by which other ranks reach this one."""

from __future__ import annotations

import socket

import pytest

from syncopate.collectives.mesh import address, sockets
from syncopate.collectives.mesh.address import addresses_towards, own_address


def test_the_address_follows_the_interface_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    socket.inet_aton(own_address())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host whose name leads nowhere, with loopback and one other address."""
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setattr(sockets, "is_here", lambda found: found in ("127.0.0.1", "10.0.0.7"))
    monkeypatch.setattr(
        address,
        "_towards",
        lambda target: "127.0.0.1" if target[0] in ("myself", "localhost") else "10.0.0.7",
    )
    return monkeypatch


def test_an_address_that_cannot_be_bound_is_not_told(host: pytest.MonkeyPatch) -> None:
    host.setattr(socket, "gethostbyname", lambda name: "10.99.99.99")
    assert own_address() == "127.0.0.1"
    host.setenv("MASTER_ADDR", "master")
    assert own_address() == "10.0.0.7"


@pytest.mark.parametrize(("world_size", "found"), [("4", "127.0.0.1"), ("8", "10.0.0.7")])
def test_other_hosts_are_not_told_a_loopback_address(
    host: pytest.MonkeyPatch, world_size: str, found: str
) -> None:
    """Where the name of the master leads to loopback on the master itself."""
    host.setenv("MASTER_ADDR", "myself")
    host.setenv("LOCAL_WORLD_SIZE", "4")
    host.setenv("WORLD_SIZE", world_size)
    assert own_address() == found


def test_ranks_find_rank_0_on_both_of_its_ways(host: pytest.MonkeyPatch) -> None:
    host.setattr(sockets, "address_towards", lambda store: "10.0.0.7")
    assert addresses_towards(("store", 1)) == ["10.0.0.7", "127.0.0.1"]
    host.setenv("MASTER_ADDR", "store")
    assert addresses_towards(("store", 1)) == ["10.0.0.7"]
