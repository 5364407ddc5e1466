"""Steps under exchanges in which every rank updates a part: scalers, several models, refusals."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of, run_cases
from tests.multiprocess.exchange.cases import (
    OWNED,
    Fragile,
    Odd,
    Run,
    batch,
    both,
    launches,
    odd_with,
    raises_alone,
    sgd,
    squares,
    watched,
)
from tests.multiprocess.harness import run_ranks

# -- scalers --------------------------------------------------------------------------------------


class Poisoned(nn.Module):
    """:class:`Odd` with a parameter whose one gradient is infinite when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Odd()
        self.trap = nn.Parameter(torch.zeros(13))

    def forward(self, inputs: Tensor, infinite: bool) -> Tensor:
        traps = torch.ones(13)
        traps[12 if infinite else 0] = math.inf if infinite else 1.0
        output: Tensor = self.body(inputs)
        return output.square().mean() + (self.trap * traps).sum() * 1e-3


def scaled(clip: bool, run: Run) -> None:
    """An infinity that arrives in one rank's part alone makes all ranks skip, and scale alike."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(7):
        run.optimizer.zero_grad(set_to_none=step % 2 == 0)
        infinite = step in (2, 3)
        losses = run.loss(
            lambda model, rank, step=step, infinite=infinite: model(
                batch(rank, step, 4, 5), infinite and rank == run.world_size - 1
            )
        )
        scaler.scale(losses).backward()
        if clip:
            scaler.unscale_(run.optimizer)
            norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
            run.seen.append(norm.item() if not infinite else 0.0)
        before = run.weights()
        if run.spread and not clip:
            with watched(run.model) as events:
                scaler.step(run.optimizer)
            # One message tells all ranks whether any gradient is infinite.
            assert launches(events)[:1] == ["all_reduce"]
            assert launches(events).count("all_reduce") == 1
        else:
            scaler.step(run.optimizer)
        scaler.update()
        moved = any(not torch.equal(before[name], now) for name, now in run.weights().items())
        assert moved == (not infinite), step
        run.seen.append(scaler.get_scale())


class Half(nn.Module):
    """A model of float16, and one parameter of float32 beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Odd().half()
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs).float() + self.offset


def half(run: Run) -> None:
    for step in range(6):
        run.optimizer.zero_grad(set_to_none=step != 3)
        if step == 3:
            run.backward(halves(30))
        run.backward(halves(step))
        run.seen.append(float(nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)))
        run.optimizer.step()


def halves(step: int) -> Callable[[Any, int], Tensor]:
    return lambda model, rank: model(batch(rank, step, 4, 5, dtype=torch.float16)).square().mean()


def scalers(rank: int, world_size: int) -> None:
    for exchange in OWNED:
        for sizes in (None, [7]):
            for clip in (False, True):
                script = partial(scaled, clip)
                both(rank, world_size, script, exchange=exchange, sizes=sizes, build=Poisoned)
        fused = partial(torch.optim.AdamW, lr=0.01, fused=True)
        both(
            rank,
            world_size,
            partial(scaled_adam),
            exchange=exchange,
            build=Poisoned,
            optimizer=fused,
            tolerance=1e-4,
        )
        both(
            rank,
            world_size,
            half,
            exchange=exchange,
            build=Half,
            optimizer=partial(torch.optim.SGD, lr=0.05),
            tolerance=1e-2,
        )


def scaled_adam(run: Run) -> None:
    """A fused optimizer unscales by itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for step in range(5):
        run.optimizer.zero_grad()
        loss = run.loss(
            lambda model, rank, step=step: model(
                batch(rank, step, 4, 5), step == 2 and rank == run.world_size - 1
            )
        )
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.seen.append(scaler.get_scale())


# -- several models of one optimizer --------------------------------------------------------------


def pair(exchanges: tuple[str, str], rank: int, world_size: int) -> None:
    """A generator and a critic, of one exchange each, trained and clipped by one optimizer."""
    torch.manual_seed(7)
    models: list[Any] = [Odd(), nn.Linear(3, 2)]
    alone = copy.deepcopy(models)
    ends = []
    for trained, ranks in ((models, [rank]), (alone, list(range(world_size)))):
        parameters = [p for model in trained for p in model.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        if trained is models:
            for model, exchange in zip(models, exchanges, strict=True):
                plan = plan_of(model, world_size, exchange=exchange)
                distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
        norms = []
        for step in range(5):
            optimizer.zero_grad()
            losses = [trained[1](trained[0](batch(r, step, 4, 5))).square().mean() for r in ranks]
            (torch.stack(losses).sum() / len(ranks)).backward()
            norms.append(nn.utils.clip_grad_norm_(parameters, 0.3))
            optimizer.step()
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            assert held == set(map(id, parameters))
        ends.append([*parameters, torch.stack(norms)])
    for found, expected in zip(*ends, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    identical_everywhere(ends[0])
    for model in models:
        model.syncopate.detach()


# -- what is refused ------------------------------------------------------------------------------


def _closure(run: Run) -> float:
    run.optimizer.zero_grad()
    loss = run.loss(squares(0))
    loss.backward()
    return loss.item()


def refused(rank: int, world_size: int) -> None:
    """Each with a sentence, on every rank, and nothing hangs or changes."""
    for exchange in OWNED:
        run = both(rank, world_size, lambda run: None, exchange=exchange)
        before = run.weights()

        closure = partial(_closure, run)
        for args, kwargs in (((closure,), {}), ((), {"closure": closure})):
            with pytest.raises(EngineError, match=r"SGD.step was given a closure.*'allreduce'"):
                run.optimizer.step(*args, **kwargs)
        with (
            pytest.raises(EngineError, match=rf"join\(\) cannot go with the {exchange} exchange"),
            run.model.join(),
        ):
            raise AssertionError
        closure()
        run.optimizer.step()
        assert any(not torch.equal(before[name], now) for name, now in run.weights().items())
        identical_everywhere(run.model.parameters())
        run.model.syncopate.detach()

        plain: Any = Odd()
        plan = plan_of(plain, world_size, exchange=exchange)
        with pytest.raises(EngineError, match=r"give (distribute )?the optimizer,? too"):
            distribute(plain, plan=plan, timeout_s=TIMEOUT_S)
        without: Any = Odd()
        distribute(without, plan=plan_of(without, world_size), timeout_s=TIMEOUT_S)
        with pytest.raises(EngineError, match="give distribute the optimizer too"):
            without.syncopate.install(plan)
        without.syncopate.detach()
        lbfgs = torch.optim.LBFGS(plain.parameters())
        with pytest.raises(EngineError, match=r"LBFGS.*exchange='allreduce'"):
            distribute(plain, lbfgs, plan=plan, timeout_s=TIMEOUT_S)
        waves: Any = nn.Linear(3, 2, dtype=torch.complex64)
        with pytest.raises(EngineError, match=r"'weight' is complex.*exchange='allreduce'"):
            distribute(
                waves,
                sgd(waves.parameters()),
                plan=plan_of(waves, world_size, exchange=exchange),
                timeout_s=TIMEOUT_S,
            )


def untold(rank: int, world_size: int) -> None:
    """An optimizer unknown to the engine reads whole gradients, and updates on every rank."""
    for exchange in OWNED:

        def script(run: Run) -> None:
            for step in range(3):
                other = sgd(run.model.parameters())
                other.zero_grad()
                run.backward(squares(step))
                (other if step == 1 else run.optimizer).step()

        run = both(rank, world_size, script, exchange=exchange)
        identical_everywhere(run.model.parameters())
        run.model.syncopate.detach()


def with_closures(rank: int, world_size: int) -> None:
    """Self-planning does not try a sharded plan on who runs backward inside a step."""
    model: Any = Odd()
    model, optimizer = distribute(
        model, sgd(model.parameters()), plan=plan_of(model, world_size), timeout_s=TIMEOUT_S
    )
    run = Run(model, optimizer, rank, world_size)
    assert model.syncopate.shardable
    run.optimizer.zero_grad()
    run.backward(squares(0))
    run.optimizer.step()
    assert model.syncopate.shardable
    run.optimizer.step(partial(_closure, run))
    assert not model.syncopate.shardable
    identical_everywhere(model.parameters())
    model.syncopate.detach()


# -- a step that raises on one rank alone ---------------------------------------------------------


def one_step_raises(rank: int, world_size: int) -> None:
    """It takes part in the pulls of that step in its next forward, so that all stay in step."""
    for exchange in OWNED:
        model, optimizer = odd_with(Fragile, world_size, exchange)
        raises_alone(model, optimizer, failing=1, steps=4)
        identical_everywhere(model.parameters())
        model.syncopate.detach()


def everything(rank: int, world_size: int) -> None:
    pairs = [("sharded", "sharded"), ("sharded", "allreduce"), ("rooted", "sharded")]
    cases: list[Callable[[int, int], None]] = [
        scalers,
        *(partial(pair, exchanges) for exchanges in pairs),
        refused,
        untold,
        with_closures,
        one_step_raises,
    ]
    run_cases(cases, rank, world_size)


def test_steps_are_those_of_one_process_or_refused() -> None:
    run_ranks(everything, 3)
