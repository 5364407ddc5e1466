"""Whose gradient it is: one engine's, of the parameters that were distributed, or an error.

Every case here trained on wrong gradients once, or on gradients that were not exchanged.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    average,
    buffers_of_a_forward,
    data,
    identical_everywhere,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks


class _Net(nn.Module):
    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8) if body is None else body
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).relu())


def _sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def _planned(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Any:
    plan = plan_of(model, dist.get_world_size())
    return distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)


def _train(model: Any, optimizer: torch.optim.Optimizer, rank: int, step: int = 0) -> None:
    optimizer.zero_grad()
    model(data(rank, step, 4, 8)).square().mean().backward()
    optimizer.step()


def _averages_rightly(model: Any, rank: int, x: Tensor) -> None:
    """One backward of ``model`` gives the average of what each rank has alone."""
    model.zero_grad()
    plain = copy.deepcopy(model)
    plain(x).square().mean().backward()
    model(x).square().mean().backward()
    expected = average(p.grad for p in plain.parameters())
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


# -- one owner --------------------------------------------------------------------------------


def _a_parameter_of_two_models(rank: int) -> None:
    body = nn.Linear(8, 8)
    first = _planned(_Net(body))
    message = r"'body.weight' of this _Net is 'body.weight' of a _Net that is distributed already"
    with pytest.raises(EngineError, match=message):
        _planned(_Net(body))
    tied = nn.Linear(8, 8, bias=False)
    tied.weight = body.weight
    with pytest.raises(EngineError, match=r"'weight' of this Linear is 'body.weight' of a _Net"):
        _planned(tied)
    # One rank alone has shared it: all refuse.
    with pytest.raises(EngineError, match="is distributed already, and a gradient"):
        _planned(_Net(body if rank else None))
    _averages_rightly(first, rank, data(rank, 0, 4, 8))
    # Frozen parameters may be shared, and those that are free again.
    first.syncopate.detach()
    body.requires_grad_(False)
    both = [_planned(_Net(body)) for _ in range(2)]
    for model in both:
        model(data(rank, 0, 4, 8)).sum().backward()
        identical_everywhere([model.head.weight.grad])
        model.syncopate.detach()


def _parents_and_children(rank: int) -> None:
    parent = _planned(_Net())
    with pytest.raises(EngineError, match=r"'weight' of this Linear is 'body.weight' of a _Net"):
        _planned(parent.body)
    with pytest.raises(EngineError, match="its module '0' is distributed already"):
        _planned(nn.Sequential(parent))
    _averages_rightly(parent, rank, data(rank, 0, 4, 8))
    parent.syncopate.detach()
    child = _planned(nn.Linear(8, 8))
    parent = _Net()
    parent.body.weight = child.weight
    with pytest.raises(EngineError, match=r"'body.weight' of this _Net is 'weight' of a Linear"):
        _planned(parent)
    child.syncopate.detach()


def _ddp_around_it(rank: int) -> None:
    for wrap in (lambda model: model, lambda model: nn.Sequential(nn.Linear(8, 8), model)):
        model, optimizer = _planned(own := _Net(), _sgd(own))
        wrapped = DistributedDataParallel(wrap(model))
        before = [p.detach().clone() for p in model.parameters()]
        message = "wrapped around a _Net that is distributed already.*'body.weight'.*detach"
        with pytest.raises(EngineError, match=message):
            _train(wrapped, optimizer, rank)
        assert all(map(torch.equal, before, model.parameters()))
        with torch.no_grad():
            wrapped(data(rank, 0, 4, 8))
        _averages_rightly(model, rank, data(rank, 0, 4, 8))
        model.syncopate.detach()
    # Its reducer in Python hooks parameters instead, and averages however the model is called.
    config: Any = torch._dynamo.config
    with config.patch(optimize_ddp="python_reducer"):
        model, optimizer = _planned(own := _Net(), _sgd(own))
        wrapped = DistributedDataParallel(model)
    for called in (wrapped, model):
        with pytest.raises(EngineError, match=message):
            _train(called, optimizer, rank)
    for hook in wrapped._accum_grad_hooks:
        hook.remove()
    _averages_rightly(model, rank, data(rank, 0, 4, 8))
    model.syncopate.detach()
    # What DDP is told to leave alone may be inside.
    outer = nn.Sequential(nn.Linear(8, 8), model := _planned(_Net()))
    names = [f"1.{name}" for name, _ in (*model.named_parameters(), *model.named_buffers())]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(outer, names)
    wrapped = DistributedDataParallel(outer)
    wrapped(data(rank, 0, 4, 8)).sum().backward()
    identical_everywhere(p.grad for p in outer.parameters())
    model.syncopate.detach()


# -- the same parameters ----------------------------------------------------------------------


def _replace(model: Any) -> None:
    model.head = nn.Linear(8, 2)


def _replace_by_frozen(model: Any) -> None:
    model.head = nn.Linear(8, 2).requires_grad_(False)


def _assign(model: Any) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def _append(model: Any) -> None:
    model.head = nn.Sequential(model.head, nn.Linear(2, 2))


def _unfreeze_late(model: Any) -> None:
    model.extra = nn.Linear(8, 8).requires_grad_(False)
    model(torch.ones(4, 8))
    model.extra.requires_grad_(True)


def _shrink(model: Any) -> None:
    model.body.weight.data = torch.ones(8, 4)


CHANGES: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (_replace, r"'head.weight' was replaced after distribute was called"),
    (_replace_by_frozen, "'head.weight' was distributed and is not in the model any more"),
    (_assign, r"'body.weight' was replaced after distribute"),
    (_append, r"'head.1.weight' was added after distribute"),
    (lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1))), "'scale' was added"),
    (lambda m: m.double(), "'body.weight' was 64 elements of torch.float32 on cpu.*torch.float64"),
    (lambda m: m.to(torch.bfloat16), "is 64 elements of torch.bfloat16 on cpu now, so its"),
    (lambda m: m.head.half(), "'head.weight' was 16 elements of torch.float32"),
    (lambda m: m.to("meta"), "'body.weight' was replaced"),
    (_shrink, "'body.weight' was 64 elements .* is 32 elements"),
    (lambda m: delattr(m, "head"), "'head.weight' was distributed and is not in the model any"),
    (lambda m: delattr(m.head, "bias"), "'head.bias' was distributed and is not in the model"),
    (_unfreeze_late, "'extra.weight' was frozen when .* and is trained now"),
)


def _another_parameter_than_planned(rank: int) -> None:
    for change, message in CHANGES:
        model, optimizer = _planned(own := _Net(), _sgd(own))
        _train(model, optimizer, rank)
        change(model)
        with pytest.raises(EngineError, match=rf"{message}.*detach\(\) and distribute again"):
            _train(model, optimizer, rank, 1)
        model.syncopate.detach()
    # Where torch swaps what a parameter is inside, torch itself refuses, and nothing happened.
    model = _planned(_Net())
    torch.__future__.set_swap_module_params_on_conversion(True)
    with pytest.raises(RuntimeError, match="weakref"):
        model.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.__future__.set_swap_module_params_on_conversion(False)
    _averages_rightly(model, rank, data(rank, 0, 4, 8))
    model.syncopate.detach()
    model.double()
    model = _planned(model)  # as the message says
    _averages_rightly(model, rank, data(rank, 0, 4, 8).double())
    model.syncopate.detach()


def _the_same_parameters_elsewhere(rank: int) -> None:
    model = _planned(_Net())
    x = data(rank, 0, 4, 8)
    model.head = nn.Sequential(nn.Dropout(0.0), model.head)
    _averages_rightly(model, rank, x)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    model.body.weight.data = torch.ones(8, 8)
    model.head.add_module("frozen", nn.Linear(2, 2).requires_grad_(False))
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
    model.zero_grad()
    model(x).sum().backward()
    assert model.body.weight.grad is None
    identical_everywhere([model.head[1].weight.grad])
    model.body.requires_grad_(True)
    # Tensors that stand in for a call are not trained, and what they come from is averaged.
    model.zero_grad()
    doubled = {name: 2 * parameter for name, parameter in model.named_parameters()}
    torch.func.functional_call(model, doubled, (x,)).sum().backward()
    identical_everywhere([p.grad for p in (model.body.weight, model.head[1].weight)])
    model.syncopate.detach()


def _changed_on_one_rank(rank: int) -> None:
    model, optimizer = _planned(own := _Net(), _sgd(own))
    _train(model, optimizer, rank)
    head = model.head
    if rank == 1:
        model.head = nn.Linear(8, 2)
        with pytest.raises(EngineError, match=r"'head.weight' was replaced"):
            _train(model, optimizer, rank, 1)
        model.head = head
    else:
        with pytest.raises(EngineError, match="backward failed on rank 1"):
            _train(model, optimizer, rank, 1)
    _train(model, optimizer, rank, 2)
    identical_everywhere([*model.parameters(), *buffers_of_a_forward(model)])
    _averages_rightly(model, rank, data(rank, 0, 4, 8))
    model.syncopate.detach()


# -- optimizers -------------------------------------------------------------------------------


def _one_optimizer_or_none(rank: int) -> None:
    alone = _planned(_Net())
    assert isinstance(alone, _Net)
    _averages_rightly(alone, rank, data(rank, 0, 4, 8))
    alone.syncopate.detach()
    # One optimizer over a model and a loss with parameters, as with two DDPs.
    torch.manual_seed(rank)
    plain, plain_loss = _Net(), nn.Bilinear(2, 2, 1)
    own, own_loss = copy.deepcopy(plain), copy.deepcopy(plain_loss)
    reference = DistributedDataParallel(plain), DistributedDataParallel(plain_loss)
    optimizer = _sgd(own, own_loss)
    model, same = _planned(own, optimizer)
    assert same is optimizer
    loss = _planned(own_loss)
    for step in range(3):
        x = data(rank, step, 4, 8)
        for net, criterion, steps in (
            (*reference, _sgd(plain, plain_loss)),
            (model, loss, optimizer),
        ):
            steps.zero_grad()
            output = net(x)
            criterion(output, output).square().mean().backward()
            steps.step()
    for mine, theirs in zip(
        [*model.parameters(), *loss.parameters()],
        [*plain.parameters(), *plain_loss.parameters()],
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    # What comes to the optimizer later is looked at, too.
    stray = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [stray]})
    before = [p.detach().clone() for p in model.parameters()]
    message = r"parameter 0 of the optimizer's group 1 \(shape \(3,\)\) is in no distributed model"
    with pytest.raises(EngineError, match=message):
        _train(model, optimizer, rank)
    assert all(map(torch.equal, before, model.parameters()))
    stray.requires_grad_(False)
    _train(model, optimizer, rank)
    model.syncopate.detach()
    loss.syncopate.detach()


def _an_optimizer_of_something_else_as_well(rank: int) -> None:
    net, loss = _Net(), nn.Linear(2, 1)
    model, optimizer = _planned(net, _sgd(net, loss))
    loss(model(data(rank, 0, 4, 8))).sum().backward()
    with pytest.raises(EngineError, match=r"parameter 6 .* \(1, 2\)\) is in no distributed model"):
        optimizer.step()
    _planned(loss)
    optimizer.step()
    model.syncopate.detach()
    loss.syncopate.detach()


# -- models that are dropped --------------------------------------------------------------------


def _held() -> tuple[int, int]:
    """Threads and open files of this process."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def _dropped_models(rank: int) -> None:
    def use(steps: int) -> None:
        """Train a model, which plans for itself unless it takes but one step."""
        model = _Net()
        plan = plan_of(model, dist.get_world_size()) if steps == 1 else None
        model, optimizer = distribute(model, _sgd(model), plan=plan, timeout_s=TIMEOUT_S)
        for step in range(steps):
            _train(model, optimizer, rank, step)

    use(1)
    if sys.platform == "linux":
        threads, files = _held()
        for steps in range(2, 13, 2):
            use(steps)
        # Threads that were told to end, and what they hold, go a moment later.
        deadline_s = time.monotonic() + HANGS_S
        while ((now := _held())[0] > threads or now[1] > files) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert now[0] <= threads, now
        assert now[1] <= files + 2, now
    # A layer that outlives its model says that its gradients are not exchanged, ...
    body = nn.Linear(8, 8)
    _planned(_Net(body))
    gc.collect()
    with pytest.raises(EngineError, match=r"'body.\w+' is trained, but the model that was"):
        body(data(rank, 0, 4, 8)).sum().backward()
    # ... until another model takes it. The optimizer keeps what it trains at work.
    again, optimizer = _planned(own := _Net(body), _sgd(own))
    _averages_rightly(again, rank, data(rank, 0, 4, 8))
    del again, own
    gc.collect()
    body.zero_grad()
    body(data(rank, 0, 4, 8)).sum().backward()
    identical_everywhere([body.weight.grad])
    del optimizer


CASES = (
    _a_parameter_of_two_models,
    _parents_and_children,
    _ddp_around_it,
    _another_parameter_than_planned,
    _the_same_parameters_elsewhere,
    _changed_on_one_rank,
    _one_optimizer_or_none,
    _an_optimizer_of_something_else_as_well,
    _dropped_models,
)


def _every_case(rank: int, world_size: int, names: tuple[str, ...]) -> None:
    run_cases((case for case in CASES if case.__name__ in names), rank)


def test_a_gradient_has_one_owner() -> None:
    run_ranks(_every_case, 2, tuple(case.__name__ for case in CASES))
