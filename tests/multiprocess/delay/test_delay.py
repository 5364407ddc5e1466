"""SSD-SGD on the sharded exchange: the paper's algorithms, counts and order of collectives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from syncopate.delay import LOCAL_RULES, Delay
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.delay.stages import Stages
from syncopate.engine.exchange.push import gathering as base
from syncopate.recipe import Recipe
from tests.children import HANGS_S
from tests.multiprocess.delay.cases import (
    Reference,
    close,
    delayed,
    iterate,
    loss_of,
    odd64,
    two_groups,
)
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, in_parts, plan_of
from tests.multiprocess.exchange.cases import Odd, Spy, batch, sgd
from tests.multiprocess.harness import run_ranks


def aside(on: bool) -> None:
    """Let everything be gathered and updated aside, however small, or nothing."""
    base.ASIDE_BYTES = 0 if on else 1 << 40


def steps_of(k: int) -> int:
    """Two periods of warm-up and three of delay, in which the rates change twice or more."""
    return max(15, 5 * k)


def as_the_algorithms_say(rank: int, world_size: int) -> int:
    """Compare the engine with the reference, iteration by iteration; return how many there were."""
    compared = 0
    for k in range(1, 6):
        drawn = LOCAL_RULES[(k + world_size) % len(LOCAL_RULES)]
        for rule in LOCAL_RULES if world_size == 2 else (drawn,):
            aside((k + LOCAL_RULES.index(rule)) % 2 == 0)
            delay = Delay(k=k, warm_up=2 * k - 1, local_update=rule, lambda_0=0.3)
            alone = odd64()
            reference = Reference(alone, [two_groups(alone)], delay, world_size)
            model: Any = odd64()
            optimizer = two_groups(model)
            cut: dict[str, Any] = {"parts": 1 + k % 2} if world_size == 2 else {"sizes": [2, 4]}
            cut["behind"] = (k + LOCAL_RULES.index(rule)) % 4
            model, optimizer = delayed(model, optimizer, world_size, delay, channels=2, **cut)
            schedules = [
                torch.optim.lr_scheduler.StepLR(one, 7, 0.5)
                for one in (optimizer, *reference.optimizers)
            ]
            for num in range(steps_of(k)):
                iterate(model, optimizer, rank, [num])
                reference.iterate()
                for schedule in schedules:
                    schedule.step()
                close(model.parameters(), reference.computing[rank])
                compared += 1
            with model.syncopate.global_weights():
                close(model.parameters(), alone.parameters())
            model.syncopate.detach()
            close(model.parameters(), alone.parameters())
            identical_everywhere(model.parameters())
    return compared


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_engine_does_what_algorithms_1_and_2_say(world_size: int) -> None:
    rules = len(LOCAL_RULES) if world_size == 2 else 1
    compared = rules * sum(map(steps_of, range(1, 6)))
    assert run_ranks(as_the_algorithms_say, world_size) == [compared] * world_size


def nothing_else(rank: int, world_size: int) -> None:
    for parts in (1, 3):
        weights = []
        for delay in (None, Delay(k=1, warm_up=3, local_update="none")):
            torch.manual_seed(5)
            model: Any = nn.Sequential(Odd(), nn.BatchNorm1d(3))
            optimizer = sgd(model.parameters())
            plan = in_parts(plan_of(model, world_size, exchange="sharded"), model, parts)
            # Of some tensors every rank updates all.
            first = replace(plan.buckets[0], push=Recipe("all_reduce"), pull=None)
            if parts == 1:
                plan = replace(plan, buckets=(first, *plan.buckets[1:]))
            given = plan.delayed(delay)
            model, optimizer = distribute(model, optimizer, plan=given, timeout_s=TIMEOUT_S)
            for num in range(10):
                model(batch(rank, num, 4, 5)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            weights.append(model.syncopate.state_dict(optimizer, everywhere=True)["model"])
            model.syncopate.detach()
        for name, value in weights[0].items():
            assert torch.equal(value, weights[1][name]), name


def test_one_step_without_a_local_update_is_the_sharded_exchange() -> None:
    run_ranks(nothing_else, 3)


def pulled_every_k(rank: int, world_size: int) -> dict[str, list[list[str]]]:
    found = {}
    for k, rule in ((1, "glu"), (3, "sgd"), (3, "none"), (4, "dc-asgd-a")):
        delay = Delay(k=k, warm_up=k - 1, local_update=rule)
        model, optimizer = delayed(model := odd64(), two_groups(model), world_size, delay)
        exchange = model.syncopate.exchange
        rounds = []
        for num in range(4 * k):
            events: list[Any] = []
            exchange.layout.communicator, before = (
                Spy(exchange.layout.communicator, events),
                exchange.layout.communicator,
            )
            iterate(model, optimizer, rank, [num])
            exchange.finish()  # pulls are launched behind the step
            exchange.layout.communicator = before
            launched = [event[1:] for event in events if event[0] == "launch"]
            plan = model.syncopate.plan
            pushes = [("reduce_scatter", b.nbytes, b.push) for b in plan.buckets]
            # In steps that end behind them, pulls have channels of their own.
            aside = plan.channels if num >= k > 1 and rule != "none" else 0
            pulls = [
                ("all_gather", b.nbytes, replace(b.pull, channel=b.pull.channel + aside))
                for b in reversed(plan.buckets)
                if b.pull is not None
            ]
            last = num < k or num % k == k - 1
            # Between them goes what the ranks say along with their gradients.
            assert launched.pop(len(pushes))[0] == "all_reduce"
            assert launched == [*pushes, *(pulls if last else ())], (k, rule, num)
            rounds.append([name for name, *_ in launched])
        found[f"{k} {rule}"] = rounds
        model.syncopate.detach()
    return found


def test_weights_are_pulled_every_kth_step_in_the_order_of_the_plan() -> None:
    one, *others = run_ranks(pulled_every_k, 3)
    assert all(other == one for other in others)


def pulled_behind(rank: int, world_size: int) -> list[list[str]]:
    """Return the collectives of each iteration, all but the first pull behind the pushes."""
    found = []
    delay = Delay(k=3, warm_up=2, local_update="sgd")
    model, optimizer = delayed(model := odd64(), two_groups(model), world_size, delay, behind=99)
    plan = replace(model.syncopate.plan, pulled_behind=len(model.syncopate.plan.buckets) - 1)
    model.syncopate.install(plan)
    exchange = model.syncopate.exchange
    for num in range(9):
        events: list[Any] = []
        before, exchange.layout.communicator = (
            exchange.layout.communicator,
            Spy(exchange.layout.communicator, events),
        )
        iterate(model, optimizer, rank, [num])
        exchange.finish()
        exchange.layout.communicator = before
        found.append([event[1] for event in events if event[0] == "launch"])
    model.syncopate.detach()
    count = len(plan.buckets)
    pushes = ["reduce_scatter"] * count + ["all_reduce"]
    first, others = ["all_gather"], ["all_gather"] * (count - 1)
    for num, names in enumerate(found[3:], start=3):
        pulls = first if num % 3 == 2 else []
        assert names == [*pushes, *(others if num == 6 else ()), *pulls], num
    return found


def test_pulls_that_go_behind_are_launched_with_the_last_push() -> None:
    one, *others = run_ranks(pulled_behind, 2)
    assert all(other == one for other in others)


def held(rank: int, world_size: int) -> dict[str, tuple[int, ...]]:
    """Return the elements of what is kept, by rule: masters, and what is as long as the weights."""
    found = {}
    names = ("masters", "gradient", "retrieved", "before", "squares")
    for rule in LOCAL_RULES:
        delay = Delay(k=2, warm_up=1, local_update=rule)
        model, optimizer = delayed(model := odd64(), two_groups(model), world_size, delay)
        kept = model.syncopate.exchange.layout.shared(Stages).here
        iterate(model, optimizer, rank, range(2))
        assert not kept  # not in the warm-up
        iterate(model, optimizer, rank, [2])
        found[rule] = tuple(
            sum(getattr(local, name).numel() for local in kept.values()) for name in names
        )
        model.syncopate.detach()
    return found


def test_a_rank_holds_what_its_rule_needs() -> None:
    ranks = run_ranks(held, 3)
    whole = sum(parameter.numel() for parameter in odd64().parameters())
    for rule, times in (
        ("glu", (1, 1, 1, 0)),
        ("sgd", (1, 1, 0, 0)),
        ("dc-asgd-a", (1, 1, 1, 1)),
        ("none", (0, 0, 0, 0)),
    ):
        assert sum(kept[rule][0] for kept in ranks) == whole
        assert max(kept[rule][0] for kept in ranks) < whole / 2
        for kept in ranks:
            assert kept[rule][1:] == tuple(each * whole for each in times)


def overlapped(rank: int, world_size: int) -> list[bool]:
    """Hold every gather back until the next iteration has computed; say whether it had to end.

    Where pulls go behind pushes, until it has taken its step.
    """
    delay = Delay(k=2, warm_up=1)
    held = []
    for on, behind in ((False, 0), (True, 0), (False, 99)):
        aside(on)
        model, optimizer = delayed(
            model := odd64(), two_groups(model), world_size, delay, behind=behind
        )
        iterate(model, optimizer, rank, range(3))
        computed = threading.Event()

        def hold(computed: threading.Event = computed) -> None:
            held.append(computed.wait(HANGS_S))

        communicator = model.syncopate.exchange.layout.communicator
        run = communicator.run

        def holding(
            recipe: Any, tensor: Any, *, hold: Any = hold, run: Any = run, **told: Any
        ) -> Any:
            if recipe.collective == "all_gather":
                told["before"] = hold
            return run(recipe, tensor, **told)

        communicator.run = holding
        iterate(model, optimizer, rank, [3])
        if not behind:
            communicator.run = run
        loss_of(model, rank, 4).backward()
        communicator.run = run
        if behind:
            optimizer.step()
            computed.set()
        else:
            computed.set()
            optimizer.step()
        model.syncopate.detach()
    return held


def test_nothing_waits_for_a_gather_before_the_next_local_update() -> None:
    for held in run_ranks(overlapped, 2):
        assert held
        assert all(held)
