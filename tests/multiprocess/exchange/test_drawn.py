"""Whatever model, optimizers and plan are drawn, ranks with shards train as one process does."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Muon, NAdam, Optimizer, RMSprop

from syncopate import declare_optimizer
from syncopate.collectives import Communicator
from syncopate.collectives.backend import calls
from syncopate.engine.distribute import distribute
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    identical_everywhere,
    in_parts,
    plan_of,
    replicating,
)
from tests.multiprocess.exchange.test_tensors import Lamb
from tests.multiprocess.harness import Cases, run_ranks

RANKS = 4
DRAWN = 24
STEPS = 6
SHAPES = ((), (1,), (7,), (40,), (3, 5), (8, 2), (6, 6), (2, 3, 4), (4, 3, 2, 2))

MAKERS: tuple[Callable[[Any], Optimizer], ...] = (
    lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    lambda parameters: AdamW(parameters, lr=0.02),
    lambda parameters: RMSprop(parameters, lr=0.01, momentum=0.5),
    lambda parameters: NAdam(parameters, lr=0.01),
    lambda parameters: Adafactor(parameters, lr=0.05),
    Lamb,
    lambda parameters: Muon(parameters, lr=0.02),
)
MATRICES = len(MAKERS) - 1
"""The last one takes matrices alone."""


class Drawn(nn.Module):
    """Parameters of any shapes and strides; which of them a rank reaches differs by step."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.held = nn.ParameterList()
        for number in range(draw.randint(1, 12)):
            value = torch.randn(draw.choice(SHAPES), generator=_seeded(number)).double()
            if value.ndim == 4 and draw.random() < 0.5:
                value = value.to(memory_format=torch.channels_last)
            if value.ndim == 2 and draw.random() < 0.5:
                value = value.t()
            self.held.append(nn.Parameter(value))

    def forward(self, step: int, rank: int) -> Tensor:
        reached = random.Random(1000 * step + rank)
        total = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.held):
            # The first one is always reached, so that there is a backward.
            if reached.random() < 0.7 or number == 0:
                factor = torch.randn(
                    parameter.shape, generator=_seeded(100 * step + 10 * rank + number)
                )
                total = total + (factor * torch.sin(parameter)).sum()
        return total


def _seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def optimizers_of(draw: random.Random, model: Drawn) -> list[Optimizer]:
    """One to three optimizers; here and there a parameter that nobody trains."""
    chosen = draw.sample(range(MATRICES), draw.randint(1, 2))
    if draw.random() < 0.6:
        chosen.append(MATRICES)
    taken: dict[int, list[nn.Parameter]] = {kind: [] for kind in chosen}
    for parameter in model.held:
        fitting = [kind for kind in chosen if kind != MATRICES or parameter.ndim == 2]
        if draw.random() < 0.9:
            taken[draw.choice(fitting)].append(parameter)
    if not any(taken.values()):
        taken[chosen[0]].append(model.held[0])
    return [MAKERS[kind](held) for kind, held in taken.items() if held]


def plan_options(draw: random.Random, count: int) -> dict[str, Any]:
    sizes = []
    while sum(sizes) < count:
        sizes.append(draw.randint(1, count - sum(sizes)))
    return {
        "sizes": sizes,
        "exchange": draw.choice(["sharded", "sharded", "sharded", "rooted"]),
        "algorithm": "native",
        "channels": draw.randint(1, 2),
    }


def step_of(optimizers: list[Optimizer], step: int, kept: bool, to_none: bool) -> None:
    """Some optimizers step, in some order; where gradients are ``kept``, only they zero theirs."""
    draw = random.Random(step)
    turns = [number for number in range(3) if draw.random() < 0.8]
    draw.shuffle(turns)
    stepping = [optimizers[number] for number in turns if number < len(optimizers)]
    for optimizer in stepping:
        optimizer.step()
    for optimizer in stepping if kept else optimizers:
        optimizer.zero_grad(set_to_none=to_none)


def train_drawn(rank: int, seed: int) -> None:
    draw = random.Random(seed)
    alone = Drawn(draw)
    model = copy.deepcopy(alone)
    state = draw.getstate()
    alone_optimizers = optimizers_of(draw, alone)
    draw.setstate(state)
    optimizers = optimizers_of(draw, model)
    options = plan_options(draw, len(model.held))
    if options["exchange"] == "sharded":
        options["algorithm"] = draw.choice(["native", "ring", "recursive"])
    kept, to_none = draw.random() < 0.3, draw.random() < 0.7
    parts = draw.choice([1, 1, 2, 3, 5])
    plan = in_parts(plan_of(model, RANKS, **options), model, parts)
    if options["exchange"] == "sharded":
        plan = replicating(plan, draw.choice([0, 0, 1, 2, len(options["sizes"])]))
    distribute(model, optimizers, plan=plan, timeout_s=TIMEOUT_S)
    for step in range(STEPS):
        losses: Iterable[Tensor] = [alone(step, each) for each in range(RANKS)]
        (torch.stack(list(losses)).sum() / RANKS).backward()
        model(step, rank).backward()
        step_of(alone_optimizers, step, kept, to_none)
        step_of(optimizers, step, kept, to_none)
        pairs = zip(model.held, alone.held, strict=True)
        far = [float((one - other).detach().abs().max()) for one, other in pairs]
        assert max(far) < 1e-8, f"step {step}: parameters differ by {far}"
    identical_everywhere(model.parameters())
    model.syncopate.detach()  # type: ignore[union-attr,operator]


def a_lone_owner_is_sent_no_padding(rank: int) -> None:
    """A tensor alone in its bucket goes to its owner as it is, and comes back so."""
    sent: list[int] = []

    def unexpected(*_: Any) -> None:
        raise AssertionError("a shard was padded")

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: Any, tensor: Tensor, root: int) -> Any:
            sent.append(tensor.nbytes)
            return call(group, tensor, root)

        return counted

    before = {name: getattr(calls, name) for name in ("reduce", "broadcast")}
    before |= {name: getattr(calls, name) for name in ("reduce_scatter", "all_gather")}
    with Communicator(timeout_s=TIMEOUT_S) as communicator:
        for name, call in before.items():
            setattr(calls, name, unexpected if "_" in name else counting(call))
        try:
            tensor = torch.full((5,), float(rank))
            for collective in ("reduce_scatter", "all_gather"):
                communicator.run(Recipe(collective, "native"), tensor, bounds=(0, 0, 5, 5, 5))
        finally:
            for name, call in before.items():
                setattr(calls, name, call)
    assert tensor.tolist() == [6.0] * 5
    assert sent == [20, 20]


def _all_drawn(rank: int, world_size: int) -> None:
    a_lone_owner_is_sent_no_padding(rank)
    declare_optimizer(Lamb, "tensor")
    with Cases() as case:
        for seed in range(DRAWN):
            with case(f"drawn with seed {seed}"):
                train_drawn(rank, seed)


def test_whatever_is_drawn_trains_as_one_process() -> None:
    run_ranks(_all_drawn, RANKS)
