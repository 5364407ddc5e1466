"""Sharded plans that all-reduce some buckets: every rank updates those, and nothing is pulled."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from syncopate.artifacts.plan import SHARDED
from tests.multiprocess.engine.cases import run_cases
from tests.multiprocess.exchange.cases import Run, batch, both, launches, squares, watched
from tests.multiprocess.exchange.proxies.test_gradients import clip_norm, clip_value, scaling, train
from tests.multiprocess.exchange.test_parts import PARTS, trained
from tests.multiprocess.harness import Cases, run_ranks

BUCKETS = 4
PLAN: dict[str, Any] = {"exchange": SHARDED, "sizes": [1, 2, 1, 2]}


def as_one_process(rank: int, world_size: int) -> int:
    kinds = product((1, 2, BUCKETS), (1, PARTS))
    return trained(rank, world_size, [{**PLAN, "replicated": r, "parts": p} for r, p in kinds])


@pytest.mark.parametrize(("world_size", "trainings"), [(2, 18), (3, 6)])
def test_a_plan_with_replicated_buckets_trains_as_one_process(
    world_size: int, trainings: int
) -> None:
    assert run_ranks(as_one_process, world_size) == [trainings] * world_size


def norms_and_scaling(rank: int, world_size: int) -> None:
    """What every rank holds whole counts once in a norm, and not once a rank."""
    betweens = (
        partial(clip_norm, 2.0, None),
        partial(clip_norm, 1.0, False),
        partial(clip_value, None),
        scaling,
    )
    with Cases() as case:
        for replicated, between in product((1, 3), betweens):
            with case(f"{replicated} replicated: {between}"):
                run = both(
                    rank, world_size, partial(train, between=between), replicated=replicated, **PLAN
                )
                run.model.syncopate.detach()


def messages(rank: int, world_size: int) -> None:
    """A replicated bucket is one all-reduce; the others are pushed and pulled as ever."""

    def script(run: Run) -> None:
        train(run, lambda _: None, steps=1)

    run = both(rank, world_size, script, replicated=2, **PLAN)
    run.optimizer.zero_grad()
    with watched(run.model) as events:
        run.backward(squares(0))
        run.optimizer.step()
        run.model(batch(rank, 0, 4, 5))
    flags = ["all_reduce"]
    pushes = ["all_reduce"] * 2 + ["reduce_scatter"] * 2
    assert launches(events) == [*pushes, *flags, *["all_gather"] * 2]
    run.model.syncopate.detach()


def state(rank: int, world_size: int) -> None:
    """Every rank has the state of what it updates: all of a replicated bucket, shards of others."""

    def script(run: Run) -> None:
        train(run, lambda _: None, steps=1)

    adam = partial(torch.optim.Adam, lr=0.01)
    run = both(
        rank, world_size, script, optimizer=adam, exchange=SHARDED, sizes=[6], tolerance=1e-4
    )
    spread = held(run)
    run.model.syncopate.detach()
    run = both(rank, world_size, script, optimizer=adam, replicated=2, tolerance=1e-4, **PLAN)
    names = [name for b in run.model.syncopate.plan.buckets[:2] for name in b.tensors]
    sizes = {name: p.numel() for name, p in run.model.named_parameters()}
    whole = sum(sizes[name] for name in names)
    rest = sum(sizes.values()) - whole
    assert 2 * whole <= held(run) <= 2 * (whole + rest // world_size + len(sizes))
    assert spread <= 2 * (sum(sizes.values()) // world_size + len(sizes))
    run.model.syncopate.detach()


def held(run: Run) -> int:
    """Elements of an optimizer's moments on this rank."""
    entries = [value for each in run.optimizer.state.values() for value in each.values()]
    return sum(v.numel() for v in entries if isinstance(v, torch.Tensor) and v.dim())


def a_graph_of_before_the_step_is_refused(rank: int, world_size: int) -> None:
    """As under DDP: its weights are others now."""

    def script(run: Run) -> None:
        train(run, lambda _: None, steps=1)

    run = both(rank, world_size, script, replicated=BUCKETS, **PLAN)
    before = {name: p._version for name, p in run.model.named_parameters()}
    train(run, lambda _: None, steps=1)
    assert all(p._version > before[name] for name, p in run.model.named_parameters())
    assert isinstance(run.model, nn.Module)
    run.model.syncopate.detach()


def _others(rank: int, world_size: int) -> None:
    run_cases(
        (norms_and_scaling, messages, state, a_graph_of_before_the_step_is_refused),
        rank,
        world_size,
    )


def test_norms_messages_and_state_of_replicated_buckets() -> None:
    run_ranks(_others, 2)
