"""What a program is, and how it runs by DDP and by Syncopate.

A program is a function of a :class:`Run`: it builds a model and optimizers, lets ``run.wrap`` make
them distributed, trains some steps with other data on each rank, and gives to ``run.see`` the
values that it looks at. What it sees on a rank is what it sees there under DDP: the same bits on
two ranks, the same to rounding on more, where sums have another order.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import DECOUPLED, Plan
from syncopate.engine.distribute import distribute
from syncopate.engine.engine import Engine
from syncopate.engine.step import Step
from tests.multiprocess.engine.cases import TIMEOUT_S, data, in_parts, plan_of, planned, replicating

STEPS = 6

Program = Callable[["Run"], None]
MakePlan = Callable[[nn.Module, int], Plan]


def _sizes(model: nn.Module, each: int) -> list[int]:
    """Return bucket sizes of ``each`` parameters, the last one smaller."""
    count = len(planned(model))
    whole, rest = divmod(count, each)
    return [each] * whole + [rest] * bool(rest)


def _decoupled(model: nn.Module, ranks: int, each: int = 1, **options: Any) -> Plan:
    return plan_of(model, ranks, _sizes(model, each), exchange=DECOUPLED, **options)


PLANS: dict[str, MakePlan] = {
    "one by one": _decoupled,
    "ring, in pairs, two channels": lambda m, w: _decoupled(m, w, 2, algorithm="ring", channels=2),
    "native": lambda m, w: _decoupled(m, w, 3, algorithm="native"),
    "first buckets replicated": lambda m, w: replicating(_decoupled(m, w, 2), 1),
    "in parts": lambda m, w: in_parts(_decoupled(m, w), m, 2),
    "one bucket": lambda m, w: _decoupled(m, w, 1000),
    "all-reduced": lambda m, w: plan_of(m, w, _sizes(m, 2)),
}
"""Name -> the plan of a model on so many ranks."""

IN_TURNS = "plans in turns"
"""What a training goes through while it measures itself: another plan in every step."""

MEASURED = "no plan"
"""What a script gives by default: the training measures itself, and settles on a plan."""


@dataclass
class Run:
    """One run of a program.

    Attributes:
        rank: this rank.
        ranks: how many there are.
        plan: makes the plan; None: DDP.
        turns: make plans that take turns after it, one a step.
        measured: give no plan, whatever :attr:`plan` makes.
        seen: name of an observation -> its value, and values of the same name in order.
    """

    rank: int
    ranks: int
    plan: MakePlan | None = None
    turns: Sequence[MakePlan] = ()
    measured: bool = False
    seen: dict[str, list[Any]] = field(default_factory=dict)
    _models: list[Any] = field(default_factory=list)

    @property
    def by_ddp(self) -> bool:
        return self.plan is None

    def wrap(
        self,
        model: nn.Module,
        *optimizers: torch.optim.Optimizer,
        unused: bool = False,
        **ddp_options: Any,
    ) -> Any:
        """Return what to call in the place of ``model``.

        Args:
            model: goes on to hold parameters and buffers.
            optimizers: those that train it and are given to ``distribute``.
            unused: whether DDP has to be told that a forward leaves out parameters.
            ddp_options: further options of DDP.
        """
        if self.plan is None:
            return DistributedDataParallel(model, find_unused_parameters=unused, **ddp_options)
        known = {
            theirs: ddp_options[ours]
            for ours, theirs in (("broadcast_buffers", "broadcast_buffers"),)
            if ours in ddp_options
        }
        given = list(optimizers) if len(optimizers) > 1 else (optimizers or (None,))[0]
        # Without an optimizer there is nothing to hide behind the next forward.
        plan = self.plan if optimizers else PLANS["all-reduced"]
        how: dict[str, Any] = {"plan": plan(model, self.ranks)}
        if self.measured:
            links = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
            how = {"cluster": Cluster.flat(self.ranks, **links), "cache": False}
        distribute(model, given, timeout_s=TIMEOUT_S, **how, **known)
        self._models.append(model)
        if self.turns and optimizers:
            _take_turns(model.syncopate, [make(model, self.ranks) for make in self.turns])
        return model

    def batch(self, step: int, *shape: int) -> Tensor:
        """Return inputs that differ by rank and step."""
        return data(self.rank, step, *(shape or (4, 8)))

    def see(self, name: str, value: Any) -> None:
        """Note what the program sees now."""
        self.seen.setdefault(name, []).append(kept(value))

    def end(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """Note everything at the end of a training."""
        for name, parameter in model.named_parameters():
            self.see(f"weight {name}", parameter)
            self.see(f"gradient {name}", parameter.grad)
        for name, buffer in model.named_buffers():
            self.see(f"buffer {name}", buffer)
        for place, optimizer in enumerate(optimizers):
            self.see(f"state of optimizer {place}", optimizer.state_dict())

    def forget(self) -> None:
        """Hold no model any more; the program drops them."""
        self._models.clear()

    def close(self) -> None:
        """Give all models back."""
        for model in self._models:
            model.syncopate.detach()


def run_by(name: str, rank: int, ranks: int) -> Run:
    """Return a run by one of :data:`PLANS`, by several :data:`IN_TURNS`, or :data:`MEASURED`."""
    if name == MEASURED:
        return Run(rank, ranks, PLANS["all-reduced"], measured=True)
    if name != IN_TURNS:
        return Run(rank, ranks, PLANS[name])
    turns = [PLANS[each] for each in ("all-reduced", "native", "first buckets replicated")]
    return Run(rank, ranks, PLANS["one by one"], [*turns, PLANS["one by one"]])


def _take_turns(engine: Engine, plans: Sequence[Plan]) -> None:
    """Let each step of training end with another plan, and every third be held."""

    def next_turn(step: Step) -> None:
        turn = step.number + 1
        engine.adopt(plans[step.number % len(plans)])
        engine.readiness.held = turn % 3 == 2

    engine.readiness.listeners.append(next_turn)


def kept(value: Any) -> Any:
    """Return a copy of what a program saw, of plain tensors."""
    if isinstance(value, Tensor) and value.is_sparse:
        rows = value.detach().coalesce()
        return kept([rows.indices(), rows.values()])
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, Mapping):
        # A state's keys are parameters: their order has to do.
        names = [n if isinstance(key, Tensor) else key for n, key in enumerate(value)]
        return {name: kept(part) for name, part in zip(names, value.values(), strict=True)}
    if isinstance(value, list | tuple):
        return [kept(part) for part in value]
    return value


def net(width: int = 8) -> nn.Module:
    """Return a model of three layers."""
    return nn.Sequential(
        nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)
    )


def normalised() -> nn.Module:
    """Return a model with batch normalisation."""
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), **({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01} | options)
    )


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **({"lr": 0.01} | options))


def loss_of(outputs: Tensor) -> Tensor:
    return outputs.float().square().mean()


def begun(
    run: Run,
    model: nn.Module | None = None,
    optimize: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    **options: Any,
) -> tuple[Any, Any, torch.optim.Optimizer]:
    """Return what to call, the model and its optimizer; options as of :meth:`Run.wrap`."""
    model = net() if model is None else model
    optimizer = optimize(model)
    return run.wrap(model, optimizer, **options), model, optimizer


def stepped(
    run: Run, wrapped: Any, optimizer: torch.optim.Optimizer, steps: int | None = None
) -> Iterator[int]:
    """Yield each step when it has been taken, :data:`STEPS` of them by default."""
    for step in range(steps or STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        yield step


def train(
    run: Run, wrapped: Any, optimizer: torch.optim.Optimizer, steps: int | None = None
) -> None:
    """Take some steps, :data:`STEPS` of them by default."""
    for _ in stepped(run, wrapped, optimizer, steps):
        pass


def trained(
    run: Run,
    build: Callable[[], nn.Module] = net,
    optimize: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    steps: int | None = None,
) -> Iterator[tuple[Any, nn.Module, torch.optim.Optimizer, int]]:
    """Yield ``(wrapped, model, optimizer, step)`` when gradients are there; then take the step.

    At the end everything is noted.
    """
    wrapped, model, optimizer = begun(run, build(), optimize)
    for step in range(steps or STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        yield wrapped, model, optimizer, step
        optimizer.step()
    run.end(model, optimizer)


def differences(mine: Any, theirs: Any, rtol: float, where: str) -> Iterator[str]:
    """Yield in words where ``mine`` is not what DDP has; ``rtol`` 0: bit by bit."""
    if isinstance(theirs, Tensor):
        yield from _of_tensors(mine, theirs, rtol, where)
    elif isinstance(theirs, Mapping):
        if not isinstance(mine, Mapping) or list(mine) != list(theirs):
            yield f"{where}: keys {_keys(mine)}, by DDP {_keys(theirs)}"
            return
        for key in theirs:
            yield from differences(mine[key], theirs[key], rtol, f"{where}[{key!r}]")
    elif isinstance(theirs, list):
        if not isinstance(mine, list) or len(mine) != len(theirs):
            yield f"{where}: {mine!r}, by DDP {theirs!r}"
            return
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from differences(one, other, rtol, f"{where}[{place}]")
    elif not _same_value(mine, theirs, rtol):
        yield f"{where}: {mine!r}, by DDP {theirs!r}"


def _of_tensors(mine: Any, theirs: Tensor, rtol: float, where: str) -> Iterator[str]:
    if not isinstance(mine, Tensor) or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        yield f"{where}: {_form(mine)}, by DDP {_form(theirs)}"
    elif rtol and (theirs.is_floating_point() or theirs.is_complex()):
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        narrow = theirs.dtype in (torch.bfloat16, torch.float16)
        off = max(rtol, 1e-2 if narrow else 0.0)
        if not torch.allclose(mine.to(wide), theirs.to(wide), off, off, equal_nan=True):
            yield f"{where}: off by {_farthest(mine, theirs)}"
    elif not _same_bits(mine, theirs):
        yield f"{where}: off by {_farthest(mine, theirs)}"


def _same_value(mine: Any, theirs: Any, rtol: float) -> bool:
    if not isinstance(mine, float) or not isinstance(theirs, float):
        return bool(mine == theirs)
    if math.isnan(theirs):
        return math.isnan(mine)
    return mine == theirs or bool(rtol and math.isclose(mine, theirs, rel_tol=rtol, abs_tol=rtol))


def _same_bits(mine: Tensor, theirs: Tensor) -> bool:
    if mine.is_floating_point() or mine.is_complex():
        # A zero may have either sign where ranks add zeros; NaN is NaN.
        return torch.equal(torch.nan_to_num(mine), torch.nan_to_num(theirs)) and torch.equal(
            mine.isnan(), theirs.isnan()
        )
    return torch.equal(mine, theirs)


def _farthest(mine: Tensor, theirs: Tensor) -> str:
    off = (mine.to(torch.complex128) - theirs.to(torch.complex128)).abs()
    return f"{off.max().item():.3g}" if off.numel() else "nothing"


def _form(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _keys(value: Any) -> Any:
    return list(value) if isinstance(value, Mapping) else value


def failures_of(
    program: Program, rank: int, ranks: int, plans: Sequence[str], allowed: Mapping[str, float]
) -> list[str]:
    """Run ``program`` by DDP and by each of ``plans``; return in words what differs on this rank.

    Args:
        program: what to run.
        rank: this rank.
        ranks: how many there are.
        plans: names in :data:`PLANS`, or :data:`IN_TURNS`.
        allowed: observations that may be off by so much, and what their names begin with.
    """
    name, found = program.__name__, []
    reference = Run(rank, ranks)
    if error := _tried(program, reference):
        return [f"{name} by DDP: {error}"]
    for plan in plans:
        run = run_by(plan, rank, ranks)
        if error := _tried(program, run):
            found.append(f"{name} by plan {plan!r}: {error}")
            continue
        exact = 0.0 if ranks == 2 else 1e-5
        if list(run.seen) != list(reference.seen):
            found.append(f"{name} by plan {plan!r} saw {list(run.seen)}, {list(reference.seen)}")
            continue
        for seen, theirs in reference.seen.items():
            rtol = max([exact, *(off for what, off in allowed.items() if seen.startswith(what))])
            differs = list(differences(run.seen[seen], theirs, rtol, seen))
            found += [f"{name} by plan {plan!r}: {words}" for words in differs[:1]]
    return found[:4]


def _in_short() -> str:
    """Return what is being handled in a line or two."""
    error = sys.exc_info()[1]
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    where = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-6:]]
    return f"{type(error).__name__}: {str(error)[:300]} ({' > '.join(where)})"


def _tried(program: Program, run: Run) -> str:
    """Run it; return what it raised, in words."""
    torch.manual_seed(0)
    error = ""
    try:
        program(run)
    except BaseException:
        error = _in_short()
    try:
        run.close()
    except BaseException:
        error = error or _in_short()
    everyone: list[Any] = [None] * run.ranks
    dist.all_gather_object(everyone, error)
    others = [f"rank {rank}: {what}" for rank, what in enumerate(everyone) if what]
    return error or (f"raised elsewhere: {others[0]}" if others else "")
