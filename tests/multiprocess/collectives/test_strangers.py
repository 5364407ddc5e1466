"""Strangers, before ranks connect, while they do, and while they run: nobody notices them."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from syncopate.collectives import Communicator
from syncopate.collectives.mesh import admission
from syncopate.collectives.mesh.admission import Admission, Secret
from tests.multiprocess.harness import run_ranks

SILENT = 20
EARLIER_RUN = Secret(b"x" * 32)


def listening() -> set[str]:
    """Return the addresses on which this process listens, as the kernel counts them."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(entry))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path("/proc/self/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                words = fields[1].partition(":")[0]
                packed = b"".join(
                    struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)
                )
                found.add(socket.inet_ntop(family, packed))
    return found


def beset(rank: int, world_size: int) -> dict[str, Any]:
    strangers: list[socket.socket] = []
    admissions: list[Admission] = []
    bound: set[str] = set()

    class Beset(Admission):
        """An admission that strangers find before any rank does."""

        def __init__(self, listeners: list[socket.socket], secret: Secret, size: int) -> None:
            super().__init__(listeners, secret, size)
            admissions.append(self)
            for listener in listeners:
                bound.add(listener.getsockname()[0])
                self.come(listener.getsockname())

        def come(self, address: Any) -> None:
            said = [b""] * SILENT
            said += [b"GET / HTTP/1.1\r\n\r\n", EARLIER_RUN.hello(self.nonce, 1)]
            for words in said:
                stranger = socket.create_connection(address, timeout=10)
                strangers.append(stranger)
                stranger.sendall(words)

    with (
        mock.patch("syncopate.collectives.mesh.handshake.Admission", Beset),
        mock.patch("syncopate.collectives.health.keepalive.Admission", Beset),
        # Longer than the whole handshake may take: one rank that waits for one of them is too late.
        mock.patch.object(admission, "HELLO_S", 60.0),
    ):
        communicator = Communicator(channels=2, timeout_s=60)
    with communicator:
        communicator.barrier()
        meshed = [runner._executor.meshed for runner in communicator._runners]
        sums = set()
        for step in range(20):
            if rank == 0:
                hub = admissions[-1]
                hub.come(hub._listeners[0].getsockname())
            tensor = torch.full((1000,), float(rank + step))
            communicator.all_reduce(tensor, algorithm="ring")
            sums.add(tensor.sum().item() == 1000.0 * (3 * step + 3))
        found = listening() if sys.platform == "linux" else set()
        refused = sum((each.refused for each in admissions), start=type(admissions[0].refused)())
        lost = communicator.detector._monitor.losses.hosts if communicator.detector else None
    for stranger in strangers:
        stranger.close()
    return {
        "meshed": meshed,
        "right": sums,
        "bound": bound,
        "listening": found,
        "refused": dict(refused),
        "lost": lost,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's tables of listeners")
def test_strangers_cost_nothing_and_listeners_are_on_one_interface() -> None:
    results = run_ranks(beset, 3)
    for rank, found in enumerate(results):
        assert found["meshed"] == [True, True], (rank, found)
        assert found["right"] == {True}
        assert found["lost"] == {}
        assert found["bound"] == {"127.0.0.1"}  # the harness chose the loopback interface
        assert found["listening"] <= {"127.0.0.1"}
    # The last rank calls all others, and does not stay to look who comes besides.
    for found in results[:2]:
        assert found["refused"].get("a rank of another run", 0) >= 1
        assert found["refused"].get("said something else than a rank does", 0) >= 1
    assert "127.0.0.1" in results[0]["listening"]  # rank 0's, for the failure detector
