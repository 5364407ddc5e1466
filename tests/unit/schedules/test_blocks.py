"""How a transfer is cut into blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncopate.schedules.blocks import BLOCK_BYTES, MAX_BLOCKS, block_count
from syncopate.units import KIB, MIB


def test_short_transfers_stay_whole_and_long_ones_have_two_blocks() -> None:
    assert [block_count(n) for n in (0, 1, 256 * KIB)] == [1, 1, 1]
    assert [block_count(n) for n in (256 * KIB + 1, 512 * KIB, MIB, 2 * MIB)] == [2, 2, 2, 2]
    assert block_count(2 * MIB + 1) == 3


@given(nbytes=st.integers(0, 2**40), block_bytes=st.integers(1, 2**24))
def test_blocks_have_the_length_asked_for(nbytes: int, block_bytes: int) -> None:
    count = block_count(nbytes, block_bytes)
    assert 1 <= count <= MAX_BLOCKS
    if count < MAX_BLOCKS:
        assert nbytes <= count * block_bytes
    assert nbytes > (count - 1) * max(block_bytes // 4, 1) or count == 1


def test_a_block_is_no_longer_than_asked() -> None:
    assert block_count(MAX_BLOCKS * BLOCK_BYTES) == MAX_BLOCKS
    assert block_count(2 * MAX_BLOCKS * BLOCK_BYTES) == MAX_BLOCKS
