"""Many small tensors: pushed and pulled together or one by one, the weights are the same bits."""

from __future__ import annotations

import pytest
import torch

from syncopate.paramserver.storage import optimizers
from syncopate.protocol.rules import SGD, Adam, Rules
from tests.multiprocess.paramserver.servers import CALM, LocalServers, wait_for

COUNT = 200
STEPS = 6


def _names():
    return [f"t{number:03d}" for number in range(COUNT)]


def _tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(number % 7, generator=generator) for number, name in enumerate(_names())
    }


def _gradient(step, worker):
    return _tensors(1000 + 10 * step + worker)


def train(store, folder, apart, pace):
    """Push and pull everything; from step ``apart`` on one tensor after the other.

    Returns the weights, what the optimizer remembers, and how many parts bundles have at the end.
    """
    weights = _tensors(store.rank)
    store.init(weights)
    for step in range(STEPS):
        gradients = _gradient(step, store.rank)
        if step < apart:
            handles = [store.push_many(gradients), store.pull_many(weights)]
        else:
            handles = [store.push(name, each) for name, each in gradients.items()]
            handles += [store.pull(name, out) for name, out in weights.items()]
        for handle in handles:
            handle.wait()
        (folder / f"{store.rank}-{step}").touch()
        if pace:
            wait_for((folder / f"go-{step}").exists)
    return weights, store.state(), len(store._session.machine.bundles)


def alone(rules, workers):
    weights, states = _tensors(0), {name: {} for name in _names()}
    for step in range(STEPS):
        gradients = [_gradient(step, worker) for worker in range(workers)]
        for name, weight in weights.items():
            total = gradients[0][name].clone()
            for other in gradients[1:]:
                total += other[name]
            total /= workers
            optimizers.step(rules.optimizer, None, weight, total, states[name])
    return weights, states


def _same(found, expected):
    weights, states, _ = found
    return all(torch.equal(weights[name], expected[0][name]) for name in weights) and all(
        torch.equal(states[name][key], value)
        for name, state in expected[1].items()
        for key, value in state.items()
    )


@pytest.mark.parametrize(
    ("apart", "optimizer", "parts"),
    [
        (STEPS, SGD(lr=0.1, momentum=0.9), 2),
        (3, Adam(lr=0.01), COUNT),
        (0, SGD(lr=0.1, momentum=0.9), COUNT),
    ],
)
def test_together_or_one_by_one_the_weights_are_those_of_one_process(
    tmp_path, apart, optimizer, parts
):
    rules = Rules(optimizer=optimizer)
    with LocalServers(rules=rules) as job:
        results = [child.result() for child in job.start(train, tmp_path, apart, False)]
        assert job.ended() is None
    expected = alone(rules, 2)
    for found in results:
        assert _same(found, expected)
        assert found[2] == parts


@pytest.mark.parametrize("apart", [STEPS, 3])
def test_a_server_killed_before_and_after_a_split_leaves_no_trace(tmp_path, apart):
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9))
    with LocalServers(rules=rules, state=tmp_path / "state") as job:
        workers = job.start(train, tmp_path, apart, True)
        for step in range(STEPS):
            wait_for(lambda step=step: all((tmp_path / f"{w}-{step}").exists() for w in range(2)))
            if step in (1, 3):
                job.servers[0].kill()
                job.restart(0)
            (tmp_path / f"go-{step}").touch()
        results = [child.result() for child in workers]
        assert job.ended() is None
    expected = alone(rules, 2)
    assert all(_same(found, expected) for found in results)


def declare(store, count):
    tensors = {f"a.table.of.many.rows.{number:06d}": torch.zeros(1) for number in range(count)}
    store.init(tensors)
    store.push_many({name: torch.full((1,), float(i)) for i, name in enumerate(tensors)}).wait()
    store.pull_many(tensors).wait()
    return torch.cat(list(tensors.values()))


def test_a_hundred_thousand_keys_are_declared_to_one_server():
    """A declaration of them has more bytes than a message may have."""
    with LocalServers(servers=1, workers=1, rules=Rules(optimizer=SGD(lr=1.0))) as job:
        found = job.start(declare, 100_000)[0].result()
        assert job.ended() is None
    assert torch.equal(found, -torch.arange(100_000, dtype=torch.float32))
    assert CALM.slice_bytes > 100_000
