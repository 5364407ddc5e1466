"""Training of a click model whose embedding tables are on parameter servers.

    syncopate ps local --servers 2 --workers 4 -- python examples/clicks.py

starts a scheduler, two servers and four workers on this machine. The embeddings are built with
``sparse=True``: a forward brings the rows that it looks up, and a step sends the gradients of these
rows and no others. Users and items are drawn by a power law, as they are on the web. At the end
rank 0 trains the same model by plain PyTorch in one process, and prints how far the two are from
each other. See docs/paramserver.md.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

import syncopate

USERS, ITEMS, TAGS, WIDTH = 50_000, 20_000, 500, 16
TAGS_OF_ITEM = 3

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Users and items, shape (examples,); tags, shape (examples, TAGS_OF_ITEM); clicks, as users."""


class ClickModel(nn.Module):
    """Embeddings of user, item and the item's tags, and a small network on top."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH, sparse=True)
        self.item = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.tags = nn.EmbeddingBag(TAGS, WIDTH, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(3 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
        for table in (self.user, self.item, self.tags):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, users: Tensor, items: Tensor, tags: Tensor) -> Tensor:
        """Return the logits of clicks, shape (examples,)."""
        parts = [self.user(users), self.item(items), self.tags(tags)]
        return self.top(torch.cat(parts, dim=1)).squeeze(1)


class Clicks:
    """Clicks of users on items, by hidden tastes."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._users = torch.randn(USERS, 4, generator=generator)
        self._items = torch.randn(ITEMS, 4, generator=generator)
        self._tags = torch.randint(TAGS, (ITEMS, TAGS_OF_ITEM), generator=generator)

    def batch(self, step: int, rank: int, count: int) -> Batch:
        """Return the examples of one rank in one step."""
        generator = torch.Generator().manual_seed(1 + 1000 * step + rank)
        users, items = (_by_power_law(n, count, generator) for n in (USERS, ITEMS))
        liked = (self._users[users] * self._items[items]).sum(dim=1)
        clicked = torch.rand(count, generator=generator) < torch.sigmoid(2 * liked)
        return users, items, self._tags[items], clicked.float()


def _by_power_law(most: int, count: int, generator: torch.Generator) -> Tensor:
    """Return numbers below ``most``: the n-th is about as frequent as 1/n."""
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    return (torch.tensor(float(most)).pow(share) - 1).long().clamp_(max=most - 1)


def optimizers_of(model: ClickModel) -> list[torch.optim.Optimizer]:
    """Return what trains the network, and what trains the tables."""
    tables = [model.user.weight, model.item.weight, model.tags.weight]
    return [
        torch.optim.Adam(model.top.parameters(), lr=1e-3),
        torch.optim.SparseAdam(tables, lr=1e-2),
    ]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of a batch."""
    *inputs, clicked = batch
    return functional.binary_cross_entropy_with_logits(model(*inputs), clicked)


def plain(model: ClickModel, batches: Iterator[list[Batch]]) -> list[float]:
    """Train by plain PyTorch on the batches of all ranks; return the loss of every step."""
    optimizers, losses = optimizers_of(model), []
    for of_ranks in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        of_rank = [loss_of(model, batch) for batch in of_ranks]
        for loss in of_rank:
            (loss / len(of_rank)).backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(of_rank[0].item())
    return losses


def main() -> None:
    """Train with a progress line, then compare with plain PyTorch on rank 0."""
    parser = argparse.ArgumentParser(description="Train a click model with a parameter server.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=512, help="per worker")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data, model = Clicks(), ClickModel()
    beside, losses = copy.deepcopy(model), []
    progress = Progress(console=Console(stderr=True), disable=rank != 0)
    with syncopate.KVStore() as store, progress:
        model, optimizers = syncopate.distribute(model, optimizers_of(model), exchange=store)
        task = progress.add_task("training", total=arguments.steps)
        for step in range(arguments.steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(model, data.batch(step, rank, arguments.batch_size))
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"loss {loss.item():.4f}")
        weights = model.state_dict()  # brings all rows
    if rank == 0:
        batches = (
            [data.batch(step, each, arguments.batch_size) for each in range(world_size)]
            for step in range(arguments.steps)
        )
        expected = plain(beside, batches)
        apart = max(abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True))
        far = max((weights[name] - one).abs().max() for name, one in beside.state_dict().items())
        print(f"loss on {world_size} workers: {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"plain PyTorch: losses differ by {apart:.1e} at most, weights by {far:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
