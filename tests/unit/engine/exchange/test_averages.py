"""Averages on their way: what waits for them, and what is done without a look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from syncopate.engine.exchange.proxies import weights
from syncopate.engine.exchange.proxies.averages import AwaitedAverage

VALUES = torch.tensor([3.0, -4.0])


class _Flights:
    """Brings one average when it is waited for."""

    def __init__(self, known: bool = True) -> None:
        self.memory = torch.zeros(2)
        self.gradient: Any = self.memory.view(2)
        self.flights = self  # it is its own waiter
        self.known = known
        self.waits = self.heeded = 0
        self._actions: list[Callable[[], object]] = []
        weights.expect([self.gradient], self, AwaitedAverage)

    def wait(self) -> None:
        self.waits += 1
        self.memory.copy_(VALUES)
        for action in self._actions:
            action()
        weights.release([self.gradient])

    def index_of(self, gradient: Tensor) -> int | None:
        return 0 if gradient is self.gradient else None

    def memory_of(self, index: int) -> Tensor:
        return self.memory

    def later(self, index: int, action: Callable[[], object]) -> None:
        self._actions.append(action)

    def square_of(self, index: int) -> Tensor | None:
        return VALUES.square().sum() if self.known and not self._actions else None

    def heed(self) -> None:
        self.heeded += 1


LATER: dict[str, tuple[Callable[[Any], object], Tensor]] = {
    "mul_": (lambda g: g.mul_(2), 2 * VALUES),
    "mul_ by a tensor": (lambda g: g.mul_(torch.tensor(2.0)), 2 * VALUES),
    "div_": (lambda g: g.div_(2), VALUES / 2),
    "*=": (lambda g: g.__imul__(2), 2 * VALUES),
    "zero_": (lambda g: g.zero_(), 0 * VALUES),
    "foreach mul": (lambda g: torch._foreach_mul_([g], 2.0), 2 * VALUES),
    "foreach mul by many": (lambda g: torch._foreach_mul_([g], [2.0]), 2 * VALUES),
    "foreach zero": (lambda g: torch._foreach_zero_([g]), 0 * VALUES),
    "detach_": (lambda g: g.detach_(), VALUES),
}


@pytest.mark.parametrize("what", LATER)
def test_what_loops_do_in_every_step_is_done_when_the_average_comes(what: str) -> None:
    change, expected = LATER[what]
    flights = _Flights()
    change(flights.gradient)
    if what != "*=":
        assert flights.waits == 0
    assert torch.equal(flights.gradient, expected)
    assert flights.waits == 1
    assert type(flights.gradient) is Tensor


def test_what_it_is_scaled_by_is_taken_at_once() -> None:
    flights = _Flights()
    by = torch.tensor(2.0)
    flights.gradient.mul_(by)
    by.fill_(100.0)
    assert torch.equal(flights.gradient, 2 * VALUES)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.add_(1),
        lambda g: g.mul_(torch.tensor([1.0, 2.0])),
        lambda g: g.copy_(torch.ones(2)),
        lambda g: g.clamp_(-1, 1),
        lambda g: torch._foreach_add_([g], 1.0),
    ],
)
def test_other_changes_wait_and_do_what_they_do(change: Callable[[Tensor], object]) -> None:
    flights, plain = _Flights(), VALUES.clone()
    change(flights.gradient)
    change(plain)
    assert (flights.waits, flights.heeded) == (1, 1)
    assert torch.equal(flights.gradient, plain)


@pytest.mark.parametrize(
    "look",
    [
        lambda g: g.sum().item(),
        lambda g: g.tolist(),
        lambda g: g.norm(1).item(),
        lambda g: torch.linalg.vector_norm(g, float("inf")).item(),
        lambda g: (g + 1).tolist(),
        lambda g: g.clone().tolist(),
        lambda g: g.numpy().tolist(),
        lambda g: torch.isfinite(g).all().item(),
        str,
    ],
)
def test_a_look_waits(look: Callable[[Tensor], object]) -> None:
    flights = _Flights()
    assert look(flights.gradient) == look(VALUES.clone())
    assert flights.waits == 1


@pytest.mark.parametrize(
    "ask", [lambda g: g.shape, lambda g: g.dtype, lambda g: g.device, len, lambda g: g.is_sparse]
)
def test_what_needs_no_values_does_not_wait(ask: Callable[[Tensor], object]) -> None:
    flights = _Flights()
    assert ask(flights.gradient) == ask(VALUES)
    assert (flights.waits, flights.heeded) == (0, 0)


@pytest.mark.parametrize(
    "norm",
    [
        lambda g: g.norm(),
        torch.linalg.vector_norm,
        lambda g: torch.norm(g, 2.0),
        lambda g: torch._foreach_norm([g])[0],
        lambda g: torch._foreach_norm([g], ord=2.0)[0],
    ],
)
def test_a_2_norm_is_known_before_the_average(norm: Callable[[Tensor], Tensor]) -> None:
    flights = _Flights()
    assert norm(flights.gradient).item() == 5.0
    assert flights.waits == 0


def test_a_2_norm_that_is_not_known_is_looked_at() -> None:
    flights = _Flights(known=False)
    assert flights.gradient.norm().item() == 5.0
    assert flights.waits == 1


def test_a_2_norm_of_what_is_scaled_first_is_looked_at() -> None:
    flights = _Flights()
    flights.gradient.mul_(2)
    assert flights.gradient.norm().item() == 10.0


def test_clipping_does_not_wait() -> None:
    flights = _Flights()
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = flights.gradient
    norm = clip_grad_norm_([parameter], 1.0)
    assert norm.item() == 5.0
    assert flights.waits == 0
    torch.testing.assert_close(parameter.grad, VALUES / 5.0)


@pytest.mark.parametrize("known", [True, False])
def test_unscaling(known: bool) -> None:
    flights = _Flights(known)
    found = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_([flights.gradient], found, torch.tensor(0.5))
    assert flights.waits == (not known)
    assert torch.equal(flights.gradient, VALUES / 2)
    assert found.item() == 0.0
