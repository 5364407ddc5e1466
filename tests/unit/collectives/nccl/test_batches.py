"""What a rank does in batches: what leaves one arrives at the other, and the sums come out."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.collectives.nccl.batches import Program, compile_batches, message_chunks
from syncopate.schedules.base import Schedule, chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.schedules.registry import build
from tests.conformance.drawn import Drawn, drawn, drawn_bounds
from tests.conformance.table import TABLE

MANY = 1 << 30


def play(programs: list[Program], buffers: list[np.ndarray]) -> None:
    """Run the programs as NCCL would: a batch ends when all its messages have met the other end."""
    posted: dict[tuple[int, int], deque[np.ndarray]] = {}
    waiting = [deque(program.batches) for program in programs]
    issued = [False] * len(programs)
    while any(waiting):
        moved = False
        for rank, batches in enumerate(waiting):
            if not batches:
                continue
            batch = batches[0]
            if not issued[rank]:
                for send in batch.sends:
                    data = buffers[rank][send.start : send.stop].copy()
                    posted.setdefault((rank, send.peer), deque()).append(data)
                issued[rank] = moved = True
            wanted: dict[int, int] = {}
            for receive in batch.receives:
                wanted[receive.peer] = wanted.get(receive.peer, 0) + 1
            if any(len(posted.get((peer, rank), ())) < count for peer, count in wanted.items()):
                continue
            for start, stop, peer, landing, adds in batch.receives:
                data = posted[peer, rank].popleft()
                assert len(data) == stop - start
                if landing >= 0:
                    assert landing + stop - start <= programs[rank].scratch_numel
                else:
                    assert not adds
                    assert all(stop <= sent.start or sent.stop <= start for sent in batch.sends)
                buffers[rank][start:stop] = data + (buffers[rank][start:stop] if adds else 0)
            batches.popleft()
            issued[rank] = False
            moved = True
        assert moved, "every rank waits for another"
    assert not any(posted.values())


def right(
    schedule: Schedule, numel: int, chunks: int, bounds: tuple[int, ...] | None = None
) -> bool:
    p = schedule.world_size
    conditions = CONDITIONS[schedule.collective]
    offsets = chunk_offsets(numel, p) if bounds is None else bounds
    start = [np.arange(numel) * (rank + 1) for rank in range(p)]
    buffers = [buffer.copy() for buffer in start]
    play([compile_batches(schedule, rank, numel, chunks, bounds) for rank in range(p)], buffers)
    if conditions.reduces:
        wanted = sum(start)
    elif conditions.rooted:
        wanted = start[schedule.root]
    else:
        wanted = np.concatenate([start[r][offsets[r] : offsets[r + 1]] for r in range(p)])
    for rank, buffer in enumerate(buffers):
        place = {
            Place.EVERYWHERE: slice(None),
            Place.SHARD: slice(offsets[rank], offsets[rank + 1]),
            Place.ROOT: slice(None if rank == schedule.root else 0),
        }[conditions.end]
        if not np.array_equal(buffer[place], wanted[place]):
            return False
    return True


@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize(("p", "numel"), list(itertools.product((2, 3, 5, 8), (1, 2, 40))))
def test_every_algorithm_in_message_chunks(row, p: int, numel: int) -> None:
    conditions = CONDITIONS[row.collective]
    schedule = build(row.collective, row.algorithm, p, root=p - 1 if conditions.rooted else 0)
    for chunks in (1,) if conditions.sharded else (1, 3):
        assert right(schedule, numel, chunks), chunks


@settings(max_examples=60)
@given(case=drawn(9, sharded=True), data=st.data())
def test_any_bounds_of_the_shards(case: Drawn, data: st.DataObject) -> None:
    bounds = data.draw(drawn_bounds(case.world_size))
    assert right(case.schedule(), bounds[-1], 1, bounds)


def test_only_idle_ranks_are_worth_message_chunks() -> None:
    for name, cut in (
        ("ring", False),
        ("recursive_doubling", False),
        ("halving_doubling", False),
        ("blueconnect", False),
        ("binary_tree", True),
        ("mst", True),
    ):
        assert (message_chunks(build("all_reduce", name, 8), MANY, 1 << 20) > 1) == cut, name
    tree = build("all_reduce", "mst", 8)
    assert message_chunks(tree, 1 << 20, 1 << 20) == 1
    assert message_chunks(tree, 3 << 20, 1 << 20) == 3
    assert message_chunks(build("reduce_scatter", "hierarchical", 8), MANY, 1) == 1
    assert message_chunks(build("all_reduce", "mst", 1), MANY, 1) == 1


def test_message_chunks_keep_ranks_busy() -> None:
    """A chain of p ranks forwards m chunks in p - 2 + m batches, not one after the other."""
    chain = build("broadcast", "lp", 5, root=0, blocks=1)
    batches = [compile_batches(chain, rank, 100, 4).batches for rank in range(5)]
    assert [len(found) for found in batches] == [4, 5, 5, 5, 4]


def test_scratch_is_for_what_is_added_or_would_overwrite_what_leaves() -> None:
    gather = build("all_gather", "ring", 4)
    assert compile_batches(gather, 0, 100).scratch_numel == 0
    doubling = build("all_reduce", "recursive_doubling", 4)
    assert compile_batches(doubling, 0, 100).scratch_numel == 100
