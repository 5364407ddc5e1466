"""The unchanged training loop under exchanges in which every rank updates a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from syncopate.errors import EngineError
from tests.multiprocess.exchange.cases import OWNED, Fragile, Odd, Run, batch, both, sgd, squares
from tests.multiprocess.harness import Cases, run_ranks


def step(run: Run, number: int) -> None:
    run.backward(squares(number))
    run.optimizer.step()


# -- zeroing and accumulating -------------------------------------------------------------------


def zeroed(to_none: bool, by_model: bool, after: bool, run: Run) -> None:
    zero = run.model.zero_grad if by_model else run.optimizer.zero_grad
    for number in range(4):
        if not after:
            zero(set_to_none=to_none)
        step(run, number)
        if after:
            zero(set_to_none=to_none)


def zeroed_at_once(run: Run) -> None:
    """Zeroed between backward and step: a step on nothing, or on zeros."""
    step(run, 0)
    for to_none in (True, False):
        run.backward(squares(1))
        run.optimizer.zero_grad(set_to_none=to_none)
        run.optimizer.step()
    step(run, 2)


def never_zeroed(run: Run) -> None:
    for number in range(4):
        step(run, number)


def accumulated(run: Run) -> None:
    for number in range(3):
        run.optimizer.zero_grad(set_to_none=number == 1)
        with run.no_sync():
            run.backward(squares(10 * number))
            run.backward(squares(10 * number + 1))
        run.backward(squares(10 * number + 2))
        run.backward(squares(10 * number + 3))
        run.optimizer.step()


def several_forwards(run: Run) -> None:
    for number in range(3):
        run.optimizer.zero_grad()
        run.backward(lambda model, rank, n=number: sum(squares(n + k)(model, rank) for k in (5, 7)))
        run.optimizer.step()


def retained(run: Run) -> None:
    """A second backward through one graph adds to the first one's averages."""
    for number in range(3):
        run.optimizer.zero_grad()
        loss = run.loss(squares(number))
        loss.backward(retain_graph=True)
        loss.backward()
        run.optimizer.step()


# -- what is trained how ------------------------------------------------------------------------


def scheduled(run: Run) -> None:
    first = CosineAnnealingLR(run.optimizer, 5)
    second = StepLR(run.optimizer, 2)
    for number in range(5):
        run.optimizer.zero_grad()
        step(run, number)
        first.step()
        second.step()
        run.seen.append(run.optimizer.param_groups[0]["lr"])


def in_groups(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    last, gain, *others = parameters
    return torch.optim.SGD(
        [
            {"params": [last, gain], "lr": 0.03, "weight_decay": 0.2},
            {"params": others[:1], "momentum": 0.5},
        ],
        lr=0.1,
    )


def group_added(run: Run) -> None:
    step(run, 0)
    rest = [run.model.first.weight, run.model.first.bias, run.model.middle.weight]
    run.optimizer.add_param_group({"params": rest, "lr": 0.02, "momentum": 0.8})
    for number in range(3):
        run.optimizer.zero_grad()
        step(run, number)


def frozen_from_the_start() -> nn.Module:
    model = Odd()
    model.middle.requires_grad_(False)
    return model


def frozen_later(run: Run) -> None:
    for number in range(6):
        run.model.first.requires_grad_(number not in (2, 3))
        run.optimizer.zero_grad()
        step(run, number)


def unfrozen(rank: int, world_size: int, exchange: str) -> None:
    """A parameter that was frozen when the model was distributed is refused, on every rank."""
    run = both(rank, world_size, never_zeroed, exchange=exchange, build=frozen_from_the_start)
    run.model.middle.requires_grad_(True)
    with pytest.raises(EngineError, match=r"middle.weight.*detach"):
        run.model(batch(rank, 0, 4, 5))


# -- parameters that are not reached ------------------------------------------------------------


class Branches(nn.Module):
    """Branches of which a forward takes those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 7)
        self.branches = nn.ModuleList(nn.Linear(7, 3) for _ in range(4))

    def forward(self, inputs: Tensor, taken: Iterable[int]) -> Tensor:
        hidden = torch.tanh(self.trunk(inputs))
        return sum((self.branches[index](hidden) for index in taken), hidden[:, :3])


def unreached(to_none: bool, clip: bool, run: Run) -> None:
    """Branch 0 by all, 1 by rank 0 alone, 2 by another rank in each step, 3 sometimes by none."""
    for number in range(6):
        run.optimizer.zero_grad(set_to_none=to_none)

        def loss(model: Any, rank: int, number: int = number) -> Tensor:
            taken = [0]
            taken += [1] if rank == 0 else []
            taken += [2] if rank == number % run.world_size else []
            taken += [3] if number in (1, 4) else []
            return model(batch(rank, number, 4, 5), taken).square().mean()

        run.backward(loss)
        if clip:
            norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
            run.seen.append(float(norm))
        run.optimizer.step()
        run.seen.append(sum(p.grad is None for p in run.model.parameters()))


def unreached_then_zeroed(run: Run) -> None:
    """What other ranks reached alone is zeroed here as well."""
    for number in range(3):
        run.backward(
            lambda model, rank, n=number: model(batch(rank, n, 4, 5), [rank % 4]).square().mean()
        )
        if number == 1:
            run.optimizer.zero_grad()
        run.optimizer.step()
        run.optimizer.zero_grad()


# -- models --------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding that is the head as well, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.layer(self.embedding(tokens))))))


def tied(run: Run) -> None:
    for number in range(4):
        run.optimizer.zero_grad()

        def loss(model: Any, rank: int, number: int = number) -> Tensor:
            tokens = (torch.arange(9) * (rank + 2) + number) % 11
            return nn.functional.cross_entropy(model(tokens), tokens.roll(1))

        run.backward(loss)
        run.optimizer.step()
        if run.spread:
            assert run.model.head.weight is run.model.embedding.weight


def on_its_own(run: Run) -> None:
    """A module that is called without its model waits for its weights, and is trained."""
    for number in range(4):
        run.optimizer.zero_grad()
        run.backward(
            lambda model, rank, n=number: (
                model.first(batch(rank, n, 4, 5)).square().mean()
                + model(batch(rank, n + 9, 4, 5)).mean()
            )
        )
        run.optimizer.step()


def alone_altogether(run: Run) -> None:
    for number in range(4):
        run.optimizer.zero_grad()
        run.backward(
            lambda model, rank, n=number: model.last(model.first(batch(rank, n, 4, 5))).var()
        )
        run.optimizer.step()


def entered_elsewhere(run: Run) -> None:
    """A backward that begins within the model adds to zeros, or is refused.

    Where it added to an average is known too late: after its first gradient.
    """
    for number in range(4):
        run.optimizer.zero_grad(set_to_none=number == 0)
        run.backward(
            lambda model, rank, n=number: (
                (model.first(batch(rank, n, 4, 5)) * model.gain).square().mean()
            )
        )
        run.optimizer.step()
    if run.spread:
        with pytest.raises(EngineError, match=r"through a part of it.*'gain'.*zero_grad\(\)"):
            run.backward(lambda model, rank: (model.gain * (rank + 1.0)).sum())
    run.optimizer.zero_grad()
    step(run, 7)


# -- steps ---------------------------------------------------------------------------------------


def no_backward(run: Run) -> None:
    """A step without a backward: on nothing, then on the gradients that are still there."""
    run.optimizer.step()
    step(run, 0)
    run.optimizer.step()
    run.optimizer.step()
    step(run, 1)


def skipped(run: Run) -> None:
    for number in range(5):
        run.optimizer.zero_grad()
        run.backward(squares(number))
        if number not in (1, 2):
            run.optimizer.step()


def rebound(run: Run) -> None:
    """Weights that are given other memory, or written to, are those that are updated."""
    for number in range(3):
        run.optimizer.zero_grad()
        run.backward(squares(number))
        weight = run.model.first.weight
        weight.data = weight.detach() * 0.5
        with torch.no_grad():
            run.model.last.weight.clamp_(-0.2, 0.2)
        run.optimizer.step()
        vector = nn.utils.parameters_to_vector(run.model.parameters())
        nn.utils.vector_to_parameters(vector * 0.9, run.model.parameters())
        run.model.load_state_dict({k: v * 1.1 for k, v in run.model.state_dict().items()})


def given(run: Run) -> None:
    """Gradients that the script made are stepped on, where they are the same on every rank."""
    for number in range(2):
        run.optimizer.zero_grad()
        run.backward(squares(number))
        run.model.gain.grad = torch.full((1,), 0.5)
        run.model.first.weight.grad = torch.linspace(0, 1, 35).view(7, 5)
        run.optimizer.step()


def raising(zero: str, run: Run) -> None:
    """After a step that raises the groups hold parameters, and what was zeroed is zero."""
    step(run, 0)
    run.backward(squares(1))
    run.optimizer.broken = True
    with pytest.raises(ZeroDivisionError):
        run.optimizer.step()
    run.optimizer.broken = False
    if zero == "retry":
        run.optimizer.step()
    elif zero == "optimizer":
        run.optimizer.zero_grad()
    elif zero == "in place":
        run.optimizer.zero_grad(set_to_none=False)
    elif zero == "model":
        run.model.zero_grad()
    for number in (2, 3):
        step(run, number)
        held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
        assert held == set(map(id, run.model.parameters()))


def fragile(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return Fragile(parameters, lr=0.1)


CASES: list[tuple[Callable[[Run], None], dict[str, Any]]] = [
    *(
        (partial(zeroed, *flags), {})
        for flags in ((True, True, False), (False, False, False), (True, False, True))
    ),
    (partial(zeroed, False, True, True), {}),
    *((case, {}) for case in (zeroed_at_once, never_zeroed, accumulated, several_forwards)),
    *((case, {}) for case in (retained, scheduled, frozen_later, on_its_own, alone_altogether)),
    *((case, {}) for case in (no_backward, skipped, rebound, given)),
    (entered_elsewhere, {}),
    (never_zeroed, {"optimizer": in_groups}),
    (group_added, {"optimizer": lambda p: sgd(list(p)[:3])}),
    (never_zeroed, {"build": frozen_from_the_start}),
    *(
        (partial(unreached, to_none, clip), {"build": Branches})
        for to_none in (True, False)
        for clip in (True, False)
    ),
    (unreached_then_zeroed, {"build": Branches}),
    (tied, {"build": Tied}),
    *(
        (partial(raising, zero), {"optimizer": fragile})
        for zero in ("", "retry", "optimizer", "in place", "model")
    ),
]


def every_habit(rank: int, world_size: int) -> int:
    with Cases() as case:
        for exchange in OWNED:
            for number, (script, options) in enumerate(CASES):
                tensors = len(list(options.get("build", Odd)().parameters()))
                sizes = None if number % 2 else [tensors]
                if options.get("build") is frozen_from_the_start:
                    sizes = None
                with case(f"{script} with {options}, {exchange}"):
                    run = both(rank, world_size, script, exchange=exchange, sizes=sizes, **options)
                    run.model.syncopate.detach()
            with case(f"unfrozen, {exchange}"):
                unfrozen(rank, world_size, exchange)
    return len(CASES)


def test_the_training_loop_is_that_of_one_process() -> None:
    assert run_ranks(every_habit, 3) == [len(CASES)] * 3
