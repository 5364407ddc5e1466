"""Shards as rows of equal length, in any order, and back."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
import torch

from syncopate.collectives.nccl.grid import Grid
from syncopate.collectives.shards import (
    PLAIN,
    Form,
    bounds_of,
    empty_rows,
    fill,
    rows,
    summable,
    take_back,
)


@pytest.mark.parametrize("numel", [1, 3, 4, 5, 7, 8, 41])
@pytest.mark.parametrize("places", [None, [2, 0, 3, 1]])
def test_rows_hold_the_shards_and_fill_undoes_them(numel: int, places: list[int] | None) -> None:
    buffer = torch.arange(numel) + 1
    verify(buffer, bounds_of(buffer, 4, None), places)


@pytest.mark.parametrize(
    "bounds", [(0, 0, 0, 0, 9), (0, 9, 9, 9, 9), (0, 3, 3, 6, 9), (0, 1, 2, 8, 9), (0, 5, 6, 7, 11)]
)
@pytest.mark.parametrize("places", [None, [2, 0, 3, 1]])
@pytest.mark.parametrize("width", [(), (2,)])
def test_rows_of_shards_of_any_length(
    bounds: tuple[int, ...], places: list[int] | None, width: tuple[int, ...]
) -> None:
    shape = (bounds[-1], *width)
    verify(torch.arange(math.prod(shape)).view(shape) + 1, bounds, places)


def verify(buffer: torch.Tensor, bounds: tuple[int, ...], places: list[int] | None) -> None:
    index = None if places is None else torch.tensor(places)
    matrix = rows(buffer, bounds, index)
    longest = max(end - begin for begin, end in pairwise(bounds))
    assert matrix.shape == empty_rows(buffer, bounds).shape == (4, longest, *buffer.shape[1:])
    for shard, (begin, end) in enumerate(pairwise(bounds)):
        row = matrix[shard if places is None else places[shard]]
        assert torch.equal(row[: end - begin], buffer[begin:end])
        assert not row[end - begin :].any()
    back = torch.zeros_like(buffer)
    fill(back, matrix, bounds, index)
    assert torch.equal(back, buffer)


def test_labels_tell_bounds_apart() -> None:
    assert PLAIN.labelled("all_gather (ring)") == "all_gather (ring)"
    of = Form((0, 3, 3), torch.float16).labelled("reduce_scatter (ring)")
    assert of == "reduce_scatter (ring) as float16 with bounds (0, 3, 3)"
    long = [Form((*range(99), last)).labelled("all_gather (ring)") for last in (99, 100)]
    assert long[0] != long[1]
    assert all(re.fullmatch(r"all_gather \(ring\) with bounds of checksum \w{8}", s) for s in long)


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
