"""Clipping on servers over real processes: what one process does that clips."""

from __future__ import annotations

import signal

import pytest
import torch

from syncopate.errors import InvalidValueError
from syncopate.protocol.rules import SGD, Adam, Rules
from tests.multiprocess.paramserver.servers import QUICK, LocalServers, wait_for

STEPS = 8
SHAPES = {"conv": (7, 3, 3), "large": (3, 500_000), "none": (0,), "rare": (5,)}
SHAPES |= {f"small{number:03d}": (number % 5,) for number in range(150)}
"""One is cut into slices, and many travel as bundles."""


def weights():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradients(step, worker):
    """Return gradients, of which every other step's norm is above 1; some may be missing."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    scale = 1.0 if step % 2 else 1e-4
    found = {n: scale * torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}
    if step % 4 != 1 or not worker:
        found["rare"] = None  # on all workers, or on all but one
    return found


def train(store, folder=None):
    tensors = weights()
    store.init(tensors)
    norms = []
    for step in range(STEPS):
        pushed = store.push_many(gradients(step, store.rank))
        if folder is not None and step in (2, 5):
            (folder / f"{step}-{store.rank}").touch()
        store.pull_many(tensors).wait()
        pushed.wait()
        norms.append(store.gradient_norm)
        if folder is not None and step in (2, 5):
            wait_for((folder / f"go-{step}").exists)
    return tensors, norms, store.state()


def alone(optimizer_of, workers):
    """Return the weights of one process that clips by torch, and norms in 64 bits."""
    tensors = {name: torch.nn.Parameter(each) for name, each in weights().items()}
    optimizer, norms = optimizer_of(list(tensors.values())), []
    for step in range(STEPS):
        found = [gradients(step, worker) for worker in range(workers)]
        for name, tensor in tensors.items():
            there = [each[name] for each in found if each[name] is not None]
            tensor.grad = sum(there[1:], there[0]) / workers if there else None
        there = [each.grad for each in tensors.values() if each.grad is not None]
        norms.append(sum(float(each.double().square().sum()) for each in there) ** 0.5)
        torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        optimizer.step()
    return tensors, norms


@pytest.mark.parametrize(
    ("rule", "optimizer_of", "servers"),
    [
        (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01), 3),
    ],
)
def test_servers_clip_by_the_norm_over_all_of_them(rule, optimizer_of, servers):
    rules = Rules(optimizer=rule, clip_norm=1.0)
    with LocalServers(workers=2, servers=servers, rules=rules) as job:
        results = [child.result() for child in job.start(train)]
        assert job.ended() is None
    expected, norms = alone(optimizer_of, 2)
    assert max(norms) > 100
    assert min(norms) < 1
    for tensors, found, state in results:
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(found, norms, rtol=1e-9, atol=0)
        assert all(torch.equal(tensors[name], results[0][0][name]) for name in tensors)
        if "steps" in state["conv"]:
            # Where no worker has a gradient the optimizer takes no step.
            assert int(state["conv"]["steps"]) == STEPS
            assert int(state["rare"]["steps"]) == STEPS // 4


def small(store):
    """Push gradients whose norm is below the limit."""
    tensors = weights()
    store.init(tensors)
    for step in range(0, STEPS, 2):
        store.push_many(dict(gradients(step, store.rank).items()))
        store.pull_many(tensors).wait()
    return tensors


def test_steps_that_are_not_clipped_have_the_same_bits_as_without():
    results = []
    for rules in (Rules(clip_norm=50.0), Rules()):
        with LocalServers(workers=2, servers=2, rules=rules) as job:
            results.append(next(child.result() for child in job.start(small)))
    assert all(torch.equal(results[0][name], results[1][name]) for name in SHAPES)


def test_servers_that_are_killed_clip_by_the_same_norms(tmp_path):
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9), clip_norm=1.0)
    with LocalServers(workers=2, servers=2, rules=rules) as job:
        expected = job.start(train)
        expected = next(child.result() for child in expected)
    given = {"rules": rules, "limits": QUICK, "state": tmp_path / "state"}
    with LocalServers(workers=2, servers=2, **given) as job:
        children = job.start(train, tmp_path)
        for step, server in ((2, 0), (5, 1)):
            wait_for(lambda step=step: all((tmp_path / f"{step}-{w}").exists() for w in (0, 1)))
            job.servers[server].kill(signal.SIGKILL)
            job.restart(server)
            (tmp_path / f"go-{step}").touch()
        found = [child.result() for child in children]
        assert job.ended() is None
    for tensors, _, _ in found:
        assert [name for name in SHAPES if not torch.equal(tensors[name], expected[0][name])] == []


def asynchronous(store):
    store.init({"w": torch.zeros(3)})
    with pytest.raises(InvalidValueError, match="left out in mode 'asgd'"):
        store.push("w", None)


def test_a_push_without_a_gradient_is_of_the_synchronous_mode():
    with LocalServers(workers=1, servers=1, rules=Rules(mode="asgd")) as job:
        job.start(asynchronous)[0].result()


def part_of_a_step(store, wait):
    """Push one of two tensors, and wait for something that takes a step of both."""
    weights = {"a": torch.zeros(3), "b": torch.zeros(3)}
    store.init(weights)
    pushed = store.push("a", torch.ones(3))
    if wait == "pull":
        store.pull("a", weights["a"]).wait()
    elif wait == "push":
        pushed.wait()
    elif wait == "state":
        store.state()


@pytest.mark.parametrize("wait", ["pull", "push", "state", "close"])
def test_nobody_waits_for_a_step_of_which_some_tensors_are_not_pushed(wait, tmp_path):
    state = tmp_path if wait == "push" else None
    with LocalServers(workers=1, servers=1, rules=Rules(clip_norm=1.0), state=state) as job:
        said = job.start(part_of_a_step, wait)[0].refusal()
        assert "the number of pushes of 'b' is 0; it must be 1" in said
        assert job.ended() is not None
