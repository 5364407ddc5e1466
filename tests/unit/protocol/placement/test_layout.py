"""Layouts: every element on one server, bytes balanced, the same on every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.placement.layout import Layout, TensorSpec
from syncopate.units import MIB

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
        Layout([base[0], TensorSpec("b", "float32", 20, group=1)], 1, 100).digest,
    }
    assert len(digests) == 6


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


def test_many_small_tensors_travel_as_bundles_of_each_server():
    specs = [TensorSpec(f"t{number:03d}", "float32", 1000) for number in range(300)]
    layout = Layout([*specs, TensorSpec("large", "float32", 20_000)], 2, 4 * MIB)
    names = [piece.name for piece in layout.slices]
    large, *bundles = sorted(layout.pieces(names), key=lambda piece: piece.key)
    assert large.name == "large"
    assert [bundle.whole for bundle in layout.bundles] == bundles
    for bundle in bundles:
        members = layout.members(bundle)
        assert len({layout.server_of[member.key] for member in members}) == 1
        assert bundle.nbytes == sum(member.nbytes for member in members)
    assert layout.members(large) == (large,)
    assert layout.pieces(["t007"]) == [layout.slices[8]]
    with pytest.raises(UnknownNameError, match="'other'"):
        layout.pieces([*names, "other"])


def test_a_hundred_thousand_tensors_are_spread_evenly():
    layout = Layout([TensorSpec(f"t{n:06d}", "float32", 1) for n in range(100_000)], 7, MIB)
    loads = [len(layout.of_server(rank)) for rank in range(7)]
    assert sum(loads) == 100_000
    assert max(loads) - min(loads) <= 1
