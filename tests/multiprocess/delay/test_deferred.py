"""What a step with a delay leaves to come behind it: the end of its pushes, and the update."""

from __future__ import annotations

import math
import threading
import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch

from syncopate.delay import Delay
from syncopate.engine.exchange.delay import behind_steps as module
from syncopate.engine.exchange.delay.deferred import Due, Ending
from syncopate.engine.exchange.delay.stages import Stages
from syncopate.errors import EngineError
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
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.harness import run_ranks

K4 = Delay(k=4, warm_up=3)
STEPS = 17


class Held:
    """Lets the pushes of a model's exchange wait until a test opens them."""

    def __init__(self, model: Any) -> None:
        self.open = threading.Event()
        self.open.set()
        self.ended: list[bool] = []
        communicator = model.syncopate.exchange.layout.communicator
        run = communicator.run

        def running(recipe: Any, tensor: Any, **told: Any) -> Any:
            if recipe.collective == "reduce_scatter":
                before = told.get("before") or (lambda: None)

                def wait() -> None:
                    before()
                    self.ended.append(self.open.wait(HANGS_S))

                told["before"] = wait
            return run(recipe, tensor, **told)

        communicator.run = running


def overlapped(rank: int, world_size: int) -> None:
    """The next forward is over before a push of the step has begun."""
    model, optimizer = delayed(model := odd64(), two_groups(model), world_size, K4, channels=2)
    alone = odd64()
    reference = Reference(alone, [two_groups(alone)], K4, world_size)
    held = Held(model)
    for num in range(STEPS):
        late = num > 3 and num % 4 < 3
        loss = loss_of(model, rank, num)
        held.open.set()  # of the step before: its backward is yet to come
        if late:
            # Its own pushes are held, and those before are over by then.
            model.syncopate.exchange.finish()
            held.open.clear()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.iterate()
        close(model.parameters(), reference.computing[rank])
    held.open.set()
    with model.syncopate.global_weights():
        close(model.parameters(), alone.parameters())
    assert all(held.ended)
    model.syncopate.detach()
    close(model.parameters(), alone.parameters())


def test_a_forward_begins_before_a_push_of_the_step_has_ended() -> None:
    run_ranks(overlapped, 2)


def buffered() -> Any:
    """The same model with a buffer, which pulls bring along: ranks meet in the step that pulls."""
    model = odd64()
    model.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
    return model


def pulls_wait(rank: int, world_size: int, meets: bool) -> None:
    """What a step pulls is what its update made, which a step with pulls leaves behind too."""
    model = buffered() if meets else odd64()
    model, optimizer = delayed(model, two_groups(model), world_size, K4, channels=2)
    iterate(model, optimizer, rank, range(7))
    opened, go_on = threading.Event(), Ending.go_on
    alone = odd64()
    reference = Reference(alone, [two_groups(alone)], K4, world_size)
    for _ in range(9):
        reference.iterate()

    def held(ending: Ending, executor: Any, updates: Any) -> None:
        go_on(ending, executor, [lambda: opened.wait(HANGS_S) or None, *updates])  # type: ignore[func-returns-value]

    Ending.go_on = held  # type: ignore[method-assign]
    iterate(model, optimizer, rank, [7])
    Ending.go_on = go_on  # type: ignore[method-assign]
    pulls = model.syncopate.exchange.traffic.pulls
    assert len(pulls) == len(model.syncopate.plan.buckets)
    assert not any(one.handle.done() for one in pulls)
    # Where ranks have not met, none launches a pull before all are known to be sound.
    assert not any(isinstance(one.handle, Due) for one in pulls if meets)
    assert all(math.isnan(one.handle.launched_s) for one in pulls if not meets)
    loss = loss_of(model, rank, 8)
    opened.set()
    loss.backward()
    assert all(one.handle.launched_s > 0 for one in pulls)
    optimizer.step()
    close(model.parameters(), reference.computing[rank])


@pytest.mark.parametrize("meets", [False, True])
def test_a_pull_waits_for_the_update_that_ends_behind_its_step(meets: bool) -> None:
    run_ranks(pulls_wait, 2, meets)


def trained(rank: int, world_size: int, make: Any, at_once: bool, delay: Delay = K4) -> Any:
    """Return all weights and states of a training whose rate follows a schedule."""
    may = module.may_go_on_behind
    module.may_go_on_behind = (lambda _: False) if at_once else may
    ended, go_on = [], Ending.go_on

    def counting(*told: Any) -> None:
        ended.append(None)
        go_on(*told)

    Ending.go_on = counting  # type: ignore[method-assign]
    try:
        model: Any = odd64()
        model, optimizer = delayed(model, make(model), world_size, delay, channels=2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        found = []
        for num in range(STEPS):
            iterate(model, optimizer, rank, [num])
            schedule.step()
            found += [parameter.detach().clone() for parameter in model.parameters()]
            if num in (5, 7, 10):
                state = model.syncopate.state_dict(optimizer, everywhere=True)
                found += state["model"].values()
                found += [v for each in state["optimizer"]["state"].values() for v in each.values()]
        model.syncopate.detach()
        found += [parameter.detach() for parameter in model.parameters()]
        return [each for each in found if each is not None], len(ended)
    finally:
        module.may_go_on_behind, Ending.go_on = may, go_on  # type: ignore[method-assign]


def adam(model: Any) -> torch.optim.Optimizer:
    """Adam with a rate that is a tensor, which a schedule fills anew."""
    return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))


def alike(rank: int, world_size: int) -> None:
    for make, delay in (
        (two_groups, K4),
        (two_groups, Delay(k=2, warm_up=1, local_update="dc-asgd-a")),
        (adam, Delay(k=3, warm_up=2, local_update="sgd", loc_lr=0.02)),
    ):
        behind, count = trained(rank, world_size, make, at_once=False, delay=delay)
        at_once, none = trained(rank, world_size, make, at_once=True, delay=delay)
        assert (count, none) == (STEPS - delay.k, 0)
        assert len(behind) == len(at_once)
        assert all(map(torch.equal, behind, at_once))


def test_weights_and_state_have_the_same_bits_whenever_pushes_end() -> None:
    run_ranks(alike, 2)


def reads(rank: int, world_size: int) -> None:
    """A read of gradients, before or after a step, gives averages of it; steps go on alike."""
    model, optimizer = delayed(model := odd64(), two_groups(model), world_size, K4)
    iterate(model, optimizer, rank, range(4))
    behind = model.syncopate.exchange.layout.shared(module.Behind)
    loss_of(model, rank, 4).backward()
    before = [parameter.grad.norm().item() for parameter in model.parameters()]
    optimizer.step()
    assert behind.ending is None  # they were looked at
    optimizer.zero_grad()
    loss_of(model, rank, 5).backward()
    optimizer.step()
    assert behind.ending is not None
    after = [parameter.grad.norm().item() for parameter in model.parameters()]
    assert behind.ending is None
    identical_everywhere([torch.tensor([before, after])])
    optimizer.step()  # again, of the same averages
    optimizer.zero_grad()
    given = [torch.full_like(parameter, 0.5) for parameter in model.parameters()]
    loss_of(model, rank, 6).backward()
    for parameter, gradient in zip(model.parameters(), given, strict=True):
        parameter.grad = gradient
    optimizer.step()
    assert behind.ending is None  # the gradients are the script's own
    optimizer.zero_grad()
    hook = optimizer.register_step_post_hook(lambda *_: None)
    iterate(model, optimizer, rank, [7])
    assert behind.ending is None  # a hook looks into steps
    hook.remove()
    iterate(model, optimizer, rank, [8])
    assert behind.ending is not None
    model.syncopate.install(model.syncopate.plan)
    identical_everywhere(model.parameters())


def test_who_looks_at_gradients_waits_for_them() -> None:
    run_ranks(reads, 2)


def fails(rank: int, world_size: int) -> None:
    """One rank's backward raises; the others' step does not count, and all go on together."""
    for failing, make in ((5, odd64), (7, odd64), (7, buffered)):
        model: Any = make()
        model, optimizer = delayed(model, two_groups(model), world_size, K4)
        iterate(model, optimizer, rank, range(5))
        stages = model.syncopate.exchange.layout.shared(Stages)
        refused: list[int] = []
        warned: list[int] = []
        for num in range(5, 12):
            loss = loss_of(model, rank, num)
            hook = None
            if num == failing and rank == 1:
                hook = model.first.weight.register_hook(_raise)
            try:
                with warnings.catch_warnings(record=True) as heard:
                    warnings.simplefilter("always")
                    loss.backward()
                    optimizer.step()
                warned += [num for each in heard if "backward failed on rank 1" in str(each)]
            except (ZeroDivisionError, EngineError):
                refused.append(num)
            if hook is not None:
                hook.remove()
            optimizer.zero_grad()
        if make is buffered:  # it would have pulled them, and so waited for what the ranks say
            assert (refused, warned) == ([7], [])
        else:
            there = ([failing], []) if rank == 1 else ([], [failing + 1])
            assert (refused, warned) == there, (failing, refused, warned)
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())
        assert stages.taken(stages.parts[0]) == 11
        model.syncopate.detach()


def _raise(_: Any) -> None:
    raise ZeroDivisionError


def test_a_failure_is_heard_by_the_next_backward_and_the_step_does_not_count() -> None:
    run_ranks(fails, 2)


def never_seen(rank: int, world_size: int, failing: int, make: Any) -> None:
    """After a step that failed on one rank all is as in a training without that step."""
    found = []
    for fails in (True, False):
        model: Any = make()
        model, optimizer = delayed(model, two_groups(model), world_size, K4)
        iterate(model, optimizer, rank, range(failing))
        if fails:
            loss = loss_of(model, rank, failing)
            hook = model.first.weight.register_hook(_raise) if rank == 1 else None
            # Rank 0 may hear of it at once, or when it looks at the weights.
            with suppress(ZeroDivisionError, EngineError):
                loss.backward()
                optimizer.step()
            if hook is not None:
                hook.remove()
            optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            loss_of(model, rank, failing + 1).backward()  # by then all have heard of it
            optimizer.zero_grad()
            whole = model.syncopate.state_dict(optimizer, everywhere=True)
        momenta = [entry["momentum_buffer"] for entry in whole["optimizer"]["state"].values()]
        weights = [whole["model"][name] for name, _ in model.named_parameters()]
        found.append([*weights, *momenta])
        model.syncopate.detach()
    assert len(found[0]) == len(found[1]) > 0
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(("failing", "make"), [(5, odd64), (7, odd64), (7, buffered)])
def test_a_failed_step_leaves_what_a_training_without_it_has(failing: int, make: Any) -> None:
    run_ranks(never_seen, 2, failing, make)
