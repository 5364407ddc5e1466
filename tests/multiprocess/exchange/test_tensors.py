"""Shards by element and by tensor: several optimizers on one model train as one process does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer

from syncopate import declare_optimizer
from syncopate.artifacts.plan import SHARDED, Plan
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.update.pieces import Pieces
from syncopate.errors import EngineError, InvalidValueError
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    data,
    identical_everywhere,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks

RANKS = 3
STEPS = 15
TENSORS = 12
"""Parameters of :class:`Net`."""


class Net(nn.Module):
    """Vectors, matrices of several sizes and strides, and a table; in float64.

    Muon rounds to bfloat16 inside, which would make much of small differences in float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.layers = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 16), nn.Linear(16, 6)])
        for layer in self.layers[:2]:
            layer.weight = nn.Parameter(layer.weight.data.t().contiguous().t())
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return self.head(self.norm(hidden)) * self.scale


class Lamb(Optimizer):
    """LAMB (You et al. 2020): each tensor's step is as long as the tensor's own norm says."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                state["first"].lerp_(parameter.grad, 0.1)
                state["second"].lerp_(parameter.grad**2, 0.01)
                update = state["first"] / (state["second"].sqrt() + 1e-6)
                ratio = parameter.norm() / update.norm() if update.norm() > 0 else 1.0
                parameter.sub_(group["lr"] * ratio * update)


class Unknown(Optimizer):
    """It does not say what it looks at."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: None = None) -> None:
        raise AssertionError("it is refused before")


def matrices(model: Net) -> list[nn.Parameter]:
    return [layer.weight for layer in model.layers]


def others(model: Net, *taken: nn.Parameter) -> list[nn.Parameter]:
    left = {id(parameter) for parameter in (*matrices(model), *taken)}
    return [parameter for parameter in model.parameters() if id(parameter) not in left]


def muon_adamw(model: Net) -> list[Optimizer]:
    return [
        Muon(matrices(model), lr=0.02, weight_decay=0.01),
        AdamW(others(model), lr=0.01),
    ]


def sgd_adamw(model: Net) -> list[Optimizer]:
    return [SGD(matrices(model), lr=0.02), AdamW(others(model), lr=0.01)]


def three(model: Net) -> tuple[Optimizer, ...]:
    tables = [model.table.weight, model.head.weight, model.head.bias]
    return (
        AdamW(others(model, *tables), lr=0.01),
        Adafactor(tables, lr=0.05),
        Muon(matrices(model), lr=0.02),
    )


def one(kind: type[Optimizer], **options: Any) -> Callable[[Net], Optimizer]:
    return lambda model: kind(model.parameters(), **options)


def exchange_plan(model: nn.Module, sizes: Sequence[int] = (4, 1, 5, 2), **options: Any) -> Plan:
    return plan_of(
        model,
        RANKS,
        sizes,
        **{"exchange": SHARDED, "algorithm": "ring", "channels": 2, **options},
    )


def optimizers_of(given: Any) -> Sequence[Optimizer]:
    return [given] if isinstance(given, Optimizer) else given


class Twins:
    """A model that all ranks train, and beside it one that this rank trains on all ranks' data.

    Args:
        rank: this rank.
        build: returns the optimizer or optimizers of a model.
        plan: returns the plan of a model.
        turns: returns which optimizers step in which step; all in their order by default.
    """

    def __init__(
        self,
        rank: int,
        build: Callable[[Net], Any],
        plan: Callable[[nn.Module], Plan] = exchange_plan,
        turns: Callable[[int, Sequence[Optimizer]], Iterable[Optimizer]] = lambda _, all: all,
    ) -> None:
        torch.manual_seed(5)
        self.alone = Net()
        self.model = copy.deepcopy(self.alone)
        self.alone_optimizers = optimizers_of(build(self.alone))
        given = build(self.model)
        _, same = distribute(self.model, given, plan=plan(self.model), timeout_s=TIMEOUT_S)
        assert same is given
        self.optimizers = optimizers_of(given)
        self._rank, self._turns, self._steps = rank, turns, 0

    def train(self, steps: int) -> None:
        for step in range(self._steps, self._steps + steps):
            batches = [data(rank, step, 9).mul(10).long() % 7 for rank in range(RANKS)]
            everything = torch.cat(batches)
            _loss(self.alone, everything).backward()
            _loss(self.model, batches[self._rank]).backward()
            for optimizers in (self.alone_optimizers, self.optimizers):
                for optimizer in self._turns(step, optimizers):
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
        self._steps += steps

    def distance(self) -> float:
        """The largest difference of a weight from the one process's."""
        identical_everywhere(self.model.parameters())
        pairs = zip(self.model.parameters(), self.alone.parameters(), strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    @property
    def exchange(self) -> Exchange:
        found = self.model.syncopate.readiness.exchange  # type: ignore[union-attr]
        assert isinstance(found, Exchange)
        return found

    def close(self) -> None:
        self.model.syncopate.detach()  # type: ignore[union-attr,operator]


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens), (tokens * 2 + 1) % 5)


def state_bytes(optimizers: Sequence[Optimizer]) -> int:
    """Bytes of all tensors of state but the counters of steps."""
    return sum(
        value.nbytes
        for optimizer in optimizers
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, Tensor) and key != "step"
    )


def everywhere(value: Any) -> list[Any]:
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, value)
    return found


def trains_as_one_process(rank: int) -> None:
    declare_optimizer(Lamb, "tensor")
    builds: list[tuple[Callable[[Net], Any], dict[str, Any]]] = [
        (muon_adamw, {}),
        (muon_adamw, {"algorithm": "native", "sizes": (1,) * TENSORS, "channels": 1}),
        (muon_adamw, {"exchange": "rooted", "algorithm": "native"}),
        (three, {}),
        (three, {"sizes": (TENSORS,), "channels": 1}),
        (one(Adafactor, lr=0.05), {"sizes": (TENSORS,), "channels": 1}),
        (one(Lamb), {}),
        (one(AdamW, lr=0.01), {}),
    ]
    for build, options in builds:
        twins = Twins(rank, build, lambda model, options=options: exchange_plan(model, **options))
        twins.train(STEPS)
        assert twins.distance() < 1e-9, (build, options)
        if "exchange" not in options:
            state_is_spread(twins)
        twins.close()


def state_is_spread(twins: Twins) -> None:
    """A p-th of the state on every rank, within what the largest whole tensor allows.

    What may be cut makes up for whole tensors: who owns any of it owns as much as the others.
    """
    whole_bytes = state_bytes(twins.alone_optimizers)
    per_rank = everywhere(state_bytes(twins.optimizers))
    assert sum(per_rank) == whole_bytes
    owned = [piece for pieces in twins.exchange.layout.shared(Pieces).of for piece in pieces]
    weights = everywhere(sum(piece.parameter.nbytes for piece in owned))
    kinds = [trained.kind for trained in twins.exchange.layout.trained]
    cut = everywhere(any(kinds[piece.trainable.index] == "element" for piece in owned))
    total_bytes = sum(parameter.nbytes for parameter in twins.model.parameters())
    assert sum(weights) == total_bytes
    parameters = zip(twins.model.parameters(), kinds, strict=True)
    kept_whole = [parameter.nbytes for parameter, kind in parameters if kind == "tensor"]
    rounded = 8 * sum(len(bucket.parts) for bucket in twins.exchange.buckets)
    slack = max(kept_whole, default=0) + rounded
    level = min(weights)
    for rank in range(RANKS):
        assert abs(weights[rank] - total_bytes / RANKS) <= slack
        assert abs(per_rank[rank] - whole_bytes / RANKS) <= 2 * slack
        assert not cut[rank] or weights[rank] <= level + 2 * rounded


def the_declaration_matters(rank: int) -> None:
    """Cut into shards, LAMB takes the norms of shards for those of tensors."""
    declare_optimizer(Lamb, "element")
    try:
        twins = Twins(rank, one(Lamb))
        twins.train(3)
        assert twins.distance() > 1e-4
        twins.close()
    finally:
        declare_optimizer(Lamb, "tensor")


def optimizers_need_not_step_together(rank: int) -> None:
    """AdamW takes every second step, and changes places with Muon in every third."""

    def turns(step: int, optimizers: Sequence[Optimizer]) -> Iterable[Optimizer]:
        chosen = optimizers[:1] if step % 2 else optimizers
        return reversed(chosen) if step % 3 == 0 else chosen

    twins = Twins(rank, muon_adamw, turns=turns)
    for _ in range(8):
        twins.train(1)
        assert twins.distance() < 1e-9
    twins.close()


def a_scaler_leaves_out_one_optimizer(rank: int) -> None:
    """An infinity in one element of one rank's gradient: Muon skips on all ranks, AdamW does not.

    Clipping takes the norm over what is cut and what is whole.
    """
    twins = Twins(rank, muon_adamw)
    twins.train(1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3) for _ in range(2)]
    for step in range(1, 5):
        batches = [data(other, step, 9).mul(10).long() % 7 for other in range(RANKS)]
        whole = (twins.alone, torch.cat(batches), twins.alone_optimizers, scalers[0])
        spread = (twins.model, batches[rank], twins.optimizers, scalers[1])
        for model, tokens, optimizers, scaler in (whole, spread):
            hole = torch.zeros(16, 10, dtype=torch.float64)
            if step == 2 and (model is twins.alone or rank == 1):
                hole[7, 3] = torch.inf
            hook = model.layers[1].weight.register_hook(hole.__add__)
            scaler.scale(_loss(model, tokens)).backward()
            hook.remove()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            if step != 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        assert twins.distance() < 1e-9, step
    assert scalers[0].get_scale() == 4.0
    twins.close()


def a_group_may_come_later(rank: int) -> None:
    """By element at any time; by tensor the plan is to be installed again, which keeps state."""

    def build(model: Net) -> list[Optimizer]:
        return [Muon(matrices(model)[:2], lr=0.02), AdamW(others(model), lr=0.01)]

    twins = Twins(rank, build)
    twins.train(3)
    twins.alone.zero_grad()  # of the parameters, too, that nobody has trained so far
    for model, (muon, _) in (
        (twins.alone, twins.alone_optimizers),
        (twins.model, twins.optimizers),
    ):
        muon.add_param_group({"params": matrices(model)[2:], "lr": 0.01})
    tokens = torch.arange(7)
    _loss(twins.model, tokens).backward()
    with pytest.raises(EngineError, match=r"'layers\.2\.weight' was given to Muon.*install\("):
        twins.optimizers[0].step()
    twins.model.zero_grad()
    twins.model.syncopate.install(twins.model.syncopate.plan)  # type: ignore[union-attr,operator]
    twins.train(4)
    assert twins.distance() < 1e-9
    for _, adamw in (twins.alone_optimizers, twins.optimizers):
        held = adamw.param_groups[0]["params"]
        adamw.param_groups[0]["params"] = held[:-1]
        adamw.add_param_group({"params": held[-1:], "lr": 0.5})
    twins.train(4)
    assert twins.distance() < 1e-9
    twins.close()


def a_step_pulls_what_it_updated(rank: int) -> None:
    """Every weight once, in forward's order, without waiting for the pulls of the step before."""
    _pulled_by_steps(rank, muon_adamw)
    _pulled_by_steps(rank, sgd_adamw)


def _pulled_by_steps(rank: int, build: Callable[[Net], Sequence[Optimizer]]) -> None:
    twins = Twins(rank, build)
    twins.train(1)
    twins.exchange.pull.ready()
    events: list[tuple[str, Any]] = []
    run = twins.exchange.layout.communicator.run

    class Logged:
        def __init__(self, handle: Any, what: Any) -> None:
            self._handle, self._what = handle, what

        def wait(self) -> None:
            events.append(("wait", self._what))
            self._handle.wait()

    def logged(recipe: Any, tensor: Tensor, **options: Any) -> Any:
        handle = run(recipe, tensor, **options)
        if recipe.collective != "all_gather":
            return handle
        assert options["async_op"]
        events.append(("pull", tensor.data_ptr()))
        return Logged(handle, tensor.data_ptr())

    twins.exchange.layout.communicator.run = logged  # type: ignore[method-assign]
    tokens = torch.arange(7)
    _loss(twins.model, tokens).backward()
    buffers = {id(part): bucket for bucket in twins.exchange.buckets for part in bucket.parts}
    names = {}
    for bucket in twins.exchange.buckets:
        for part in bucket.parts:
            weights = twins.exchange.layout.shared(FlatWeights).of(part)
            names[weights.data_ptr()] = {t.name for t in part.trainables}
    trained = [{"layers.0.weight", "layers.1.weight", "layers.2.weight"}]
    trained.append({name for name, _ in twins.model.named_parameters()} - trained[0])
    for optimizer, expected in zip(twins.optimizers, trained, strict=True):
        optimizer.step()
        assert {kind for kind, _ in events} == {"pull"}
        pulled = [names[pointer] for _, pointer in events]
        assert sorted(name for held in pulled for name in held) == sorted(expected)
        order = [
            buffers[id(one.part)].index for one in twins.exchange.traffic.pulls[-len(pulled) :]
        ]
        assert order == sorted(order, reverse=True)
        events.clear()
    assert len(twins.exchange.traffic.pulls) == len(buffers)
    with torch.no_grad():
        twins.model(tokens)
    assert sorted(pointer for _, pointer in events) == sorted(names)
    assert {kind for kind, _ in events} == {"wait"}
    twins.exchange.layout.communicator.run = run  # type: ignore[method-assign]
    twins.close()


def a_record_has_all_steps_of_an_iteration(rank: int) -> None:
    twins = Twins(rank, muon_adamw)
    twins.train(2)
    engine: Any = twins.model.syncopate
    engine.record()
    twins.train(3)
    engine.record(False)
    spans = [span for span in engine.timeline().spans if span.rank == rank] if rank == 0 else []
    if rank:
        engine.timeline()
    buffers = sum(len(bucket.parts) for bucket in twins.exchange.buckets)
    for iteration in range(3 if rank == 0 else 0):
        lanes = [span.lane for span in spans if span.iteration == iteration]
        assert lanes.count("pull") == lanes.count("push") == buffers
        assert lanes.count("update") == 1
    twins.close()


def what_nobody_knows_is_refused(rank: int) -> None:
    torch.manual_seed(5)
    model = Net()
    plan = exchange_plan(model)
    known = AdamW(others(model), lr=0.01)
    for given in (Unknown(model.parameters()), [known, Unknown(matrices(model))]):
        with pytest.raises(EngineError, match=r"declare_optimizer\(Unknown, 'element'\).*tensor"):
            distribute(model, given, plan=plan, timeout_s=TIMEOUT_S)
    with pytest.raises(InvalidValueError, match="Optimizer"):
        distribute(model, [known, model], plan=plan, timeout_s=TIMEOUT_S)  # type: ignore[list-item]
    # With all-reduces it does not matter what an optimizer looks at.
    plain = replace(plan_of(model, RANKS, [TENSORS]))
    distribute(model, Unknown(model.parameters()), plan=plain, timeout_s=TIMEOUT_S)
    model.syncopate.detach()  # type: ignore[union-attr,operator]


def ranks_that_declare_differently_are_refused(rank: int) -> None:
    class Declared(Unknown):
        def step(self, closure: None = None) -> None:
            raise AssertionError("it is refused before")

    model = Net()
    plan, optimizer = exchange_plan(model), Declared(model.parameters())
    if rank == 1:
        declare_optimizer(Declared, "tensor")
    expected = "rank 0 refuses: it is not known" if rank == 1 else "it is not known"
    with pytest.raises(EngineError, match=expected):
        distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
    if rank != 1:
        declare_optimizer(Declared, "element")
    with pytest.raises(EngineError, match=r"rank 1 differs.*the shards of optimizer 0, a Declared"):
        distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)


def _cases(rank: int, world_size: int) -> None:
    torch.set_default_dtype(torch.float32)
    cases = (
        trains_as_one_process,
        the_declaration_matters,
        optimizers_need_not_step_together,
        a_scaler_leaves_out_one_optimizer,
        a_group_may_come_later,
        a_step_pulls_what_it_updated,
        a_record_has_all_steps_of_an_iteration,
        what_nobody_knows_is_refused,
        ranks_that_declare_differently_are_refused,
    )
    run_cases(cases, rank)


def test_shards_follow_what_the_optimizers_look_at() -> None:
    run_ranks(_cases, RANKS)
