"""LP: a linear pipeline; blocks move down a chain of ranks one behind the other.

The buffer is cut into B blocks. In every step each rank of the chain sends one block to the next
and receives the following one from the rank before, so that once the pipe is filled all links are
busy in both directions. Three ranks, root 0, blocks a to d::

    broadcast           1 2 3 4 5      reduce              1 2 3 4 5
      0 -> 1            a b c d          2 -> 1            a b c d
      1 -> 2              a b c d        1 -> 0              a b c d

The chain runs from the root over root + 1, .., around to root - 1. The all-reduce runs a reduce
stream to rank 0 at the chain's end and a broadcast stream back. A rank in the middle receives from
both of its sides and has one port, so the broadcast fills the pipe while the last block of the
reduction drains from it::

    all-reduce          1 2 3 4 5 6 7 8 9
      2 -> 1            a b c d
      1 -> 0              a b c d
      0 -> 1                    a b c d
      1 -> 2                      a b c d

Steps and bytes, blocks of b = n/B bytes:

* broadcast, reduce: p - 2 + B steps, (p - 2 + B) b bytes one after the other: n bytes for large B,
  for any p.
* all-reduce: 2(p - 2 + B) - 1 steps (two ranks B + 1, a single block 2(p - 1)); along a chain from
  end to end, no order of messages takes fewer, since the root's neighbour has 2 B to receive, the
  first no earlier than step p - 2, and the last has p - 2 hops yet to go.

More blocks shorten the pipe's filling and cost a start-up each; the best number depends on the
network and the size (:func:`syncopate.costs.decide.options.best_options`).

Source: LP (Wang et al. 2017), Section 3 and Fig. 2, whose example of 3 ranks and 4 blocks takes 5
and 9 steps as here; Table 1 prints p - 1 + n/b for the p - 2 + n/b of the figure.
"""

from __future__ import annotations

import numpy as np

from syncopate.errors import InvalidValueError
from syncopate.schedules.base import COPY, REDUCE, Schedule, Table, Transfers, rows, stacked

DEFAULT_BLOCKS = 16
"""Blocks when nothing is known of the network or the size."""


def broadcast(world_size: int, root: int, *, blocks: int = DEFAULT_BLOCKS) -> Schedule:
    """Return the pipelined broadcast; one chunk per block."""
    _require_blocks(blocks)
    table = _stream(world_size, root, blocks, 0, COPY)
    return Schedule("broadcast", "lp", world_size, blocks, Transfers(table), root)


def reduce(world_size: int, root: int, *, blocks: int = DEFAULT_BLOCKS) -> Schedule:
    """Return the pipelined reduce; one chunk per block."""
    _require_blocks(blocks)
    table = _stream(world_size, root, blocks, 0, REDUCE)
    return Schedule("reduce", "lp", world_size, blocks, Transfers(table), root)


def all_reduce(world_size: int, *, blocks: int = DEFAULT_BLOCKS) -> Schedule:
    """Return the reduce stream to rank 0 and the broadcast stream back; one chunk per block."""
    _require_blocks(blocks)
    # Block 0 is complete after p - 1 steps, and its way back is free once the last block of the
    # reduction has reached the root's neighbour; two ranks have no such neighbour in between.
    first = world_size - 1
    if world_size > 2:
        first = max(first, world_size - 3 + blocks)
    table = stacked(
        [
            _stream(world_size, 0, blocks, 0, REDUCE),
            _stream(world_size, 0, blocks, first, COPY),
        ]
    )
    return Schedule("all_reduce", "lp", world_size, blocks, Transfers(table))


def _stream(world_size: int, root: int, blocks: int, first_round: int, op: int) -> Table:
    """Return a stream of blocks along the chain: away from ``root`` as copies, or towards it."""
    hop = np.arange(world_size - 1)[:, None]
    block = np.arange(blocks)
    near, far = (root + hop) % world_size, (root + hop + 1) % world_size
    if op == COPY:
        return rows(first_round + hop + block, near, far, (block, block + 1), COPY)
    last = world_size - 2
    return rows(first_round + last - hop + block, far, near, (block, block + 1), REDUCE)


def _require_blocks(blocks: int) -> None:
    if blocks < 1:
        raise InvalidValueError("blocks", blocks, "an integer >= 1")
