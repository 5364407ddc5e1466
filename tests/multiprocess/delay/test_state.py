"""Training with a delay goes on where it was: on the same ranks with the same bits, or anew."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.delay import Delay
from syncopate.errors import EngineError
from tests.multiprocess.delay.cases import (
    Reference,
    close,
    delayed,
    iterate,
    odd64,
    same_model_saved,
    saved_before,
    state_before_each,
    take_up,
    two_groups,
)
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.harness import run_ranks

STEPS = 13
RULES = ("glu", "sgd", "dc-asgd-a", "none")


def built(world_size: int, delay: Delay) -> tuple[Any, Any]:
    model = odd64()
    return delayed(model, two_groups(model), world_size, delay, channels=2, parts=2, behind=3)


def bits(model: Any, optimizer: Any) -> list[Tensor]:
    """The local weights, the global ones, and the momenta."""
    own = [p.detach().clone() for p in model.parameters()]
    whole = model.syncopate.state_dict(optimizer, everywhere=True)
    momenta = [entry["momentum_buffer"] for entry in whole["optimizer"]["state"].values()]
    return [*own, *whole["model"].values(), *momenta]


def goes_on(rank: int, world_size: int) -> int:
    resumed = 0
    for rule in RULES:
        delay = Delay(k=3, warm_up=2, local_update=rule)
        model, optimizer = built(world_size, delay)
        trained = partial(iterate, model, optimizer, rank)
        kept = state_before_each(STEPS, model, optimizer, trained)
        expected = bits(model, optimizer)
        model.syncopate.detach()
        model, optimizer = built(world_size, delay)
        iterate(model, optimizer, rank, range(STEPS))
        assert all(map(torch.equal, bits(model, optimizer), expected)), "saving changed something"
        model.syncopate.detach()
        for num in range(RULES.index(rule), STEPS, len(RULES)):
            model, optimizer = built(world_size, delay)
            iterate(model, optimizer, rank, range(num % 5))  # whatever was there goes
            take_up(model, optimizer, *kept[num])
            iterate(model, optimizer, rank, range(num, STEPS))
            assert all(map(torch.equal, bits(model, optimizer), expected)), (rule, num)
            resumed += 1
            model.syncopate.detach()
    return resumed


def test_with_its_local_state_a_training_goes_on_with_the_same_bits() -> None:
    assert run_ranks(goes_on, 2) == [STEPS] * 2


def save_anywhere(rank: int, world_size: int) -> list[Any]:
    """Return what is saved after 5, 6 and 7 iterations."""
    return saved_before((5, 6, 7), *built(world_size, Delay(k=3, warm_up=2)), rank)


def begins_anew(rank: int, world_size: int, saved: list[Any]) -> None:
    for num, whole in saved:
        for before in (True, False):
            delay = Delay(k=3, warm_up=2)
            alone = odd64()
            theirs = two_groups(alone)
            alone.load_state_dict(whole["model"])
            theirs.load_state_dict(copy.deepcopy(whole["optimizer"]))
            reference = Reference(alone, [theirs], delay, world_size)
            reference.num = num
            model: Any = odd64()
            optimizer = two_groups(model)
            if before:
                model.load_state_dict(whole["model"])
                optimizer.load_state_dict(whole["optimizer"])
            model, optimizer = delayed(model, optimizer, world_size, delay, behind=num % 3)
            if not before:
                # A delay was under way, and a module around the model is what loads.
                iterate(model, optimizer, rank, range(5))
                around = nn.Sequential(model)
                around.load_state_dict({f"0.{name}": v for name, v in whole["model"].items()})
                optimizer.load_state_dict(whole["optimizer"])
            for each in range(num, num + 8):
                iterate(model, optimizer, rank, [each])
                reference.iterate()
                close(model.parameters(), reference.computing[rank])
            assert len(reference.workers) == world_size
            model.syncopate.detach()


def test_any_number_of_ranks_goes_on_from_the_global_weights() -> None:
    saved, other = run_ranks(save_anywhere, 2)
    same_model_saved(saved, other)
    run_ranks(begins_anew, 3, saved)


def looked_at(rank: int, world_size: int) -> None:
    """Global weights are there in the block alone, and what is written there stays."""
    delay = Delay(k=3, warm_up=2)
    model, optimizer = built(world_size, delay)
    alone = odd64()
    reference = Reference(alone, [two_groups(alone)], delay, world_size)
    for num in range(11):
        iterate(model, optimizer, rank, [num])
        reference.iterate()
        own = [p.detach().clone() for p in model.parameters()]
        with model.syncopate.global_weights():
            close(model.parameters(), alone.parameters())
            identical_everywhere(model.parameters())
        with model.syncopate.whole_state(optimizer):
            close(model.state_dict().values(), alone.parameters())
        assert all(map(torch.equal, own, model.parameters()))
    with torch.no_grad():
        with model.syncopate.global_weights():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        for parameter in alone.parameters():
            parameter.mul_(0.5)

    def both_begin_anew(nums: range) -> None:
        reference.computing = [reference.weights() for _ in range(world_size)]
        reference.workers = []
        for num in nums:
            iterate(model, optimizer, rank, [num])
            reference.iterate()
            close(model.parameters(), reference.computing[rank])

    both_begin_anew(range(11, 20))
    model.syncopate.install(model.syncopate.plan)
    both_begin_anew(range(20, 26))
    with_raises = model.syncopate.global_weights()
    own = [p.detach().clone() for p in model.parameters()]
    try:
        with with_raises:
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert all(map(torch.equal, own, model.parameters()))
    copied = copy.deepcopy(model)
    copied.load_state_dict(alone.state_dict())
    assert all(map(torch.equal, own, model.parameters()))
    iterate(model, optimizer, rank, [26])
    reference.iterate()
    close(model.parameters(), reference.computing[rank])


def test_global_weights_are_looked_at_and_written_in_a_block() -> None:
    run_ranks(looked_at, 2)


def refused(rank: int, world_size: int) -> None:
    model, optimizer = built(world_size, Delay(k=2, warm_up=1))
    iterate(model, optimizer, rank, range(5))
    state = model.syncopate.local_state()
    with pytest.raises(EngineError, match=r"local state is of .*Give each rank its own"):
        model.syncopate.load_local_state(state | {"rank": 1 - rank})
    with pytest.raises(EngineError, match=r"local state is of .*sgd"):
        model.syncopate.load_local_state(state | {"local_update": "sgd"})
    with pytest.raises(EngineError, match=r"local state is of .* and 3 buffers"):
        model.syncopate.load_local_state(state | {"parts": state["parts"][:3]})
    model.syncopate.install(model.syncopate.plan.delayed(None))
    assert model.syncopate.local_state() == {}
    with pytest.raises(EngineError, match=r"the plan at work has none"):
        model.syncopate.load_local_state(state)
    model.syncopate.load_local_state({})


def test_another_rank_s_state_is_refused() -> None:
    run_ranks(refused, 2)
