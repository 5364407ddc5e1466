"""Gradients in fewer bits: what is lost of them, and what comes with the next push."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.paramserver.narrow import Narrowing, decoded, decoded8, encoded8
from syncopate.paramserver.tensors import flat_bytes
from syncopate.protocol.gradients.narrow import BLOCK, push_bytes
from syncopate.protocol.placement.piece import Slice

SIZES = [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]


def piece(numel, dtype="float32", key=0):
    return Slice(key, "w", dtype, 0, numel)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_numbers_of_a_scale_come_back_as_they_were(numel, dtype):
    whole = torch.randint(-127, 128, (numel,), generator=torch.Generator().manual_seed(1))
    whole[::BLOCK] = 127
    scales = 2.0 ** torch.arange(-3, 1)[torch.arange(numel) // BLOCK]
    gradient = whole.to(dtype) * scales.to(dtype)
    payload = encoded8(gradient)
    assert payload.numel() == push_bytes(piece(numel, str(dtype)[6:]), "int8")
    assert torch.equal(decoded8(payload, dtype), gradient)


@settings(max_examples=50, deadline=None)
@given(numel=st.sampled_from(SIZES), exponent=st.integers(-30, 30), seed=st.integers(0, 99))
def test_an_element_is_off_by_half_a_scale_of_its_block_at_most(numel, exponent, seed):
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    off = (decoded8(encoded8(gradient), torch.float32) - gradient).abs()
    for begin in range(0, numel, BLOCK):
        block = slice(begin, begin + BLOCK)
        assert off[block].max() <= gradient[block].abs().max() / 127 * 0.5001


def test_a_payload_has_scales_and_then_elements():
    gradient = torch.zeros(BLOCK + 2)
    gradient[0], gradient[1], gradient[BLOCK], gradient[BLOCK + 1] = 254.0, -2.0, 0.0, -12.7
    payload = encoded8(gradient)
    scales, elements = payload[:8].view(torch.float32), payload[8:].view(torch.int8)
    torch.testing.assert_close(scales, torch.tensor([2.0, 0.1]), rtol=1e-6, atol=0)
    assert elements[:3].tolist() == [127, -1, 0]
    assert elements[-2:].tolist() == [0, -127]


def test_a_block_that_is_not_finite_comes_back_so_and_the_others_as_they_are():
    gradient = torch.ones(3 * BLOCK)
    gradient[3], gradient[BLOCK] = torch.inf, torch.nan
    found = decoded8(encoded8(gradient), torch.float32)
    assert found[: 2 * BLOCK].isnan().all()
    assert torch.equal(found[2 * BLOCK :], torch.ones(BLOCK))


@pytest.mark.parametrize("shift", range(4))
def test_bytes_may_lie_anywhere(shift):
    gradient = torch.randn(1500)
    payload = encoded8(gradient)
    moved = torch.zeros(payload.numel() + shift, dtype=torch.uint8)
    moved[shift:] = payload
    assert torch.equal(decoded8(moved[shift:], torch.float32), decoded8(payload, torch.float32))


def test_what_is_lost_comes_with_the_next_pushes_of_the_slice():
    narrowing, gradient = Narrowing("int8"), torch.full((10,), 0.3)
    gradient[0] = 127.0
    total = torch.zeros(10)
    for _ in range(100):
        payload = narrowing.encoded(piece(10), flat_bytes(gradient.clone()))
        total += decoded(piece(10), "int8", payload)
    torch.testing.assert_close(total / 100, gradient, rtol=0, atol=0.01)
    other = narrowing.encoded(piece(10, key=1), flat_bytes(gradient))
    assert torch.equal(decoded(piece(10, key=1), "int8", other)[1:], torch.zeros(9))


def test_what_was_not_finite_does_not_stay():
    narrowing = Narrowing("int8")
    narrowing.encoded(piece(3), flat_bytes(torch.tensor([torch.inf, 1.0, torch.nan])))
    payload = narrowing.encoded(piece(3), flat_bytes(torch.ones(3)))
    assert torch.equal(decoded(piece(3), "int8", payload), torch.ones(3))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_16_bits_are_those_of_the_type(kind, dtype):
    gradient = torch.randn(7, dtype=getattr(torch, dtype))
    spec = piece(7, dtype)
    payload = Narrowing(kind).encoded(spec, flat_bytes(gradient))
    assert payload.numel() == push_bytes(spec, kind) == 14
    rounded = gradient.to(getattr(torch, kind)).to(gradient.dtype)
    assert torch.equal(decoded(spec, kind, payload), rounded)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int64", "complex64"])
def test_other_types_travel_as_they_are(dtype):
    data = flat_bytes(torch.ones(6, dtype=getattr(torch, dtype)))
    assert Narrowing("int8").encoded(piece(6, dtype), data) is data
    assert push_bytes(piece(6, dtype), "int8") == data.numel()
