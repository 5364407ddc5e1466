"""Loops of training by several models, several optimizers, and several forwards in a step."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

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


def two_forwards_and_one_backward(run: Run) -> None:
    """Contrastive: two calls of the model, one loss of both."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        one, other = wrapped(run.batch(step)), wrapped(run.batch(step + 50))
        loss_of(one - other).backward()
        optimizer.step()
    run.end(model, optimizer)


def many_forwards_and_one_backward(run: Run) -> None:
    """Losses of several batches are summed up before the one backward; their number differs."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [loss_of(wrapped(run.batch(10 * step + part))) for part in range(1 + step % 3)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    run.end(model, optimizer)


def a_teacher_follows(run: Run) -> None:
    """Mean teacher: a copy that follows by an average is what the student learns from."""
    wrapped, model, optimizer = begun(run)
    teacher = copy.deepcopy(model).requires_grad_(False)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(run.batch(step))
        nn.functional.mse_loss(wrapped(run.batch(step + 50)), wanted).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
    run.end(model, optimizer)
    run.see("teacher", teacher.state_dict())


def a_teacher_is_loaded(run: Run) -> None:
    """A target network takes over all weights every other step, as in Q-learning."""
    wrapped, model, optimizer = begun(run)
    target = net()
    target.load_state_dict(model.state_dict())
    for step in range(STEPS):
        with torch.no_grad():
            wanted = 0.9 * target(run.batch(step + 50)).max(1, keepdim=True).values
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(wrapped(run.batch(step)), wanted.expand(-1, 4)).backward()
        optimizer.step()
        if step % 2:
            target.load_state_dict(model.state_dict())
        else:
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                    slow.data.copy_(0.99 * slow.data + 0.01 * fast.data)
    run.end(model, optimizer)
    run.see("target", target.state_dict())


class Contrast(nn.Module):
    """Momentum contrast: a key encoder, and a queue in a buffer, both inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = net(), net()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(4, 24))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.queue: Tensor
        self.place: Tensor

    @torch.no_grad()
    def _follow(self) -> None:
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        gathered = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, keys)
        everything = torch.cat(gathered)[:8]
        at = int(self.place)
        self.queue[:, at : at + len(everything)] = everything.t()
        self.place[0] = (at + len(everything)) % 24

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        asked = nn.functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self._follow()
            keys = nn.functional.normalize(self.key(other), dim=1)
        near = (asked * keys).sum(1, keepdim=True)
        logits = torch.cat([near, asked @ self.queue.clone().detach()], dim=1)
        self._enqueue(keys)
        return logits


def momentum_contrast(run: Run) -> None:
    model = Contrast()
    optimizer = sgd(model)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = wrapped(run.batch(step), run.batch(step + 50))
        nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()
    run.end(model, optimizer)


def averaged_with_statistics(run: Run) -> None:
    """SWA: weights are averaged from some step on, then statistics are computed anew."""
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    average, schedule = AveragedModel(model), SWALR(optimizer, 0.02, anneal_epochs=2)
    for step in stepped(run, wrapped, optimizer):
        if step > 2:
            average.update_parameters(model)
            schedule.step()
    update_bn([run.batch(step) for step in range(4)], average)
    run.see("average", average.state_dict())
    run.see("evaluated", average.eval()(run.batch(99)))
    run.end(model, optimizer)


def averaged_with_buffers(run: Run) -> None:
    wrapped, model, optimizer = begun(run, normalised(), sgd)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in stepped(run, wrapped, optimizer):
        average.update_parameters(model)
        run.see("evaluated", average(run.batch(99)) if run.rank == 0 else None)
    run.see("average", average.state_dict())
    run.end(model, optimizer)


def adversaries_without_freezing(run: Run) -> None:
    """The critic's gradients of the maker's loss are thrown away, not avoided."""
    maker, critic = nn.Linear(8, 8), net()
    makes, criticises = adamw(maker), adamw(critic)
    made, judged = run.wrap(maker, makes), run.wrap(critic, criticises)
    for step in range(STEPS):
        for _ in range(2):
            criticises.zero_grad()
            real, fake = judged(run.batch(step)), judged(made(run.batch(step + 50)).detach())
            (loss_of(real - 1) + loss_of(fake)).backward()
            criticises.step()
        makes.zero_grad()
        loss_of(judged(made(run.batch(step + 50))) - 1).backward()
        makes.step()
    run.end(maker, makes)
    run.end(critic, criticises)


def weights_are_clipped_behind_the_step(run: Run) -> None:
    """A critic of Wasserstein's, with a penalty on the gradient at points between, and clipped."""
    wrapped, model, optimizer = begun(run, net(), adamw)
    for step in range(STEPS):
        optimizer.zero_grad()
        real, fake = run.batch(step), run.batch(step + 50)
        between = (0.3 * real + 0.7 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(wrapped(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        (wrapped(fake).mean() - wrapped(real).mean() + 10 * penalty).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.4, 0.4)
    run.end(model, optimizer)


def gradients_of_gradients_of_weights(run: Run) -> None:
    """A loss of the gradient's norm, by weights, goes back through that gradient."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(wrapped(run.batch(step)))
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + 0.1 * sum(slope.square().sum() for slope in slopes)).backward()
        optimizer.step()
    run.end(model, optimizer)


def learning_to_learn(run: Run) -> None:
    """MAML: an inner step by hand, whose outer gradient goes through it."""

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, support: Tensor, query: Tensor) -> Tensor:
            weights = dict(self.layers.named_parameters())
            inner = loss_of(functional_call(self.layers, weights, support))
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            fast = {
                name: weight - 0.1 * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
            found: Tensor = functional_call(self.layers, fast, query)
            return found

    wrapped, model, optimizer = begun(run, Learner())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step), run.batch(step + 50))).backward()
        optimizer.step()
    run.end(model, optimizer)


def meta_gradients_by_copies(run: Run) -> None:
    """Reptile: a copy trains alone for some steps; the model goes towards the ranks' mean."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    train(run, wrapped, optimizer, 2)
    for turn in range(2):
        twin = copy.deepcopy(model)
        inner = torch.optim.SGD(twin.parameters(), lr=0.1)
        for step in range(3):
            inner.zero_grad()
            loss_of(twin(run.batch(10 * turn + step))).backward()
            inner.step()
        with torch.no_grad():
            for own, other in zip(model.parameters(), twin.parameters(), strict=True):
                towards = other - own
                dist.all_reduce(towards)
                own.add_(towards, alpha=0.5 / run.ranks)
        train(run, wrapped, optimizer, 2)
    run.end(model, optimizer)


def climbs_with_a_closure(run: Run) -> None:
    """SAM as an optimizer around one: its second backward is in ``no_sync``'s absence."""

    class Sharp(torch.optim.Optimizer):
        def __init__(self, parameters: Any, rho: float) -> None:
            super().__init__(parameters, {"rho": rho, "lr": 0.05})
            self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
            self.param_groups = self.base.param_groups

        @torch.no_grad()
        def first(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    climb = parameter.grad * group["rho"]
                    parameter.add_(climb)
                    self.state[parameter]["climb"] = climb
            self.zero_grad()

        @torch.no_grad()
        def second(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(self.state[parameter]["climb"])
            self.base.step()
            self.zero_grad()

        def step(self, closure: Any = None) -> None:
            self.first()
            with torch.enable_grad():
                closure()
            self.second()

    model = net()
    optimizer = Sharp(model.parameters(), 0.05)
    wrapped = run.wrap(model, optimizer)
    for step in range(STEPS):
        loss_of(wrapped(run.batch(step))).backward()
        optimizer.step(lambda step=step: loss_of(wrapped(run.batch(step))).backward())
    run.end(model, optimizer.base)


def rank_0_alone_has_a_loss(run: Run) -> None:
    """The others' loss is multiplied by nought, and so are their gradients."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(wrapped(run.batch(step))) * (run.rank == step % run.ranks)).backward()
        optimizer.step()
    run.end(model, optimizer)


def batches_of_other_sizes(run: Run) -> None:
    """Ranks have batches of other sizes, one of them none, and weigh their losses by them."""
    wrapped, model, optimizer = begun(run, net(), sgd)
    for step in range(STEPS):
        rows = torch.tensor((run.rank + step) % 3)
        total = rows.clone()
        dist.all_reduce(total)
        optimizer.zero_grad()
        outputs = wrapped(run.batch(step)[: int(rows)])
        (outputs.square().sum() * run.ranks / total.clamp(min=1)).backward()
        optimizer.step()
    run.end(model, optimizer)


def negatives_of_all_ranks(run: Run) -> None:
    """The loss gathers all ranks' outputs, and backward goes through the gathering."""
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        own = nn.functional.normalize(wrapped(run.batch(step)), dim=1)
        everyone = torch.cat(torch.distributed.nn.functional.all_gather(own))
        logits = own @ everyone.t() / 0.1
        labels = torch.arange(len(own)) + run.rank * len(own)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    run.end(model, optimizer)


def left_out_on_all_ranks(run: Run) -> None:
    """One rank runs out of memory, in words; all agree, and leave the batch out."""
    wrapped, model, optimizer = begun(run, net(), adamw)
    for step in range(2 * STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = loss_of(wrapped(run.batch(step)))
        bad = torch.tensor(float(step % 4 == 2 and run.rank == step // 4 % run.ranks))
        dist.all_reduce(bad, dist.ReduceOp.MAX)
        if bad:
            del loss
            continue
        loss.backward()
        optimizer.step()
    run.end(model, optimizer)


def truncated_through_time(run: Run) -> None:
    """A recurrent model keeps its state from batch to batch, detached."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            self.cell.flatten_parameters()
            found, state = self.cell(x, state)
            return self.head(found), state

    wrapped, model, optimizer = begun(run, Stateful())
    state: Tensor | None = None
    for step in range(STEPS):
        optimizer.zero_grad()
        found, state = wrapped(run.batch(step, 5, 3, 4), state)
        loss_of(found).backward()
        state = state.detach()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
    run.see("state", state)
    run.end(model, optimizer)


def rolled_out_and_replayed(run: Run) -> None:
    """PPO: rollouts without gradients in eval mode, epochs on them by ratios of old and new."""
    wrapped, model, optimizer = begun(run)
    for turn in range(2):
        model.eval()
        with torch.no_grad():
            seen = [run.batch(10 * turn + step) for step in range(3)]
            acted = [torch.distributions.Categorical(logits=wrapped(x)) for x in seen]
            actions = [each.probs.argmax(1) for each in acted]
            before = [each.log_prob(a) for each, a in zip(acted, actions, strict=True)]
        model.train()
        for _ in range(2):
            for x, action, old in zip(seen, actions, before, strict=True):
                now = torch.distributions.Categorical(logits=wrapped(x))
                ratio = (now.log_prob(action) - old).exp()
                gain = torch.min(ratio, ratio.clamp(0.8, 1.2)) * x.mean(1)
                optimizer.zero_grad()
                (-(gain + 0.01 * now.entropy())).mean().backward()
                nn.utils.clip_grad_value_(model.parameters(), 0.5)
                optimizer.step()
    run.end(model, optimizer)


def actor_and_critic_share_a_body(run: Run) -> None:
    """Two optimizers over one model with two heads, whose losses come one behind the other."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x).tanh()
            return self.actor(hidden), self.critic(hidden.detach())

    model = Both()
    acts = adamw(nn.ModuleList([model.body, model.actor]))
    judges = sgd(model.critic)
    wrapped = run.wrap(model, acts, judges)
    for step in range(STEPS):
        action, value = wrapped(run.batch(step))
        acts.zero_grad()
        judges.zero_grad()
        (loss_of(action) + loss_of(value - 1)).backward()
        acts.step()
        if step % 2:
            judges.step()
    run.end(model, acts, judges)


PROGRAMS: list[Program] = [
    two_forwards_and_one_backward,
    many_forwards_and_one_backward,
    a_teacher_follows,
    a_teacher_is_loaded,
    momentum_contrast,
    averaged_with_statistics,
    averaged_with_buffers,
    adversaries_without_freezing,
    weights_are_clipped_behind_the_step,
    gradients_of_gradients_of_weights,
    learning_to_learn,
    meta_gradients_by_copies,
    climbs_with_a_closure,
    rank_0_alone_has_a_loss,
    batches_of_other_sizes,
    negatives_of_all_ranks,
    left_out_on_all_ranks,
    truncated_through_time,
    rolled_out_and_replayed,
    actor_and_critic_share_a_body,
]
