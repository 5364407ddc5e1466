"""Gradients in 8 and 16 bits over real processes: bytes, sums, and what a training learns."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

import syncopate
from syncopate.errors import UnknownNameError
from syncopate.paramserver.narrow import decoded8, encoded8
from syncopate.protocol import messages as msg
from syncopate.protocol.rules import SGD, Rules
from syncopate.zoo.data import digits
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

SHAPES = {"large": (3, 500_000), "none": (0,)}
SHAPES |= {f"small{number:03d}": (number % 5,) for number in range(80)}


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def train(store):
    """Return the weights, and the bytes of pushes."""
    weights = tensors(1)
    store.init(weights)
    counts = store._session._wire.tap.counters._counts
    before = counts[msg.Push, "sent"][1] if store.rank == 0 else 0
    for step in range(3):
        store.push_many(tensors(10 + 2 * step + store.rank))
        store.pull_many(weights).wait()
    return weights, counts[msg.Push, "sent"][1] - before


def alone(kind):
    """Return the weights of one process that narrows each gradient as a worker does."""
    weights, lost = tensors(1), [{}, {}]
    for step in range(3):
        for name, weight in weights.items():
            total = None
            for worker in (0, 1):
                gradient = tensors(10 + 2 * step + worker)[name]
                gradient = narrowed(gradient, kind, lost[worker], name)
                total = gradient if total is None else total + gradient
            weight.sub_(total / 2, alpha=0.1)
    return weights


def narrowed(gradient, kind, lost, name):
    if kind != "int8":
        return gradient.to(getattr(torch, kind)).to(gradient.dtype)
    flat = gradient.view(-1) + lost.get(name, 0)
    # Blocks do not reach from one slice to the next: the large tensor has two, cut in its middle.
    parts = flat.split(750_016 if name == "large" else max(flat.numel(), 1))
    found = torch.cat([decoded8(encoded8(part), part.dtype) for part in parts])
    lost[name] = flat - found
    return found.view(gradient.shape)


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.2501), ("bfloat16", 0.5), ("float16", 0.5)])
def test_servers_add_what_travelled_in_the_gradients_own_type(kind, share):
    nbytes = 3 * 4 * sum(each.numel() for each in tensors(1).values())
    rules = Rules(optimizer=SGD(lr=0.1), push_dtype=kind)
    with LocalServers(servers=2, workers=2, rules=rules) as job:
        results = [child.result() for child in job.start(train)]
        assert job.ended() is None
    expected = alone(kind)
    for weights, sent in results:
        assert [name for name in SHAPES if not torch.equal(weights[name], expected[name])] == []
        assert sent < share * nbytes * 1.01 + 20_000  # headers of 3 times 83 messages


def test_unknown_bits_are_refused():
    with pytest.raises(UnknownNameError, match="push_dtype 'int4'; known: bfloat16, float16, int8"):
        Rules(push_dtype="int4").require_valid()


def learned(rank, world, jobs):
    """Train on digits with each job's servers; return the share of unseen digits that are right."""
    data, right = digits(), {}
    x, y = data.train_inputs.flatten(1), data.train_targets
    for kind, job in jobs.items():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 * 21)
        found = msgspec.structs.replace(job, rank=rank)
        rules = Rules(push_dtype=kind)
        with syncopate.KVStore(rules, job=found, limits=QUICK) as store:
            model, optimizer = syncopate.distribute(model, optimizer, exchange=store)
            for epoch in range(12):
                shuffled = torch.randperm(1400, generator=torch.Generator().manual_seed(epoch))
                for batch in shuffled[rank::world].split(33)[:21]:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimizer.step()
                    schedule.step()
            guesses = model(data.test_inputs.flatten(1)).argmax(1)
        right[kind] = float((guesses == data.test_targets).float().mean())
    return right


def test_digits_are_learned_as_well_with_fewer_bits():
    kinds = ("", "bfloat16", "float16", "int8")
    jobs = {kind: LocalServers(servers=2, workers=2) for kind in kinds}
    try:
        results = run_ranks(learned, 2, {kind: each.job for kind, each in jobs.items()})
    finally:
        for each in jobs.values():
            each.__exit__()
    assert results[0] == results[1]
    assert results[0][""] > 0.95
    assert all(abs(right - results[0][""]) <= 0.0101 for right in results[0].values())
