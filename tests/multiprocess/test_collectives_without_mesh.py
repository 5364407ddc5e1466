"""Ranks that cannot connect to each other go through Gloo's own messages."""

from __future__ import annotations

import socket
from unittest import mock

import torch

from syncopate.collectives import Communicator, handshake
from syncopate.schedules import registry
from tests.multiprocess.harness import run_ranks


def without_mesh(rank: int, world_size: int, culprit: int) -> bool:
    def refused(*_: object, **__: object) -> socket.socket:
        raise ConnectionRefusedError

    # One rank that cannot connect is enough: all of them must do without.
    with (
        mock.patch.object(handshake, "call", refused if rank == culprit else handshake.call),
        mock.patch.object(handshake, "_CONNECT_S", 2.0),
    ):
        communicator = Communicator(timeout_s=60)
    with communicator:
        communicator.barrier()
        for name in registry.algorithms("all_reduce"):
            for numel in (1, 1000, 300_000):
                tensor = torch.full((numel,), float(rank + 1))
                communicator.all_reduce(tensor, algorithm=name)
                assert (tensor == sum(range(1, world_size + 1))).all(), (name, numel)
        return communicator._runners[0]._executor.meshed


def test_ranks_that_cannot_connect_use_gloo() -> None:
    assert run_ranks(without_mesh, 3, 2) == [False] * 3
