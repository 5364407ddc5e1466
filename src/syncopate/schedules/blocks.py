"""Blocks: how the executor cuts a transfer, so that it can be forwarded before all of it is there.

A transfer of at least two blocks is pipelined: while one block is on its way, the one before is
reduced and goes on to the next rank. Longer blocks cost less of a processor, shorter ones fill a
pipeline sooner. Measured at 1 Gbit/s between four and eight hosts, halves of a transfer are best
as long as they are between a quarter of a megabyte and a whole one.
"""

from __future__ import annotations

from syncopate.units import MIB

BLOCK_BYTES = MIB
"""Length of the longest block, unless ``MAX_BLOCKS`` of them do not make up the transfer."""

MAX_BLOCKS = 64
"""Blocks per transfer at most: enough to overlap, few enough to compile and run quickly."""

_SHORTEST_PART = 4


def block_count(nbytes: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Return into how many blocks, as equal as possible, a transfer is cut.

    Args:
        nbytes: length of the transfer; >= 0.
        block_bytes: length of the longest block; the shortest are a quarter of it.

    Example:
        >>> [block_count(nbytes) for nbytes in (0, 256 * 1024, 512 * 1024, 2 * MIB, 64 * MIB)]
        [1, 1, 2, 2, 64]
    """
    block = min(max(-(-nbytes // 2), block_bytes // _SHORTEST_PART, 1), block_bytes)
    return min(max(-(-nbytes // block), 1), MAX_BLOCKS)
