"""Ranks that cannot connect to each other go through Gloo's own messages, and say so."""

from __future__ import annotations

import errno
import logging
import socket
from unittest import mock

import torch

from syncopate.collectives import Communicator, handshake
from syncopate.schedules import registry
from tests.multiprocess.harness import run_ranks

CULPRIT = 2


def without_mesh(rank: int, world_size: int) -> tuple[bool, list[str]]:
    def refused(connection: socket.socket, address: handshake.Address) -> int:
        return errno.ECONNREFUSED

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("syncopate").addHandler(handler)
    begin = refused if rank == CULPRIT else handshake.begin_to_connect
    # One rank that cannot connect is enough: all of them must do without.
    with (
        mock.patch.object(handshake, "begin_to_connect", begin),
        mock.patch.object(handshake, "CONNECT_S", 2.0),
    ):
        communicator = Communicator(timeout_s=60)
    with communicator:
        communicator.barrier()
        for name in registry.algorithms("all_reduce"):
            for numel in (1, 1000, 300_000):
                tensor = torch.full((numel,), float(rank + 1))
                communicator.all_reduce(tensor, algorithm=name)
                assert (tensor == sum(range(1, world_size + 1))).all(), (name, numel)
        return communicator._runners[0]._executor.meshed, said


def test_ranks_that_cannot_connect_use_gloo() -> None:
    results = run_ranks(without_mesh, 3)
    assert [meshed for meshed, _ in results] == [False] * 3
    assert [len(said) for _, said in results] == [1, 0, 0]
    text = results[0][1][0]
    assert text.startswith("messages go through Gloo, which takes longer: ")
    assert "rank 2 did not connect to rank 0" in text
    assert "rank 2 did not connect to rank 1" in text
    assert "rank 2 cannot connect to rank 0 at 127.0.0.1:" in text
    assert "Connection refused" in text
