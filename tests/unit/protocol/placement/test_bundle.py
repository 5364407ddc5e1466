"""Bundles: which slices are in one, and the parts that are left when it is cut."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.protocol.placement import bundle as module
from syncopate.protocol.placement.bundle import BUNDLE, Bundle, Cut, Partition, bundles_of
from syncopate.protocol.placement.piece import Slice
from syncopate.units import MIB


def _slices(count, numel=1, dtype="float32", step=1):
    return [Slice(step * key, f"t{key:05d}", dtype, 0, numel) for key in range(count)]


def _run(bundle, begin, end):
    return bundle.part(begin, end).key


def test_small_slices_are_one_that_holds_each_once_in_the_order_of_their_keys():
    slices = _slices(150, 1000, step=2)
    (bundle,) = bundles_of(slices[::-1])
    assert bundle.members == tuple(slices)
    whole = bundle.whole
    assert (whole.key, whole.dtype, whole.numel) == (150 * BUNDLE, "float32", 150_000)
    assert whole.name == "t00000 and 149 more"


@pytest.mark.parametrize(
    "slices",
    [_slices(63), _slices(100, dtype="bfloat16"), _slices(100, 20_000)],
    ids=["few", "16 bits", "not small"],
)
def test_what_is_few_or_large_or_rounds_otherwise_is_in_none(slices):
    assert bundles_of(slices) == []


def test_a_bundle_has_one_element_type_and_no_more_than_a_mebibyte():
    found = bundles_of([*_slices(1000, 1024), *_slices(64, dtype="float64", step=5000)[1:]])
    assert [bundle.whole.nbytes for bundle in found] == [MIB, MIB, MIB, 232 * 4096]


def test_a_bundle_has_slices_of_one_group():
    slices = [Slice(key, f"t{key:03d}", "float32", 0, 1, group=key % 2) for key in range(200)]
    found = bundles_of(slices)
    assert [bundle.members for bundle in found] == [tuple(slices[::2]), tuple(slices[1::2])]
    assert [bundle.whole.group for bundle in found] == [0, 1]


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (range(100), [(0, 100)]),
        (range(20, 60), [(20, 60)]),
        ([*range(20), *range(70, 100)], [(0, 20), (70, 100)]),
        (range(0, 100, 2), []),
        (range(3), []),
        ((), []),
    ],
)
def test_what_follows_each_other_is_worth_a_bundle(names, runs):
    bundle = Bundle(tuple(_slices(100)))
    assert bundle.runs({f"t{number:05d}" for number in names}) == runs


def test_what_is_spoken_of_by_itself_is_cut_out_and_the_rest_stays_together():
    bundle = Bundle(tuple(_slices(100, 2)))
    partition = Partition([bundle])
    middle = _run(bundle, 20, 60)
    assert [*partition.parts] == [bundle.whole.key]
    assert middle in partition
    (cut,) = partition.cut(middle)
    assert cut == Cut(
        bundle.whole.key, (bundle.part(0, 20), bundle.part(20, 60), bundle.part(60, 100))
    )
    places = [(part.key, begin, end) for part, begin, end in cut.places()]
    assert places == [
        (_run(bundle, 0, 20), 0, 160), (middle, 160, 480), (_run(bundle, 60, 100), 480, 800)
    ]  # fmt: skip
    assert partition.cut(middle) == []
    (cut,) = partition.cut(20)  # a slice
    assert [part.key for part in cut.parts] == [20, _run(bundle, 21, 60)]
    within = [(part.key, begin, end) for part, begin, end in partition.within(middle)]
    assert within == [(20, 0, 8), (_run(bundle, 21, 60), 8, 320)]


def test_what_reaches_over_parts_cuts_both_and_is_what_is_between():
    bundle = Bundle(tuple(_slices(100)))
    partition = Partition([bundle])
    partition.cut(_run(bundle, 0, 50))
    cuts = partition.cut(_run(bundle, 40, 70))
    assert [cut.key for cut in cuts] == [_run(bundle, 0, 50), _run(bundle, 50, 100)]
    within = partition.within(_run(bundle, 40, 70))
    assert within == [(bundle.part(40, 50), 0, 40), (bundle.part(50, 70), 40, 120)]


def test_a_bundle_with_too_many_parts_is_none_any_more():
    bundle = Bundle(tuple(_slices(1000)))
    partition = Partition([bundle])
    cuts = 0
    while len(partition.parts) < 1000:
        cuts += len(partition.cut(2 * cuts + 1))
        assert cuts < 64
    assert set(partition.parts) == set(range(1000))


@pytest.mark.parametrize("key", [100, 101 * BUNDLE, 2 * BUNDLE + 99, 5 * BUNDLE + 1000], ids=str)
def test_what_no_bundle_has_is_in_none(key):
    assert key not in Partition([Bundle(tuple(_slices(100)))])


EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(1, 20)), max_size=8)


@given(edges=EDGES, most=st.integers(3, 30))
def test_parts_are_all_slices_once_whatever_was_cut_and_come_back_from_their_keys(edges, most):
    bundle = Bundle(tuple(_slices(20, 3)))
    partition, known = Partition([bundle]), {bundle.whole.key}
    with mock.patch.object(module, "_MOST_PARTS", most):
        for begin, length in edges:
            end = min(begin + length, 20)
            key = _run(bundle, begin, end)
            for cut in partition.cut(key):
                known.update(part.key for part in cut.parts)
            at = 0
            for part, first, last in partition.within(key):
                assert part.key in partition.parts
                assert (first, last - first) == (at, part.nbytes)
                at = last
            assert at == (end - begin) * 12
    slices = [m.key for key in partition.parts for m in partition.members(key)]
    assert sorted(slices) == list(range(20))
    # What was on disk before a cut is there as well; the smaller parts count.
    assert Partition([bundle], known).parts.keys() == partition.parts.keys()
