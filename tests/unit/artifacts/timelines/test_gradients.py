"""Gradients that a recording saw one by one: what is usual, and what a text holds."""

from __future__ import annotations

import pytest

from syncopate.artifacts.timelines.gradients import (
    Seen,
    is_recorded,
    name_of,
    of_text,
    shape_in,
    to_text,
    usual,
)
from syncopate.errors import InvalidValueError


def _backward(*done, shape=(4, 2)):
    return [Seen(shape, "float32", share) for share in done]


def test_the_layout_of_most_backwards_counts_at_its_medians():
    backwards = [_backward(0.1, 0.8), _backward(0.3, 0.9), [], _backward(0.2, 1.0)]
    backwards.append(_backward(0.9, 0.9, shape=(8,)))
    assert usual(backwards) == tuple(_backward(0.2, 0.9))
    assert usual([[], []]) == ()


def test_a_text_gives_the_same_back():
    seen = (Seen((), "bfloat16", 0.25), Seen((3, 4), "float32", 1.0))
    assert of_text(to_text(seen)) == seen


@pytest.mark.parametrize(
    "text",
    ["", "[", "[[[1], 3, 0.5]]", '[[[1], "float32", 1.5]]', '[[[-1], "float32", 0.5]]'],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidValueError, match=r"metadata 'gradients' is .* it must be gradients"):
        of_text(text)


@pytest.mark.parametrize("shape", [(), (7,), (64, 3, 7, 7), (0, 2)])
def test_a_name_tells_the_shape(shape):
    name = name_of(3, shape)
    assert shape_in(name) == shape
    assert is_recorded(name)


@pytest.mark.parametrize("name", ["gradient 1", "gradient 1 (2x)", "bucket 0 part 1", "fc.weight"])
def test_other_names_tell_none(name):
    assert shape_in(name) is None
    assert is_recorded(name) == (" " in name)
