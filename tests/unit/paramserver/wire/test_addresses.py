"""Addresses: which are local, and how ZeroMQ reads them."""

from __future__ import annotations

import pytest

from syncopate.paramserver.wire.addresses import endpoint, is_local


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("node7", False),
    ],
)
def test_what_is_local(host, local):
    assert is_local(host) == local


def test_addresses_are_written_as_zeromq_reads_them():
    assert endpoint("::1", 5) == "tcp://[::1]:5"
