"""Programs that change in the midst of training: models, groups, optimizers, what is trained."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    normalised,
    sgd,
    stepped,
    train,
)


def pruned_before(run: Run) -> None:
    """Weights have masks in buffers, and are computed anew before each forward."""
    model = net()
    for place in (0, 2):
        prune.l1_unstructured(model[place], "weight", 0.4)
    optimizer = sgd(model)
    train(run, run.wrap(model, optimizer), optimizer)
    run.see("pruned", [model[place].weight for place in (0, 2)])
    run.end(model, optimizer)


def pruned_more_and_more(run: Run) -> None:
    """Masks come midway, grow, and are made permanent."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in stepped(run, wrapped, optimizer):
        if step in (1, 3):
            prune.random_unstructured(model[2], "weight", 0.3)
        if step == 2:
            prune.l1_unstructured(model[0], "bias", 2)
        if step == 4:
            prune.remove(model[2], "weight")
            prune.remove(model[0], "bias")
    run.see("weights", [model[0].bias, model[2].weight])
    run.see("moments", [optimizer.state[each] for each in (model[0].bias, model[2].weight)])


def layers_thaw(run: Run) -> None:
    """Everything is distributed; all but the head is frozen behind it, and thaws by and by."""
    wrapped, model, optimizer = begun(run, net(), adamw, unused=True)
    layers = [model[0], model[2], model[4]]
    for step in range(STEPS):
        for place, layer in enumerate(layers):
            layer.requires_grad_(place >= 2 - step // 2)
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        run.see("trained", [p.grad is not None for p in model.parameters()])
    run.end(model, optimizer)


def one_bias_is_frozen_on_and_off(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd, unused=True)
    for step in range(STEPS):
        model[2].bias.requires_grad = step % 2 == 0
        optimizer.zero_grad(set_to_none=step < 3)
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def statistics_are_frozen(run: Run) -> None:
    """From some step on normalisation uses its statistics, though the model trains."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in range(STEPS):
        model.train()
        if step > 2:
            model[1].eval()
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        run.see("buffers", dict(model.named_buffers()))
    run.end(model, optimizer)


def groups_are_exchanged(run: Run) -> None:
    """Parameters move between groups of other rates; a group goes, and comes back."""
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.01)
    wrapped = run.wrap(model, optimizer)
    gone: Any = None
    for step in stepped(run, wrapped, optimizer):
        first, *rest = optimizer.param_groups
        if step == 1:
            rest[0]["params"].pop()
            first["params"].append(parameters[5])
            first["lr"] = 0.1
        if step == 2:
            gone = optimizer.param_groups.pop()
        if step == 4:
            optimizer.param_groups.append(gone)
    for name, weight in model.named_parameters():
        run.see(name, weight)


def groups_are_replaced(run: Run) -> None:
    """The list of groups is another one midway, with groups that are others."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            before = optimizer.param_groups[0]
            halves = before["params"][:3], before["params"][3:]
            optimizer.param_groups = [
                {**before, "params": half, "lr": 0.05 * (1 + place)}
                for place, half in enumerate(halves)
            ]
        if step == 4:
            optimizer.param_groups = copy.copy(optimizer.param_groups)[:1]
    run.end(model)


def optimizer_is_replaced_twice(run: Run) -> None:
    """Warm-up by one optimizer, then another by its settings, then a copy of the first."""
    model = net()
    first = sgd(model)
    wrapped = run.wrap(model, first)
    train(run, wrapped, first, 2)
    second = torch.optim.RMSprop(model.parameters(), lr=0.01)
    train(run, wrapped, second, 2)
    third = sgd(model)
    third.load_state_dict(first.state_dict())
    train(run, wrapped, third, 2)
    run.end(model, first, second, third)


def reset_to_a_snapshot(run: Run) -> None:
    """Weights, state and statistics go back, as after a loss that exploded."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    snapshot: Any = None
    for step in range(STEPS):
        if step == 1:
            snapshot = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 3:
            model.load_state_dict(snapshot[0])
            optimizer.load_state_dict(snapshot[1])
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def saved_whole_and_loaded(run: Run) -> None:
    """The whole model is written and read as an object midway, and the two agree."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in stepped(run, wrapped, optimizer):
        if step % 2 == run.rank:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            again = torch.load(file, weights_only=False)
            run.see("class", type(again).__name__)
            run.see("again", again.eval()(run.batch(99)))
    run.end(model, optimizer)


def weights_are_initialised_anew(run: Run) -> None:
    """A layer is reset midway on all ranks alike, and its state is dropped."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            torch.manual_seed(7)
            model[4].reset_parameters()
            for parameter in model[4].parameters():
                optimizer.state.pop(parameter)
        if step == 3:
            torch.manual_seed(8)
            model.apply(
                lambda module: (
                    nn.init.orthogonal_(module.weight) if isinstance(module, nn.Linear) else None
                )
            )
    run.end(model, optimizer)


def weights_are_each_ranks_own(run: Run) -> None:
    """Noise of each rank's own on the weights: from then on replicas differ, as under DDP."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01 * (run.rank + 1))
    run.end(model, optimizer)


def steps_on_its_own_gradients(run: Run) -> None:
    """Local steps in ``no_sync``, then ranks average weights by hand."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step % 3 == 2:
            loss_of(wrapped(run.batch(step))).backward()
        else:
            with wrapped.no_sync():
                loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if step % 3 == 1:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.data)
                parameter.data /= run.ranks
    run.end(model, optimizer)


def forward_in_no_sync_and_backward_outside(run: Run) -> None:
    """The forward says whether its gradients are averaged; blocks nest, and raise."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        with wrapped.no_sync():
            loss = loss_of(wrapped(run.batch(step)))
            try:
                with wrapped.no_sync():
                    raise ValueError("inside")
            except ValueError:
                pass
        loss.backward()
        run.see("own", model[0].weight.grad)
        outside = loss_of(wrapped(run.batch(step + 50)))
        with wrapped.no_sync():
            outside.backward()
        run.see("averaged", model[0].weight.grad)
        optimizer.step()
    run.end(model, optimizer)


def accumulated_by_a_normalising_model(run: Run) -> None:
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        with wrapped.no_sync():
            for part in range(2):
                loss_of(wrapped(run.batch(10 * step + part))).backward()
        loss_of(wrapped(run.batch(10 * step + 9))).backward()
        run.see("statistics", dict(model.named_buffers()))
        optimizer.step()
    run.end(model, optimizer)


def a_part_is_in_no_optimizer(run: Run) -> None:
    """Gradients of the body pile up: the optimizer zeroes and updates the head alone."""
    model = net()
    optimizer = sgd(model[4], lr=0.01)
    train(run, run.wrap(model, optimizer), optimizer)
    run.end(model, optimizer)


def adapters_are_merged(run: Run) -> None:
    """LoRA: frozen weights, adapters of low rank, merged for an evaluation and taken out again."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(2, 8) * 0.1)
            self.up = nn.Parameter(torch.zeros(8, 2))
            self.merged = False

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.base(x)
            return found if self.merged else found + x @ self.down.t() @ self.up.t()

        @torch.no_grad()
        def merge(self, on: bool) -> None:
            sign = 1 if on else -1
            self.base.weight.data += sign * (self.up @ self.down)
            self.merged = on

    model = nn.Sequential(Adapted(), nn.Tanh(), Adapted())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    wrapped = run.wrap(model, optimizer)
    for _ in stepped(run, wrapped, optimizer):
        for layer in (model[0], model[2]):
            layer.merge(True)
        model.eval()
        with torch.no_grad():
            run.see("merged", wrapped(run.batch(99)))
        model.train()
        for layer in (model[0], model[2]):
            layer.merge(False)
    run.end(model, optimizer)


def a_buffer_comes_and_grows(run: Run) -> None:
    """Buffers that a forward replaces by others, that grow, and that appear midway."""

    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()
            self.register_buffer("memory", torch.zeros(0, 4))
            self.register_buffer("scale", None)
            self.memory: Tensor
            self.scale: Tensor | None

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layers(x)
            if self.training:
                self.memory = torch.cat([self.memory, found.detach().mean(0, keepdim=True)])
                if len(self.memory) == 3:
                    self.scale = self.memory.abs().mean()
            return found if self.scale is None else found / self.scale

    model = Remembering()
    optimizer = adamw(model)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if run.rank == 0:
            run.see("buffers", dict(model.named_buffers()))
    for name, weight in model.named_parameters():
        run.see(name, weight)


PROGRAMS: list[Program] = [
    pruned_before,
    pruned_more_and_more,
    layers_thaw,
    one_bias_is_frozen_on_and_off,
    statistics_are_frozen,
    groups_are_exchanged,
    groups_are_replaced,
    optimizer_is_replaced_twice,
    reset_to_a_snapshot,
    saved_whole_and_loaded,
    weights_are_initialised_anew,
    weights_are_each_ranks_own,
    steps_on_its_own_gradients,
    forward_in_no_sync_and_backward_outside,
    accumulated_by_a_normalising_model,
    a_part_is_in_no_optimizer,
    adapters_are_merged,
    a_buffer_comes_and_grows,
]
