"""Shards as rows of equal length, in any order, and back."""

from __future__ import annotations

import pytest
import torch

from syncopate.collectives.grid import Grid
from syncopate.collectives.shards import bounds, fill, rows, summable, take_back


@pytest.mark.parametrize("numel", [1, 3, 4, 5, 7, 8, 41])
@pytest.mark.parametrize("places", [None, [2, 0, 3, 1]])
def test_rows_hold_the_shards_and_fill_undoes_them(numel: int, places: list[int] | None) -> None:
    buffer = torch.arange(numel) + 1
    index = None if places is None else torch.tensor(places)
    matrix = rows(buffer, 4, index)
    assert matrix.shape == (4, -(-numel // 4))
    for shard in range(4):
        begin, end = bounds(numel, shard, 4)
        row = matrix[shard if places is None else places[shard]].tolist()
        padding = [0] * (matrix.shape[1] - (end - begin))
        assert row == buffer[begin:end].tolist() + padding
    back = torch.zeros_like(buffer)
    fill(back, matrix, index)
    assert torch.equal(back, buffer)


def test_what_backends_cannot_add_goes_through_what_they_can() -> None:
    plain = torch.ones(3)
    assert summable(plain) is plain
    short = torch.tensor([30000, -7], dtype=torch.int16)
    sums = summable(short)
    assert sums.dtype == torch.int32
    sums *= 3
    take_back(short, sums)
    assert short.tolist() == [90000 - 65536 * 1, -21]
    complexes = torch.tensor([1 + 2j, 3 - 1j])
    sums = summable(complexes)
    sums *= 2
    take_back(complexes, sums)
    assert complexes.tolist() == [2 + 4j, 6 - 2j]
    take_back(complexes, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert complexes.tolist() == [1, 1j]


def test_members_of_a_level_differ_in_one_coordinate() -> None:
    grid = Grid.of(12, (2, 1, 3, 2), order=[*range(6, 12), *range(6)])
    assert grid.factors == (2, 3, 2)
    for rank in range(12):
        own = grid.coordinates(rank)
        for level, size in enumerate(grid.factors):
            members = grid.members(rank, level)
            assert len(members) == size
            assert members[own[level]] == rank
            for place, member in enumerate(members):
                assert grid.coordinates(member) == (*own[:level], place, *own[level + 1 :])


def test_places_count_the_innermost_coordinate_most() -> None:
    assert Grid.of(6, (2, 3)).places() == [0, 3, 1, 4, 2, 5]
    assert Grid.of(4, (2, 2), order=(3, 2, 1, 0)).places() == [3, 1, 2, 0]
    assert Grid.of(5).places() == [0, 1, 2, 3, 4]
