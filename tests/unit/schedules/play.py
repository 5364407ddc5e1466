"""Plays a schedule on numpy arrays: the meaning of a schedule, said once more and plainly."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import chunks_at, conditions


def play(schedule: Schedule, buffers: np.ndarray) -> np.ndarray:
    """Return the buffers after ``schedule``, one row per rank and one column per chunk."""
    buffers = buffers.copy()
    for step in range(schedule.rounds):
        before = buffers.copy()
        for transfer in schedule.transfers:
            if transfer.round == step:
                chunks = slice(transfer.start, transfer.stop)
                sent = before[transfer.src, chunks]
                if transfer.op == "reduce":
                    buffers[transfer.dst, chunks] += sent
                else:
                    buffers[transfer.dst, chunks] = sent
    return buffers


def promised(schedule: Schedule, buffers: np.ndarray) -> dict[tuple[int, int], object]:
    """Return what ``(rank, chunk)`` must hold at the end, if ``buffers`` is the start."""
    rule = conditions(schedule.collective)
    result = buffers.sum(axis=0)
    if not rule.reduces:
        for rank in range(schedule.world_size):
            chunks = list(chunks_at(rule.start, schedule, rank))
            result[chunks] = buffers[rank, chunks]
    return {
        (rank, chunk): result[chunk]
        for rank in range(schedule.world_size)
        for chunk in chunks_at(rule.end, schedule, rank)
    }


def drawn_rounds(schedule: Schedule) -> list[str]:
    """Return a line for each round.

    ``2 +> 3 [0:2]`` says that rank 3 adds chunks 0 and 1 of rank 2 to its own, ``->`` that it
    takes them over; the range is left out where the buffer is a single chunk.
    """
    lines = []
    for step, transfers in groupby(schedule.transfers, lambda transfer: transfer.round):
        entries = []
        for _, src, dst, start, stop, op in transfers:
            chunks = f" [{start}]" if stop == start + 1 else f" [{start}:{stop}]"
            arrow = "->" if op == "copy" else "+>"
            entries.append(f"{src} {arrow} {dst}{chunks if schedule.chunks > 1 else ''}")
        lines.append(f"round {step}  {'    '.join(entries)}")
    return lines
