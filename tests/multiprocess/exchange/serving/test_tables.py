"""Embeddings with sparse gradients on servers: the training of one process, bit by bit."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import msgspec
import pytest
import torch
from torch import nn

import syncopate
from syncopate.errors import EngineError, SyncopateError
from syncopate.protocol.rules import Rules
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

STEPS, ROWS, WORLD = 8, 300, 2


class Clicks(nn.Module):
    """A table that is looked up twice, bags of another, and one that is rarely used."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(5)
        self.user = nn.Embedding(ROWS, 4, sparse=True, padding_idx=0, **options)
        self.tags = nn.EmbeddingBag(50, 4, mode="sum", sparse=True)
        self.rare = nn.Embedding(20, 4, sparse=True)
        self.top = nn.Linear(12, 1)

    def forward(self, users, others, tags, rare=None):
        last = self.tags(tags) if rare is None else self.rare(rare)
        return self.top(torch.cat([self.user(users), self.user(input=others), last], dim=1))


def batch(step, rank, count=12):
    generator = torch.Generator().manual_seed(100 * step + rank)
    users, others = (torch.randint(ROWS, (count,), generator=generator) for _ in range(2))
    return users // 7, others, torch.randint(50, (count, 3), generator=generator)


def loss_of(model, step, rank):
    """Return a loss for which one rank in some steps uses the rare table, and not the bags."""
    rare = torch.arange(12) % 5 if step % 3 == 1 and rank == 1 else None
    return model(*batch(step, rank), rare).square().mean()


def one(kind, **options):
    return lambda model: [kind(model.parameters(), lr=0.1, **options)]


def two(model):
    tables = [model.user.weight, model.tags.weight, model.rare.weight]
    dense = torch.optim.AdamW(model.top.parameters(), lr=0.01)
    return [dense, torch.optim.SparseAdam(tables, lr=0.1)]


OPTIMIZERS = {
    "sgd": one(torch.optim.SGD),
    "adagrad": one(torch.optim.Adagrad, lr_decay=0.1),
    "adam": two,
}


def store_of(job, rank, rules=None):
    found = msgspec.structs.replace(job, rank=rank)
    return syncopate.KVStore(rules or Rules(), job=found, limits=QUICK)


def step_of(model, optimizers, step, rank):
    for optimizer in optimizers:
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    backward(model, step, rank, aside=model.no_sync)
    for optimizer in reversed(optimizers):
        optimizer.step()


def backward(model, step, rank, aside=nullcontext):
    """Gradients of one batch, and in every fourth step of another one before."""
    if step % 4 == 3:
        with aside():
            loss_of(model, 1000 + step, rank).backward()
    loss_of(model, step, rank).backward()


def trained(rank, _world, job, name):
    """Return weights and states; in the middle the state of a plain training is as good."""
    model = Clicks()
    with torch.no_grad():
        model.user.weight.mul_(rank + 1)  # rank 0's counts
    optimizers = OPTIMIZERS[name](model)
    with store_of(job, rank) as store:
        model, optimizers = syncopate.distribute(model, optimizers, exchange=store)
        for step in range(STEPS):
            step_of(model, optimizers, step, rank)
        with torch.no_grad():
            seen = model(*batch(99, 0)).clone()
        whole = model.syncopate.state_dict(optimizers, everywhere=True)
        copied = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        with torch.no_grad():
            assert all(torch.equal(other(*batch(99, 0)), seen) for other in copied)
        model.syncopate.detach()
        detached = {key: value.clone() for key, value in model.state_dict().items()}
        states = [optimizer.state_dict()["state"] for optimizer in optimizers[1:]]
    return whole, detached, seen, states


def alone(name):
    """Return the model and the optimizers of one process that adds gradients rank by rank."""
    torch.set_num_threads(1)
    model = Clicks()
    optimizers = OPTIMIZERS[name](model)
    for step in range(STEPS):
        found = []
        for rank in range(WORLD):
            model.zero_grad()
            backward(model, step, rank)
            found.append([parameter.grad for parameter in model.parameters()])
        for parameter, *grads in zip(model.parameters(), *found, strict=True):
            parameter.grad = averaged([grad for grad in grads if grad is not None])
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            optimizer.step()
    return model, optimizers


def averaged(grads):
    if not grads:
        return None
    if not grads[0].is_sparse:
        return sum(grads[1:], grads[0]) / WORLD
    coalesced = [grad.coalesce() for grad in grads]
    rows = torch.cat([grad.indices()[0] for grad in coalesced]).unique()
    total = sum((grad.to_dense() for grad in coalesced[1:]), coalesced[0].to_dense()) / WORLD
    return sparse(rows, total[rows], total.shape)


def sparse(rows, values, shape):
    return torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=True).coalesce()


@pytest.mark.parametrize(("name", "servers"), [("sgd", 1), ("adagrad", 2), ("adam", 3)])
def test_tables_train_as_in_one_process(name, servers):
    with LocalServers(servers=servers, workers=WORLD) as job:
        results = run_ranks(trained, WORLD, job.job, name)
        assert job.ended() is None
    model, optimizers = alone(name)
    expected = model.state_dict()
    with torch.no_grad():
        seen_alone = model(*batch(99, 0))
    for whole, detached, seen, states in results:
        for found in (whole["model"], detached):
            assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
        assert torch.equal(seen, seen_alone)
        for found, optimizer in zip(whole["optimizer"], optimizers, strict=True):
            _same_states(found["state"], optimizer.state_dict()["state"])
        for found, optimizer in zip(states, optimizers[1:], strict=True):
            _same_states(found, optimizer.state_dict()["state"])


def _same_states(found, expected):
    for index, entries in expected.items():
        for key, value in entries.items():
            assert value is None or torch.equal(
                torch.as_tensor(found[index][key]), torch.as_tensor(value)
            ), (index, key)


def resumed(rank, _world, first, second, name):
    """Return the weights of a training that goes on on other servers, and of one that does not."""
    model = Clicks()
    with store_of(first, rank) as store:
        model, optimizers = syncopate.distribute(model, OPTIMIZERS[name](model), exchange=store)
        for step in range(4):
            step_of(model, optimizers, step, rank)
        whole = model.syncopate.state_dict(optimizers, everywhere=True)
        for step in range(4, STEPS):
            step_of(model, optimizers, step, rank)
        expected = {key: value.clone() for key, value in model.state_dict().items()}
    model = Clicks()
    optimizers = OPTIMIZERS[name](model)
    model.load_state_dict(whole["model"])
    for optimizer, state in zip(optimizers, whole["optimizer"], strict=True):
        optimizer.load_state_dict(state)
    with store_of(second, rank) as store:
        model, optimizers = syncopate.distribute(model, optimizers, exchange=store)
        with pytest.raises(EngineError, match="Load model and optimizer before"):
            optimizers[-1].load_state_dict(whole["optimizer"][-1])
        for step in range(4, STEPS):
            step_of(model, optimizers, step, rank)
        found = {key: value.clone() for key, value in model.state_dict().items()}
    return found, expected


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_tables_go_on_on_other_servers(name):
    with (
        LocalServers(servers=1, workers=WORLD) as first,
        LocalServers(servers=3, workers=WORLD) as second,
    ):
        results = run_ranks(resumed, WORLD, first.job, second.job, name)
    for found, expected in results:
        assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


def untold(rank, _world, job):
    """Train with asynchronous servers; ranks take different numbers of steps."""
    model = Clicks()
    with store_of(job, rank, Rules(mode="asgd")) as store:
        optimizers = one(torch.optim.SGD)(model)
        model, optimizers = syncopate.distribute(model, optimizers, exchange=store)
        before = loss_of(model, 0, 0).item()
        for step in range(20 + 5 * rank):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(model, 2 * (step % 2), 0).backward()
            for optimizer in optimizers:
                optimizer.step()
        with model.syncopate.global_weights():
            weights = {key: value.clone() for key, value in model.state_dict().items()}
            with torch.no_grad():
                after = loss_of(model, 0, 0).item()
    return weights, before, after


def test_tables_on_asynchronous_servers():
    rules = Rules(mode="asgd")
    with LocalServers(servers=2, workers=WORLD, rules=rules) as job:
        (one_, before, after), (other, _, _) = run_ranks(untold, WORLD, job.job)
    assert after < before / 2
    assert [key for key in one_ if not torch.equal(one_[key], other[key])] == []


def refused(rank, _world, job):
    """Return what cannot be."""
    said = []

    def ask(model, optimizers, **options):
        try:
            syncopate.distribute(model, optimizers, exchange=store, **options)
        except SyncopateError as error:
            said.append(str(error))

    with store_of(job, rank) as store:
        model = Clicks()
        ask(model, one(torch.optim.SGD, momentum=0.9)(model))
        ask(model, one(torch.optim.Adam)(model))
        ask(model, one(torch.optim.SGD)(model), delay=2)
        ask(model, one(torch.optim.SGD)(model.top))
        model = Clicks(max_norm=1.0)
        ask(model, one(torch.optim.SGD)(model))
        lookup = nn.Sequential(nn.Embedding(3, 2, sparse=True))
        ask(lookup, one(torch.optim.SGD)(lookup))
        tied = Tied()
        model, optimizers = syncopate.distribute(tied, one(torch.optim.SGD)(tied), exchange=store)
        model(torch.tensor([1])).sum().backward()
        with pytest.raises(EngineError, match="is not sparse: the weight"):
            optimizers[0].step()
        store.push_rows("table.weight", torch.tensor([1]), torch.ones(1, 2))
    return said


class Tied(nn.Module):
    """A table whose weight is used otherwise, too."""

    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2)

    def forward(self, ids):
        return nn.functional.linear(self.top(self.table(ids)), self.table.weight)


WORDS = [
    "momentum is 0.9; it must be 0 for a table of rows",
    "unknown optimizer of servers 'Adam' for the table 'user.weight'; known: SGD, Adagrad, Sparse",
    "whose rows cannot come late",
    "and 0 groups of the optimizers given train it",
    "and max_norm, which servers do not apply",
    "has no trainable parameter beside embeddings with sparse=True",
]


def test_what_servers_cannot_do_with_tables_is_refused():
    with LocalServers(servers=1, workers=1) as job:
        (said,) = run_ranks(refused, 1, job.job)
    assert len(said) == len(WORDS)
    for sentence, words in zip(said, WORDS, strict=True):
        assert words in sentence
