"""Layouts: every element on one server, bytes balanced, the same on every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.layout import BUNDLE, Layout, TensorSpec, bundles_of, whole_among
from syncopate.units import KIB, MIB

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=20)


def _specs(sizes):
    return [TensorSpec(f"t{i}", ("float32", "float16")[i % 2], n) for i, n in enumerate(sizes)]


@given(sizes=SIZES, servers=st.integers(1, 5), slice_bytes=st.integers(1, 9000))
def test_every_element_is_in_one_slice_and_no_slice_is_too_large(sizes, servers, slice_bytes):
    layout = Layout(_specs(sizes), servers, slice_bytes)
    assert [piece.key for piece in layout.slices] == list(range(len(layout.slices)))
    for spec in _specs(sizes):
        at = 0
        for piece in layout.of_tensor(spec.name):
            assert (piece.begin, piece.dtype) == (at, spec.dtype)
            assert piece.nbytes <= max(slice_bytes, 4)
            at += piece.numel
        assert at == spec.numel
    assert sorted(s.key for rank in range(servers) for s in layout.of_server(rank)) == list(
        range(len(layout.slices))
    )


@given(sizes=SIZES, servers=st.integers(1, 5), slice_bytes=st.integers(1, 9000))
def test_the_servers_bytes_differ_by_no_more_than_a_slice(sizes, servers, slice_bytes):
    layout = Layout(_specs(sizes), servers, slice_bytes)
    loads = [sum(s.nbytes for s in layout.of_server(rank)) for rank in range(servers)]
    assert max(loads) - min(loads) <= max(s.nbytes for s in layout.slices)


@given(sizes=SIZES, seed=st.randoms())
def test_the_order_of_the_tensors_does_not_matter(sizes, seed):
    specs = _specs(sizes)
    shuffled = specs.copy()
    seed.shuffle(shuffled)
    one, two = Layout(specs, 3, 1000), Layout(shuffled, 3, 1000)
    assert (one.slices, one.server_of, one.digest) == (two.slices, two.server_of, two.digest)


def test_layouts_that_differ_have_other_digests():
    base = [TensorSpec("a", "float32", 10), TensorSpec("b", "float32", 20)]
    digests = {
        Layout(base, 1, 100).digest,
        Layout(base, 2, 100).digest,
        Layout(base, 1, 40).digest,
        Layout([base[0], TensorSpec("b", "int32", 20)], 1, 100).digest,
        Layout([base[0], TensorSpec("c", "float32", 20)], 1, 100).digest,
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("specs", "servers", "error", "words"),
    [
        ([], 1, InvalidValueError, "tensors"),
        ([TensorSpec("a", "float32", 1)] * 2, 1, InvalidValueError, "a name of its own"),
        ([TensorSpec("a", "float32", 1)], 0, InvalidValueError, "servers"),
        ([TensorSpec("a", "bool", 1)], 1, UnknownNameError, "unknown dtype 'bool'"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(specs, servers, error, words):
    with pytest.raises(error, match=words):
        Layout(specs, servers, 100)


def test_an_unknown_tensor_is_refused():
    with pytest.raises(UnknownNameError, match="unknown key 'b'; known: a"):
        Layout([TensorSpec("a", "float32", 1)], 1, 100).of_tensor("b")


def _many(count, numel=1, dtype="float32"):
    return [TensorSpec(f"t{number:06d}", dtype, numel) for number in range(count)]


def test_many_small_slices_of_a_server_are_bundles_that_hold_each_once():
    specs = [*_many(300, 1000), TensorSpec("large", "float32", 16 * KIB + 1)]
    layout = Layout(specs, 2, 4 * MIB)
    assert [bundle.whole.nbytes for bundle in layout.bundles] == [150 * 4000] * 2
    for rank, bundle in enumerate(layout.bundles):
        assert bundle.members == tuple(s for s in layout.of_server(rank) if s.name != "large")
        assert bundle.whole.key == BUNDLE + bundle.members[0].key
        assert [begin for _, begin, _ in bundle.places()] == [4000 * i for i in range(150)]
        assert bundles_of(layout.of_server(rank)) == [bundle]


@pytest.mark.parametrize(
    "specs",
    [_many(63), _many(100, 1, "bfloat16"), _many(100, 20_000)],
    ids=["few", "16 bits", "not small"],
)
def test_what_is_few_or_large_or_rounds_otherwise_is_not_bundled(specs):
    layout = Layout(specs, 1, 4 * MIB)
    assert layout.bundles == ()
    assert layout.pieces([spec.name for spec in specs]) == list(layout.slices)


def test_a_bundle_holds_no_more_than_a_mebibyte():
    layout = Layout(_many(1000, 1024), 1, 4 * MIB)
    assert [bundle.whole.nbytes for bundle in layout.bundles] == [MIB, MIB, MIB, 232 * 4096]


def test_a_bundle_travels_where_all_of_its_tensors_do_and_it_is_not_split():
    layout = Layout(_many(100), 1, 4 * MIB)
    names = [piece.name for piece in layout.slices]
    (bundle,) = layout.bundles
    assert layout.pieces(names[::-1]) == [bundle.whole]
    assert layout.pieces(names, {bundle.whole.key}) == list(layout.slices)
    assert layout.pieces(names[1:]) == list(layout.slices[1:])
    with pytest.raises(UnknownNameError, match="'other'"):
        layout.pieces([*names, "other"])


def test_a_bundle_of_which_a_slice_is_known_is_split():
    (bundle,) = Layout(_many(100), 1, 4 * MIB).bundles
    assert whole_among([bundle], {bundle.whole.key}) == [bundle]
    assert whole_among([bundle], {bundle.whole.key, 7}) == []
