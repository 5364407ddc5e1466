"""Sums that travel as bfloat16 or float16: as right as that allows, half the bytes, one result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator, transport
from syncopate.collectives.mesh import links
from syncopate.collectives.nccl.batches import Rounds
from syncopate.collectives.shards import Form
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules import registry
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.conditions import CONDITIONS, Place
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.harness import run_ranks

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
WIRES = (BFLOAT16, FLOAT16)
SUMS = tuple(name for name, found in CONDITIONS.items() if found.reduces)
NUMELS = (1, 2, 5, 1000, 20_011, 150_001)
"""Fewer elements than ranks, and what the executor copies, sends at once and cuts into blocks."""

CASES = tuple(
    (collective, algorithm)
    for collective in SUMS
    for algorithm in (NATIVE, *registry.algorithms(collective))
)


def inputs(world_size: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What every rank contributes: shape (p, numel)."""
    generator = torch.Generator().manual_seed(numel)
    return torch.randn(world_size, numel, generator=generator, dtype=torch.float64).to(dtype)


def held(collective: str, rank: int, bounds: tuple[int, ...], root: int) -> slice:
    """Return where ``rank`` has the result."""
    end = CONDITIONS[collective].end
    if end is Place.SHARD:
        return slice(*bounds[rank : rank + 2])
    return slice(0, 0 if end is Place.ROOT and rank != root else bounds[-1])


def allowed(before: torch.Tensor, wire: torch.dtype) -> torch.Tensor:
    """Every contribution is in at most p sums that were rounded, half a unit each."""
    least = torch.finfo(wire).smallest_normal * torch.finfo(wire).eps
    relative = len(before) * torch.finfo(wire).eps / 2 * 1.02
    return before.double().abs().sum(0) * relative + len(before) * least


def bounds_of(collective: str, world_size: int, numel: int) -> Iterator[tuple[int, ...]]:
    """Yield the balanced cut, and where there are shards those that are not."""
    yield chunk_offsets(numel, world_size)
    if CONDITIONS[collective].sharded:
        yield (0,) * world_size + (numel,)
        yield (0, numel // 3) + (numel,) * (world_size - 1)


def sweep(rank: int, p: int) -> list[tuple[str, bool, bytes]]:
    """Return every case, whether this rank's result is right, and it where all have it."""
    found = []
    with Communicator(check=True) as communicator:
        for (collective, algorithm), wire, numel in itertools.product(CASES, WIRES, NUMELS):
            dtype = torch.float64 if numel % 2 else torch.float32
            before = inputs(p, numel, dtype)
            for bounds in bounds_of(collective, p, numel):
                root = p - 1 if CONDITIONS[collective].rooted else 0
                told = {"bounds": bounds} if CONDITIONS[collective].sharded else {}
                tensor = before[rank].clone()
                recipe = Recipe(collective, algorithm, root)
                communicator.run(recipe, tensor, wire_dtype=wire, **told)
                here = held(collective, rank, bounds, root)
                error = (tensor.double() - before.double().sum(0)).abs()
                right = bool((error <= allowed(before, wire))[here].all())
                result = b""
                if CONDITIONS[collective].agrees:
                    right &= torch.equal(tensor, tensor.to(wire).to(dtype))
                    result = tensor.numpy().tobytes()
                found.append((f"{recipe.label} {wire} {numel} {bounds}", right, result))
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sums_are_right_and_bit_identical(world_size: int) -> None:
    by_rank = run_ranks(sweep, world_size)
    assert len(by_rank[0]) > len(CASES) * len(WIRES) * len(NUMELS)
    for results in zip(*by_rank, strict=True):
        case = results[0][0]
        assert [right for _, right, _ in results] == [True] * world_size, case
        assert len({result for _, _, result in results}) == 1, case


def bytes_sent(rank: int, world_size: int) -> list[tuple[str, int, int]]:
    """Return the bytes of this rank's messages, as they are and narrowed."""
    found = []
    with Communicator() as communicator:
        executor = communicator._runners[0]._executor
        send, sent = executor._wire.send, [0]

        def counting(region: memoryview, peer: int, tag: int) -> Any:
            sent[0] += region.nbytes
            return send(region, peer, tag)

        executor._wire = executor._wire._replace(send=counting)
        for (collective, algorithm), numel in itertools.product(CASES, (1000, 600_000)):
            if algorithm == NATIVE:  # which goes through Gloo's own connections
                continue
            recipe, counts = Recipe(collective, algorithm), []
            for wire in (None, BFLOAT16):
                sent[0] = 0
                communicator.run(recipe, torch.ones(numel), wire_dtype=wire)
                counts.append(sent[0])
            found.append((f"{recipe.label} {numel}", *counts))
    return found


def test_half_the_bytes_are_sent() -> None:
    by_rank = run_ranks(bytes_sent, 4)
    for results in zip(*by_rank, strict=True):
        full, narrow = (sum(result[i] for result in results) for i in (1, 2))
        assert full >= 3 * 1000 * 4, results
        assert full == 2 * narrow, results


def native(rank: int, p: int) -> bool:
    """Where contributions go straight to their owner each is rounded once, and the sum once."""
    numel = 1003
    before = inputs(p, numel)
    bounds = chunk_offsets(numel, p)
    right = True
    with Communicator() as communicator:
        for wire in WIRES:
            shard = slice(*bounds[rank : rank + 2])
            expected = before[rank].clone()
            for other in (*before[:rank], *before[rank + 1 :]):
                expected += other.to(wire).float()
            tensor = before[rank].clone()
            communicator.run(Recipe("reduce_scatter"), tensor, wire_dtype=wire)
            right &= torch.equal(tensor[shard], expected[shard])
            tensor = before[rank].clone()
            communicator.run(Recipe("all_reduce"), tensor, wire_dtype=wire)
            right &= torch.equal(tensor[shard], expected[shard].to(wire).float())
    return right


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_backends_own_messages_round_every_contribution_once(world_size: int) -> None:
    assert run_ranks(native, world_size) == [True] * world_size


def small_beside_large(rank: int, p: int) -> dict[str, float]:
    """Return what comes of 1 on one rank and 2^-9 on each other, which bfloat16 cannot add to 1."""
    found = {}
    with Communicator() as communicator:
        for collective, algorithm in (
            ("reduce_scatter", NATIVE),
            ("reduce", "flat_tree"),
            ("all_reduce", NATIVE),
            ("all_reduce", "flat_tree"),
        ):
            tensor = torch.full((p,), 1.0 if rank == 0 else 2.0**-9)
            communicator.run(Recipe(collective, algorithm), tensor, wire_dtype=BFLOAT16)
            found[f"{collective} {algorithm}"] = float(tensor[0])
    return found


def test_additions_are_in_the_tensors_own_type() -> None:
    """Added one by one in bfloat16, seven times 2^-9 beside 1 are nothing."""
    narrow = torch.ones((), dtype=BFLOAT16)
    for _ in range(7):
        narrow = narrow + torch.tensor(2.0**-9, dtype=BFLOAT16)
    assert narrow == 1
    found = run_ranks(small_beside_large, 8)[0]
    exact = 1 + 7 * 2.0**-9
    assert found["reduce_scatter native"] == found["reduce flat_tree"] == exact
    # Every rank gets it rounded, to a multiple of 2^-7.
    assert found["all_reduce native"] == found["all_reduce flat_tree"] == 1 + 2 * 2.0**-7


def overflow(rank: int, world_size: int) -> list[list[float]]:
    found = []
    with Communicator() as communicator:
        for wire in WIRES:
            for algorithm in (NATIVE, *registry.algorithms("all_reduce")):
                tensor = torch.tensor([7e4, -7e4, 4e4, 1.0])
                if rank == 0:
                    tensor[0] = float("nan")
                communicator.run(Recipe("all_reduce", algorithm), tensor, wire_dtype=wire)
                found.append(tensor.tolist())
    return found


def test_what_float16_cannot_hold_becomes_infinite() -> None:
    inf, names = float("inf"), (NATIVE, *registry.algorithms("all_reduce"))
    for found in run_ranks(overflow, 2):
        of_bfloat16, of_float16 = found[: len(names)], found[len(names) :]
        for values in of_bfloat16:
            torch.testing.assert_close(values[1:], [-14e4, 8e4, 2.0], rtol=2**-7, atol=0)
        for values in of_float16:
            assert values[1:] == [-inf, inf, 2.0]
        assert all(values[0] != values[0] for values in found)  # NaN


def other_carriers(rank: int, p: int) -> list[str]:
    """Return the cases in which messages through Gloo, or in batches, do not give the same bits."""
    wrong = []
    with mock.patch.object(links, "MOST_RANKS", p - 1):
        without = Communicator()
    rounds = Rounds(transport.new_group(None, 60.0), rank)
    chunks = Rounds(transport.new_group(None, 60.0), rank, chunk_bytes=40_000)
    with Communicator() as meshed, without:
        assert not without._runners[0]._executor.meshed
        for (collective, algorithm), numel in itertools.product(CASES, (1, 1000, 150_001)):
            root = p - 1 if CONDITIONS[collective].rooted else 0
            before = inputs(p, numel)[rank]
            results = [before.clone() for _ in range(4)]
            recipe = Recipe(collective, algorithm, root)
            for communicator, tensor in zip((meshed, without), results, strict=False):
                communicator.run(recipe, tensor, wire_dtype=BFLOAT16)
            if algorithm == NATIVE:
                results[2:] = []
            else:
                schedule = registry.build(collective, algorithm, p, root)
                for batches, tensor in zip((rounds, chunks), results[2:], strict=True):
                    batches.run(schedule, tensor, Form(narrow=BFLOAT16))
            here = held(collective, rank, chunk_offsets(numel, p), root)
            if CONDITIONS[collective].agrees:
                last = results.pop()  # in chunks of another cut, in another order of additions
                everyone: list[Any] = [None] * p
                dist.all_gather_object(everyone, last)
                if not all(torch.equal(last, other) for other in everyone):
                    wrong.append(f"{recipe.label} {numel} differs between ranks")
            if not all(torch.equal(results[0][here], other[here]) for other in results):
                wrong.append(f"{recipe.label} {numel}")
    return wrong


@pytest.mark.parametrize("world_size", [3, 4])
def test_every_carrier_makes_the_same_bits(world_size: int) -> None:
    assert run_ranks(other_carriers, world_size) == [[]] * world_size


def refusals(rank: int, world_size: int) -> list[str]:
    said = []
    with Communicator() as communicator:
        for recipe, tensor, wire in (
            (Recipe("all_reduce"), torch.ones(3), torch.float8_e5m2),
            (Recipe("all_reduce"), torch.ones(3, dtype=torch.float16), BFLOAT16),
            (Recipe("all_reduce"), torch.ones(3, dtype=torch.int32), BFLOAT16),
            (Recipe("broadcast"), torch.ones(3), BFLOAT16),
            (Recipe("all_gather", "ring"), torch.ones(3), BFLOAT16),
        ):
            with pytest.raises(InvalidValueError) as raised:
                communicator.run(recipe, tensor, wire_dtype=wire)
            said.append(str(raised.value))
        own = torch.ones(3, dtype=BFLOAT16)
        communicator.run(Recipe("broadcast"), own, wire_dtype=BFLOAT16)  # as it is
    with Communicator(check=True, timeout_s=20) as communicator:
        wire = BFLOAT16 if rank else None
        with pytest.raises(CollectiveError) as failed:
            communicator.run(Recipe("all_reduce", "ring"), torch.ones(3), wire_dtype=wire)
        said.append(str(failed.value))
    return said


def test_what_cannot_be_narrowed_is_refused() -> None:
    for said in run_ranks(refusals, 2):
        assert "wire_dtype of all_reduce" in said[0]
        assert "one of torch.bfloat16, torch.float16" in said[0]
        for text in said[1:3]:
            assert "only float32, float64 are narrowed" in text
        for text in said[3:5]:
            assert "only sums are narrowed (all_reduce, reduce_scatter, reduce)" in text
        assert "all_reduce (ring) as bfloat16" in said[5]


def in_turn(rank: int, world_size: int) -> None:
    """Collectives with and without, several under way, filled when their turn comes."""
    with Communicator(channels=2) as communicator:
        tensors = [torch.zeros(numel) for numel in (10, 5000, 70_000, 200_000, 10, 5000, 70_000)]
        handles = []
        for index, tensor in enumerate(tensors):
            recipe = Recipe("all_reduce", "ring", channel=index % 2)
            handles.append(
                communicator.run(
                    recipe,
                    tensor,
                    before=lambda t=tensor: t.fill_(rank + 0.001),
                    async_op=True,
                    wire_dtype=BFLOAT16 if index % 3 else None,
                )
            )
        exact = sum(range(world_size)) + 0.001 * world_size
        for index, (tensor, handle) in enumerate(zip(tensors, handles, strict=True)):
            handle.wait()
            close = {"rtol": 2.0**-6 if index % 3 else 1e-6, "atol": 0.0}
            torch.testing.assert_close(tensor, torch.full_like(tensor, exact), **close)
        identical_everywhere(tensors)


def test_narrow_and_other_collectives_follow_one_another() -> None:
    run_ranks(in_turn, 3)
