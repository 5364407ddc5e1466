"""When gradients leave, weights come back and layers wait: told by order, counts and held waits."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import DECOUPLED, EXCHANGES, Bucket, Plan, pulled_in
from syncopate.engine.distribute import distribute
from syncopate.planning import make_plan
from syncopate.profiling.profile import profile
from syncopate.recipe import Recipe
from syncopate.zoo.task import Task
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import OWNED, Spy, batch, sgd
from tests.multiprocess.harness import run_ranks

LAYERS = 5
HALVED = (*OWNED, DECOUPLED)
"""The exchanges that push and pull."""
Events = list[tuple[Any, ...]]

SHAPES: tuple[tuple[list[int], tuple[int, ...]], ...] = (
    ([1] * LAYERS, ()),
    ([1] * LAYERS, (2, 4, 0, 1, 3)),
    ([2, 1, 2], ()),
    ([LAYERS], ()),
)
"""Gradients of each bucket, and the order in which these are pulled."""


def chain() -> nn.Sequential:
    """Layers of different sizes, so that bytes tell them apart."""
    widths = [6, 5, 7, 4, 8, 3]
    return nn.Sequential(*(nn.Linear(widths[i], widths[i + 1], bias=False) for i in range(LAYERS)))


def watched_chain(plan: Plan, events: Events, hold: Any = None) -> tuple[Any, Any]:
    """Return a distributed chain that notes its gradients, its layers and its collectives."""
    torch.manual_seed(3)
    model: Any = chain()
    for index, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, index=index: events.append(("ready", index))
        )
        layer.register_forward_hook(lambda *_, index=index: events.append(("computed", index)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: events.append(("step",)))
    model, optimizer = distribute(model, optimizer, plan=plan, timeout_s=TIMEOUT_S)
    exchange = model.syncopate.readiness.exchange
    exchange.layout.communicator = Spy(exchange.layout.communicator, events, hold)
    return model, optimizer


def order(rank: int, world_size: int) -> dict[str, list[Events]]:
    """Return the events of three iterations, of every exchange and several plans."""
    found: dict[str, list[Events]] = {}
    for exchange in HALVED:
        for sizes, pull_order in SHAPES:
            events: Events = []
            plan = plan_of(chain(), world_size, sizes, exchange=exchange, channels=2)
            plan = replace(plan, pull_order=pull_order)
            model, optimizer = watched_chain(plan, events)
            rounds = []
            for step in range(3):
                model(batch(rank, step, 3, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                rounds.append(list(events))
                events.clear()
            with torch.no_grad():
                model.eval()(batch(rank, 9, 3, 6))
            rounds.append(list(events))
            check(plan, rounds)
            found[f"{exchange} {sizes} {pull_order}"] = rounds
            identical_everywhere(model.parameters())
            model.syncopate.detach()
    return found


def in_pull_order(plan: Plan) -> list[Bucket]:
    return [plan.buckets[index] for index in pulled_in(plan.pull_order, len(plan.buckets))]


def check(plan: Plan, rounds: list[Events]) -> None:
    """Compare what happened with what the plan says."""
    kind = EXCHANGES[plan.exchange]
    averages = kind.pulls_gradients
    for events in rounds[:3]:
        launched = [event[1:] for event in events if event[0] == "launch"]
        pushes = [(kind.push, b.nbytes, b.push) for b in plan.buckets]
        pulls = [(kind.pull, b.nbytes, b.pull) for b in in_pull_order(plan)]
        # Between them goes what the ranks say along with their gradients, in one small message.
        assert [*launched[: len(pushes)], *launched[len(pushes) + 1 :]] == [*pushes, *pulls]
        note = launched[len(pushes)]
        assert note[0] == "all_reduce"
        assert note[1] == 4 * (LAYERS + 2 * plan.world_size + 1 + averages * LAYERS)
        require_pushed_when_ready(plan, events)
        stepped = events.index(("step",))
        waits = [place for place, event in enumerate(events) if event[:2] == ("wait", kind.push)]
        assert len(waits) == len(plan.buckets)
        # No average is needed before the step.
        assert min(waits) > max(p for p, e in enumerate(events) if e[0] == "ready")
        pulled = [p for p, e in enumerate(events) if e[:2] == ("launch", kind.pull)]
        if averages:  # nothing that a script does behind its backward is a collective
            assert max(pulled) < stepped
        else:
            assert min(pulled) > max(waits)
            assert min(pulled) > stepped
    # An optimizer's first step waits for all averages.
    for events in rounds[2 if averages else 1 :]:
        require_awaited_layer_by_layer(plan, events)


def require_pushed_when_ready(plan: Plan, events: Events) -> None:
    """Every bucket leaves at once when its last gradient is there, while backward goes on."""
    names = [f"{index}.weight" for index in range(LAYERS)]
    place = 0
    launched = [p for p, e in enumerate(events) if e[0] == "launch"]
    for bucket, at in zip(plan.buckets, launched, strict=False):
        place = max(events.index(("ready", names.index(name))) for name in bucket.tensors)
        assert at == place + 1, events


def require_awaited_layer_by_layer(plan: Plan, events: Events) -> None:
    """The weights of a bucket are waited for by the first layer that computes with them."""
    kind = EXCHANGES[plan.exchange]
    first: list[int] = []
    for bucket in plan.buckets:
        first.append(min(int(name.split(".")[0]) for name in bucket.tensors))
    expected = []
    for index in range(LAYERS):
        if index in first:
            expected.append("wait")
        expected.append(f"computed {index}")
    forward = [e for e in events if e[0] == "computed" or e[:2] == ("wait", kind.pull)]
    told = ["wait" if e[0] == "wait" else f"computed {e[1]}" for e in forward]
    assert told[: len(expected)] == expected, told


def held(rank: int, world_size: int, exchange: str) -> None:
    """Waits that end only after what must not wait for them: a wait too early would never end.

    The first gradients arrive only when the last are ready; the second layer's weights come only
    when the first layer has computed.
    """
    kind = EXCHANGES[exchange]
    last_ready, first_computed = threading.Event(), threading.Event()
    model_bytes = [layer.weight.nbytes for layer in chain()]
    reached: list[str] = []

    def hold(recipe: Recipe, nbytes: int) -> None:
        if recipe.collective == kind.push:
            reached.append("push")
            assert last_ready.wait(HANGS_S), "backward waited for gradients"
        elif recipe.collective == kind.pull and nbytes != model_bytes[0]:
            reached.append("pull")
            assert first_computed.wait(HANGS_S), "the first layer waited for the second's weights"

    plan = plan_of(chain(), world_size, exchange=exchange)
    model, optimizer = watched_chain(plan, [], hold)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: last_ready.set())
    model[0].register_forward_hook(lambda *_: first_computed.set())
    for step in range(3):
        last_ready.clear()
        first_computed.clear()
        model(batch(rank, step, 3, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert reached.count("push") == 3 * LAYERS
    assert reached.count("pull") == 2 * (LAYERS - 1)
    first_computed.set()
    identical_everywhere(model.parameters())
    model.syncopate.detach()


def out_of_order(rank: int, world_size: int) -> None:
    """A plan whose first bucket is ready last: the others wait for their turn, on every rank."""
    for exchange in HALVED:
        plan = plan_of(chain(), world_size, [1, 2, 2], exchange=exchange)
        plan = replace(plan, buckets=tuple(reversed(plan.buckets)))
        events: Events = []
        model, optimizer = watched_chain(plan, events)
        for step in range(2):
            model(batch(rank, step, 3, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        launched = [e[2] for e in events if e[0] == "launch" and e[1] == EXCHANGES[exchange].push]
        assert launched == [bucket.nbytes for bucket in plan.buckets] * 2
        first = next(p for p, e in enumerate(events) if e[0] == "launch")
        assert first == events.index(("ready", 0)) + 1
        identical_everywhere(model.parameters())
        model.syncopate.detach()


class Distilled(nn.Module):
    """Layers registered in the reverse of their order; the last looks ahead before the others."""

    def __init__(self) -> None:
        super().__init__()
        widths = [6, 5, 7, 4, 8, 3]
        self.layers = nn.ModuleList(
            nn.Linear(widths[i], widths[i + 1], bias=False) for i in reversed(range(LAYERS))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layers[0](inputs.new_ones(1, 8))
        for layer in reversed(self.layers):
            inputs = layer(inputs)
        return inputs - target


def profiled(rank: int, world_size: int) -> None:
    """From the profile to the wire: what forward uses first is pulled first."""
    torch.manual_seed(3)
    model: Any = Distilled()
    task = Task(model, batch(rank, 0, 3, 6), name="distilled")
    workload = profile(task, warmup=1, iterations=1)
    assert workload.forward_order
    cluster = Cluster.preset("1gbe", world_size)
    used = ["layers.0.weight", *(f"layers.{index}.weight" for index in (4, 3, 2, 1))]
    for exchange in HALVED:
        plan = make_plan(workload, cluster, "wfbp", exchange=exchange)
        assert plan.pull_order == (0, 4, 3, 2, 1)
        assert [bucket.tensors for bucket in in_pull_order(plan)] == [(name,) for name in used]
        pulled = pulls_of_two_steps(copy.deepcopy(model), plan, rank)
        assert pulled == [bucket.nbytes for bucket in in_pull_order(plan)] * 2


def pulls_of_two_steps(model: Any, plan: Plan, rank: int) -> list[int]:
    """Return the bytes of every pull of two steps of training, as they were launched."""
    events: Events = []
    model, optimizer = distribute(model, sgd(model.parameters()), plan=plan, timeout_s=TIMEOUT_S)
    exchange = model.syncopate.readiness.exchange
    exchange.layout.communicator = Spy(exchange.layout.communicator, events)
    for step in range(2):
        model(batch(rank, step, 3, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    kind = EXCHANGES[plan.exchange]
    pulled = [event[2] for event in events if event[:2] == ("launch", kind.pull)]
    identical_everywhere(model.parameters())
    model.syncopate.detach()  # which gathers the optimizer's state
    return pulled


def everything(rank: int, world_size: int) -> int:
    found = order(rank, world_size)
    for exchange in HALVED:
        held(rank, world_size, exchange)
    out_of_order(rank, world_size)
    profiled(rank, world_size)
    return len(found)


def steps_again(rank: int, world_size: int, exchange: str) -> None:
    """Two steps between which no weight is read: the second waits for pulls of the first."""
    events: Events = []
    plan = plan_of(chain(), world_size, [2, 1, 2], exchange=exchange, channels=2)
    model, optimizer = watched_chain(plan, events)
    model(batch(rank, 0, 4, 6)).square().mean().backward()
    optimizer.step()
    pull = EXCHANGES[exchange].pull
    first = [event for event in events if event[:2] == ("launch", pull)]
    before = len(events)
    optimizer.step()
    second = [event[:2] for event in events[before:]]
    assert len(first) == second.count(("launch", pull)) == 3
    waited = second[: second.index(("launch", pull))].count(("wait", pull))
    assert waited == 3, (exchange, second)
    identical_everywhere(model.parameters())
    model.syncopate.detach()


@pytest.mark.parametrize("exchange", OWNED)
def test_a_step_waits_for_the_pulls_of_the_step_before(exchange: str) -> None:
    run_ranks(steps_again, 2, exchange)


def test_launches_and_waits_are_the_plans() -> None:
    assert run_ranks(everything, 2) == [len(HALVED) * len(SHAPES)] * 2
