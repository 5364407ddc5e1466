"""Hierarchical algorithms out of collectives on subgroups, as NCCL runs them; here on Gloo."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator, runner
from syncopate.collectives.nccl import subgroup
from syncopate.collectives.nccl.stages import Stages
from syncopate.errors import CollectiveError, InvalidValueError, UnknownNameError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.registry import build
from tests.multiprocess.harness import REAL_DTYPES, run_ranks

KINDS = (
    ("all_reduce", "blueconnect"),
    ("all_reduce", "two_level"),
    ("reduce_scatter", "hierarchical"),
    ("all_gather", "hierarchical"),
)
GRIDS = {
    4: ((2, 2), None),
    6: ((2, 3), (3, 2)),
    8: ((2, 4), (4, 2), (2, 2, 2), (1, 4, 1, 2)),
    9: ((3, 3),),
}
WORLD = max(GRIDS)


def inputs(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Fractions, whose sums depend on the order of addition; small integers for integers."""
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_complex:
        return torch.rand(numel, generator=generator, dtype=dtype)
    values = torch.rand(numel, generator=generator, dtype=torch.float64)
    return (values - 0.3).to(dtype) if dtype.is_floating_point else (values * 10).to(dtype)


def held(collective: str, tensor: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Check that ``rank`` holds what it has to of :func:`inputs`; return it."""
    offsets = chunk_offsets(tensor.numel(), world_size)
    before = [inputs(peer, tensor.numel(), tensor.dtype) for peer in range(world_size)]
    if collective == "all_gather":
        for owner, whole in enumerate(before):
            shard = slice(offsets[owner], offsets[owner + 1])
            assert torch.equal(tensor[shard], whole[shard])
        return tensor
    share = (
        slice(offsets[rank], offsets[rank + 1])
        if collective == "reduce_scatter"
        else slice(0, None)
    )
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    total, got = torch.stack(before).to(wide).sum(0)[share], tensor[share]
    if tensor.is_floating_point() or tensor.is_complex():
        close = world_size * torch.finfo(tensor.dtype).eps * 4
        torch.testing.assert_close(got.to(wide), total, rtol=close, atol=close)
    else:
        assert torch.equal(got, total.to(tensor.dtype))
    return got


def cases(world_size: int) -> Iterator[tuple[str, str, dict[str, Any], int, torch.dtype]]:
    p, float32 = world_size, torch.float32
    other_order = [*range(1, p, 2), *range(0, p, 2)]
    for (collective, algorithm), factors in itertools.product(KINDS, GRIDS[p]):
        if algorithm == "two_level" and factors and factors[0] == 1:
            continue
        options: dict[str, Any] = {"factors": factors} if factors else {}
        for numel in (1, p - 1, p, 2 * p + 1, 1000):
            yield collective, algorithm, options, numel, float32
        yield collective, algorithm, {**options, "order": other_order}, 5 * p - 1, float32
        for numel in (p + 1, 3 * p, 1001) if algorithm == "blueconnect" else ():
            yield collective, algorithm, {**options, "pipelines": 3}, numel, float32
        for dtype in (*REAL_DTYPES, torch.complex64) if factors == GRIDS[p][0] else ():
            yield collective, algorithm, options, 103, dtype


def every_grid(rank: int, world_size: int) -> tuple[dict[str, str], dict[int, int]]:
    """Return a digest of each all-reduce's result, and the subgroups made, by world size."""
    digests, made = {}, {}
    for size in GRIDS:
        group = dist.new_group(list(range(size)))
        if rank >= size:
            continue
        stages = Stages(group, rank, 60)
        for collective, algorithm, options, numel, dtype in cases(size):
            staged = stages.staged(collective, algorithm, options)
            assert staged is not None
            tensor = inputs(rank, numel, dtype)
            staged(tensor)
            result = held(collective, tensor, rank, size)
            if collective == "all_reduce":
                key = f"{size} {algorithm} {options} {numel} {dtype}"
                digests[key] = hashlib.sha1(result.view(torch.uint8).numpy()).hexdigest()
        made[size] = len(stages._subgroups)
        stages.close()
    return digests, made


def test_every_grid_order_size_and_dtype() -> None:
    results = run_ranks(every_grid, WORLD)
    for digests, _ in results:
        for key, digest in digests.items():
            assert results[0][0][key] == digest, key
    # Grids share what they have in common: no more than a subgroup per level and order.
    for size, grids in GRIDS.items():
        levels = sum(len(factors or (2, 2)) for factors in grids)
        assert all(made[size] <= 2 * levels for _, made in results[:size])


def what_stays_a_schedule(rank: int, world_size: int) -> None:
    group = dist.new_group(list(range(world_size)))
    stages = Stages(group, rank, 60)
    assert stages.staged("all_reduce", "ring") is None
    assert stages.staged("all_reduce", "blueconnect", {"factors": (1, world_size)}) is None
    asked = {"factors": (2, 2), "stages": ("ring", "recursive")}
    assert stages.staged("all_reduce", "blueconnect", asked) is None
    assert stages.staged("all_reduce", "two_level", {"factors": (1, 2, 2)}) is None
    for options in (
        {"factors": (2, 3)},
        {"pipelines": 0},
        {"order": (0, 0, 1, 2)},
        {"blocks": 2},
    ):
        with pytest.raises((InvalidValueError, UnknownNameError)) as staged:
            stages.staged("all_reduce", "blueconnect", options)
        with pytest.raises(type(staged.value)) as scheduled:
            build("all_reduce", "blueconnect", world_size, **options)
        assert str(staged.value) == str(scheduled.value)
    assert not stages._subgroups


def channels_in_any_order(rank: int, world_size: int) -> list[float]:
    """First uses in another order on every rank: nobody may wait for the wrong subgroup."""
    what_stays_a_schedule(rank, world_size)
    runner.STAGED_BACKENDS = frozenset({"gloo"})
    made = []
    original = subgroup.Subgroup.__init__

    def noted(self: Any, group: Any, ranks: Any, *rest: Any) -> None:
        original(self, group, ranks, *rest)
        made.append((group.group_name, tuple(ranks)))

    subgroup.Subgroup.__init__ = noted
    sums = []
    with Communicator(timeout_s=60, channels=2, check=rank >= 0) as communicator:
        for repeat in range(2):
            tensors = [torch.full((101,), float(rank + channel)) for channel in range(2)]
            grids = [(2, 2), (2, 2)] if repeat else [(2, 2), None]
            handles = {}
            for channel in (0, 1) if rank % 2 else (1, 0):
                options = {"factors": grids[channel]} if grids[channel] else None
                handles[channel] = communicator.all_reduce(
                    tensors[channel], algorithm="blueconnect", channel=channel, async_op=True,
                    options=options,
                )  # fmt: skip
            for channel in (1, 0):
                handles[channel].wait()
            sums += [tensor.unique().item() for tensor in tensors]
        # Two levels on each channel, made once.
        assert len(made) == len(set(made)) == 4
        shards = torch.arange(10) * 1.0
        communicator.all_gather(shards, algorithm="hierarchical")
        assert shards.tolist() == list(range(10))
        assert len(made) == 4
    with pytest.raises(CollectiveError, match="closed"):
        communicator.all_reduce(tensors[0], algorithm="blueconnect")
    return sums


def test_channels_make_their_subgroups_in_any_order() -> None:
    assert run_ranks(channels_in_any_order, 4) == [[6.0, 10.0] * 2] * 4


def a_peer_dies(rank: int, world_size: int) -> tuple[tuple[int, ...], float]:
    runner.STAGED_BACKENDS = frozenset({"gloo"})
    with Communicator(timeout_s=60) as communicator:
        tensor = torch.ones(1000)
        communicator.all_reduce(tensor, algorithm="blueconnect")
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        began_s = time.monotonic()
        with pytest.raises(CollectiveError) as caught:
            communicator.all_reduce(tensor, algorithm="blueconnect")
        return caught.value.ranks, time.monotonic() - began_s


def test_a_dead_peer_is_named() -> None:
    for ranks, waited_s in run_ranks(a_peer_dies, 4, may_die={3})[:3]:
        assert ranks == (3,)
        assert waited_s < 40
