"""Errors of a communicator, as those that torch raises."""

from __future__ import annotations

import pytest

from syncopate.c10d.works import GroupError, naming
from syncopate.errors import CollectiveError


def _named(error: CollectiveError) -> GroupError:
    return GroupError(error.collective, f"{error.reason}, named", error.ranks)


def test_what_a_communicator_raises_is_named_once() -> None:
    lost = CollectiveError("broadcast (mst)", "rank 1 is gone", [1])
    with pytest.raises(GroupError) as caught, naming(_named), naming(_named):
        raise lost
    assert str(caught.value) == "broadcast (mst): rank 1 is gone, named"
    assert caught.value.ranks == (1,)
    assert caught.value.__cause__ is lost


def test_an_error_that_has_its_name_is_not_its_own_cause() -> None:
    lost = GroupError("broadcast (mst)", "rank 1 is gone", [1])
    with pytest.raises(GroupError) as caught, naming(_named):
        raise lost
    assert caught.value is lost
    assert lost.__cause__ is None
