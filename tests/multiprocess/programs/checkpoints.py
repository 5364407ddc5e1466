"""Programs that save, load, copy and average; on one rank alone and at odd moments."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    adamw,
    begun,
    loss_of,
    net,
    sgd,
    stepped,
    train,
    trained,
)


def _saved(*parts: Any) -> Any:
    """Return what a file would hold."""
    file = io.BytesIO()
    torch.save(parts, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def rank_0_saves_the_optimizer_in_every_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            run.see("saved", _saved(optimizer.state_dict()))
    run.end(model, optimizer)


def rank_0_saves_the_model_in_every_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            run.see("saved", _saved(model.state_dict()))
    run.end(model, optimizer)


def saved_between_backward_and_step(run: Run) -> None:
    for _, model, optimizer, step in trained(run):
        if run.rank == 0 and step % 2:
            run.see("saved", _saved(model.state_dict(), optimizer.state_dict()))


def saved_inside_forward(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def save(*_: Any) -> None:
        if run.rank == 0:
            run.see("saved", _saved(model.state_dict(), optimizer.state_dict()))

    model[2].register_forward_pre_hook(save)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def saved_in_a_hook_of_backward(run: Run) -> None:
    model = net()
    optimizer = adamw(model)

    def save(*_: Any) -> None:
        if run.rank == 1:
            run.see("saved", _saved(model.state_dict(), optimizer.state_dict()))

    model[2].register_full_backward_hook(save)
    wrapped = run.wrap(model, optimizer)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def saved_in_a_hook_of_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)

    def save(*_: Any) -> None:
        if run.rank == 0:
            run.see("saved", _saved(model.state_dict(), optimizer.state_dict()))

    optimizer.register_step_post_hook(save)
    train(run, wrapped, optimizer)
    run.end(model, optimizer)


def loaded_midway(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    saved: Any = None
    for step in range(STEPS + 2):
        if step == 3:
            saved = _saved(model.state_dict(), optimizer.state_dict())
        if step == 6:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step()
    run.end(model, optimizer)


def loaded_between_backward_and_step(run: Run) -> None:
    saved: Any = None
    for _, model, optimizer, step in trained(run):
        if step == 2:
            saved = _saved(model.state_dict(), optimizer.state_dict())
        if step == 4:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])


def loaded_by_assignment(run: Run) -> None:
    """``assign=True`` puts other parameters into the model; then training goes on by a new one."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    train(run, wrapped, optimizer, 3)
    other = net()
    other.load_state_dict(_saved(model.state_dict())[0], assign=True)
    run.see("other", list(other.parameters()))
    run.end(model, optimizer)


def resumed_elsewhere(run: Run) -> None:
    """Another model and optimizer go on from what was saved."""
    wrapped, model, optimizer = begun(run)
    train(run, wrapped, optimizer, 3)
    state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    again = net()
    taking = adamw(again)
    again.load_state_dict(state[0])
    taking.load_state_dict(state[1])
    wrapped = run.wrap(again, taking)
    for step in range(3, STEPS):
        taking.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        taking.step()
    run.end(again, taking)


def state_is_sent_by_rank_0(run: Run) -> None:
    """Rank 0's state is broadcast as an object, and loaded by all."""
    for _, model, optimizer, step in trained(run):
        if step == 3:
            box = [None]
            if run.rank == 0:
                box = [_saved(model.state_dict(), optimizer.state_dict())]
            dist.broadcast_object_list(box)
            states: Any = box[0]
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])


def copies_of_everything(run: Run) -> None:
    for _, model, optimizer, step in trained(run):
        if step % 2 == run.rank:
            twin = copy.deepcopy(model)
            run.see("twin", list(twin.parameters()))
            run.see("state", copy.deepcopy(optimizer.state_dict()))
            run.see("gradients", [parameter.grad for parameter in twin.parameters()])


def copies_after_the_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            both: Any = copy.deepcopy((model, optimizer))
            run.see("twin", list(both[0].parameters()))
            run.see("twin's state", both[1].state_dict())
            run.see(
                "twin trains its own",
                [
                    one is other
                    for one, other in zip(
                        both[1].param_groups[0]["params"], both[0].parameters(), strict=True
                    )
                ],
            )
            plain = pickle.loads(pickle.dumps(optimizer.state_dict()))
            run.see("pickled", plain)
    run.end(model, optimizer)


def copy_of_the_optimizer_steps(run: Run) -> None:
    """A copy of model and optimizer trains by itself for a step, on one rank alone."""
    wrapped, model, optimizer = begun(run)
    for step in stepped(run, wrapped, optimizer):
        if run.rank == 0 and step == 3:
            twin, twins = net(), None
            twin.load_state_dict(model.state_dict())
            twins = adamw(twin)
            twins.load_state_dict(optimizer.state_dict())
            loss_of(twin(run.batch(99))).backward()
            twins.step()
            run.see("twin", list(twin.parameters()))
    run.end(model, optimizer)


def average_by_lerp(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    average = copy.deepcopy(model)
    for _ in stepped(run, wrapped, optimizer):
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
        run.see("average", list(average.parameters()))
    run.end(model, optimizer)


def average_of_rank_0(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            for name, value in model.state_dict().items():
                average[name].mul_(0.9).add_(value, alpha=0.1)
            run.see("average", average)
    run.end(model, optimizer)


def averaged_model(run: Run) -> None:
    wrapped, model, optimizer = begun(run, net(), sgd)
    mean = AveragedModel(model)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in stepped(run, wrapped, optimizer):
        mean.update_parameters(model)
        ema.update_parameters(model)
    run.see("mean", list(mean.parameters()))
    run.see("ema", list(ema.parameters()))
    run.end(model, optimizer)


def average_by_foreach(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in stepped(run, wrapped, optimizer):
        torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.1)
    run.see("average", average)
    run.end(model, optimizer)


def best_so_far(run: Run) -> None:
    """The best weights are kept as numbers of numpy, and taken back at the end."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    best: Any = None
    for step in stepped(run, wrapped, optimizer):
        if step == 2:
            best = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(value) for name, value in best.items()})
    run.end(model, optimizer)


def vectors_of_parameters(run: Run) -> None:
    for _, model, _, step in trained(run):
        vector = nn.utils.parameters_to_vector(model.parameters())
        run.see("vector", vector)
        if step == 3:
            nn.utils.vector_to_parameters(vector * 0.5, model.parameters())


PROGRAMS: list[Program] = [
    rank_0_saves_the_optimizer_in_every_step,
    rank_0_saves_the_model_in_every_step,
    saved_between_backward_and_step,
    saved_inside_forward,
    saved_in_a_hook_of_backward,
    saved_in_a_hook_of_the_step,
    loaded_midway,
    loaded_between_backward_and_step,
    loaded_by_assignment,
    resumed_elsewhere,
    state_is_sent_by_rank_0,
    copies_of_everything,
    copies_after_the_step,
    copy_of_the_optimizer_steps,
    average_by_lerp,
    average_of_rank_0,
    averaged_model,
    average_by_foreach,
    best_so_far,
    vectors_of_parameters,
]
