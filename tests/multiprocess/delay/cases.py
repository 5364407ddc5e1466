"""What the tests of a delay share: Algorithms 1 and 2 of SSD-SGD, literally, for p workers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from syncopate.artifacts.plan import Plan
from syncopate.delay import Delay, LocalSGD
from syncopate.engine import console
from syncopate.engine.distribute import distribute
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, in_parts, plan_of
from tests.multiprocess.exchange.cases import Odd, batch

Loss = Callable[[nn.Module, int, int], Tensor]
"""From a model, a rank and an iteration to a loss."""


def odd64() -> nn.Module:
    """Return the same :class:`Odd` in float64 every time."""
    torch.manual_seed(11)
    return Odd().double()


def normed() -> Any:
    """Return the same model with batch normalisation every time."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def loss_of(model: nn.Module, rank: int, num: int) -> Tensor:
    """The loss of an iteration of :class:`Odd`, which differs by rank."""
    loss: Tensor = model(batch(rank, num, 4, 5, dtype=torch.float64)).square().mean()
    return loss


def two_groups(model: nn.Module, **fields: Any) -> torch.optim.Optimizer:
    """Momentum SGD with weight decay for matrices alone, at another rate."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    told = {"momentum": 0.9} | fields
    return torch.optim.SGD(
        [{"params": matrices, "weight_decay": 0.05, "lr": 0.03}, {"params": others}],
        lr=0.02,
        **told,
    )


class Worker:
    """One worker of Algorithm 1, with the weights that it computes with and those it keeps.

    Args:
        weights: the global weights at the end of the warm-up.
        delay: hyper-parameters.
    """

    def __init__(self, weights: Sequence[Tensor], delay: Delay) -> None:
        self.delay = delay
        self.own = [w.clone() for w in weights]  # w'
        self.pre_weight = [w.clone() for w in weights]
        self.squares = [torch.zeros_like(w) for w in weights]
        self.loc_update = 0

    def update(self, gradients: Sequence[Tensor], groups: Sequence[dict[str, Any]]) -> None:
        """Algorithm 2, or the rule in its place, downhill."""
        for place, (gradient, group) in enumerate(zip(gradients, groups, strict=True)):
            own, pre = self.own[place], self.pre_weight[place]
            step = self._step(place, gradient, own, pre, group)
            if self.loc_update > 0 and self.loc_update % self.delay.k == 0:
                self.pre_weight[place] = own.clone()
            times = 4.0 if self.delay.local_update == "glu" else 1.0
            loc_lr = times * group["lr"] if self.delay.loc_lr is None else self.delay.loc_lr
            self.own[place] = own - loc_lr * (step + group["weight_decay"] * own)
        self.loc_update += 1

    def _step(
        self, place: int, gradient: Tensor, own: Tensor, pre: Tensor, group: dict[str, Any]
    ) -> Tensor:
        delay = self.delay
        if delay.local_update == "sgd":
            return gradient
        if delay.local_update == "glu":
            grad_sync = (pre - own) * (1 - group["momentum"]) / (group["lr"] * delay.k)
            return delay.alpha * gradient + delay.beta * grad_sync
        decay = delay.square_decay
        self.squares[place] = decay * self.squares[place] + (1 - decay) * gradient**2
        strength = delay.lambda_0 / torch.sqrt(self.squares[place] + 1e-7)
        return gradient + strength * gradient**2 * (own - pre)


class Reference:
    """The training of p workers and their server, in one process, iteration by iteration.

    Args:
        model: whose parameters are the global weights.
        optimizers: the server's.
        delay: hyper-parameters.
        workers: how many.
        loss: of a worker in an iteration.

    Attributes:
        num: the iteration that comes next.
        scale: from the mean gradients to what all gradients are multiplied by.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        delay: Delay,
        workers: int,
        loss: Loss = loss_of,
    ) -> None:
        self.model, self.optimizers, self.delay, self.loss = model, optimizers, delay, loss
        self.scale: Callable[[Sequence[Tensor]], Any] = lambda _: 1.0
        self.replica = copy.deepcopy(model)
        self.computing = [self.weights() for _ in range(workers)]
        self.workers: list[Worker] = []
        self.num = 0

    def weights(self) -> list[Tensor]:
        """Return copies of the global weights."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def _gradients(self, rank: int) -> list[Tensor]:
        parameters = list(self.replica.parameters())
        with torch.no_grad():
            for parameter, value in zip(parameters, self.computing[rank], strict=True):
                parameter.copy_(value)
        return list(torch.autograd.grad(self.loss(self.replica, rank, self.num), parameters))

    def iterate(self) -> None:
        """Do one iteration of Algorithm 1 on all workers."""
        ranks, k = range(len(self.computing)), self.delay.k
        if not self.workers and self.num > self.delay.wp and self.num % k == 0:
            # The last iteration of the warm-up makes the copies; this is the one after it.
            self.workers = [Worker(self.weights(), self.delay) for _ in ranks]
        groups = self._groups()
        gradients = [self._gradients(rank) for rank in ranks]
        means = [torch.stack(several).mean(0) for several in zip(*gradients, strict=True)]
        scale = self.scale(means)
        gradients = [[scale * gradient for gradient in own] for own in gradients]
        for parameter, mean in zip(self.model.parameters(), means, strict=True):
            parameter.grad = scale * mean
        for optimizer in self.optimizers:
            optimizer.step()
        last = self.num % k == k - 1
        if not self.workers:
            self.computing = [self.weights() for _ in ranks]
        elif self.delay.local_update == "none":
            if last:
                self.computing = [self.weights() for _ in ranks]
        else:
            for rank, worker in enumerate(self.workers):
                worker.update(gradients[rank], groups)
                self.computing[rank] = [w.clone() for w in worker.own]
                if last:
                    worker.own = self.weights()
        self.num += 1

    def _groups(self) -> list[dict[str, Any]]:
        """Return the group of each parameter, as it is before the step."""
        found = {
            id(parameter): {key: value for key, value in group.items() if key != "params"}
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return [found[id(parameter)] for parameter in self.model.parameters()]


def delayed(
    model: nn.Module,
    optimizer: Any,
    world_size: int,
    delay: Delay | None,
    *,
    parts: int = 1,
    behind: int = 0,
    **plan: Any,
) -> tuple[Any, Any]:
    """Distribute ``model`` on a sharded plan of one bucket a tensor or part, with a delay.

    So many pulls go ``behind`` the pushes, where the delay lets them.
    """
    made: Plan = plan_of(model, world_size, exchange="sharded", **plan)
    given = in_parts(made, model, parts).delayed(delay)
    if delay is not None and delay.has_slack:
        given = replace(given, pulled_behind=min(behind, len(given.buckets)))
    return distribute(model, optimizer, plan=given, timeout_s=TIMEOUT_S)


def self_planned(delay: Delay | LocalSGD) -> tuple[Any, Any, str]:
    """Distribute without a plan; return also what was said, on rank 0."""
    said: list[str] = []
    console.log = said.append  # type: ignore[assignment]
    model, optimizer = distribute(
        made := odd64(),
        two_groups(made),
        delay=delay,
        cache=False,
        deterministic=True,
        timeout_s=TIMEOUT_S,
    )
    # What loads by the keys that are there finds the iteration.
    assert all(group["syncopate_num"] == 0 for group in optimizer.param_groups)
    return model, optimizer, "".join(said)


def iterate(model: Any, optimizer: Any, rank: int, nums: Iterable[int]) -> None:
    """Train the iterations ``nums``."""
    for num in nums:
        loss_of(model, rank, num).backward()
        optimizer.step()
        optimizer.zero_grad()


def each_has_its_own(tensors: Iterable[Tensor]) -> None:
    """Assert that ``tensors`` differ between ranks."""
    with pytest.raises(AssertionError):
        identical_everywhere(tensors)


def one_while_looked_at(model: Any) -> None:
    """Assert that weights and buffers are all ranks' in ``global_weights()``, and there alone."""
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    with model.syncopate.global_weights():
        identical_everywhere([*model.parameters(), *model.buffers()])
    assert all(map(torch.equal, before, (*model.parameters(), *model.buffers())))


def buffers_between_pulls(model: Any, optimizer: Any, rank: int) -> None:
    """Train a :func:`normed` with k = 3 and a warm-up of 2; pulls bring rank 0's buffers."""
    for num in range(13):
        model(batch(rank, num, 6, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if num < 3 or num % 3 == 2:
            identical_everywhere(model.buffers())
        else:
            each_has_its_own([model[1].running_mean])
        one_while_looked_at(model)


def from_a_file(value: Any) -> Any:
    """Return what comes out of a file that ``value`` was saved to."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


def saved_before(nums: Iterable[int], model: Any, optimizer: Any, rank: int) -> list[Any]:
    """Train to the last of ``nums``; return each, with what was saved before that iteration."""
    found, done = [], 0
    for num in nums:
        iterate(model, optimizer, rank, range(done, num))
        found.append((num, from_a_file(model.syncopate.state_dict(optimizer, everywhere=True))))
        done = num
    return found


def same_model_saved(one: list[Any], another: list[Any]) -> None:
    """Assert that two ranks saved the same weights."""
    for (_, ours), (_, theirs) in zip(one, another, strict=True):
        assert ours["model"].keys() == theirs["model"].keys()
        assert all(map(torch.equal, ours["model"].values(), theirs["model"].values()))


def state_before_each(
    steps: int, model: Any, optimizer: Any, train: Callable[[range], None]
) -> list[Any]:
    """Train; return what was saved before each iteration, with what this rank alone knew."""
    kept = []
    for num in range(steps):
        whole = model.syncopate.state_dict(optimizer, everywhere=True)
        kept.append(from_a_file((whole, model.syncopate.local_state())))
        train(range(num, num + 1))
    return kept


def take_up(model: Any, optimizer: Any, whole: dict[str, Any], own: dict[str, Any]) -> None:
    """Load what was saved into model and optimizer, and then what this rank alone knew."""
    model.load_state_dict(whole["model"])
    optimizer.load_state_dict(whole["optimizer"])
    model.syncopate.load_local_state(own)


def close(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    """Assert that weights in float64 differ by rounding alone."""
    torch.testing.assert_close(
        [one.detach() for one in ours], [one.detach() for one in theirs], rtol=1e-9, atol=1e-11
    )
