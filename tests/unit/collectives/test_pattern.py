"""Pattern: a simulated collective is right, and every kind of mistake in it is counted."""

from __future__ import annotations

import pytest
import torch

from syncopate.collectives.pattern import Pattern, distinct_values
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place

RANKS = 4
COUNT = 1001


def patterns(collective: str, dtype: str = "float32", root: int = 2) -> list[Pattern]:
    at = root if CONDITIONS[collective].rooted else 0
    return [Pattern(collective, COUNT, dtype, rank, RANKS, at) for rank in range(RANKS)]


def results(collective: str, ranks: list[Pattern]) -> list[torch.Tensor]:
    """Return the buffers after a faultless collective, by its definition."""
    before = [rank.input() for rank in ranks]
    if CONDITIONS[collective].reduces:
        return [sum(before[1:], before[0]) for _ in ranks]
    if CONDITIONS[collective].start is Place.ROOT:
        return [before[ranks[0].root].clone() for _ in ranks]
    offsets = chunk_offsets(COUNT, RANKS)
    shards = [before[r][offsets[r] : offsets[r + 1]] for r in range(RANKS)]
    return [torch.cat(shards) for _ in ranks]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8", "int64"])
@pytest.mark.parametrize("collective", CONDITIONS)
def test_a_right_result_has_nothing_wrong(collective, dtype):
    ranks = patterns(collective, dtype)
    after = results(collective, ranks)
    assert [rank.wrong(result) for rank, result in zip(ranks, after, strict=True)] == [0] * RANKS


@pytest.mark.parametrize("collective", CONDITIONS)
def test_doing_nothing_is_wrong_where_there_was_something_to_do(collective):
    ranks = patterns(collective)
    wrong = [rank.wrong(rank.input()) for rank in ranks]
    if collective == "broadcast":
        assert wrong[2] == 0
        assert min(wrong[:2] + wrong[3:]) > 0.9 * COUNT
    elif collective == "reduce":
        assert wrong[2] > 0.9 * COUNT
        assert wrong[:2] + wrong[3:] == [0, 0, 0]
    else:
        assert min(wrong) > 0.9 * COUNT / RANKS


def test_one_wrong_element_is_counted():
    ranks = patterns("all_reduce")
    after = results("all_reduce", ranks)[1]
    after[500] += 1
    assert ranks[1].wrong(after) == 1


@pytest.mark.parametrize(
    ("dtype", "ranks", "values"),
    [("float32", 8, 251), ("bfloat16", 8, 33), ("int8", 4, 32), ("int8", 127, 2)],
)
def test_sums_over_all_ranks_stay_exact(dtype, ranks, values):
    assert distinct_values(dtype, ranks) == values


def test_a_dtype_too_narrow_to_verify_is_refused():
    with pytest.raises(InvalidValueError, match="wide enough to add up 128 ranks"):
        distinct_values("int8", 128)
