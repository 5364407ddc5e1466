"""Rooted collectives and options on real ranks: every root, every variant, and the refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from syncopate.collectives import Communicator
from syncopate.errors import CollectiveError, InvalidValueError, UnknownNameError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from syncopate.schedules.registry import NATIVE
from tests.conformance.table import TABLE
from tests.multiprocess.harness import REAL_DTYPES, run_ranks

ROOTED = ("broadcast", "reduce")
DTYPES = (*REAL_DTYPES, torch.complex64)
NUMEL = 1003


def inputs(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, so that sums are exact in every dtype."""
    return ((torch.arange(NUMEL) + 3 * rank) % 7).to(dtype)


def run(
    communicator: Communicator,
    collective: str,
    tensor: torch.Tensor,
    root: int = 0,
    **arguments: Any,
) -> None:
    """Run a collective, from or to ``root`` if it has one."""
    where = (root,) if CONDITIONS[collective].rooted else ()
    getattr(communicator, collective)(tensor, *where, **arguments).wait()


def right(collective: str, tensor: torch.Tensor, rank: int, world_size: int, root: int) -> bool:
    """Say whether ``rank`` holds what the collective of :func:`inputs` promises it."""
    conditions = CONDITIONS[collective]
    before = [inputs(peer, tensor.dtype) for peer in range(world_size)]
    offsets = chunk_offsets(NUMEL, world_size)
    mine = slice(offsets[rank], offsets[rank + 1])
    if conditions.reduces:
        wanted = torch.stack(before).sum(0).to(tensor.dtype)
    elif conditions.rooted:
        wanted = before[root]
    else:
        shards = [before[p][offsets[p] : offsets[p + 1]] for p in range(world_size)]
        wanted = torch.cat(shards)
    if conditions.end is Place.ROOT and rank != root:
        return True
    place = mine if conditions.end is Place.SHARD else slice(None)
    return torch.equal(tensor[place], wanted[place])


def every_root(rank: int, world_size: int) -> list[str]:
    wrong = []
    algorithms = {(row.collective, row.algorithm) for row in TABLE if row.collective in ROOTED}
    with Communicator(timeout_s=60, channels=2) as communicator:
        for collective, algorithm in sorted(algorithms | {(name, NATIVE) for name in ROOTED}):
            for root in range(world_size):
                for dtype in DTYPES:
                    tensor = inputs(rank, dtype)
                    run(
                        communicator, collective, tensor, root, algorithm=algorithm,
                        channel=root % 2, async_op=True,
                    )  # fmt: skip
                    if not right(collective, tensor, rank, world_size, root):
                        wrong.append(f"{collective} ({algorithm}) root {root} {dtype}")
    return wrong


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_root_and_dtype(world_size: int) -> None:
    assert run_ranks(every_root, world_size) == [[]] * world_size


def variants(world_size: int) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return every algorithm with each of its options, and in another order of ranks."""
    order = {"order": [*range(1, world_size), 0]}
    return [
        (row.collective, row.algorithm, options)
        for row in TABLE
        for options in (*row.variants(world_size), order)
    ]


def every_option(rank: int, world_size: int) -> list[str]:
    wrong = []
    with Communicator(timeout_s=60) as communicator:
        for collective, algorithm, options in variants(world_size):
            # An order moves the shards along with the ranks, so each keeps its own.
            tensor = inputs(rank)
            run(communicator, collective, tensor, 1, algorithm=algorithm, options=options)
            if not right(collective, tensor, rank, world_size, 1):
                wrong.append(f"{collective} ({algorithm}) {options}")
    return wrong


def test_every_option() -> None:
    assert run_ranks(every_option, 4) == [[]] * 4


def refusals(rank: int, world_size: int) -> list[str]:
    messages = []
    with Communicator(timeout_s=60) as communicator:
        good = torch.ones(8)
        for tensor in (good, torch.empty(0)):
            for call, kind in (
                (lambda t=tensor: communicator.reduce(t, dst=world_size), InvalidValueError),
                (lambda t=tensor: communicator.broadcast(t, algorithm="ring"), UnknownNameError),
                (
                    lambda t=tensor: communicator.all_reduce(
                        t, algorithm="ring", options={"blocks": 2}
                    ),
                    UnknownNameError,
                ),
                (lambda t=tensor: communicator.reduce(t, options={"blocks": 2}), UnknownNameError),
                (
                    lambda t=tensor: communicator.reduce(
                        t, algorithm="lp", options={"root": 1, "blocks": 2}
                    ),
                    UnknownNameError,
                ),
                (
                    lambda t=tensor: communicator.broadcast(
                        t, algorithm="lp", options={"blocks": "many"}
                    ),
                    InvalidValueError,
                ),
            ):
                with pytest.raises(kind) as caught:
                    call()
                messages.append(str(caught.value))
        communicator.reduce(good, world_size - 1, algorithm="lp", options={"blocks": 3})
        assert rank != world_size - 1 or good.tolist() == [world_size] * 8
    return messages


def test_refusals_name_what_is_known() -> None:
    for messages in run_ranks(refusals, 3):
        assert len(messages) == 12
        assert "a rank in 0..2" in messages[0]
        assert "known: native, mst, flat_tree, be, lp" in messages[1]
        assert "unknown option 'blocks' for all_reduce (ring)" in messages[2]
        assert "known: none" in messages[3]
        assert "unknown option 'root' for reduce (lp)" in messages[4]
        assert messages[:6] == messages[6:]


def different_roots(rank: int, world_size: int) -> str:
    with Communicator(timeout_s=60, check=True) as communicator:
        with pytest.raises(CollectiveError) as caught:
            communicator.broadcast(torch.ones(8), src=rank, algorithm="lp")
        return str(caught.value)


def test_ranks_that_disagree_about_the_root_are_told() -> None:
    for message in run_ranks(different_roots, 2):
        assert "the ranks disagree" in message
        assert "root 0" in message
        assert "root 1" in message
