"""The decoupled exchange beyond DDP's programs: what is left for later, failures, lost models."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from syncopate.engine import console
from syncopate.engine.exchange.proxies import weights
from syncopate.engine.exchange.proxies.weights import Pending
from syncopate.errors import EngineError
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.programs.base import PLANS, Run, adamw, differences, loss_of, net, sgd


def _late(model: nn.Module) -> list[bool]:
    return [isinstance(parameter, Pending) for parameter in model.parameters()]


def _left_for_later(rank: int, ranks: int) -> None:
    run = Run(rank, ranks, PLANS["one by one"])
    model = net()
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)

    def step(number: int, *, clipped: bool = False) -> list[bool]:
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(number))).backward()
        if clipped:
            clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return _late(model)

    # The first step shows what the optimizer does; then every bucket is left to the next forward.
    assert step(0) == [False] * 6
    assert step(1) == [True] * 6
    assert step(2, clipped=True) == [True] * 6
    model[2].weight.sum()
    assert _late(model) == [True, True, False, True, True, True]
    optimizer.state_dict()
    assert _late(model) == [False] * 6
    # Held memory is updated in the step, which is said once.
    said: list[str] = []
    console.log = said.append  # type: ignore[assignment]
    kept = model[2].weight.data
    assert step(3) == [True, True, False, True, True, True]
    assert torch.equal(kept, model[2].weight)
    del kept
    kept = optimizer.state[model[0].bias]["exp_avg"]
    assert step(4) == [True, False, True, True, True, True]
    del kept
    assert len(said) == 1
    assert f"holds the memory of '2.weight' on rank {rank} " in said[0]
    # What a checkpoint was loaded from may be kept.
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    assert step(5) == [True] * 6
    optimizer.param_groups[0]["maximize"] = True
    assert step(6) == [False] * 6
    assert step(7) == [True] * 6
    model.syncopate.ready()
    assert _late(model) == [False] * 6
    run.close()


def test_a_step_is_left_for_later_unless_somebody_would_see_it() -> None:
    run_ranks(_left_for_later, 2)


class _BrokenError(Exception):
    pass


def _nothing(model: nn.Module) -> None:
    pass


AFTER: dict[str, Callable[[nn.Module], object]] = {
    "step": _nothing,
    "clip and step": lambda model: clip_grad_norm_(model.parameters(), 0.1),
    "look and step": lambda model: [p.grad.sum() for p in model.parameters() if p.grad is not None],
}


def _one_rank_fails(run: Run, layer: int, after: str, failing: int) -> None:
    model = net()
    optimizer = sgd(model)
    now = [0]
    failed: list[tuple[int, type]] = []

    def broken(gradient: Tensor) -> None:
        if now[0] == failing and run.rank == 1:
            raise _BrokenError

    if not run.by_ddp:
        model[layer].weight.register_hook(broken)
    wrapped = run.wrap(model, optimizer)
    for step in range(6):
        now[0] = step
        optimizer.zero_grad()
        if run.by_ddp and step == failing:
            continue
        try:
            loss_of(wrapped(run.batch(step))).backward()
            if not run.by_ddp or step != failing:
                AFTER[after](model)
            optimizer.step()
        except (_BrokenError, EngineError) as error:
            failed.append((step, type(error)))
    if not run.by_ddp:
        assert failed == [(failing, _BrokenError if run.rank == 1 else EngineError)]
    run.end(model, optimizer)
    run.close()


def _fails(rank: int, ranks: int, after: str) -> list[str]:
    found = []
    for plan in ("one by one", "ring, in pairs, two channels", "first buckets replicated"):
        for layer in (2, 4):
            runs = [Run(rank, ranks, makes) for makes in (None, PLANS[plan])]
            for run in runs:
                torch.manual_seed(0)
                _one_rank_fails(run, layer, after, failing=3)
            reference, run = runs
            for name, theirs in reference.seen.items():
                words = differences(run.seen[name], theirs, 1e-5 if "clip" in after else 0.0, name)
                found += [f"{plan}, layer {layer}: {each}" for each in words]
    return found


@pytest.mark.parametrize("after", AFTER)
def test_a_backward_that_fails_on_one_rank_leaves_no_trace(after: str) -> None:
    """All ranks refuse the step, and go on as if they had never seen it."""
    found = [words for each in run_ranks(_fails, 2, after) for words in each]
    assert not found, "\n" + "\n".join(found[:20])


def _one_rank_is_refused(run: Run, failing: int) -> None:
    model = net()
    optimizer = sgd(model)
    wrapped = run.wrap(model, optimizer)
    failed: list[int] = []
    for step in range(6):
        optimizer.zero_grad()
        if run.by_ddp and step == failing:
            continue
        if step == failing and run.rank == 1:
            model[0].extra = nn.Parameter(torch.zeros(1))
        try:
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
        except EngineError:
            failed.append(step)
            model[0]._parameters.pop("extra", None)
    assert run.by_ddp or failed == [failing]
    run.end(model, optimizer)
    run.close()


def _refused(rank: int, ranks: int) -> list[str]:
    found = []
    for plan in ("one by one", "ring, in pairs, two channels", "first buckets replicated"):
        runs = [Run(rank, ranks, makes) for makes in (None, PLANS[plan])]
        for run in runs:
            torch.manual_seed(0)
            _one_rank_is_refused(run, failing=3)
        reference, run = runs
        for name, theirs in reference.seen.items():
            found += [f"{plan}: {w}" for w in differences(run.seen[name], theirs, 0.0, name)]
    return found


def test_a_forward_that_one_rank_refuses_loses_no_update_that_is_on_its_way() -> None:
    """The rank runs the collectives of that step without a look at a weight."""
    found = [words for each in run_ranks(_refused, 2) for words in each]
    assert not found, "\n" + "\n".join(found[:20])


def _dropped(rank: int, ranks: int) -> None:
    run = Run(rank, ranks, PLANS["one by one"])
    model = net()
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    assert all(_late(model))
    kept: Any = model[0].weight
    gone = [weakref.ref(each) for each in (model, optimizer, model.syncopate, model[2].weight)]
    gone.append(weakref.ref(model.syncopate.exchange))
    run.forget()
    del model, optimizer, wrapped
    gc.collect()
    assert [each() for each in gone] == [None] * 5
    with pytest.raises(EngineError, match=r"are gone while the last step .*\.ready\(\)"):
        kept.sum()
    weights._compilation_begins(None)  # of another model, which is none of its affair


def test_a_dropped_model_is_freed_with_what_was_on_its_way() -> None:
    run_ranks(_dropped, 2)
