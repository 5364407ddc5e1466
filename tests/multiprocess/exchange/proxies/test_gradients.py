"""Gradients of which every rank holds a part: norms, clipping, scaling, and reading the whole."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import utils

from syncopate.errors import EngineError
from tests.multiprocess.engine.cases import plan_of
from tests.multiprocess.exchange.cases import (
    OWNED,
    Odd,
    Run,
    batch,
    both,
    launches,
    squares,
    watched,
)
from tests.multiprocess.harness import Cases, run_ranks

Between = Callable[[Run], None]


def train(run: Run, between: Between, steps: int = 3) -> None:
    for step in range(steps):
        run.optimizer.zero_grad()
        run.backward(squares(step))
        between(run)
        run.optimizer.step()


def grads(run: Run) -> list[Any]:
    return [p.grad for p in run.model.parameters() if p.grad is not None]


def counted(run: Run, messages: int, ask: Callable[[], Any]) -> Any:
    """Return ``ask()``, which on the ranks takes ``messages`` all-reduces and nothing else."""
    if not run.spread:
        return ask()
    with watched(run.model) as events:
        found = ask()
    assert launches(events) == ["all_reduce"] * messages, events
    return found


def clip_norm(order: float, foreach: bool | None, run: Run) -> None:
    parameters = list(run.model.parameters())
    clip = partial(utils.clip_grad_norm_, parameters, 0.05, order, foreach=foreach)
    norm = counted(run, 1, clip)
    run.seen.append(norm.item())
    run.seen.append(counted(run, 1, lambda: float(utils.get_total_norm(grads(run), order))))


def clip_value(foreach: bool | None, run: Run) -> None:
    counted(run, 0, lambda: utils.clip_grad_value_(run.model.parameters(), 0.01, foreach=foreach))


def single_norms(run: Run) -> None:
    """Norms of single gradients, as loops that log them take them."""
    for gradient in grads(run):
        run.seen.append(counted(run, 1, lambda g=gradient: g.data.norm(2).item()))
        run.seen.append(counted(run, 1, lambda g=gradient: float(g.detach().norm())))
        run.seen.append(float(torch.linalg.vector_norm(gradient, 1) * 2 + 1))
    # A loop's own clipping: the norm of norms of another order is a norm of looked-at norms.
    stacked = torch.stack([torch.norm(gradient, 1) for gradient in grads(run)])
    run.seen += [float(torch.linalg.vector_norm(stacked, 3)), *stacked.tolist()]


def scaling(run: Run) -> None:
    """Whatever changes each element by itself."""
    for parameter in run.model.parameters():
        gradient = parameter.grad
        parameter.grad *= 2
        assert parameter.grad is gradient
        gradient.div_(torch.tensor(3.0))
        gradient.add_(parameter.detach(), alpha=0.1).clamp_(min=-1).nan_to_num_()
        gradient.mul_(torch.linspace(0.5, 2, gradient.numel()).view(gradient.shape))
        gradient.data.add_(0.01)
        gradient.masked_fill_(torch.zeros_like(gradient, dtype=torch.bool), 1)
    torch._foreach_mul_(grads(run), 0.5)
    torch._foreach_add_(grads(run), [torch.full_like(g, 0.25) for g in grads(run)])
    torch._foreach_clamp_max_(grads(run), 0.7)


def metadata(run: Run) -> None:
    if not run.spread:
        return
    # Nothing here waits or sends: one rank alone may print.
    parameter = run.model.first.weight
    with watched(run.model) as events:
        gradient = parameter.grad
        assert gradient is not None
        assert gradient.shape == parameter.shape == torch.Size((7, 5))
        assert (gradient.dtype, gradient.device) == (torch.float32, torch.device("cpu"))
        assert not gradient.is_sparse
        assert gradient.is_leaf
        assert gradient.numel() == 35
        if run.rank == 0:
            assert "PartialGradient('first.weight', shape=(7, 5)" in repr(gradient)
            assert f"{gradient}" == str(gradient) == repr(gradient)
        assert torch.zeros_like(gradient).sum() == 0
    assert events == []


def whole(run: Run) -> None:
    """Whatever else is asked, all ranks first gather the flat buffer that a gradient lies in."""
    gradient, other = run.model.first.weight.grad, run.model.middle.weight.grad
    if run.spread:
        sharded = run.model.syncopate.plan.exchange == "sharded"
        held = [b for b in run.model.syncopate.plan.buckets if b.tensors == ("first.weight",)]
        pulls = ["all_gather" if sharded else "broadcast"] * len(held)
        with watched(run.model) as events:
            total = gradient.sum()
        assert launches(events) == pulls
        with watched(run.model) as events:
            gradient.sum()
        assert launches(events) == []  # it is still here
    else:
        total = gradient.sum()
    run.seen += [
        total.item(),
        gradient.mean().item(),
        *gradient[0].tolist(),
        *(gradient * 2).view(-1).tolist(),
        *gradient.clone().numpy().ravel().tolist(),
        *gradient.norm(dim=0).tolist(),
        torch.norm(gradient, -math.inf).item(),
        *torch.zeros(7, 5).copy_(gradient).view(-1).tolist(),
        *torch.cat([gradient, gradient]).view(-1).tolist(),
        *copy.deepcopy(gradient).view(-1).tolist(),
        *pickle.loads(pickle.dumps(gradient)).view(-1).tolist(),
        gradient.abs().max().item(),
    ]
    assert torch.equal(gradient, gradient)
    # What is here whole stays whole, also where a script changes it.
    assert gradient.mul_(0.5) is gradient
    run.seen += gradient.view(-1).tolist()
    # In place by what other gradients are, and by what looks at several elements.
    assert other.add_(other.flip(0)) is other
    run.model.last.bias.grad.add_(run.model.first.bias.grad.sum())
    gradient.cumsum_(0)
    gradient.view(-1)[3] = 0.25
    run.seen += [*gradient.view(-1).tolist(), *other.view(-1).tolist()]


def moved(run: Run) -> None:
    """A gradient stays in the memory that the plan exchanges, also where it is given other."""
    gradient = run.model.first.weight.grad
    gradient.data = torch.arange(35.0).view(7, 5)
    gradient.data /= 35
    if not run.spread:
        return
    with pytest.raises(EngineError, match=r"'first.weight' has shape \(7, 5\) .* \(35,\); give it"):
        gradient.data = torch.zeros(35)
    for move in (
        lambda: gradient.resize_(35),
        lambda: gradient.resize_as_(torch.zeros(35)),
    ):
        with pytest.raises(EngineError, match=r"'first.weight' other memory.*copy_\(\) into it"):
            move()


def nonfinite(run: Run) -> None:
    """An infinity in one rank's part alone stops every rank."""
    clip = partial(utils.clip_grad_norm_, list(run.model.parameters()), 1.0)
    before = [float(clip(error_if_nonfinite=True))]
    with torch.no_grad():
        hole = torch.zeros(7, 5)
        hole[6, 4] = math.inf
        run.model.first.weight.grad.add_(hole)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip(error_if_nonfinite=True)
    run.seen += before
    run.model.first.weight.grad.nan_to_num_(nan=0.0, posinf=0.5)


def wide(dtype: torch.dtype) -> nn.Module:
    return Odd().to(dtype)


def mixed() -> nn.Module:
    """Two dtypes in one model, so that a norm is one of several dtypes."""
    model = Odd()
    model.middle.to(torch.float64)
    model.middle.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    model.middle.register_forward_hook(lambda _, args, out: out.float())
    return model


def norms_of_dtypes(rank: int, world_size: int, **plan: Any) -> None:
    def between(run: Run) -> None:
        clip_norm(2.0, None, run)
        clip_norm(math.inf, True, run)

    both(rank, world_size, partial(train, between=between), build=mixed, **plan)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.bfloat16, 3e-2)):

        def script(run: Run, dtype: torch.dtype = dtype) -> None:
            for step in range(3):
                run.optimizer.zero_grad()
                run.backward(
                    lambda model, rank, step=step: (
                        model(batch(rank, step, 4, 5, dtype=dtype)).square().mean()
                    )
                )
                between(run)
                run.optimizer.step()

        both(
            rank,
            world_size,
            script,
            build=partial(wide, dtype),
            tolerance=tolerance,
            **plan,
        )


def local(rank: int, world_size: int, **plan: Any) -> None:
    """Under no_sync a gradient is this rank's contribution, whatever part it owns."""

    def script(run: Run) -> None:
        run.backward(squares(0))
        with run.no_sync():
            run.backward(squares(1))
            if run.spread:
                with pytest.raises(EngineError, match=r"accumulates under no_sync\(\)"):
                    utils.clip_grad_norm_(run.model.parameters(), 1.0)
            torch._foreach_mul_(grads(run), 0.5)
        run.backward(squares(2))
        run.optimizer.step()

    both(rank, world_size, script, **plan)


def alike() -> nn.Module:
    """Three layers of the same shapes."""
    return nn.Sequential(*(nn.Linear(5, 5) for _ in range(3)))


def places(run: Run) -> None:
    """Layers hand their gradients on in a ring, and two biases get the same one."""
    for step in range(3):
        run.optimizer.zero_grad()
        run.backward(squares(step))
        first, second, third = run.model
        weights = [layer.weight.grad for layer in run.model]
        for layer, gradient in zip((second, third, first), weights, strict=True):
            layer.weight.grad = gradient
        first.bias.grad = third.bias.grad
        run.optimizer.step()
        run.seen += [float(gradient.sum()) for gradient in grads(run)]


def everything(rank: int, world_size: int) -> None:
    """Every change with either exchange; tensors whole and in parts take turns.

    What two ranks do with whole tensors three ranks do with parts, and the other way round.
    """
    betweens: list[Between] = [
        *(partial(clip_norm, order, None) for order in (2.0, 1.0, math.inf, 3)),
        partial(clip_norm, 2.0, True),
        partial(clip_value, None),
        partial(clip_value, True),
        single_norms,
        scaling,
        metadata,
        whole,
        moved,
        nonfinite,
    ]
    with Cases() as case:
        for turn, exchange in enumerate(OWNED, start=world_size):
            for number, between in enumerate(betweens):
                plan: dict[str, Any] = {"exchange": exchange, "parts": (1, 3)[(turn + number) % 2]}
                with case(f"{between} of {plan}"):
                    run = both(rank, world_size, partial(train, between=between), **plan)
                    run.model.syncopate.detach()
            with case(f"norms of dtypes, {exchange}"):
                norms_of_dtypes(rank, world_size, exchange=exchange, parts=(1, 3)[turn % 2])
            with case(f"gradients of other parameters, {exchange}"):
                run = both(
                    rank, world_size, places, build=alike, exchange=exchange, parts=(1, 3)[turn % 2]
                )
                run.model.syncopate.detach()
            with case(f"local, {exchange}"):
                local(rank, world_size, exchange=exchange, parts=(3, 1)[turn % 2])


@pytest.mark.parametrize("world_size", [2, 3])
def test_gradients_are_clipped_and_scaled_as_in_one_process(world_size: int) -> None:
    run_ranks(everything, world_size)


def freed(rank: int, world_size: int) -> str:
    """A gradient that outlives its model says so."""
    run = both(rank, world_size, partial(train, between=lambda _: None), exchange="sharded")
    gradient = run.model.first.weight.grad
    assert isinstance(gradient, Tensor)
    plan = plan_of(run.model, world_size)
    run.model.syncopate.install(plan)
    with pytest.raises(EngineError, match="has been freed"):
        gradient.norm()
    return plan.exchange


def test_a_gradient_that_outlives_its_exchange() -> None:
    assert run_ranks(freed, 2) == ["allreduce", "allreduce"]
