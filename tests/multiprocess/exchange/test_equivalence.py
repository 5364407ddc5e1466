"""Fifteen steps of every exchange, optimizer and plan are those of one process on all batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVERLESS, SHARDED, Plan
from syncopate.engine.distribute import distribute
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    identical_everywhere,
    in_parts,
    plan_of,
)
from tests.multiprocess.exchange.cases import Odd, Run, batch, both, squares
from tests.multiprocess.harness import Cases, run_ranks

STEPS = 15
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(
        torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, amsgrad=True, foreach=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.003, momentum=0.5, centered=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "NAdam": partial(torch.optim.NAdam, lr=0.01, momentum_decay=0.01),
}

SHAPES: dict[str, list[int] | None] = {
    "one bucket per tensor": None,
    "one bucket": [6],
    "middling": [1, 3, 2],
}

ALGORITHMS: dict[str, list[tuple[str, str]]] = {
    ALLREDUCE: [("native", ""), ("ring", ""), ("lp", "")],
    DECOUPLED: [("native", "native"), ("recursive", "ring"), ("ring", "recursive")],
    SHARDED: [("native", "native"), ("ring", "recursive"), ("recursive", "ring")],
    ROOTED: [("native", "native"), ("lp", "mst"), ("mst", "be")],
}
"""By exchange, what pushes and what pulls."""


def trained(
    model: Any, optimizer: Any, ranks: Iterable[int], world_size: int, steps: int = STEPS
) -> None:
    """Train on the batches of some ranks, which all count alike."""
    for step in range(steps):
        optimizer.zero_grad()
        losses = [squares(step)(model, rank) for rank in ranks]
        (torch.stack(losses).sum() / (1 if len(losses) == 1 else world_size)).backward()
        optimizer.step()


def plans(model: nn.Module, world_size: int, turn: int) -> Iterable[Plan]:
    """Every exchange in every shape, on three ranks in one; the other choices take turns."""
    for number, (exchange, shape) in enumerate(product(SERVERLESS, SHAPES)):
        if world_size == 3 and (number + turn) % len(SHAPES):
            continue
        push, pull = ALGORITHMS[exchange][(number // 2 + turn) % len(ALGORITHMS[exchange])]
        yield plan_of(
            model,
            world_size,
            SHAPES[shape],
            exchange=exchange,
            algorithm=push,
            pull=pull,
            channels=1 + (number + turn // 3) % 2,
        )


def every_combination(
    rank: int, world_size: int, steps: int = STEPS
) -> set[tuple[str, str, int, str, int]]:
    done = set()
    torch.manual_seed(3)
    start = Odd()
    for turn, (name, make) in enumerate(OPTIMIZERS.items()):
        alone = copy.deepcopy(start)
        trained(alone, make(alone.parameters()), range(world_size), world_size, steps)
        for plan in plans(start, world_size, turn):
            at = (name, plan.exchange, len(plan.buckets))
            model = copy.deepcopy(start)
            model, optimizer = distribute(
                model, make(model.parameters()), plan=plan, timeout_s=TIMEOUT_S
            )
            trained(model, optimizer, [rank], world_size, steps)
            pairs = zip(model.named_parameters(), alone.parameters(), strict=True)
            for (where, value), expected in pairs:
                torch.testing.assert_close(
                    value,
                    expected,
                    rtol=1e-4,
                    atol=1e-5,
                    msg=lambda m, at=(*at, where): f"{at}: {m}",
                )
            identical_everywhere(model.parameters())
            model.syncopate.detach()
            done.add((*at, plan.buckets[0].push.algorithm, plan.channels))
    return done


def test_every_exchange_optimizer_and_plan() -> None:
    done = run_ranks(every_combination, 2)[0]
    assert {what[:3] for what in done} == set(product(OPTIMIZERS, SERVERLESS, (6, 1, 3)))
    for exchange, choices in ALGORITHMS.items():
        seen = {what[3:] for what in done if what[1] == exchange}
        assert seen == set(product((push for push, _ in choices), (1, 2)))


def test_every_exchange_and_optimizer_on_three_ranks() -> None:
    done = run_ranks(every_combination, 3, 10)[0]
    assert {what[:2] for what in done} == set(product(OPTIMIZERS, SERVERLESS))


def ended(start: nn.Module, plan: Plan, rank: int, steps: int) -> dict[str, Tensor]:
    """Return the weights after some steps of plain SGD."""
    model: Any = copy.deepcopy(start)
    model, optimizer = distribute(
        model, OPTIMIZERS["SGD"](model.parameters()), plan=plan, timeout_s=TIMEOUT_S
    )
    trained(model, optimizer, [rank], plan.world_size, steps)
    end = {name: value.detach().clone() for name, value in model.named_parameters()}
    model.syncopate.detach()
    return end


def same_bits(rank: int, world_size: int) -> None:
    """Exchanges that add in the same order end with the same bits.

    Two numbers have one sum. On three ranks a ring adds an element in the order of its chunk, and
    what rides along with the last all-reduce moves the chunks there; so the first step is compared,
    and without the last bucket.
    """
    start = Odd()
    steps = STEPS if world_size == 2 else 1
    for sizes in (None, [1, 3, 2]):
        plan = partial(plan_of, start, world_size, sizes)
        plans = [
            plan(exchange=ALLREDUCE, algorithm="ring"),
            plan(exchange=SHARDED, algorithm="ring"),
            plan(exchange=SHARDED, algorithm="ring", pull="recursive", channels=2),
        ]
        if world_size == 2:
            plans.append(plan(exchange=ROOTED, algorithm="mst"))
            rings = [plan(exchange=each, algorithm="ring") for each in (ALLREDUCE, SHARDED)]
            plans += [in_parts(each, start, 3) for each in rings]
        first, *others = (ended(start, plan, rank, steps) for plan in plans)
        compared = set(first)
        if world_size > 2:
            compared -= set(plans[0].buckets[-1].tensors)
        for end in others:
            for name in compared:
                assert torch.equal(end[name], first[name]), (name, sizes)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_order_of_addition_gives_the_same_bits(world_size: int) -> None:
    run_ranks(same_bits, world_size)


# -- models, plans, accumulation and dtypes as they come ------------------------------------------


class Chain(nn.Module):
    """Layers of given widths, with parameters of no element and of none but one beside them."""

    def __init__(self, widths: list[int], dtype: torch.dtype) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(*pair, dtype=dtype) for pair in pairs)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.nothing = nn.Parameter(torch.zeros(0, dtype=dtype))
        self.width = widths[0]

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return inputs * self.scale + self.nothing.sum()


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    widths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    tensors = 2 * (len(widths) - 1) + 2
    cuts = draw(st.sets(st.integers(1, tensors - 1)))
    borders = [0, *sorted(cuts), tensors]
    exchange = draw(st.sampled_from([SHARDED, ROOTED]))
    push, pull = draw(st.sampled_from(ALGORITHMS[exchange]))
    return {
        "widths": widths,
        "dtype": draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
        "backwards": draw(st.lists(st.booleans(), min_size=1, max_size=3)),
        "zero": draw(st.sampled_from([True, False, None])),
        "clip": draw(st.sampled_from([None, 0.1])),
        "plan": {
            "sizes": [stop - start for start, stop in pairwise(borders)],
            "exchange": exchange,
            "algorithm": push,
            "pull": pull,
            "channels": draw(st.integers(1, 2)),
        },
        "parts": draw(st.sampled_from([1, 2, 5])),
    }


def training(asked: dict[str, Any], run: Run) -> None:
    shape = (3, asked["widths"][0])
    for step in range(3):
        if asked["zero"] is not None:
            run.optimizer.zero_grad(set_to_none=asked["zero"])

        def loss(model: Any, rank: int, step: int = step) -> Tensor:
            return model(batch(rank, step, *shape, dtype=asked["dtype"])).square().mean()

        for synchronised in asked["backwards"]:
            if synchronised:
                run.backward(loss)
            else:
                with run.no_sync():
                    run.backward(loss)
        run.backward(loss)
        if asked["clip"] is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), asked["clip"])
        run.optimizer.step()


def as_they_come(rank: int, world_size: int, examples: list[dict[str, Any]]) -> int:
    with Cases() as case:
        for asked in examples:
            with case(f"with {asked}"):
                run = both(
                    rank,
                    world_size,
                    partial(training, asked),
                    build=lambda asked=asked: Chain(asked["widths"], asked["dtype"]),
                    optimizer=OPTIMIZERS[asked["optimizer"]],
                    tolerance=5e-2 if asked["dtype"] == torch.bfloat16 else 1e-4,
                    parts=asked["parts"],
                    **asked["plan"],
                )
                run.model.syncopate.detach()
    return len(examples)


def test_models_and_plans_as_they_come() -> None:
    examples: list[dict[str, Any]] = []

    @settings(
        derandomize=True,
        max_examples=25,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(trainings())
    def collect(asked: dict[str, Any]) -> None:
        examples.append(asked)

    collect()
    assert run_ranks(as_they_come, 3, examples) == [len(examples)] * 3
