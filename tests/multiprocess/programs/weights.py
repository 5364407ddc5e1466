"""Programs that write to weights between steps, and evaluate with them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    begun,
    loss_of,
    net,
    normalised,
    sgd,
    stepped,
    trained,
)


def evaluated_on_one_rank(run: Run) -> None:
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in range(STEPS):
        model.train()
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        if run.rank == 0:
            model.eval()
            with torch.no_grad():
                run.see("evaluated", model(run.batch(99)))
            model.train()
    wrapped(run.batch(9))
    run.end(model, optimizer)


def buffers_between_steps(run: Run) -> None:
    """Every rank has statistics of its own until the next forward begins."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        run.see("behind backward", dict(model.named_buffers()))
        optimizer.step()
        run.see("behind the step", dict(model.named_buffers()))
        model.eval()
        with torch.no_grad():
            run.see("evaluated", wrapped.module(run.batch(99)))
        model.train()
    run.end(model, optimizer)


def normalisation_is_evaluated_on_all_ranks(run: Run) -> None:
    """An evaluation begins with rank 0's statistics on every rank."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for epoch in range(3):
        wrapped.train()
        for step in range(3):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(10 * epoch + step))).backward()
            optimizer.step()
        wrapped.eval()
        with torch.inference_mode() if epoch == 1 else torch.no_grad():
            own = loss_of(wrapped(run.batch(99))).clone()
        run.see("own", own)
        run.see("behind", dict(model.named_buffers()))
    run.end(model, optimizer)


def statistics_are_changed_and_evaluated_on_rank_0(run: Run) -> None:
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            model.eval()
            model[1].running_mean.zero_()
            with torch.no_grad():
                run.see("evaluated", model(run.batch(99)))
            model.train()
    wrapped(run.batch(9))
    run.end(model, optimizer)


def evaluated_in_inference_mode(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step % 2 == run.rank % 2:
            model.eval()
            with torch.inference_mode():
                run.see("evaluated", model(run.batch(99)))
            model.train()
    run.end(model, optimizer)


def evaluated_between_backward_and_step(run: Run) -> None:
    for _, model, _, _ in trained(run):
        model.eval()
        with torch.no_grad():
            run.see("evaluated", model(run.batch(99)))
        model.train()


def evaluated_with_gradients_on(run: Run) -> None:
    """In eval mode a forward with gradients sees no backward."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        model.train()
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
        model.eval()
        run.see("evaluated", wrapped(run.batch(99)))
    run.end(model, optimizer)


def average_of_ranks_by_hand(run: Run) -> None:
    """The user averages weights over the ranks, which are the same already."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in stepped(run, wrapped, optimizer):
        if step % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data.div_(run.ranks)
    run.end(model, optimizer)


def weights_of_rank_0_are_broadcast(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            if run.rank == 0:
                model[0].weight.mul_(0.9)
            dist.broadcast(model[0].weight, 0)
            dist.broadcast(model[2].weight.data, 0)
    run.end(model, optimizer)


def weights_are_written(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        model[0].weight.data.mul_(0.99)
        model[0].bias.data[0] = 0.5
        with torch.no_grad():
            model[2].weight.add_(0.01)
            model[2].bias[1:3] = 0.25
            model[4].weight.copy_(model[4].weight.clamp(-0.2, 0.2))
            nn.init.zeros_(model[4].bias)
    run.end(model, optimizer)


def weights_are_written_before_the_step(run: Run) -> None:
    for _, model, _, step in trained(run):
        with torch.no_grad():
            model[0].weight.mul_(0.9)
            if step == 3:
                model[2].reset_parameters()


def weights_get_other_memory(run: Run) -> None:
    for _, model, _, step in trained(run):
        if step == 2:
            model[0].weight.data = model[0].weight.data.clone() * 0.5


def weights_get_other_memory_behind_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            model[0].weight.data = model[0].weight.data.clone() * 0.5
        if step == 4:
            model[2].weight.data = torch.full((8, 8), 0.1)
    run.end(model, optimizer)


def pruned(run: Run) -> None:
    """A mask is put on the weights behind every step."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    mask = torch.arange(64).view(8, 8) % 3 > 0
    for _ in stepped(run, wrapped, optimizer):
        model[0].weight.data *= mask
    run.end(model, optimizer)


PROGRAMS: list[Program] = [
    evaluated_on_one_rank,
    buffers_between_steps,
    normalisation_is_evaluated_on_all_ranks,
    statistics_are_changed_and_evaluated_on_rank_0,
    evaluated_in_inference_mode,
    evaluated_between_backward_and_step,
    evaluated_with_gradients_on,
    average_of_ranks_by_hand,
    weights_of_rank_0_are_broadcast,
    weights_are_written,
    weights_are_written_before_the_step,
    weights_get_other_memory,
    weights_get_other_memory_behind_the_step,
    pruned,
]
