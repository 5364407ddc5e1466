"""Models of many kinds train under exchanges in which every rank updates a part."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from syncopate.engine.distribute import distribute
from tests.multiprocess.engine.cases import TIMEOUT_S, plan_of
from tests.multiprocess.exchange.cases import OWNED, Odd, Run, batch, both, sgd, squares
from tests.multiprocess.harness import Cases, run_ranks

Loss = Callable[[Any, int], Tensor]


def train(loss_of_step: Callable[[int], Loss], run: Run, steps: int = 4) -> None:
    for step in range(steps):
        run.optimizer.zero_grad(set_to_none=step % 2 == 0)
        run.backward(loss_of_step(step))
        run.optimizer.step()
        with torch.no_grad():
            # Evaluation between steps takes other paths through attention and recurrence.
            run.model.eval()
            run.seen.append(float(loss_of_step(step)(run.model, 0)))
            run.model.train()


class Checkpointed(nn.Module):
    """Computes its middle again in backward, in one way or the other."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
        self.middle = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7))
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        hidden = checkpoint(self.middle, hidden, use_reentrant=self.reentrant)
        return self.last(torch.tanh(hidden))


class Recurrent(nn.Module):
    """Cells that hand all their weights to one function, and an embedding with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 6, num_layers=2, batch_first=True)
        self.gru = nn.GRU(6, 3, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = (inputs * 10).long().abs() % 9
        output: Tensor = self.gru(self.lstm(self.embedding(tokens))[0])[0]
        return output


class Attention(nn.Module):
    """An encoder layer, whose evaluation is one function of all its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(self.lift(inputs).unsqueeze(0))
        return output


class Strided(nn.Module):
    """Weights whose memory has another order than their indices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = nn.Parameter(torch.linspace(-1, 1, 20).view(4, 5).t())

    def forward(self, inputs: Tensor) -> Tensor:
        images = inputs.view(1, 1, 4, 5).expand(2, 3, 4, 5)
        return self.conv(images).mean((2, 3)) @ self.turned


class Reparametrised(nn.Module):
    """A weight that is computed of others in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(5, 7))
        self.last = nn.utils.parametrizations.orthogonal(nn.Linear(7, 7))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.first(inputs)))
        return output


class WithMethods(Odd):
    """Trained through a method that is not its forward."""

    def encode(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.first(inputs)) @ self.middle.weight * self.gain


BUILDS: list[Callable[[], nn.Module]] = [
    partial(Checkpointed, False),
    partial(Checkpointed, True),
    Recurrent,
    Attention,
    Strided,
    Reparametrised,
]


def encoded(step: int) -> Loss:
    return lambda model, rank: model.encode(batch(rank, step, 4, 5)).square().mean()


def delayed(step: int) -> Loss:
    """Ranks that are late in forward or backward delay the others and change no result."""

    def loss(model: Any, rank: int) -> Tensor:
        output = model(batch(rank, step, 4, 5))
        if model.training and output.requires_grad:
            time.sleep(0.02 * ((rank + step) % 3))
            output.register_hook(lambda _: time.sleep(0.02 * ((rank + 2 * step) % 3)))
        return output.square().mean()

    return loss


def in_a_group(rank: int, world_size: int, exchange: str) -> None:
    """Some of the ranks train, whose numbers are not those of the job."""
    members = list(range(1, world_size))
    group = dist.new_group(members)
    if rank in members:
        torch.manual_seed(7)
        model: Any = Odd()
        alone = copy.deepcopy(model)
        plan = plan_of(model, len(members), exchange=exchange)
        model, optimizer = distribute(
            model, sgd(model.parameters()), plan=plan, group=group, timeout_s=TIMEOUT_S
        )
        reference = sgd(alone.parameters())
        for step in range(4):
            for trained, made, ranks in (
                (model, optimizer, [rank]),
                (alone, reference, members),
            ):
                made.zero_grad()
                (sum(squares(step)(trained, r) for r in ranks) / len(ranks)).backward()
                norm = nn.utils.clip_grad_norm_(trained.parameters(), 0.1)
                made.step()
                assert norm > 0
        for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        model.syncopate.detach()
    dist.barrier()


def everything(rank: int, world_size: int) -> int:
    scripts: list[tuple[Callable[[], nn.Module], Callable[[int], Loss]]] = [
        *((build, squares) for build in BUILDS),
        (WithMethods, encoded),
        (Odd, delayed),
    ]
    with Cases() as case:
        for exchange in OWNED:
            for number, (build, loss) in enumerate(scripts):
                tensors = len(list(build().parameters()))
                sizes = None if number % 2 else [2, tensors - 2]
                with case(f"{build}, {exchange}"):
                    run = both(
                        rank,
                        world_size,
                        partial(train, loss),
                        exchange=exchange,
                        build=build,
                        sizes=sizes,
                        tolerance=1e-4,
                    )
                    run.model.syncopate.detach()
            with case(f"in a group, {exchange}"):
                in_a_group(rank, world_size, exchange)
    return len(scripts)


def test_models_of_many_kinds() -> None:
    assert run_ranks(everything, 3) == [8] * 3
