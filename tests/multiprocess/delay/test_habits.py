"""What scripts do beside plain steps, with a delay: clip, scale, accumulate, fail, and more."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.delay import Delay, LocalSGD
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.push import gathering as base
from syncopate.errors import EngineError, InvalidValueError
from tests.children import HANGS_S
from tests.multiprocess.delay.cases import (
    Reference,
    buffers_between_pulls,
    close,
    delayed,
    iterate,
    loss_of,
    normed,
    odd64,
    self_planned,
    two_groups,
)
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import Fragile, Odd, batch, raises_alone, sgd
from tests.multiprocess.harness import run_ranks

GLU = Delay(k=3, warm_up=2)
STEPS = 12


def pair(world_size: int, delay: Delay = GLU, **told: Any) -> tuple[Any, Any, Reference]:
    """Return the model and its optimizer, distributed, and the reference of their training."""
    model, alone = odd64(), odd64()
    reference = Reference(alone, [two_groups(alone)], delay, world_size, **told)
    return (*delayed(model, two_groups(model), world_size, delay), reference)


def zeroes_in_place(rank: int, world_size: int) -> None:
    """Gradients are zeroed in their places while the local update is yet to look at its own."""
    base.ASIDE_BYTES = 0
    model, optimizer, reference = pair(world_size)
    zeroed, updating = threading.Event(), Local.updating

    def held(local: Local, runs: Any) -> Any:
        update = updating(local, runs)

        def once_zeroed() -> None:
            assert zeroed.wait(HANGS_S)
            update()

        return once_zeroed

    Local.updating = held  # type: ignore[method-assign]
    for num in range(STEPS):
        zeroed.clear()
        loss_of(model, rank, num).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        zeroed.set()
        reference.iterate()
        close(model.parameters(), reference.computing[rank])


def largest(gradients: Sequence[Tensor]) -> Tensor:
    """What ``clip_grad_norm_`` to 0.05 multiplies by."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return (0.05 / (norm + 1e-6)).clamp(max=1.0)


def clips(rank: int, world_size: int) -> None:
    model, optimizer, reference = pair(world_size)
    reference.scale = largest
    for num in range(STEPS):
        loss_of(model, rank, num).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad(set_to_none=num % 2 == 0)
        reference.iterate()
        close(model.parameters(), reference.computing[rank])


def scales(rank: int, world_size: int) -> None:
    """A power of two costs no bit; a step that is left out is no iteration."""
    model, optimizer, reference = pair(world_size)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for attempt in range(STEPS):
        broken = attempt in (4, 8)
        loss = loss_of(model, rank, reference.num)
        if broken and rank == world_size - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if attempt % 2:
            scaler.unscale_(optimizer)
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if broken:
            assert all(map(torch.equal, before, model.parameters()))
        else:
            reference.iterate()
        close(model.parameters(), reference.computing[rank])
    assert optimizer.param_groups[0]["syncopate_num"] == STEPS - 2


def twice(model: nn.Module, rank: int, num: int) -> Tensor:
    return loss_of(model, rank, num) + loss_of(model, rank, num + 100)


def accumulates(rank: int, world_size: int) -> None:
    model, optimizer, reference = pair(world_size, loss=twice)
    for num in range(STEPS):
        with model.no_sync():
            loss_of(model, rank, num).backward()
        loss_of(model, rank, num + 100).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=num % 3 > 0)
        reference.iterate()
        close(model.parameters(), reference.computing[rank])
    loss_of(model, rank, STEPS).backward()
    optimizer.step()
    with pytest.raises(EngineError, match=r"gradients of the step before.*zero_grad\(\)"):
        loss_of(model, rank, STEPS + 1).backward()
    optimizer.zero_grad()
    iterate(model, optimizer, rank, [STEPS + 1])


def others(rank: int, world_size: int) -> None:
    """Other optimizers, several of them, and one that looks at whole tensors."""
    delay = Delay(k=2, warm_up=3, local_update="sgd", loc_lr=0.05)

    def made(model: nn.Module) -> list[torch.optim.Optimizer]:
        matrices = [p for p in model.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        adam = torch.optim.AdamW(rest, lr=0.01)
        if not hasattr(torch.optim, "Muon"):
            return [torch.optim.Adam(matrices, lr=0.01), adam]
        return [torch.optim.Muon(matrices, lr=0.01), adam]

    model: Any = odd64()
    alone = odd64()
    reference = Reference(alone, made(alone), delay, world_size)
    plan = plan_of(model, world_size, [2, 4], exchange="sharded")
    model, optimizers = distribute(model, made(model), plan=plan, delay=delay, timeout_s=TIMEOUT_S)
    assert model.syncopate.plan.delay == delay
    for num in range(STEPS):
        loss_of(model, rank, num).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        reference.iterate()
        torch.testing.assert_close(
            [p.detach() for p in model.parameters()],
            reference.computing[rank],
            rtol=1e-5,
            atol=1e-6,
        )


class Pair(nn.Module):
    """Two models, as one."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.one(inputs) - self.other(inputs)
        return found


def together(rank: int, world_size: int) -> None:
    """Two models with one optimizer, each distributed by itself."""
    delay = Delay(k=3, warm_up=2, local_update="sgd")
    alone = Pair(odd64(), odd64())
    reference = Reference(alone, [two_groups(alone)], delay, world_size)
    pair = Pair(odd64(), odd64())
    optimizer = two_groups(pair)
    delayed(pair.one, optimizer, world_size, delay)
    delayed(pair.other, optimizer, world_size, delay)
    iterate(pair, optimizer, rank, range(5))
    for num in range(5, STEPS):
        iterate(pair, optimizer, rank, [num])
        while reference.num <= num:
            reference.iterate()
        close(pair.parameters(), reference.computing[rank])
    assert optimizer.param_groups[1]["syncopate_num"] == STEPS


@pytest.mark.parametrize("script", [zeroes_in_place, clips, scales, accumulates, others, together])
def test_a_script_trains_as_the_algorithms_say(script: Any) -> None:
    run_ranks(script, 2)


class Branches(nn.Module):
    """A layer that some batches leave out, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(5, 1)
        self.sometimes = nn.Linear(5, 1)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        found: Tensor = self.always(self.frozen(inputs))
        return found + self.sometimes(inputs) if both else found


def leaves_out(rank: int, world_size: int) -> None:
    torch.manual_seed(2)
    model: Any = Branches()
    delay = Delay(k=4, warm_up=3, local_update="glu")
    model, optimizer = delayed(model, sgd(model.parameters()), world_size, delay, sizes=[4])
    frozen = model.frozen.weight.clone()
    for num in range(12):
        # In 5 and 10 no rank comes by, in 6 and 9 rank 0 alone.
        both = num not in (5, 10) and (num not in (6, 9) or rank == 0)
        before = model.sometimes.weight.detach().clone()
        model(batch(rank, num, 4, 5), both).square().mean().backward()
        optimizer.step()
        assert (model.sometimes.weight.grad is None) == (num in (5, 10))
        optimizer.zero_grad()
        changed = not torch.equal(before, model.sometimes.weight)
        assert changed == (num not in (5, 10)), num
    assert torch.equal(frozen, model.frozen.weight)


def test_what_no_backward_reached_stays_as_it_is() -> None:
    run_ranks(leaves_out, 2)


def own_buffers(rank: int, world_size: int) -> None:
    delay = Delay(k=3, warm_up=2, local_update="sgd")
    model, optimizer = delayed(made := normed(), sgd(made.parameters()), world_size, delay)
    buffers_between_pulls(model, optimizer, rank)
    whole = model.syncopate.state_dict(optimizer, everywhere=True)
    identical_everywhere(whole["model"].values())


def test_buffers_are_each_rank_s_own_between_pulls() -> None:
    run_ranks(own_buffers, 3)


def one_step_raises(rank: int, world_size: int) -> None:
    """A step raises on one rank: it takes part in the pulls of that step in its next forward."""
    for failing in (1, 4, 5, 6):
        torch.manual_seed(7)
        model: Any = Odd()
        delay = Delay(k=2, warm_up=3, local_update="sgd")
        optimizer: Any = Fragile(model.parameters(), lr=0.1)
        model, optimizer = delayed(model, optimizer, world_size, delay)
        raises_alone(model, optimizer, failing, steps=9)
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())
        model.syncopate.detach()


def test_a_step_that_raises_on_one_rank_leaves_all_in_step() -> None:
    run_ranks(one_step_raises, 2)


def compiled(rank: int, world_size: int) -> None:
    """Compiled code finds weights that are there, although their update runs aside."""
    base.ASIDE_BYTES = 0
    model, optimizer, reference = pair(world_size)
    code: Any = torch.compile(model, backend="eager")
    for num in range(STEPS):
        loss_of(code, rank, num).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.iterate()
        close(model.parameters(), reference.computing[rank])


def recorded(rank: int, world_size: int) -> None:
    """The timeline shows which iterations pulled; a copy of the model is a plain one."""
    base.ASIDE_BYTES = 0
    model, optimizer, _ = pair(world_size)
    iterate(model, optimizer, rank, range(3))
    model.syncopate.record()
    iterate(model, optimizer, rank, range(3, STEPS))
    spans = model.syncopate.timeline().spans
    count = len(model.syncopate.plan.buckets)
    for iteration, num in enumerate(range(3, STEPS)):
        here = [span.lane for span in spans if (span.iteration, span.rank) == (iteration, rank)]
        assert here.count("push") == count
        assert here.count("pull") == (count if num % 3 == 2 else 0)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is Odd
    before = [p.detach().clone() for p in model.parameters()]
    loaded.load_state_dict({name: torch.zeros_like(v) for name, v in loaded.state_dict().items()})
    assert all(map(torch.equal, before, model.parameters()))
    iterate(model, optimizer, rank, range(STEPS, STEPS + 3))


def scripted(rank: int, world_size: int) -> None:
    """A TorchScript module trains as the module that it was made from, and loads midway."""
    for delay in (GLU, LocalSGD(period=3, warm_up=2)):
        ended = []
        for form in (nn.Module.train, torch.jit.script):
            model = form(odd64())
            start = {name: value.clone() for name, value in model.state_dict().items()}
            exchange = "allreduce" if isinstance(delay, LocalSGD) else "sharded"
            plan = plan_of(model, world_size, exchange=exchange).delayed(delay)
            model, optimizer = distribute(
                model, sgd(model.parameters()), plan=plan, timeout_s=TIMEOUT_S
            )
            iterate(model, optimizer, rank, range(7))
            model.load_state_dict(start)
            iterate(model, optimizer, rank, range(7, STEPS))
            ended.append([parameter.detach().clone() for parameter in model.parameters()])
            model.syncopate.detach()
        close(*ended)


@pytest.mark.parametrize("script", [compiled, recorded, scripted])
def test_what_looks_at_a_model_finds_its_weights(script: Any) -> None:
    run_ranks(script, 2)


def refusals(rank: int, world_size: int) -> None:
    model = odd64()
    plan = plan_of(model, world_size, exchange="sharded")
    adam, momentum = torch.optim.Adam(model.parameters()), sgd(model.parameters())
    with pytest.raises(EngineError, match=r"GLU .*Adam.*'sgd'"):
        distribute(model, adam, delay=4)
    with pytest.raises(EngineError, match=r"GLU .*Adam.*'sgd'"):
        distribute(model, adam, plan=plan.delayed(Delay(k=4)))
    with pytest.raises(InvalidValueError, match="k of a delay is 0"):
        distribute(model, momentum, delay=0)
    with pytest.raises(InvalidValueError, match="delay is 'late'"):
        distribute(model, momentum, delay="late")  # type: ignore[call-overload]
    with pytest.raises(InvalidValueError, match="left out with the allreduce exchange"):
        distribute(model, momentum, delay=4, exchange="allreduce")
    with pytest.raises(InvalidValueError, match="left out with the allreduce exchange"):
        distribute(model, momentum, delay=4, plan=plan_of(model, world_size))
    with pytest.raises(InvalidValueError, match="beside a plan that has another one"):
        distribute(model, momentum, delay=4, plan=plan.delayed(Delay(k=2)))
    with pytest.raises(EngineError, match="give the optimizer"):
        distribute(model, delay=4)
    delay = Delay(k=2 + rank)
    with pytest.raises(EngineError, match="delay"):
        distribute(model, momentum, delay=delay, timeout_s=TIMEOUT_S)


def test_what_cannot_be_is_refused_on_every_rank() -> None:
    run_ranks(refusals, 2)


def planned(rank: int, world_size: int) -> list[float]:
    """Without a plan: what the training settles on is sharded, and has the delay."""
    model, optimizer, said = self_planned(GLU)
    if rank == 0:
        assert "after 3 iterations weights are pulled every 3 steps" in said
    alone = odd64()
    reference = Reference(alone, [two_groups(alone)], GLU, world_size)
    plan = model.syncopate.plan
    assert (plan.exchange, plan.delay, plan.pull_period) == ("sharded", GLU, 3)
    for num in range(STEPS):
        iterate(model, optimizer, rank, [num])
        reference.iterate()
        close(model.parameters(), reference.computing[rank])
    return []


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_delay_without_a_plan_makes_one(world_size: int) -> None:
    run_ranks(planned, world_size)
