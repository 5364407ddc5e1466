"""Programs that meddle with training, beside DDP: the same weights, or one clear sentence."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import checkpoint

from syncopate.engine.distribute import distribute
from syncopate.engine.exchange import flat_weights as base
from syncopate.errors import EngineError
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import (
    Pair,
    buffers_of_a_forward,
    data,
    mlp,
    noted,
    plan_of,
)
from tests.multiprocess.harness import Cases, run_ranks

EXCHANGES = ("allreduce", "sharded")


def pair_of(
    rank: int, exchange: str, model: Callable[[], nn.Module] = mlp, *args: Any, **options: Any
) -> Pair:
    """Return a model under DDP and under the engine, with two gradients a bucket."""

    def plan(own: nn.Module, ranks: int) -> Any:
        count = sum(1 for parameter in own.parameters() if parameter.requires_grad)
        sizes = [2] * (count // 2) + [1] * (count % 2)
        return plan_of(own, ranks, sizes, exchange=exchange)

    return Pair(rank, model, *args, plan=plan, **options)


def sides(pair: Pair) -> list[tuple[Any, torch.optim.Optimizer]]:
    """Return both models with their optimizers."""
    return [(pair.reference, pair.reference_optimizer), (pair.model, pair.optimizer)]


def trains(pair: Pair, rank: int, steps: int = 3, **options: Any) -> None:
    """Train both in the same way, and compare them after each step."""
    for step in range(steps):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        with noted(f"after step {step}"):
            pair.check(**options)


# -- hooks on gradients -------------------------------------------------------------------------


class _Twice(nn.Module):
    """Uses one layer twice, and another under re-entrant checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.first(x).relu()).relu()
        return checkpoint(self.last, hidden, use_reentrant=True)  # type: ignore[no-any-return]


def _gradient_hooks_that_come_late(rank: int, exchange: str) -> None:
    for build in (mlp, _Twice):
        pair = pair_of(rank, exchange, build)
        for model, _ in sides(pair):
            for place, parameter in enumerate(model.parameters()):

                def scale(p: Tensor, by: float = 1.5 + place + rank) -> None:
                    assert p.grad is not None
                    p.grad.mul_(by)

                def replace(p: Tensor, by: float = 0.25 * (rank + 1)) -> None:
                    assert p.grad is not None
                    p.grad = p.grad.clamp(-by, by)

                parameter.register_post_accumulate_grad_hook(replace if place % 2 else scale)
        trains(pair, rank)
        pair.close()


def _types_there_and_back(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    trains(pair, rank, 1)
    # Autograd adds to these gradients elsewhere from now on; DDP would not notice.
    for parameter in pair.model.parameters():
        parameter.data = parameter.data.double()
        parameter.data = parameter.data.float()
    trains(pair, rank, 2)
    pair.close()


# -- optimizers ---------------------------------------------------------------------------------


class _Clipping(torch.optim.SGD):
    """Clips each whole gradient in a helper of its step, which is inherited."""

    def _init_group(self, group: Any, *lists: Any) -> Any:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(parameter.grad.norm().clamp(min=0.05) * 20)
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]


def _a_helper_of_a_known_optimizer(rank: int, exchange: str) -> None:
    build = partial(_Clipping, lr=0.1, momentum=0.9)
    if exchange == "sharded":
        with pytest.raises(EngineError, match=r"known whether _Clipping may update a part"):
            pair_of(rank, exchange, mlp, build)
        return
    pair = pair_of(rank, exchange, mlp, build)
    trains(pair, rank)
    pair.close()


def _renormalising(optimizer: Any, *_: Any) -> None:
    """A hook after the step: every weight of the groups gets a norm of one at most."""
    for group in optimizer.param_groups:
        assert len(group["params"]) == group["count"]
        for parameter in group["params"]:
            parameter.data.div_(parameter.detach().norm().clamp(min=1.0))


def _clipping(optimizer: Any, *_: Any) -> None:
    """A hook before the step: clip by the norm of everything, and choose a learning rate by it."""
    for group in optimizer.param_groups:
        assert len(group["params"]) == group["count"]
        norm = nn.utils.clip_grad_norm_(group["params"], 0.3)
        group["lr"] = 0.1 / (1.0 + norm.item())


def _centralising(optimizer: Any, *_: Any) -> None:
    """A hook before the step: each gradient loses the mean of each of its columns."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.sub_(parameter.grad.mean(dim=0, keepdim=True))


def _hooks_on_the_step(rank: int, exchange: str) -> None:
    def build(parameters: Iterable[nn.Parameter], early: bool) -> torch.optim.Optimizer:
        # A bias before batch normalisation has no gradient but rounding, which eps is to outweigh.
        optimizer = torch.optim.Adam(parameters, lr=0.1, eps=1e-3)
        optimizer.param_groups[0]["count"] = len(optimizer.param_groups[0]["params"])
        if early:
            register(optimizer)
        return optimizer

    def register(optimizer: torch.optim.Optimizer) -> None:
        gone = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        optimizer.register_step_pre_hook(_centralising)
        optimizer.register_step_pre_hook(_clipping)
        optimizer.register_step_post_hook(_renormalising)
        gone.remove()

    for early in (True, False):
        pair = pair_of(rank, exchange, mlp, partial(build, early=early))
        for _, optimizer in sides(pair):
            if not early:
                register(optimizer)
        trains(pair, rank)
        pair.optimizer.load_state_dict(whole(pair))
        pair.reference_optimizer.load_state_dict(pair.reference_optimizer.state_dict())
        trains(pair, rank)
        with pair.model.syncopate.whole_state(pair.optimizer):
            twin: Any = copy.deepcopy(pair.optimizer)
        assert not twin._optimizer_step_pre_hooks
        assert not twin._optimizer_step_post_hooks
        pair.close()
        held: Any = pair.optimizer
        assert [*held._optimizer_step_pre_hooks.values()] == [_centralising, _clipping]
        assert [*held._optimizer_step_post_hooks.values()] == [_renormalising]


def _global_hooks_on_the_step(rank: int, exchange: str) -> None:
    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.param_groups[0]["count"] = len(optimizer.param_groups[0]["params"])
        return optimizer

    pair = pair_of(rank, exchange, mlp, build)
    hooks = [
        register_optimizer_step_pre_hook(_clipping),
        register_optimizer_step_post_hook(_renormalising),
    ]
    trains(pair, rank)
    for hook in hooks:
        hook.remove()
    pair.close()


def whole(pair: Pair) -> Any:
    """Return the state of the engine's optimizer as one process has it."""
    return pair.model.syncopate.state_dict(pair.optimizer, everywhere=True)["optimizer"]


def _state_by_parameter(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange, mlp, partial(torch.optim.Adam, lr=0.05))
    trains(pair, rank, 2)
    optimizer, weight = pair.optimizer, pair.model[0].weight
    spread = exchange == "sharded"
    for ask in (
        lambda: optimizer.state[weight]["exp_avg"],
        lambda: optimizer.state.get(weight, {}),
        lambda: weight in optimizer.state,
        lambda: optimizer.state.__setitem__(weight, optimizer.state[weight]),
    ):
        refused = pytest.raises(EngineError, match=r"'0.weight' in Adam is spread.*whole_state\(")
        with refused if spread else nullcontext():
            ask()
    resets: tuple[Callable[[Any, Any], Any], ...] = (
        lambda state, parameter: state.pop(parameter),
        lambda state, parameter: state.pop(parameter, None),
        lambda state, parameter: state.__delitem__(parameter),
        lambda state, parameter: state.__setitem__(parameter, {}),
    )
    for step, reset in enumerate(resets):
        for model, optimizer in sides(pair):
            for parameter in list(model.parameters())[step:]:
                reset(optimizer.state, parameter)
        trains(pair, rank, 2)
    for step in range(3):
        for model, optimizer in sides(pair):
            inside = nullcontext()
            if model is pair.model and step:
                inside = model.syncopate.whole_state(optimizer)
            with inside:
                for entries in optimizer.state.values():
                    if "exp_avg" in entries:
                        entries["exp_avg"].mul_(0.5)
                for parameter in model.parameters() if step else ():
                    norm = optimizer.state[parameter]["exp_avg_sq"].norm()
                    optimizer.state[parameter]["exp_avg"].zero_().add_(norm)
            if step == 2:
                optimizer.state.clear()
        trains(pair, rank, 2)
    pair.close()
    assert type(pair.optimizer.state) is defaultdict
    assert set(pair.optimizer.state) == set(pair.model.parameters())


# -- threads ------------------------------------------------------------------------------------


class _Reader(threading.Thread):
    """Reads the weights of ``model`` until it is told to end; notes that it waits for them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.waits, self.over = threading.Event(), threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                for value in self._model.state_dict().values():
                    value.sum()
        except BaseException as error:
            self.failed = error


def _threads_that_read_weights(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange, partial(nn.Linear, 8, 512))
    arrived, store = base.arrived, dist.distributed_c10d._get_default_store()

    def noted_arrived(handle: Any) -> None:
        if isinstance(reader := threading.current_thread(), _Reader):
            reader.waits.set()
        arrived(handle)

    base.arrived = noted_arrived
    for step in range(4):
        reader = _Reader(pair.model)

        def train(model: Any, optimizer: Any, step: int = step, reader: Any = reader) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            if rank and model is pair.model and exchange == "sharded":
                # Rank 0's weights are on their way until a thread waits for them, and a forward.
                store.wait([f"awaited {step}"])
                time.sleep(0.3)
            optimizer.step()
            if model is not pair.model:
                return
            reader.start()
            if not rank and exchange == "sharded":
                assert reader.waits.wait(HANGS_S)
                store.set(f"awaited {step}", "")

        pair.run(train)
        # The forward comes while the thread waits for the same weights.
        x = data(rank, 100 + step, 4, 8)
        ours, theirs = pair.model(x), pair.reference(x)
        reader.over.set()
        reader.join()
        assert reader.failed is None
        torch.testing.assert_close(ours, theirs)
    base.arrived = arrived
    pair.close()


# -- the model without communication ------------------------------------------------------------


def _the_model_without_communication(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    for step in range(3):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            if rank == 0:  # alone, in training mode, and with a backward of its own
                model.module(data(rank, 50 + step, 4, 8))
                model.module(data(rank, 70 + step, 4, 8)).square().mean().backward()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        pair.check()
    alone = pair.model.module
    assert alone.training
    pair.model.eval()
    assert not alone.training
    assert alone[0] is pair.model[0]
    assert alone.syncopate is pair.model.syncopate
    x = data(0, 0, 4, 8)
    assert torch.equal(alone(x), pair.model(x))
    with pytest.raises(EngineError, match="is distributed already"):
        distribute(alone)
    wrapped = DistributedDataParallel(alone)
    with pytest.raises(EngineError, match=r"DistributedDataParallel is wrapped around a Seq"):
        wrapped(x)
    pair.close()
    assert torch.equal(alone(x), pair.model(x))


# -- what reads a model in other ways -----------------------------------------------------------


class _Scripted(nn.Module):
    """Has a TorchScript module, with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()).relu())  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        twin = _Scripted()
        twin.load_state_dict(self.state_dict())
        return twin


def _scripted_submodules(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange, _Scripted)
    trains(pair, rank)
    pair.close()


def _traces_and_transforms(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    x = data(rank, 0, 4, 8)
    for step in range(3):
        trains(pair, rank, 1)

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        # Weights are on their way where ranks own parts; each of these begins there.
        model: Any = pair.model
        model.eval()
        if step == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("error", torch.jit.TracerWarning)
                traced = torch.jit.trace(model, x)
            torch.testing.assert_close(traced(x), copy.deepcopy(model)(x))
            assert "copy_" not in str(traced.inlined_graph)
        buffers_of_a_forward(model)
        held = {name: value.detach() for name, value in model.named_parameters()}
        expected = copy.deepcopy(model)
        expected(x).sum().backward()
        if step == 1:

            def loss(weights: dict[str, Tensor], model: Any = model) -> Tensor:
                return torch.func.functional_call(model, weights, (x,)).sum()

            for weights in (held, dict(model.named_parameters())):
                for found, own in zip(
                    torch.func.grad(loss)(weights).values(), expected.parameters(), strict=True
                ):
                    torch.testing.assert_close(found, own.grad)
        if step == 2:
            result = torch.func.functional_call(model, held, (x,))
            torch.testing.assert_close(result, expected(x))
        model.train()
    trains(pair, rank, 1)
    pair.close()


def _gradients_scaled_through_data(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    for step in range(3):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            for parameter in model.parameters():
                if step == 0:
                    parameter.grad.data /= 3
                elif step == 1:
                    parameter.grad.data = parameter.grad.data / 3
                else:
                    parameter.grad.data.mul_(2).clamp_(-0.1, 0.1)
            optimizer.step()

        pair.run(train)
        pair.check()
    pair.close()


def _conversions(rank: int, exchange: str) -> None:
    pair = pair_of(rank, exchange)
    trains(pair, rank, 1)

    def convert() -> None:
        pair.model.double()
        pair.model(data(rank, 0, 4, 8).double())

    with pytest.raises(EngineError, match=r"float64 on cpu.* does not fit its bucket; call model"):
        convert()
    pair.close()
    pair.model.double()


CASES = {
    case.__name__.strip("_"): case
    for case in (
        _gradient_hooks_that_come_late,
        _types_there_and_back,
        _a_helper_of_a_known_optimizer,
        _hooks_on_the_step,
        _global_hooks_on_the_step,
        _state_by_parameter,
        _threads_that_read_weights,
        _the_model_without_communication,
        _scripted_submodules,
        _traces_and_transforms,
        _gradients_scaled_through_data,
        _conversions,
    )
}


def _every_exchange(rank: int, world_size: int, case: str) -> None:
    with Cases() as one:
        for exchange in EXCHANGES:
            with one(f"under {exchange}"):
                CASES[case](rank, exchange)


@pytest.mark.parametrize("case", CASES)
def test_a_program_trains_as_under_ddp(case: str) -> None:
    run_ranks(_every_exchange, 2, case)
