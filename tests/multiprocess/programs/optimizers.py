"""Every optimizer, every flag, and what programs do with optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    sgd,
    stepped,
    trained,
)

OPTIM = torch.optim


class SignDescent(OPTIM.Optimizer):
    """An optimizer of the user's own; its updates depend on all gradients together."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        size = torch.stack([grad.abs().mean() for grad in grads]).mean()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter].setdefault("steps", 0)
                    self.state[parameter]["steps"] += 1
                    parameter.add_(parameter.grad.sign() * size, alpha=-group["lr"])


class CentredAdam(OPTIM.Adam):
    """Overrides a helper of a known optimizer."""

    def _init_group(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.dim() > 1:
                parameter.grad.sub_(parameter.grad.mean(dim=1, keepdim=True))
        return super()._init_group(group, *args, **kwargs)


class NamedAdamW(OPTIM.AdamW):
    """Overrides ``__init__`` alone."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.02, betas=(0.8, 0.9))


class Warmed(OPTIM.SGD):
    """Sets its rate in its own step, by a count of its own."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups:
            group["lr"] = 0.1 * min(1.0, self.steps / 4)
        return super().step(closure)


def _trains(make: Callable[[Any], OPTIM.Optimizer], run: Run) -> None:
    for _ in trained(run, optimize=lambda model: make(model.parameters())):
        pass


_MADE: dict[str, Callable[[Any], OPTIM.Optimizer]] = {
    "sgd_plain": lambda p: OPTIM.SGD(p, lr=0.1),
    "sgd_nesterov": lambda p: OPTIM.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd_dampened_foreach": lambda p: OPTIM.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.1, foreach=True
    ),
    "sgd_fused": lambda p: OPTIM.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "sgd_maximize": lambda p: OPTIM.SGD(p, lr=0.01, maximize=True),
    "adam": lambda p: OPTIM.Adam(p, lr=0.01),
    "adam_amsgrad": lambda p: OPTIM.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam_foreach": lambda p: OPTIM.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: OPTIM.Adam(p, lr=0.01, fused=True),
    "adamw_tensor_rate": lambda p: OPTIM.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "adamw_maximize": lambda p: OPTIM.AdamW(p, lr=0.001, maximize=True),
    "nadam": lambda p: OPTIM.NAdam(p, lr=0.01, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": lambda p: OPTIM.RAdam(p, lr=0.01),
    "rmsprop": lambda p: OPTIM.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: OPTIM.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adagrad_fused": lambda p: OPTIM.Adagrad(p, lr=0.05, fused=True),
    "adadelta": lambda p: OPTIM.Adadelta(p, lr=1.0),
    "adamax": lambda p: OPTIM.Adamax(p, lr=0.01),
    "asgd": lambda p: OPTIM.ASGD(p, lr=0.05, t0=2),
    "rprop": lambda p: OPTIM.Rprop(p, lr=0.01),
    "adafactor": lambda p: OPTIM.Adafactor(p, lr=0.01),
    "sign_descent": SignDescent,
    "centred_adam": lambda p: CentredAdam(p, lr=0.01),
    "named_adamw": NamedAdamW,
    "warmed": lambda p: Warmed(p, lr=0.1, momentum=0.9),
}


def _named(name: str, program: Callable[..., None], *args: Any) -> Program:
    made: Any = partial(program, *args)
    made.__name__ = name
    return made


def _scheduled(make: Callable[[Any], Any], run: Run) -> None:
    """A schedule that is set after each step."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    schedule = make(optimizer)
    for step in range(STEPS + 2):
        optimizer.zero_grad()
        loss = loss_of(wrapped(run.batch(step)))
        loss.backward()
        optimizer.step()
        if isinstance(schedule, ReduceLROnPlateau):
            schedule.step(float(step % 2))
        else:
            schedule.step()
        run.see("rate", optimizer.param_groups[0]["lr"])
        run.see("momentum", optimizer.param_groups[0]["momentum"])
    run.end(model, optimizer)


def _sequence(optimizer: Any) -> Any:
    first, second = ExponentialLR(optimizer, 0.5), StepLR(optimizer, 2)
    return SequentialLR(optimizer, [first, second], [3])


_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step_lr": lambda o: StepLR(o, 2, 0.5),
    "lambda_lr": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "one_cycle": lambda o: OneCycleLR(o, 0.2, total_steps=3 * STEPS),
    "cyclic": lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=1),
    "warm_restarts": lambda o: CosineAnnealingWarmRestarts(o, 3),
    "sequence_of_schedules": _sequence,
}


def groups_with_rates_of_their_own(run: Run) -> None:
    model = net()
    groups = [
        {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0.0},
        {"params": [p for n, p in model.named_parameters() if "weight" in n], "lr": 0.003},
    ]
    optimizer = OPTIM.AdamW(groups, lr=0.01, weight_decay=0.1)
    wrapped = run.wrap(model, optimizer)
    for _ in stepped(run, wrapped, optimizer):
        optimizer.param_groups[1]["lr"] *= 0.5
        optimizer.param_groups[0]["betas"] = (0.8, 0.99)
    run.end(model, optimizer)


def rate_is_a_tensor_filled_anew(run: Run) -> None:
    rate = torch.tensor(0.02)
    model = net()
    optimizer = OPTIM.Adam(model.parameters(), lr=rate, foreach=False)
    wrapped = run.wrap(model, optimizer)
    for step in stepped(run, wrapped, optimizer):
        rate.fill_(0.02 / (step + 1))
    run.end(model, optimizer)


def betas_are_tensors_filled_anew(run: Run) -> None:
    decay = torch.tensor(0.9)
    model = net()
    rate = torch.tensor(0.01)
    optimizer = OPTIM.AdamW(
        model.parameters(), lr=rate, betas=(decay, torch.tensor(0.99)), foreach=False
    )
    wrapped = run.wrap(model, optimizer)
    for step in stepped(run, wrapped, optimizer):
        decay.fill_(0.5 + 0.05 * step)
    run.end(model, optimizer)


def a_group_is_added(run: Run) -> None:
    model = net()
    layers = list(model.children())
    optimizer = sgd(layers[0])
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        if step == 2:
            optimizer.add_param_group({"params": list(layers[2].parameters()), "lr": 0.05})
        if step == 4:
            optimizer.add_param_group({"params": list(layers[4].parameters())})
        model.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def muon_and_adamw(run: Run) -> None:
    model = net()
    muon = OPTIM.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.02)
    rest = OPTIM.AdamW([p for p in model.parameters() if p.dim() != 2], lr=0.01)
    wrapped = run.wrap(model, muon, rest)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        for optimizer in (muon, rest):
            optimizer.step()
            optimizer.zero_grad()
    run.end(model, muon, rest)


def two_networks_in_turns(run: Run) -> None:
    """Two models train each other, each with an optimizer of its own."""
    maker, critic = nn.Linear(8, 8), net()
    makes, criticises = sgd(maker), adamw(critic)
    made, judged = run.wrap(maker, makes), run.wrap(critic, criticises)
    for step in range(STEPS):
        criticises.zero_grad()
        real, fake = judged(run.batch(step)), judged(made(run.batch(step + 50)).detach())
        (loss_of(real - 1) + loss_of(fake)).backward()
        criticises.step()
        makes.zero_grad()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        loss_of(critic(made(run.batch(step + 50))) - 1).backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        makes.step()
    run.end(maker, makes)
    run.end(critic, criticises)


def two_optimizers_share_parameters(run: Run) -> None:
    model = net()
    first, second = sgd(model), adamw(model)
    wrapped = run.wrap(model, first, second)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        (first if step % 2 else second).step()
        if step == 4:
            first.step()
    run.end(model, first, second)


def two_optimizers_step_in_other_steps(run: Run) -> None:
    model = net()
    layers = list(model.children())
    first, second = adamw(layers[0]), sgd(nn.Sequential(*layers[1:]))
    wrapped = run.wrap(model, first, second)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        second.step()
        if step % 2:
            first.step()
    run.end(model, first, second)


def steps_twice(run: Run) -> None:
    for _, _, optimizer, _ in trained(run):
        optimizer.step()


def steps_again_later(run: Run) -> None:
    """The second step uses the same gradients, after a look at weights."""
    for _, model, optimizer, _ in trained(run, optimize=sgd):
        optimizer.step()
        run.see("norm", model[0].weight.norm())


def steps_again_without_a_backward(run: Run) -> None:
    """Two steps are on their way when the gradients are dropped."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        if step % 2 == 0:
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if step == 3:
            optimizer.zero_grad()
            optimizer.step()
    run.end(model, optimizer)


def skips_a_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        if step % 3 != 1:
            optimizer.step()
    run.end(model, optimizer)


def closure_of_sgd(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(wrapped(run.batch(step)))
            loss.backward()
            return loss

        run.see("loss", optimizer.step(closure))
    run.end(model, optimizer)


def l_bfgs(run: Run) -> None:
    model = nn.Linear(8, 4)
    optimizer = OPTIM.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    wrapped = run.wrap(model, optimizer)
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(wrapped(run.batch(0)) - step)
            loss.backward()
            return loss

        optimizer.step(closure)
    run.end(model)


def differentiable(run: Run) -> None:
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9, differentiable=True)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        try:
            optimizer.step()
        except RuntimeError as error:  # torch allows it on other tensors than leaves
            run.see("refused", str(error)[:30])
    run.end(model, optimizer)


def capturable(run: Run) -> None:
    """Torch refuses it on CPUs, and the program goes on without."""
    model = net()
    optimizer = OPTIM.Adam(model.parameters(), lr=0.01, capturable=True)
    wrapped = run.wrap(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        try:
            optimizer.step()
        except AssertionError as error:
            run.see("refused", str(error)[:30])
            optimizer.param_groups[0]["capturable"] = False
            optimizer.step()
    run.end(model, optimizer)


def changed_flags(run: Run) -> None:
    for _, _, optimizer, step in trained(run, optimize=partial(sgd, dampening=0.1)):
        group = optimizer.param_groups[0]
        if step == 2:
            group["maximize"], group["foreach"] = True, True
        if step == 4:
            group["maximize"], group["momentum"] = False, 0.5


def optimizer_is_not_given(run: Run) -> None:
    model = net()
    wrapped = run.wrap(model)
    optimizer = adamw(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        run.see("gradient", model[0].weight.grad)
        optimizer.step()
    run.end(model, optimizer)


def descent_by_hand(run: Run) -> None:
    model = net()
    wrapped = run.wrap(model)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    run.end(model)


def another_optimizer_midway(run: Run) -> None:
    """A new optimizer on the same parameters, which distribute never saw."""
    model = net()
    optimizer: Any = sgd(model)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        if step == 3:
            optimizer = adamw(model)
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def wrapped_optimizer(run: Run) -> None:
    """Lookahead: slow weights beside those that an inner optimizer updates."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    slow = [parameter.detach().clone() for parameter in model.parameters()]
    for step in stepped(run, wrapped, optimizer):
        if step % 2:
            with torch.no_grad():
                for before, parameter in zip(slow, model.parameters(), strict=True):
                    before.lerp_(parameter, 0.5)
                    parameter.copy_(before)
    run.end(model, optimizer)


def sharpness_aware(run: Run) -> None:
    """SAM: climb along the gradient, take the gradient there, come back, step."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        with torch.no_grad():
            climbs = [parameter.grad * 0.05 for parameter in model.parameters()]
            for parameter, climb in zip(model.parameters(), climbs, strict=True):
                parameter.add_(climb)
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        with torch.no_grad():
            for parameter, climb in zip(model.parameters(), climbs, strict=True):
                parameter.sub_(climb)
        optimizer.step()
    run.end(model, optimizer)


PROGRAMS: list[Program] = [
    *(_named(name, _trains, make) for name, make in _MADE.items()),
    *(_named(name, _scheduled, make) for name, make in _SCHEDULES.items()),
    groups_with_rates_of_their_own,
    rate_is_a_tensor_filled_anew,
    betas_are_tensors_filled_anew,
    a_group_is_added,
    muon_and_adamw,
    two_networks_in_turns,
    two_optimizers_share_parameters,
    two_optimizers_step_in_other_steps,
    steps_twice,
    steps_again_later,
    steps_again_without_a_backward,
    skips_a_step,
    closure_of_sgd,
    l_bfgs,
    differentiable,
    capturable,
    changed_flags,
    optimizer_is_not_given,
    descent_by_hand,
    another_optimizer_midway,
    wrapped_optimizer,
    sharpness_aware,
]
