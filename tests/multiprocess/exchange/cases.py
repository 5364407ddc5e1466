"""What the tests of exchanges share: one script run on spread ranks and on one process alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncopate.collectives import Handle
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.optimizers import declare_optimizer
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    identical_everywhere,
    in_parts,
    plan_of,
    replicating,
)

Build = Callable[[], nn.Module]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OWNED = ("sharded", "rooted")


@dataclass
class Run:
    """A model in training: on this rank of several, or alone in the place of all.

    Attributes:
        model: the model.
        optimizer: its optimizer.
        rank: this rank; None where the process trains alone.
        world_size: number of ranks.
        seen: numbers that must be the same either way.
    """

    model: Any
    optimizer: Any
    rank: int | None
    world_size: int
    seen: list[float] = field(default_factory=list)

    @property
    def spread(self) -> bool:
        return self.rank is not None

    def loss(self, loss_of: Callable[[Any, int], Tensor]) -> Tensor:
        """``loss_of(model, rank)``; alone the mean over all ranks."""
        if self.rank is not None:
            return loss_of(self.model, self.rank)
        losses = [loss_of(self.model, rank) for rank in range(self.world_size)]
        return torch.stack(losses).sum() / self.world_size

    def backward(self, loss_of: Callable[[Any, int], Tensor], **options: Any) -> None:
        self.loss(loss_of).backward(**options)

    def no_sync(self) -> Any:
        return self.model.no_sync() if self.spread else nullcontext()

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


Script = Callable[[Run], None]


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def batch(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A batch that differs by rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=generator).to(dtype)


class Odd(nn.Module):
    """Layers of odd sizes, one of a single element, used in another order than registered."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(7, 3)
        self.gain = nn.Parameter(torch.full((1,), 1.5))
        self.first = nn.Linear(5, 7)
        self.middle = nn.Linear(7, 7, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(torch.relu(self.middle(hidden))) * self.gain


class Fragile(torch.optim.SGD):
    """Raises amid a step when it is told to."""

    broken = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.broken:
            raise ZeroDivisionError("amid a step")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])


declare_optimizer(Fragile, "element")


def raises_alone(model: Any, optimizer: Any, failing: int, steps: int) -> None:
    """Train an :class:`Odd`; the step ``failing`` of its :class:`Fragile` raises on one rank."""
    rank = dist.get_rank()
    for num in range(steps):
        optimizer.broken = num == failing and rank == dist.get_world_size() - 1
        model(batch(rank, num, 4, 5)).square().mean().backward()
        with pytest.raises(ZeroDivisionError) if optimizer.broken else nullcontext():
            optimizer.step()
        optimizer.zero_grad()


@contextmanager
def failing_backward(module: nn.Module) -> Iterator[None]:
    """A backward through ``module`` raises in this block, and its caller is told."""

    def fails(*_: Any) -> None:
        raise ValueError("no gradient")

    hook = module.register_full_backward_hook(fails)
    with pytest.raises(ValueError, match="no gradient"):
        yield
    hook.remove()


def begin_anew(said: Iterable[str]) -> None:
    """Assert that each of ``said`` sends the user back to weights that were saved."""
    assert [each for each in said if "start again, from weights that were saved" not in each] == []


def odd_with(
    optimizer: type[torch.optim.Optimizer], world_size: int, exchange: str
) -> tuple[Any, Any]:
    """Return the same :class:`Odd` on all ranks and its optimizer, distributed."""
    torch.manual_seed(7)
    model = Odd()
    plan = plan_of(model, world_size, exchange=exchange)
    made = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    return distribute(model, made, plan=plan, timeout_s=TIMEOUT_S)


def squares(step: int) -> Callable[[Any, int], Tensor]:
    """The loss of a step of :class:`Odd`, which differs by rank."""
    return lambda model, rank: model(batch(rank, step, 4, 5)).square().mean()


def both(
    rank: int,
    world_size: int,
    script: Script,
    *,
    build: Build = Odd,
    optimizer: MakeOptimizer = sgd,
    tolerance: float = 1e-5,
    parts: int = 1,
    **plan: Any,
) -> Run:
    """Run ``script`` spread over the ranks and alone; all that is seen must be equal.

    ``plan`` says what :func:`plan_of` is told: exchange, sizes of buckets, algorithms, channels;
    and how many of the first buckets are ``replicated``, which every rank updates. What is alone in
    a bucket travels in ``parts``.

    Returns:
        The run on the ranks, still distributed.
    """
    torch.manual_seed(7)
    model = build()
    twin = copy.deepcopy(model)
    replicated = plan.pop("replicated", 0)
    made = replicating(in_parts(plan_of(model, world_size, **plan), model, parts), replicated)
    model, trainer = distribute(
        model, optimizer(model.parameters()), plan=made, timeout_s=TIMEOUT_S
    )
    run = Run(model, trainer, rank, world_size)
    state = torch.get_rng_state()
    script(run)
    torch.set_rng_state(state)
    alone = Run(twin, optimizer(twin.parameters()), None, world_size)
    script(alone)
    torch.testing.assert_close(run.seen, alone.seen, rtol=10 * tolerance, atol=10 * tolerance)
    expected = alone.weights()
    for name, value in run.weights().items():
        torch.testing.assert_close(
            value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    for name, parameter in run.model.named_parameters():
        other = dict(alone.model.named_parameters())[name]
        assert (parameter.grad is None) == (other.grad is None), name
    identical_everywhere(run.model.state_dict().values())
    return run


class Spy:
    """A communicator that notes what is launched and what is waited for.

    Args:
        communicator: does the work.
        events: where it is noted: ``("launch", collective, bytes, recipe)``, and ``("wait",
            collective, number of the launch)``.
        hold: called before each wait, with the recipe and the bytes.
    """

    def __init__(
        self,
        communicator: Any,
        events: list[tuple[Any, ...]],
        hold: Callable[[Recipe, int], None] | None = None,
    ) -> None:
        self._communicator = communicator
        self._events = events
        self._hold = hold
        self._launched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def broadcast(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        self._events.append(("launch", "broadcast", tensor.nbytes))
        return self._communicator.broadcast(tensor, *args, **kwargs)

    def broadcast_object(self, *args: Any) -> Any:
        self._events.append(("launch", "broadcast_object", 0))
        return self._communicator.broadcast_object(*args)

    def run(self, recipe: Recipe, tensor: Tensor, **options: Any) -> Any:
        number, self._launched = self._launched, self._launched + 1
        events, hold = self._events, self._hold
        events.append(("launch", recipe.collective, tensor.nbytes, recipe))
        handle = self._communicator.run(recipe, tensor, **options)

        class Noted:
            def wait(self) -> None:
                events.append(("wait", recipe.collective, number))
                if hold is not None:
                    hold(recipe, tensor.nbytes)
                Handle.wait(handle)

            def __getattr__(self, name: str) -> Any:
                return getattr(handle, name)

        return Noted()


@contextmanager
def watched(model: Any) -> Iterator[list[tuple[Any, ...]]]:
    """Note every collective of a model's exchange within the block."""
    exchange = model.syncopate.readiness.exchange
    events: list[tuple[Any, ...]] = []
    before, exchange.layout.communicator = (
        exchange.layout.communicator,
        Spy(exchange.layout.communicator, events),
    )
    try:
        yield events
    finally:
        exchange.layout.communicator = before


def launches(events: Iterable[tuple[Any, ...]]) -> list[str]:
    return [event[1] for event in events if event[0] == "launch"]
