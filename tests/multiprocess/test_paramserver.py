"""The parameter server over real processes and sockets: the same weights as one process."""

from __future__ import annotations

import pytest
import torch

from syncopate.paramserver import optimizers
from syncopate.protocol.rules import SGD, Adam, Rules
from tests.multiprocess.paramserver import LocalServers

STEPS = 6
SHAPES = {"conv": (7, 3, 3), "bias": (5,), "large": (3, 500_000), "none": (0,), "scalar": ()}
"""The large one is cut into two slices; the others are one each."""


def weights():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradient(name, step, worker):
    seed = hash((step, worker, list(SHAPES).index(name))) % 2**31
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def train(store, steps=STEPS, schedule=False):
    """Push and pull everything ``steps`` times; the values that workers start with differ."""
    tensors = weights()
    if store.rank:
        tensors = {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}
    store.init(tensors)
    for step in range(steps):
        if schedule:
            store.set_learning_rate(0.1 / (step + 1))
        gradients = {name: gradient(name, step, store.rank) for name in tensors}
        handles = [store.push(name, g, priority=i) for i, (name, g) in enumerate(gradients.items())]
        handles += [
            store.pull(name, out, priority=-i) for i, (name, out) in enumerate(tensors.items())
        ]
        for handle in handles:
            handle.wait()
            assert handle.done()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def alone(rules, workers, steps=STEPS, schedule=False):
    """Return the weights of one process that adds the gradients in the workers' order."""
    tensors = weights()
    for name, tensor in tensors.items():
        state = {}
        for step in range(steps):
            total = gradient(name, step, 0)
            for worker in range(1, workers):
                total += gradient(name, step, worker)
            total /= workers
            lr = 0.1 / (step + 1) if schedule else None
            optimizers.step(rules.optimizer, lr, tensor.view(-1), total.view(-1), state)
    return tensors


def same(found, expected):
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers", "schedule"),
    [
        (SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), 3, 2, True),
        (Adam(lr=0.01, weight_decay=0.01), 2, 3, False),
        (SGD(lr=0.1), 1, 1, False),
    ],
)
def test_synchronous_training_is_bitwise_that_of_one_process(optimizer, workers, servers, schedule):
    rules = Rules(optimizer=optimizer)
    with LocalServers(workers=workers, servers=servers, rules=rules) as job:
        results = [child.result() for child in job.start(train, STEPS, schedule)]
        assert job.ended() is None
        refused = [server.result() for server in job.servers]
    expected = alone(rules, workers, schedule=schedule)
    assert all(same(found, expected) for found in results)
    assert refused == [{}] * servers
