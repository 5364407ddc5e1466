"""When buckets are launched: told by the recorded order of events and by injected delays."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn

from syncopate.collectives import Communicator, Handle
from syncopate.engine.distribute import distribute
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import TIMEOUT_S, Pair, data, plan_of
from tests.multiprocess.harness import run_ranks


class _Spy:
    """A communicator that notes launches and waits, and may hold a collective back."""

    def __init__(self, communicator: Communicator, events: list[str]) -> None:
        self._communicator = communicator
        self._events = events
        self.hold: threading.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def run(self, recipe: Recipe, tensor: torch.Tensor, **told: Any) -> Any:
        number = sum(event.startswith("launch") for event in self._events)
        self._events.append(f"launch {number}")
        events, hold = self._events, self.hold
        handle = self._communicator.run(recipe, tensor, **told)

        class Noted:
            def wait(self) -> None:
                events.append(f"wait {number}")
                if hold is not None:
                    assert hold.wait(TIMEOUT_S)
                Handle.wait(handle)

            def __getattr__(self, name: str) -> Any:
                return getattr(handle, name)

        return Noted()


def _chain() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(5)))


def _order(rank: int, world_size: int) -> dict[str, list[str]]:
    """Return the order of events under several plans; layer 4 is ready first."""
    orders = {}
    for name, sizes in (("wfbp", [1] * 5), ("merged", [2, 1, 2]), ("single", [5])):
        model = _chain()
        events: list[str] = []
        # Registered before the engine's, so a gradient is noted before what it sets off.
        for index, layer in enumerate(model):
            layer.weight.register_post_accumulate_grad_hook(
                lambda _, index=index, events=events: events.append(f"ready {index}")
            )
        model, optimizer = distribute(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            plan=plan_of(model, world_size, sizes),
            timeout_s=TIMEOUT_S,
        )
        optimizer.register_step_pre_hook(lambda *_, events=events: events.append("step"))
        model.syncopate.readiness.exchange.layout.communicator = _Spy(
            model.syncopate.communicator, events
        )
        model(data(rank, 0, 2, 6)).sum().backward()
        optimizer.step()
        orders[name] = events
        model.syncopate.detach()
    return orders


def _out_of_order(rank: int, world_size: int) -> list[str]:
    """Bucket 0 is ready last: the others wait for their turn, on every rank alike."""
    model = _chain()
    plan = plan_of(model, world_size, [1, 2, 2])
    reverse = type(plan)(
        model=plan.model,
        fingerprint=plan.fingerprint,
        world_size=world_size,
        policy="reverse",
        buckets=tuple(reversed(plan.buckets)),
    )
    events: list[str] = []
    model, _ = distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan=reverse, timeout_s=TIMEOUT_S
    )
    for index, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, index=index: events.append(f"ready {index}")
        )
    model.syncopate.readiness.exchange.layout.communicator = _Spy(
        model.syncopate.communicator, events
    )
    model(data(rank, 0, 2, 6)).sum().backward()
    model.syncopate.detach()
    return events


def _overlap(rank: int, world_size: int) -> bool:
    """Hold the first collective until the last gradient is ready: backward must not wait."""
    pair = Pair(rank, _chain, sizes=[1] * 5)
    engine = pair.model.syncopate
    spy = _Spy(engine.communicator, [])
    spy.hold = threading.Event()
    engine.readiness.exchange.layout.communicator = spy
    pair.model[0].weight.register_post_accumulate_grad_hook(lambda _: spy.hold.set())

    def train(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(data(rank, 0, 2, 6)).square().mean().backward()
        optimizer.step()

    pair.run(train)
    pair.check()
    pair.close()
    return spy.hold.is_set()


def _late_rank(rank: int, world_size: int) -> int:
    """A rank that is slow in forward or backward delays the others and changes no result."""
    pair = Pair(rank, _chain, sizes=[2, 3])
    for step in range(4):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad()
            output = model(data(rank, step, 2, 6))
            output.register_hook(lambda _: time.sleep(0.05 * ((rank + step) % 3)))
            output.square().mean().backward()
            optimizer.step()

        pair.run(train)
        pair.check()
    pair.close()
    return rank


def _all(rank: int, world_size: int) -> Any:
    return (
        _order(rank, world_size),
        _out_of_order(rank, world_size),
        _overlap(rank, world_size),
        _late_rank(rank, world_size),
    )


def test_launch_order_and_overlap() -> None:
    results = run_ranks(_all, 2)
    for orders, reverse, overlapped, _ in results:
        assert orders["wfbp"] == [
            *(f"{what} {i}" for k in range(5) for what, i in (("ready", 4 - k), ("launch", k))),
            *(f"wait {k}" for k in range(5)),
            "step",
        ]
        assert orders["merged"] == [
            *("ready 4", "ready 3", "launch 0", "ready 2", "launch 1", "ready 1", "ready 0"),
            *("launch 2", "wait 0", "wait 1", "wait 2", "step"),
        ]
        assert orders["single"] == [
            *(f"ready {i}" for i in (4, 3, 2, 1, 0)),
            "launch 0",
            "wait 0",
            "step",
        ]
        launches = [event for event in reverse if not event.startswith("wait")]
        # The last plan bucket, ready first, is launched last; ready hooks run after the engine's.
        assert launches.index("launch 0") > launches.index("ready 2")
        assert [e for e in launches if e.startswith("launch")] == [f"launch {k}" for k in range(3)]
        assert overlapped
