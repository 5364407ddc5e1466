"""The three algorithms of BSP-SGD, with every collective, train like DDP; and how they overlap."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bsp_sgd_lab
from bsp_sgd import ALGORITHMS, bsp_sgd_plan
from bsp_sgd_table import RANKS
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.collectives import Communicator, Handle
from syncopate.engine.distribute import distribute
from syncopate.errors import EngineError
from syncopate.recipe import NATIVE
from syncopate.schedules import registry
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    buffers_of_a_forward,
    convnet,
    data,
    identical_everywhere,
    made_up_workload,
    run_cases,
)
from tests.multiprocess.harness import run_ranks

STEPS = 6
LAYERS = 4  # of the convnet: two with weight and bias, one without, one normalisation
PERIOD = 3


def _plan(model: nn.Module, world_size: int, number: int, algorithm: str, *, root: int = 0) -> Plan:
    """An algorithm's plan of a made-up workload on a made-up network, whose LP takes blocks."""
    cluster = Cluster.flat(world_size, latency_s=1e-7, bandwidth_bytes_per_s=1e6)
    return bsp_sgd_plan(made_up_workload(model), cluster, number, algorithm, root=root)


def _names(number: int) -> list[str]:
    """Every algorithm that can carry one of the three."""
    pushed = {1: "reduce", 2: "reduce", 3: "all_reduce"}[number]
    return [*registry.algorithms(pushed), NATIVE]


def _sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def _distributed(rank: int, world_size: int) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(rank)
    model = convnet()
    plan = _plan(model, world_size, 2, "mst")
    return distribute(model, _sgd(model), plan=plan, timeout_s=TIMEOUT_S)


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int, first: int = 0
) -> None:
    wanted = torch.arange(6) % 5
    for step in range(first, first + steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data(rank, step, 6, 1, 8, 8)), wanted).backward()
        optimizer.step()


class _Start:
    """Where a model begins to train; it can be brought back there by another plan."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.weights = copy.deepcopy(model.state_dict())

    def again(self, plan: Plan) -> None:
        self.model.syncopate.install(plan)
        self.model.load_state_dict(self.weights)
        self.optimizer.zero_grad()
        self.optimizer.state.clear()


@contextmanager
def _listening(model: Any) -> Iterator[list[str]]:
    """Note every collective by its name and bytes, and who is waited for.

    A collective that no plan names is a ``sync``.
    """
    communicator, heard = model.syncopate.communicator, []
    run, broadcast, wait = communicator.run, communicator.broadcast, Handle.wait
    names: dict[Handle, str] = {}

    def noted(recipe: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        heard.append(f"{recipe.collective} {tensor.nbytes}")
        handle = run(recipe, tensor, *args, **kwargs)
        names[handle] = heard[-1]
        return handle

    def noted_wait(handle: Handle) -> None:
        if handle in names:
            heard.append(f"wait for {names.pop(handle)}")
        wait(handle)

    def noted_broadcast(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        done = broadcast(tensor, *args, **kwargs)
        heard[:] = [*heard[:-1], f"sync {tensor.nbytes}"]
        return done

    communicator.run, communicator.broadcast, Handle.wait = noted, noted_broadcast, noted_wait
    yield heard
    del communicator.run, communicator.broadcast
    Handle.wait = wait


def _bits(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


# -- like DDP -----------------------------------------------------------------------------------


def _trains_like_ddp(rank: int, world_size: int) -> int:
    torch.manual_seed(rank)
    model, optimizer = _distributed(rank, world_size)
    start = _Start(model, optimizer)
    reference = convnet()
    reference.load_state_dict(start.weights)
    _train(DistributedDataParallel(reference), _sgd(reference), rank, STEPS)
    plans = [
        _plan(model, world_size, number, name) for number in ALGORITHMS for name in _names(number)
    ]
    plans += [_plan(model, world_size, number, "lp", root=world_size - 1) for number in (1, 2)]
    mixed = _plan(model, world_size, 1, "be")
    roots = [replace(b.push, root=i % world_size) for i, b in enumerate(mixed.buckets)]
    plans.append(
        replace(
            mixed,
            buckets=tuple(
                replace(b, push=push, pull=replace(b.pull, algorithm="mst", root=push.root))
                for b, push in zip(mixed.buckets, roots, strict=True)
            ),
        )
    )
    for plan in plans:
        start.again(plan)
        _train(model, optimizer, rank, STEPS)
        for (name, mine), theirs in zip(
            model.named_parameters(), reference.parameters(), strict=True
        ):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name, p=plan: f"{p} {n}: {m}"
            )
        identical_everywhere([*model.parameters(), *buffers_of_a_forward(model)])
    model.syncopate.detach()
    return len(plans)


# -- the broadcast of Algorithm 3 ---------------------------------------------------------------


def _the_broadcast_changes_nothing(rank: int, world_size: int) -> None:
    model, optimizer = _distributed(rank, world_size)
    start = _Start(model, optimizer)
    for name in _names(3)[world_size % 2 :: 2]:  # the other half is another world size's
        plan = _plan(model, world_size, 3, name)
        weights = {}
        for period in (0, plan.weight_sync_period):
            start.again(replace(plan, weight_sync_period=period))
            with _listening(model) as heard:
                _train(model, optimizer, rank, 2 * plan.weight_sync_period + 2)
            total = sum(parameter.nbytes for parameter in model.parameters())
            assert heard.count(f"sync {total}") == (2 if period else 0), (name, heard)
            weights[period] = _bits(model)
        assert all(map(torch.equal, weights[0], weights[5])), name
        identical_everywhere(weights[0])
    model.syncopate.detach()


def _the_broadcast_repairs_a_rank(rank: int, world_size: int) -> None:
    model, optimizer = _distributed(rank, world_size)
    start = _Start(model, optimizer)
    for period in (PERIOD, 0):
        start.again(replace(_plan(model, world_size, 3, "lp"), weight_sync_period=period))
        _train(model, optimizer, rank, 1)
        if rank == world_size - 1:
            with torch.no_grad():
                model[0].weight.add_(1.0)
        _train(model, optimizer, rank, PERIOD - 2, 1)
        with pytest.raises(AssertionError):
            identical_everywhere(model.parameters())
        before = _bits(model)
        _train(model, optimizer, rank, 1, PERIOD - 1)
        if period:
            identical_everywhere(model.parameters())
            # It is rank 0's weights that all have now, a step on from its own.
            moved = max(
                float((a - b).abs().max()) for a, b in zip(before, _bits(model), strict=True)
            )
            assert (moved > 0.5) == (rank == world_size - 1)
        else:
            with pytest.raises(AssertionError):
                identical_everywhere(model.parameters())
    model.syncopate.detach()


def _every_optimizer_broadcasts_its_own(rank: int, world_size: int) -> None:
    torch.manual_seed(rank)
    net = convnet()
    halves = [list(net[:2].parameters()), list(net[2:].parameters())]
    given = [torch.optim.SGD(half, lr=0.05) for half in halves]
    plan = replace(_plan(net, world_size, 3, "ring"), weight_sync_period=2)
    model, optimizers = distribute(net, given, plan=plan, timeout_s=TIMEOUT_S)
    first, second = (sum(p.nbytes for p in half) for half in halves)
    for step, synced in enumerate(([], [first, second], [], [first, second])):
        with _listening(model) as heard:
            model(data(rank, step, 6, 1, 8, 8)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        told = [what for what in heard if what in (f"sync {first}", f"sync {second}")]
        assert told == [f"sync {nbytes}" for nbytes in synced], (step, heard)
        identical_everywhere(model.parameters())
    model.syncopate.detach()


def _without_an_optimizer_nobody_broadcasts(rank: int, world_size: int) -> None:
    model = convnet()
    plan = _plan(model, world_size, 3, "ring")
    with pytest.raises(EngineError, match=r"after every 5 steps .* Give the optimizer to distri"):
        distribute(model, plan=plan, timeout_s=TIMEOUT_S)
    model = distribute(convnet(), plan=replace(plan, weight_sync_period=0), timeout_s=TIMEOUT_S)
    with pytest.raises(EngineError, match="weight_sync_period=0"):
        model.syncopate.install(plan)
    model(data(rank, 0, 6, 1, 8, 8)).sum().backward()
    identical_everywhere([p.grad for p in model.parameters()])
    model.syncopate.detach()


# -- what is launched when ----------------------------------------------------------------------


def _layers(model: Any) -> list[nn.Module]:
    return [layer for layer in model if list(layer.parameters())]


def _algorithm_1_overlaps_both_ways(rank: int, world_size: int) -> None:
    plan = _plan(convnet(), world_size, 1, "lp")
    model, optimizer = _distributed(rank, world_size)
    model.syncopate.install(plan)
    layers = _layers(model)
    sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
    assert len(plan.buckets) == len(layers) == LAYERS
    with _listening(model) as heard:
        for index, layer in enumerate(layers):
            # What is on its way when a layer has computed: its own weights must be there.
            layer.register_forward_hook(
                lambda *_, i=index: heard.append(f"forward {i}: {_on_the_way(layers)}")
            )
            layer.weight.register_hook(lambda g, i=index: heard.append(f"backward {i}") and None)
        for step in range(2):
            heard.clear()
            optimizer.zero_grad()
            model(data(rank, step, 6, 1, 8, 8)).square().mean().backward()
            optimizer.step()
    told = [what for what in heard if "all_reduce" not in what and "sync" not in what]
    # A layer waits for its own weights, and computes while those of the next ones travel.
    forward = [
        what
        for i in range(LAYERS)
        for what in (f"wait for broadcast {sizes[i]}", f"forward {i}: {[*range(i + 1, LAYERS)]}")
    ]
    assert told[: 2 * LAYERS] == forward
    # A layer's gradients leave before backward reaches the layer before it.
    deepest_first = range(LAYERS - 1, -1, -1)
    backward = [what for i in deepest_first for what in (f"backward {i}", f"reduce {sizes[i]}")]
    assert told[2 * LAYERS : 4 * LAYERS] == backward
    # The update waits for all sums. What the next forward needs first comes first, and nobody
    # waits for it before.
    update = [f"wait for reduce {sizes[i]}" for i in deepest_first]
    update += [f"broadcast {size}" for size in sizes]
    assert told[4 * LAYERS :] == update
    model.syncopate.detach()


def _on_the_way(layers: list[nn.Module]) -> list[int]:
    """Layers whose weights have been launched and not waited for."""
    return [index for index, layer in enumerate(layers) if type(layer.weight) is not nn.Parameter]


def _algorithms_2_and_3_fork_and_join(rank: int, world_size: int) -> None:
    model, optimizer = _distributed(rank, world_size)
    total = sum(parameter.nbytes for parameter in model.parameters())
    for number, pushed, pulled in ((2, "reduce", ["broadcast"]), (3, "all_reduce", [])):
        plan = _plan(model, world_size, number, "lp", root=world_size - 1 if number == 2 else 0)
        model.syncopate.install(plan)
        assert len(plan.buckets) == 1
        assert {r.root for _, r in plan.buckets[0].recipes} == {plan.buckets[0].push.root}
        with _listening(model) as heard:
            hook = model[0].weight.register_hook(lambda g, h=heard: h.append("backward 0") and None)
            _train(model, optimizer, rank, 1)
            hook.remove()
        # All-reduces carry what the ranks say besides behind the gradients; notes are small.
        large = range(total, 2 * total)
        kinds = [
            words[0]
            for words in map(str.split, heard)
            if words[0] == "backward" or (words[0] != "wait" and int(words[1]) in large)
        ]
        assert kinds == ["backward", pushed, *pulled], heard
    model.syncopate.detach()


# -- Table 2 in the lab ---------------------------------------------------------------------------


def _the_benchmark_takes_its_rounds(rank: int, world_size: int) -> None:
    if world_size != RANKS:
        return
    with tempfile.TemporaryDirectory() as folder, Communicator() as communicator:
        words = ["--scale", "0.01", "--networks", "GoogLeNet", "--iterations", "1"]
        words += ["--json", f"{folder}/lab.json"]
        cluster = Cluster.flat(RANKS, latency_s=1e-4, bandwidth_bytes_per_s=1e8)
        options = bsp_sgd_lab.settled_options([*words, "--rounds", "1"])
        lab = bsp_sgd_lab.planned(bsp_sgd_lab.begun(options, cluster), "GoogLeNet")
        for rounds in (1, 2, 2):
            options = bsp_sgd_lab.settled_options([*words, "--rounds", str(rounds)])
            before, lab = lab, bsp_sgd_lab.take_rounds(communicator, options, lab, "GoogLeNet")
            assert bsp_sgd_lab.rounds_of(lab, "GoogLeNet") == rounds
            assert [len(cell.samples_s) for cell in lab.cells] == [rounds] * 10
            kept = [
                cell.samples_s[: len(was.samples_s)]
                for cell, was in zip(lab.cells, before.cells, strict=True)
            ]
            assert kept == [was.samples_s for was in before.cells]
            assert bsp_sgd_lab.resumed(options) == (lab if rank == 0 else None)


def _every_case(rank: int, world_size: int) -> int:
    cases = (
        _the_broadcast_changes_nothing,
        _the_broadcast_repairs_a_rank,
        _every_optimizer_broadcasts_its_own,
        _without_an_optimizer_nobody_broadcasts,
        _algorithm_1_overlaps_both_ways,
        _algorithms_2_and_3_fork_and_join,
        _the_benchmark_takes_its_rounds,
    )
    run_cases(cases, rank, world_size)
    return _trains_like_ddp(rank, world_size)


@pytest.mark.parametrize("world_size", [3, 4])
def test_the_three_algorithms(world_size: int) -> None:
    plans = sum(len(_names(number)) for number in ALGORITHMS) + 3
    assert run_ranks(_every_case, world_size) == [plans] * world_size
