"""Shards: everything belongs to one rank, whole tensors stay whole, and bytes are balanced."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.shards import cut_between, cut_by, levelling, whole_owners

RANKS = st.integers(1, 9)
BYTES = st.integers(0, 10**13)


def _loads(nbytes: list[int], owners: tuple[int, ...], world_size: int) -> list[int]:
    loads = [0] * world_size
    for size, owner in zip(nbytes, owners, strict=True):
        loads[owner] += size
    return loads


@given(RANKS, st.lists(BYTES), st.lists(st.integers(0, 10**9)), st.sampled_from([1, 4, 8]))
@example(3, [7, 7, 7, 100], [10, 11, 0], 4)
@example(4, [1000], [8], 8)
def test_no_rank_has_more_than_its_share_and_one_whole_tensor(
    p: int, whole: list[int], numels: list[int], itemsize: int
) -> None:
    """Over all buffers; each buffer's bounds are rounded to an element."""
    loads = _loads(whole, whole_owners(whole, p), p)
    cut = sum(numels) * itemsize
    proportions = levelling(loads, cut)
    for numel in numels:
        for rank, (start, stop) in enumerate(pairwise(cut_by(numel, proportions))):
            loads[rank] += (stop - start) * itemsize
    total = sum(whole) + cut
    assert sum(loads) == total
    assert max(loads) <= total / p + max(whole, default=0) + len(numels) * itemsize
    assert min(loads) >= total / p - max(whole, default=0) - p * len(numels) * itemsize


@given(RANKS, st.lists(BYTES, min_size=1))
def test_longest_first_is_near_the_best(p: int, whole: list[int]) -> None:
    """Graham's bound, with the best known lower bounds in the place of the optimum."""
    loads = _loads(whole, whole_owners(whole, p), p)
    descending = sorted(whole, reverse=True)
    two = descending[p - 1] + descending[p] if len(whole) > p else 0
    best = max(sum(whole) / p, descending[0], two)
    mean_and_one = sum(whole) / p + (descending[p] if len(whole) > p else 0)
    assert max(loads) <= max(best, mean_and_one)


@given(st.lists(BYTES, min_size=1, max_size=9), BYTES)
def test_what_may_be_cut_makes_ranks_equal_unless_they_have_more_already(
    loads: list[int], nbytes: int
) -> None:
    proportions = levelling(loads, nbytes)
    assert len(proportions) == len(loads)
    assert min(proportions) >= 0
    if not nbytes:
        return
    total = sum(proportions)
    # In units of 1 / total, so that nothing is rounded.
    high = [own * total + nbytes * part for own, part in zip(loads, proportions, strict=True)]
    lowest = min(high)
    for own, part, reached in zip(loads, proportions, high, strict=True):
        assert reached == lowest if part else own * total >= lowest


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 10**12))
def test_bounds_never_decrease_and_hold_everything(parts: list[int], numel: int) -> None:
    proportions = parts if any(parts) else [1] * len(parts)
    bounds = cut_by(numel, proportions)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, numel, len(parts) + 1)
    for part, (start, stop) in zip(proportions, pairwise(bounds), strict=True):
        assert abs((stop - start) * sum(proportions) - numel * part) < sum(proportions)


@given(st.integers(0, 10**9), RANKS)
def test_without_whole_tensors_shards_are_those_of_collectives(numel: int, p: int) -> None:
    assert cut_by(numel, levelling([0] * p, 4 * numel)) == chunk_offsets(numel, p)


@given(RANKS, st.data())
def test_bounds_between_tensors_give_each_rank_its_own(p: int, data: st.DataObject) -> None:
    numels = data.draw(st.lists(st.integers(0, 1000)))
    each = st.lists(st.integers(0, p - 1), min_size=len(numels), max_size=len(numels))
    owners = sorted(data.draw(each))
    bounds = cut_between(numels, owners, p)
    offset = 0
    for numel, owner in zip(numels, owners, strict=True):
        assert bounds[owner] <= offset <= offset + numel <= bounds[owner + 1]
        offset += numel
    assert bounds[-1] == offset
