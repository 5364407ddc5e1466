from __future__ import annotations

from textwrap import dedent

from syncopate.schedules.draw import draw
from syncopate.schedules.registry import build


def test_ring():
    assert draw(build("reduce_scatter", "ring", 3)) == dedent("""\
        reduce_scatter (ring), 3 ranks: 2 rounds, 3 chunks
        round 0  0 +> 1 [2]    1 +> 2 [0]    2 +> 0 [1]
        round 1  0 +> 1 [1]    1 +> 2 [2]    2 +> 0 [0]""")


def test_ranges_and_wrapping():
    assert draw(build("all_reduce", "halving_doubling", 4), width=40) == dedent("""\
        all_reduce (halving_doubling), 4 ranks: 4 rounds, 4 chunks
        round 0  0 +> 1 [2:4]    1 +> 0 [0:2]
                 2 +> 3 [2:4]    3 +> 2 [0:2]
        round 1  0 +> 2 [1]    1 +> 3 [3]
                 2 +> 0 [0]    3 +> 1 [2]
        round 2  0 -> 2 [0]    1 -> 3 [2]
                 2 -> 0 [1]    3 -> 1 [3]
        round 3  0 -> 1 [0:2]    1 -> 0 [2:4]
                 2 -> 3 [0:2]    3 -> 2 [2:4]""")


def test_a_single_chunk_needs_no_range():
    assert draw(build("all_reduce", "binary_tree", 2)) == dedent("""\
        all_reduce (binary_tree), 2 ranks: 2 rounds, 1 chunk
        round 0  1 +> 0
        round 1  0 -> 1""")


def test_nothing_to_do():
    assert draw(build("all_gather", "ring", 1)) == "all_gather (ring), 1 rank: 0 rounds, 1 chunk"


def test_rounds_are_aligned():
    lines = draw(build("all_gather", "ring", 12), width=1000).splitlines()
    assert lines[1].startswith("round  0  0 -> 1 [0]    1 -> 2 [1]")
    assert lines[11].startswith("round 10  0 -> 1 [2]")


def test_however_narrow_two_short_entries_share_a_line():
    assert draw(build("all_reduce", "binary_tree", 4), width=1).splitlines()[1:] == [
        "round 0  1 +> 0    3 +> 2",
        "round 1  2 +> 0",
        "round 2  0 -> 2",
        "round 3  0 -> 1    2 -> 3",
    ]
    assert draw(build("reduce_scatter", "ring", 3), width=1).splitlines()[1:4] == [
        "round 0  0 +> 1 [2]",
        "         1 +> 2 [0]",
        "         2 +> 0 [1]",
    ]
