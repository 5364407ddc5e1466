"""Offsets: by how much the ranks' clocks differ, for timelines of several hosts."""

from __future__ import annotations

import time

import torch

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.machine import hosts_of
from syncopate.collectives.messages.wire import Wire
from syncopate.tracing.merge import ClockOffset, clock_offset

_ROUND_TRIPS = 20


def clock_offsets(communicator: Communicator) -> tuple[ClockOffset, ...]:
    """Return each rank's ``time.perf_counter`` minus rank 0's, the same on all ranks.

    Ranks of one host read one clock, so their offset is exactly 0; others are asked over some
    round trips. Clocks drift apart by microseconds per second: measure close to what is compared.
    Every rank must call it.
    """
    hosts = hosts_of(communicator)
    strangers = [rank for rank, host in enumerate(hosts) if host != hosts[0]]
    offsets = [ClockOffset(0.0, 0.0)] * communicator.world_size
    if not strangers:
        return tuple(offsets)
    wire = Wire(communicator)
    for rank in strangers:
        if communicator.rank == 0:
            offsets[rank] = _ask(wire, rank)
        elif communicator.rank == rank:
            _answer(wire)
    offsets = communicator.broadcast_object(offsets)
    return tuple(offsets)


def _ask(wire: Wire, peer: int) -> ClockOffset:
    stamp = torch.zeros((), dtype=torch.float64, device=wire.device)
    trips = []
    for _ in range(_ROUND_TRIPS):
        sent = time.perf_counter()
        wire.send(stamp, peer)
        wire.receive(stamp, peer)
        trips.append((sent, stamp.item(), time.perf_counter()))
    return clock_offset(trips)


def _answer(wire: Wire) -> None:
    stamp = torch.zeros((), dtype=torch.float64, device=wire.device)
    for _ in range(_ROUND_TRIPS):
        wire.receive(stamp, 0)
        stamp.fill_(time.perf_counter())
        wire.send(stamp, 0)
