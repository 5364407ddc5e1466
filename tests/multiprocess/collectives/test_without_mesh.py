"""Ranks that cannot connect to each other go through Gloo's own messages, and say so."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from typing import Any
from unittest import mock

import pytest
import torch

from syncopate.collectives import Communicator, transport
from syncopate.collectives.mesh import handshake, links
from syncopate.collectives.mesh.sockets import listener
from syncopate.errors import CollectiveError
from syncopate.schedules import registry
from tests.multiprocess.harness import run_ranks

CULPRIT = 2
LIMIT_S = 300.0
SOON_S = 20.0
"""Bound on a failure; in fact three seconds or so, on a machine that others load too."""


def sayings() -> list[str]:
    """Return a list that what this package logs from now on is appended to."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("syncopate").addHandler(handler)
    return said


def out_of_files(host: str) -> socket.socket:
    raise OSError(errno.EMFILE, "Too many open files")


def without_mesh(rank: int, world_size: int) -> tuple[bool, list[str]]:
    def refused(connection: socket.socket, address: handshake.Address) -> int:
        return errno.ECONNREFUSED

    said = sayings()
    begin = refused if rank == CULPRIT else handshake.begin_to_connect
    # One rank that cannot connect is enough: all of them must do without.
    with (
        mock.patch.object(handshake, "begin_to_connect", begin),
        mock.patch.object(handshake, "CONNECT_S", 2.0),
    ):
        communicator = Communicator(timeout_s=60)
    with communicator:
        communicator.barrier()
        assert communicator.all_gather_object("x" * rank) == ["", "x", "xx"]
        assert communicator.broadcast_object(rank, src=1) == 1
        for name in registry.algorithms("all_reduce"):
            for numel in (1, 1000, 300_000):
                tensor = torch.full((numel,), float(rank + 1))
                communicator.all_reduce(tensor, algorithm=name)
                assert (tensor == sum(range(1, world_size + 1))).all(), (name, numel)
        meshed = communicator._runners[0]._executor.meshed
    with mock.patch.object(handshake, "listener", out_of_files if rank == CULPRIT else listener):
        communicator = Communicator(timeout_s=60)
    with communicator:
        communicator.barrier()
        meshed |= communicator._runners[0]._executor.meshed
    with mock.patch.object(transport, "gloo_backend", return_value=None):
        communicator = Communicator(timeout_s=60)
    with communicator:
        communicator.barrier()
        meshed |= communicator._runners[0]._executor.meshed
    return meshed, said


def test_ranks_that_cannot_connect_use_gloo() -> None:
    results = run_ranks(without_mesh, 3)
    assert [meshed for meshed, _ in results] == [False] * 3
    assert [len(said) for _, said in results] == [3, 0, 0]
    text, listening, other = results[0][1]
    assert listening.endswith("longer: rank 2 cannot listen: [Errno 24] Too many open files")
    assert "longer: torch wraps Gloo in this group, as TORCH_DISTRIBUTED_DEBUG=DETAIL" in other
    assert text.startswith("there is no mesh, so messages go through torch and take longer: ")
    assert "rank 2 did not connect to rank 0" in text
    assert "rank 2 did not connect to rank 1" in text
    assert "rank 2 cannot connect to rank 0 at 127.0.0.1:" in text
    assert "Connection refused" in text


def killed(rank: int, world_size: int, algorithm: str) -> dict[str, Any]:
    """Run collectives of a group that is too large for a mesh until one fails."""
    said = sayings()
    with mock.patch.object(links, "MOST_RANKS", 3):
        communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == CULPRIT:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    tensor = torch.ones(4_000_000)
    began_s = time.monotonic()
    try:
        while True:
            communicator.all_reduce(tensor.zero_(), algorithm=algorithm)
    except CollectiveError as error:
        found = {"ranks": error.ranks, "took_s": time.monotonic() - began_s, "said": said}
    communicator.close()
    return found


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "binary_tree"])
def test_a_dead_rank_is_named_where_there_are_too_many_ranks_for_a_mesh(algorithm: str) -> None:
    results = run_ranks(killed, 4, algorithm, may_die=[CULPRIT])
    survivors = [found for found in results if found is not None]
    assert [found["ranks"] for found in survivors] == [(CULPRIT,)] * 3
    # Large messages: some rank waits for the rest of one that Gloo had half read.
    assert max(found["took_s"] for found in survivors) < SOON_S
    (text,) = survivors[0]["said"]
    assert ": the group has 4 ranks" in text
    assert "at most 3 have them" in text
    assert [found["said"] for found in survivors[1:]] == [[], []]
