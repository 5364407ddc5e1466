"""Training whose gradients travel as bfloat16 or float16, under every exchange."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.engine.distribute import distribute
from syncopate.planning import make_plan
from syncopate.recipe import NATIVE, WIRE_DTYPES
from syncopate.units import dtype_name
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    data,
    identical_everywhere,
    mlp,
    plan_of,
    tensors_of,
)
from tests.multiprocess.exchange.cases import Odd, Run, both, squares
from tests.multiprocess.harness import run_ranks

FAMILIES = {
    "allreduce": ("ring", "recursive_doubling", "halving_doubling", "binary_tree", "lp", NATIVE),
    "decoupled": ("ring", "recursive", "hierarchical", NATIVE),
    "sharded": ("ring", "recursive", "hierarchical", NATIVE),
    "rooted": ("mst", "flat_tree", "be", "lp", NATIVE),
}
CASES = tuple(
    (exchange, algorithm, wire)
    for exchange, algorithms in FAMILIES.items()
    for algorithm, wire in itertools.product(algorithms, WIRE_DTYPES)
)
PULLS = {"decoupled": "ring", "sharded": "ring", "rooted": "mst"}


class Known(nn.Module):
    """A model whose gradients are its inputs."""

    SIZES = (7, 20_003, 1, 300)

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        sizes = [torch.zeros(size, dtype=dtype) for size in self.SIZES]
        self.weights = nn.ParameterList(nn.Parameter(zeros) for zeros in sizes)

    def forward(self, gradients: Iterable[Tensor | None]) -> Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([(w * g).sum() for w, g in pairs if g is not None]).sum()


def gradients(rank: int, step: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [data(rank, 10 * step + i, size).to(dtype) for i, size in enumerate(Known.SIZES)]


def distributed(
    model: nn.Module, world_size: int, **plan: Any
) -> tuple[Any, torch.optim.Optimizer]:
    made = plan_of(model, world_size, **plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return distribute(model, optimizer, plan=made, timeout_s=TIMEOUT_S)


def close(average: Tensor, everyone: list[Tensor], wire: str) -> bool:
    """Whether an average is as right as it may be: every contribution rounded p times at most."""
    p, stacked = len(everyone), torch.stack(everyone).double()
    info = torch.finfo(getattr(torch, wire))
    allowed = p * (info.eps / 2 * 1.02 * stacked.abs().mean(0) + info.smallest_normal * info.eps)
    return bool(((average.double() - stacked.mean(0)).abs() <= allowed).all())


def averages(rank: int, p: int) -> list[str]:
    """Return the cases whose averages are wrong; after one step of SGD weights are minus those."""
    wrong = []
    for (exchange, algorithm, wire), channels in zip(CASES, itertools.cycle((1, 2))):
        dtype = torch.float64 if algorithm in {"ring", "mst"} else torch.float32
        told = {"exchange": exchange, "algorithm": algorithm, "pull": PULLS.get(exchange, "")}
        model, optimizer = distributed(
            Known(dtype), p, sizes=[2, 1, 1], channels=channels, wire_dtype=wire, **told
        )
        model(gradients(rank, dtype=dtype)).backward()
        if exchange == "allreduce":
            for weight in model.weights:
                sent = weight.grad if wire == "float16" else weight.grad * p
                narrow = sent.to(getattr(torch, wire)).to(dtype)
                torch.testing.assert_close(sent, narrow, rtol=1e-6, atol=0.0)
        optimizer.step()
        everyone = zip(*(gradients(peer, dtype=dtype) for peer in range(p)), strict=True)
        for weight, contributions in zip(model.weights, everyone, strict=True):
            if not close(-weight.detach(), list(contributions), wire):
                wrong.append(f"{exchange} {algorithm} {wire} {tuple(weight.shape)}")
        identical_everywhere(model.parameters())
        model.syncopate.detach()
    return wrong


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_averages_are_right_and_weights_bit_identical(world_size: int) -> None:
    assert run_ranks(averages, world_size) == [[]] * world_size


class OddFrozen(Odd):
    """One layer is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight.requires_grad_(False)


def loops(rank: int, p: int) -> None:
    for (exchange, wire), build in itertools.product(
        itertools.product(SERVERLESS, WIRE_DTYPES), (Odd, OddFrozen)
    ):
        algorithm = FAMILIES[exchange][0]
        run = both(
            rank,
            p,
            _training,
            build=build,
            tolerance=2e-2 if wire == "bfloat16" else 2e-3,
            exchange=exchange,
            algorithm=algorithm,
            pull=PULLS.get(exchange, ""),
            wire_dtype=wire,
        )
        run.model.syncopate.detach()


def _training(run: Run) -> None:
    for step in range(3):
        run.optimizer.zero_grad()
        with run.no_sync():
            run.backward(squares(3 * step))
        run.backward(squares(3 * step + 1))
        run.seen.append(float(nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)))
        run.optimizer.step()
    # A gradient that is kept counts on.
    run.optimizer.zero_grad(set_to_none=False)
    run.backward(squares(98))
    run.backward(squares(99))
    run.optimizer.step()


@pytest.mark.parametrize("world_size", [2, 3])
def test_accumulation_clipping_and_frozen_layers(world_size: int) -> None:
    run_ranks(loops, world_size)


def missing(rank: int, p: int) -> list[tuple[bool, bool, bool]]:
    """Return per case whether parameters that some or no ranks reached are what they must be."""
    found = []
    for exchange, wire in itertools.product(SERVERLESS, WIRE_DTYPES):
        told = {"algorithm": FAMILIES[exchange][0], "pull": PULLS.get(exchange, "")}
        model, optimizer = distributed(Known(), p, exchange=exchange, wire_dtype=wire, **told)
        reached = gradients(rank)
        mine: list[Tensor | None] = [reached[0], None, None, reached[3]]
        if rank == 0:
            mine[1] = reached[1]
        model(mine).backward()
        optimizer.step()
        nobody = model.weights[2].grad is None
        only = [gradients(0)[1], *[torch.zeros(Known.SIZES[1])] * (p - 1)]
        some = close(-model.weights[1].detach(), only, wire)
        found.append((nobody, some, bool((model.weights[2] == 0).all())))
        identical_everywhere(model.parameters())
        model.syncopate.detach()
    return found


def test_gradients_that_are_missing_on_some_ranks_or_all() -> None:
    cases = len(SERVERLESS) * len(WIRE_DTYPES)
    assert run_ranks(missing, 3) == [[(True, True, True)] * cases] * 3


def beyond_float16(rank: int, p: int) -> dict[str, list[float]]:
    """Return what weights become of gradients of 6e4, whose sum is too large, and 1e6."""
    found = {}
    for exchange, wire in itertools.product(SERVERLESS, WIRE_DTYPES):
        model, optimizer = distributed(
            Known(), p, exchange=exchange, wire_dtype=wire, sizes=[4], algorithm=NATIVE
        )
        large = [torch.full((size,), 6e4) for size in Known.SIZES]
        large[1][:] = 1e6
        model(large).backward()
        norm = float(torch.linalg.vector_norm(model.weights[1].grad))
        assert (norm < float("inf")) == (wire == "bfloat16"), (exchange, wire, norm)
        optimizer.step()
        identical_everywhere(model.parameters())
        finite = [float(weight[-1].detach()) for weight in model.weights]
        found[f"{exchange} {wire}"] = finite
        model.syncopate.detach()
    return found


def test_float16_holds_what_ddps_hook_holds() -> None:
    """It is divided before, so that the sum does not overflow; what is too large is infinite."""
    for found in run_ranks(beyond_float16, 2):
        for case, values in found.items():
            for value in (values[0], values[2], values[3]):
                assert value == pytest.approx(-6e4, rel=2**-7), case
            if "bfloat16" in case:
                assert values[1] == pytest.approx(-1e6, rel=2**-7), case
            else:
                assert values[1] == -float("inf"), case


def small_beside_large(rank: int, p: int) -> list[float]:
    found = []
    for exchange in SERVERLESS:
        model, optimizer = distributed(
            Known(), p, exchange=exchange, algorithm=NATIVE, wire_dtype="bfloat16", sizes=[4]
        )
        model(
            [torch.full((size,), 1.0 if rank == 0 else 2.0**-9) for size in Known.SIZES]
        ).backward()
        optimizer.step()
        found.append(float(model.weights[0][0].detach()) * -p)
        model.syncopate.detach()
    return found


def test_additions_are_in_float32() -> None:
    """Three times 2^-9 beside 1: bfloat16 would add nothing at all, in whatever order."""
    for found in run_ranks(small_beside_large, 4):
        by_exchange = dict(zip(SERVERLESS, found, strict=True))
        assert by_exchange["allreduce"] == 1 + 2.0**-7  # the sum, rounded once
        assert by_exchange["sharded"] == 1 + 3 * 2.0**-9
        assert by_exchange["rooted"] in (1 + 2.0**-7, 1 + 3 * 2.0**-9)


def record(rank: int, p: int) -> dict[str, tuple[int, int]]:
    """Return the bytes pushed and pulled in a step, by exchange."""
    found = {}
    for exchange, wire in itertools.product(SERVERLESS, ("", "bfloat16")):
        told = {"algorithm": FAMILIES[exchange][0], "pull": PULLS.get(exchange, "")}
        model, optimizer = distributed(Known(), p, exchange=exchange, wire_dtype=wire, **told)
        model.syncopate.record()
        for step in range(2):
            optimizer.zero_grad()
            model(gradients(rank, step)).backward()
            optimizer.step()
        model.syncopate.ready()
        spans = model.syncopate.timeline().spans
        first = [span for span in spans if span.rank == 0 and span.iteration == spans[0].iteration]
        push, pull = (
            sum(span.nbytes for span in first if span.lane == lane) for lane in ("push", "pull")
        )
        found[f"{exchange} {wire}"] = (push, pull)
        model.syncopate.detach()
    return found


def test_the_record_shows_half_the_bytes_pushed_and_all_that_are_pulled() -> None:
    found = run_ranks(record, 2)[0]
    for exchange, kind in ((each, EXCHANGES[each]) for each in SERVERLESS):
        full, narrow = found[f"{exchange} "], found[f"{exchange} bfloat16"]
        assert full[0] == 2 * narrow[0] > 0
        assert full[1] == (2 if kind.pulls_gradients else 1) * narrow[1]
        assert bool(full[1]) == bool(kind.pull)


def with_buffers(rank: int, p: int) -> None:
    """Buffers ride along with gradients, and lose nothing."""
    for wire in WIRE_DTYPES:
        torch.manual_seed(rank)
        model = mlp(24)
        model.register_buffer("odd", torch.tensor([1 / 3, 1e-30, 3e38, float("inf"), -0.0]))
        model.register_buffer("count", torch.tensor(2**40 + 12345))
        model, optimizer = distributed(model, p, wire_dtype=wire, algorithm="ring", sizes=[3, 3])
        for step in range(3):
            if rank == 0:
                model.odd[0] += 1 / 7
                model.count += 1
            expected = copy.deepcopy(dict(model.named_buffers())) if rank == 0 else None
            optimizer.zero_grad()
            model(data(rank, step, 5, 8)).square().mean().backward()
            optimizer.step()
            if expected is not None:
                assert torch.equal(model.odd, expected["odd"])
        model(data(rank, 9, 5, 8)).sum().backward()  # begins with rank 0's buffers
        identical_everywhere([model.odd, model.count, *model.parameters()])
        assert int(model.count) == 2**40 + 12345 + 3
        model.syncopate.detach()


def test_buffers_that_ride_along_lose_nothing() -> None:
    run_ranks(with_buffers, 2)


class Mixed(nn.Module):
    """Gradients of float32, bfloat16, float64 and complex64."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.float32, torch.bfloat16, torch.float64, torch.complex64)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(33, dtype=kind)) for kind in kinds)

    def forward(self, value: float) -> Tensor:
        return torch.stack([(w * value).sum().abs().double() for w in self.weights]).sum()


def mixed(rank: int, p: int) -> tuple[list[str], list[float]]:
    model = Mixed()
    with torch.no_grad():
        for weight in model.weights:
            weight.fill_(1)
    tensors = tensors_of(model)
    workload = Workload(
        model="mixed",
        tensors=tuple(
            GradientTensor(name=name, numel=numel, dtype=dtype, backward_s=1e-3)
            for name, numel, dtype in reversed(tensors)
        ),
        forward_s=1e-3,
        backward_s=4e-3,
    )
    cluster = Cluster.flat(p, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    plan = make_plan(workload, cluster, "single", wire_dtype="bfloat16")
    model = distribute(model, plan=plan, timeout_s=TIMEOUT_S)
    assert model.syncopate.plan.wire_dtype == "bfloat16"
    model(1 + 2.0**-10).backward()
    pushes = model.syncopate.exchange.traffic.pushes
    kinds = [dtype_name(push.part.wire_dtype) for push in pushes]
    found = [float(weight.grad[0].real) for weight in model.weights]
    model.syncopate.detach()
    return kinds, found


def test_a_plan_from_the_planner_narrows_what_is_wider_than_16_bits_and_real() -> None:
    for kinds, found in run_ranks(mixed, 2):
        assert sorted(kinds) == ["bfloat16", "bfloat16", "bfloat16", "float32"]
        assert found == [1.0, 1.0, 1.0, pytest.approx(1 + 2.0**-10, rel=1e-6)]
