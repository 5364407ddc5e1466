"""An optimizer for some tensors each, and learning rates of their own, over real processes."""

from __future__ import annotations

import pytest
import torch

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol.rules import SGD, Adam, Rules
from tests.multiprocess.paramserver.servers import LocalServers

STEPS = 6
NAMES = [f"t{number:03d}" for number in range(150)]
"""So many that those of an optimizer are bundles, of tensors that do not follow each other."""


def weights():
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(5, generator=generator) for name in NAMES}


def gradients(step, worker):
    generator = torch.Generator().manual_seed(100 * step + worker)
    return {name: torch.randn(5, generator=generator) for name in NAMES}


OWN = {name: Adam(lr=0.01, weight_decay=0.1) for name in NAMES[::2]} | {NAMES[1]: SGD(lr=0.5)}
"""The others are updated by what the rules say."""


def train(store):
    tensors = weights()
    store.init(tensors, OWN)
    for step in range(STEPS):
        if step == 2:
            store.set_learning_rate(0.3)  # of all
        if step == 4:
            store.set_learning_rate(0.02, NAMES[::4])
        pushed = store.push_many(gradients(step, store.rank))
        store.pull_many(tensors).wait()
        pushed.wait()
    return tensors, store.state(), store.rules.optimizer


def alone(workers):
    tensors = {name: torch.nn.Parameter(each) for name, each in weights().items()}
    adam = torch.optim.Adam([tensors[name] for name in NAMES[::2]], lr=0.01, weight_decay=0.1)
    one = torch.optim.SGD([tensors[NAMES[1]]], lr=0.5)
    sgd = torch.optim.SGD([tensors[n] for n in NAMES[3::2]], lr=0.1, momentum=0.9)
    fourth = torch.optim.Adam([tensors[name] for name in NAMES[::4]], lr=0.02, weight_decay=0.1)
    for step in range(STEPS):
        found = [gradients(step, worker) for worker in range(workers)]
        for name, tensor in tensors.items():
            tensor.grad = sum((each[name] for each in found[1:]), found[0][name]) / workers
        for optimizer in (adam, one, sgd):
            if step == 2:
                optimizer.param_groups[0]["lr"] = 0.3
        if step == 4:
            for name in NAMES[::4]:
                fourth.state[tensors[name]] = adam.state[tensors[name]]
            adam.param_groups[0]["params"] = [tensors[name] for name in NAMES[2::4]]
        for optimizer in (adam, one, sgd, *([fourth] if step >= 4 else [])):
            optimizer.step()
    return tensors


def test_each_tensor_is_updated_by_its_own_optimizer_at_its_own_rate():
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9))
    with LocalServers(workers=2, servers=1, rules=rules) as job:
        results = [child.result() for child in job.start(train)]
        assert job.ended() is None
    expected = alone(2)
    for tensors, state, optimizer in results:
        assert [name for name in NAMES if not torch.equal(tensors[name], expected[name])] == []
        assert optimizer == rules.optimizer
        assert set(state[NAMES[0]]) == {"steps", "mean", "square"}
        assert NAMES[1] not in state
        assert set(state[NAMES[3]]) == {"momentum"}


def part(store, steps, begin, end):
    """Train some steps, from the file ``begin`` on, if there is one, to the file ``end``."""
    tensors, state = torch.load(begin) if begin.exists() else (weights(), None)
    store.init(tensors, OWN, state)
    for step in steps:
        store.push_many(gradients(step, store.rank))
        store.pull_many(tensors).wait()
    torch.save((tensors, store.state()), end)


def test_a_job_goes_on_from_the_state_of_each_tensor_on_any_number_of_servers(tmp_path):
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9))

    def run(servers, *args):
        with LocalServers(workers=1, servers=servers, rules=rules) as job:
            job.start(part, *args)[0].result()
        return torch.load(args[-1])

    whole, known = run(2, range(4), tmp_path / "none", tmp_path / "whole")
    run(2, range(2), tmp_path / "none", tmp_path / "first")
    found, state = run(3, range(2, 4), tmp_path / "first", tmp_path / "second")
    assert [name for name in NAMES if not torch.equal(found[name], whole[name])] == []
    assert int(state[NAMES[0]]["steps"]) == int(known[NAMES[0]]["steps"]) == 4


def misuse(store):
    tensors = {"a": torch.zeros(3), "b": torch.zeros(3)}
    with pytest.raises(UnknownNameError, match="tensor of an optimizer 'c'; known: a, b"):
        store.init(tensors, {"c": SGD(lr=1.0)})
    with pytest.raises(InvalidValueError, match="lr is -1"):
        store.init(tensors, {"a": SGD(lr=-1)})
    with pytest.raises(InvalidValueError, match="declared with init"):
        store.set_learning_rate(1.0, ["a"])
    store.init(tensors, {"a": SGD(lr=1.0)})
    with pytest.raises(UnknownNameError, match="'c'"):
        store.set_learning_rate(1.0, ["c"])


def test_mistakes_are_refused():
    with LocalServers(servers=1, workers=1) as job:
        job.start(misuse)[0].result()
        assert job.ended() is None
