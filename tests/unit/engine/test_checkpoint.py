"""Copies for checkpoints: each tensor as it looks, and memory that is shared once."""

from __future__ import annotations

import pytest
import torch

from syncopate.engine.checkpoint import copied

WHOLE = torch.arange(6.0).reshape(2, 3)
SQUARE = torch.arange(4.0).reshape(2, 2)

VIEWS = {
    "another shape": (WHOLE, WHOLE.view(6)),
    "a part from the same place on": (WHOLE, WHOLE[:1]),
    "another stride": (SQUARE, SQUARE.t()),
    "another dtype": (SQUARE, SQUARE.view(torch.int32)),
    "nothing": (WHOLE[:0], WHOLE[:0].view(3, 0)),
}


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_views_of_one_memory_are_copied_each_as_it_looks(
    views: tuple[torch.Tensor, torch.Tensor],
) -> None:
    for given in (views, views[::-1]):
        for one, copy in zip(given, copied(list(given)), strict=True):
            assert copy.dtype == one.dtype
            assert copy.shape == one.shape
            assert torch.equal(copy, one)
            assert not copy.numel() or copy.data_ptr() != one.data_ptr()


def test_what_stands_in_several_places_is_copied_once() -> None:
    found = copied({"one": [WHOLE, 3], "other": {"same": WHOLE}})
    assert found["one"][0] is found["other"]["same"]
    assert found["one"][1] == 3
