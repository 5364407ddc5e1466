"""Local SGD goes on where it was: on the same ranks with the same bits, or from the average."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.delay import Delay, LocalSGD
from syncopate.errors import EngineError
from tests.multiprocess.delay.cases import (
    close,
    delayed,
    each_has_its_own,
    iterate,
    normed,
    odd64,
    same_model_saved,
    saved_before,
    state_before_each,
    take_up,
    two_groups,
)
from tests.multiprocess.delay.local_sgd_cases import Workers, locally
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.exchange.cases import batch, sgd
from tests.multiprocess.harness import run_ranks

STEPS = 11
H3 = LocalSGD(period=3, warm_up=2)


def built(world_size: int, made: Any = normed, method: LocalSGD = H3) -> tuple[Any, Any]:
    model = made()
    return locally(model, sgd(model.parameters()), world_size, method, channels=2, parts=2)


def train(model: Any, optimizer: Any, rank: int, nums: range) -> None:
    for num in nums:
        model(batch(rank, num, 6, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def bits(model: Any, optimizer: Any) -> list[Tensor]:
    """This rank's weights, buffers and momenta, and what all ranks save."""
    whole = model.syncopate.state_dict(optimizer, everywhere=True)
    saved = [*whole["model"].values()]
    saved += [entry["momentum_buffer"] for entry in whole["optimizer"]["state"].values()]
    identical_everywhere(saved)
    momenta = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    own = [*model.parameters(), *model.buffers(), *momenta]
    return [*(tensor.detach().clone() for tensor in own), *saved]


def goes_on(rank: int, world_size: int) -> int:
    model, optimizer = built(world_size)
    kept = state_before_each(STEPS, model, optimizer, partial(train, model, optimizer, rank))
    expected = bits(model, optimizer)
    model.syncopate.detach()
    model, optimizer = built(world_size)
    train(model, optimizer, rank, range(STEPS))
    assert all(map(torch.equal, bits(model, optimizer), expected)), "saving changed something"
    model.syncopate.detach()
    for num, (whole, own) in enumerate(kept):
        assert bool(own) == (num >= 2), "there is nothing of one's own in the warm-up"
        model, optimizer = built(world_size)
        train(model, optimizer, rank, range(num % 5))  # whatever was there goes
        take_up(model, optimizer, whole, own)
        with model.syncopate.global_weights():  # the average that was saved, and not this rank's
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter, whole["model"][name]), (num, name)
        train(model, optimizer, rank, range(num, STEPS))
        assert all(map(torch.equal, bits(model, optimizer), expected)), num
        model.syncopate.detach()
    return len(kept)


def test_with_its_local_state_a_training_goes_on_with_the_same_bits() -> None:
    assert run_ranks(goes_on, 2) == [STEPS] * 2


def save_anywhere(rank: int, world_size: int) -> list[Any]:
    """Return what is saved after 1, 4 and 5 iterations: warm-up, within a period, average."""
    model, optimizer = locally(made := odd64(), two_groups(made), world_size, H3)
    return saved_before((1, 4, 5), model, optimizer, rank)


def begins_anew(rank: int, world_size: int, saved: list[Any]) -> None:
    for num, whole in copy.deepcopy(saved):  # whose memory the ranks share
        alone = odd64()
        alone.load_state_dict(whole["model"])

        def made(model: nn.Module, whole: Any = whole) -> list[torch.optim.Optimizer]:
            optimizer = two_groups(model)
            optimizer.load_state_dict(copy.deepcopy(whole["optimizer"]))
            return [optimizer]

        reference = Workers(alone, made, H3, world_size)
        reference.num = num
        model = odd64()
        model, optimizer = locally(model, two_groups(model), world_size, H3)
        iterate(model, optimizer, rank, range(4))  # whatever was there goes
        around = nn.Sequential(model)
        around.load_state_dict({f"0.{name}": v for name, v in whole["model"].items()})
        optimizer.load_state_dict(whole["optimizer"])
        for each in range(num, num + 7):
            iterate(model, optimizer, rank, [each])
            reference.iterate()
            close(model.parameters(), reference.weights(rank))
        model.syncopate.detach()


def test_any_number_of_ranks_goes_on_from_the_average() -> None:
    saved, other = run_ranks(save_anywhere, 2)
    same_model_saved(saved, other)
    run_ranks(begins_anew, 3, saved)


def looked_at(rank: int, world_size: int) -> None:
    """The average is there in the block alone, and what is written there stays."""
    model, optimizer = built(world_size)
    train(model, optimizer, rank, range(4))
    own = [p.detach().clone() for p in model.parameters()]
    each_has_its_own(own)
    block = model.syncopate.global_weights()
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert all(map(torch.equal, own, model.parameters()))
    with model.syncopate.whole_state(optimizer):
        identical_everywhere(model.state_dict().values())
    assert all(map(torch.equal, own, model.parameters()))
    with torch.no_grad(), model.syncopate.global_weights():
        half = [p.mul_(0.5).clone() for p in model.parameters()]
    assert all(map(torch.equal, half, model.parameters()))
    identical_everywhere(model.parameters())
    train(model, optimizer, rank, range(4, 6))
    copied = copy.deepcopy(model)
    own = [p.detach().clone() for p in model.parameters()]
    copied.load_state_dict({name: torch.zeros_like(v) for name, v in copied.state_dict().items()})
    assert all(map(torch.equal, own, model.parameters()))
    train(model, optimizer, rank, range(6, 8))
    identical_everywhere(model.parameters())


def changes(rank: int, world_size: int) -> None:
    """Another plan begins with one model and one optimizer; without averages it is DDP again."""
    model, optimizer = built(world_size)
    train(model, optimizer, rank, range(4))
    plan = model.syncopate.plan
    model.syncopate.install(plan.delayed(None))
    momenta = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    identical_everywhere([*model.parameters(), *model.buffers(), *momenta])
    train(model, optimizer, rank, range(4, 7))
    identical_everywhere(model.parameters())
    assert model.syncopate.local_state() == {}
    model.syncopate.install(plan)
    train(model, optimizer, rank, range(7, 9))
    each_has_its_own(model.parameters())
    model.syncopate.detach()
    identical_everywhere([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("script", [looked_at, changes])
def test_weights_of_one_s_own_become_those_of_all(script: Any) -> None:
    run_ranks(script, 2)


def refused(rank: int, world_size: int) -> None:
    model, optimizer = built(world_size)
    train(model, optimizer, rank, range(4))
    state = model.syncopate.local_state()
    with pytest.raises(EngineError, match=r"local state is of .*Give each rank its own"):
        model.syncopate.load_local_state(state | {"rank": 1 - rank})
    with pytest.raises(EngineError, match=r"local state is of .* 1 parameters"):
        model.syncopate.load_local_state(state | {"parts": [{"weights": {"0.weight": 1}}]})
    other = odd64()
    other, their = delayed(other, two_groups(other), world_size, Delay(k=2, warm_up=1))
    iterate(other, their, rank, range(4))
    with pytest.raises(EngineError, match=r"local state is of .*local SGD"):
        model.syncopate.load_local_state(other.syncopate.local_state())
    with pytest.raises(EngineError, match=r"local state is of"):
        other.syncopate.load_local_state(state)
    model.syncopate.install(model.syncopate.plan.delayed(None))
    with pytest.raises(EngineError, match=r"the plan at work has none"):
        model.syncopate.load_local_state(state)


def test_another_state_is_refused() -> None:
    run_ranks(refused, 2)
