"""Servers and workers that die: training goes on, or all processes hear which one is to blame."""

from __future__ import annotations

import re
import time

import pytest
import torch
from msgspec import structs

from syncopate.protocol.rules import SGD, Rules
from tests.children import HANGS_S
from tests.multiprocess.paramserver import test_store as case
from tests.multiprocess.paramserver.servers import QUICK, LocalServers, wait_for

STEPS = 40


def train_on(store, folder, steps):
    """Train; say in ``folder`` how far this worker is."""
    tensors = case.weights()
    store.init(tensors)
    for step in range(steps):
        step_on(store, tensors, step)
        (folder / f"{store.rank}-{step}").touch()
    return tensors


def train_until(store, folder, steps):
    """Train; take the second half of the steps when the test has done what it does meanwhile.

    A test that is late on a busy machine would find the job over.
    """
    tensors = case.weights()
    store.init(tensors)
    for step in range(steps):
        if step == steps // 2:
            wait_for((folder / "done").exists)
        step_on(store, tensors, step)
        (folder / f"{store.rank}-{step}").touch()
    return tensors


def step_on(store, tensors, step):
    """Push the gradients of a step, and pull the weights."""
    handles = [store.push(name, case.gradient(name, step, store.rank)) for name in tensors]
    handles += [store.pull(name, out) for name, out in tensors.items()]
    for handle in handles:
        handle.wait()


def train_until_killed(store, folder, victim, steps):
    """Train; the worker ``victim`` stops after three steps and waits for its end."""
    if store.rank == victim:
        train_on(store, folder, 3)
        time.sleep(60)
    return train_on(store, folder, steps)


def train_when_told(store, folder, victim):
    """Train once a file says so; the worker ``victim`` waits for its end, and declares nothing."""
    (folder / f"{store.rank}-joined").touch()
    if store.rank == victim:
        time.sleep(HANGS_S)
    wait_for((folder / "told").exists)
    return train_on(store, folder, 3)


def push_ones(store, counts, rate):
    """Push as often as ``counts`` says for this worker."""
    out = torch.zeros(10)
    store.init({"w": out})
    for _ in range(counts[store.rank]):
        store.push("w", torch.ones(10)).wait()
        store.pull("w", out).wait()
        time.sleep(rate)
    return out


def raise_something(store):
    store.init({"w": torch.zeros(1)})
    if store.rank == 1:
        raise RuntimeError("some bug")
    store.push("w", torch.ones(1)).wait()
    store.pull("w", torch.ones(1)).wait()


@pytest.mark.parametrize("knobs", ["", "drop=0.02,duplicate=0.05,delay=0.01,seed=3"])
def test_a_server_killed_twice_leaves_no_trace_in_the_weights(tmp_path, knobs):
    rules = Rules(optimizer=SGD(lr=0.1, momentum=0.9))
    steps = STEPS if not knobs else 8
    with LocalServers(rules=rules, state=tmp_path / "state", faults=knobs) as job:
        workers = job.start(train_on, tmp_path, steps)
        for victim, at in ((0, steps // 4), (1, steps // 2)):
            wait_for(lambda at=at: (tmp_path / f"0-{at}").exists())
            job.servers[victim].kill()
            job.restart(victim)
        results = [child.result() for child in workers]
        assert job.ended() is None
    expected = case.alone(rules, 2, steps)
    assert all(case.same(found, expected) for found in results)


def test_a_server_that_keeps_no_state_is_named(tmp_path):
    """Soon, and not when one that keeps it would have had its time to come back."""
    limits = structs.replace(QUICK, restart_s=HANGS_S)
    with LocalServers(limits=limits) as job:
        workers = job.start(train_on, tmp_path, 10_000)
        wait_for((tmp_path / "1-2").exists)
        job.servers[1].kill()
        began_s = time.monotonic()
        refusals = [child.refusal() for child in workers]
        assert time.monotonic() - began_s < 4 * QUICK.silence_s
        said = [*refusals, job.ended(), job.servers[0].refusal()]
        assert all(re.search("server 1 at (ipc|tcp)://", each) for each in said)


def test_a_lost_worker_is_named(tmp_path):
    with LocalServers(workers=3, limits=QUICK) as job:
        workers = job.start(train_until_killed, tmp_path, 1, 10_000)
        wait_for((tmp_path / "1-2").exists)
        workers[1].kill()
        for rank in (0, 2):
            assert "worker 1 was lost" in workers[rank].refusal()
        assert "worker 1 was lost" in job.ended()


def test_training_goes_on_without_a_lost_worker(tmp_path):
    rules = Rules(on_worker_loss="continue", optimizer=SGD(lr=0.1))
    with LocalServers(workers=3, rules=rules, limits=QUICK) as job:
        workers = job.start(train_until_killed, tmp_path, 1, 6)
        wait_for((tmp_path / "1-2").exists)
        workers[1].kill()
        results = [workers[rank].result() for rank in (0, 2)]
        assert job.ended() is None
        assert case.same(results[0], results[1])
    # Three steps with all, three with the other two.
    expected = case.alone(rules, 3, 3)["bias"]
    for step in range(3, 6):
        mean = (case.gradient("bias", step, 0) + case.gradient("bias", step, 2)) / 2
        expected.add_(mean, alpha=-0.1)
    assert torch.equal(results[0]["bias"], expected)


def killed_before_it_declares(job, folder, victim):
    """Start the workers of ``job``; kill one, and return them when the scheduler has lost it."""
    workers = job.start(train_when_told, folder, victim)
    wait_for((folder / f"{victim}-joined").exists)
    workers[victim].kill()
    wait_for(lambda: job.scheduler._machine.here["worker"] < len(workers))
    time.sleep(0.5)  # the servers hear of it
    return [worker for rank, worker in enumerate(workers) if rank != victim]


def test_training_goes_on_without_a_worker_that_was_lost_before_it_began(tmp_path):
    rules = Rules(on_worker_loss="continue", optimizer=SGD(lr=0.1))
    with LocalServers(workers=3, rules=rules, limits=QUICK) as job:
        others = killed_before_it_declares(job, tmp_path, 1)
        (tmp_path / "told").touch()
        results = [child.result() for child in others]
        assert job.ended() is None
    expected = case.weights()["bias"]
    for step in range(3):
        mean = (case.gradient("bias", step, 0) + case.gradient("bias", step, 2)) / 2
        expected.add_(mean, alpha=-0.1)
    assert all(torch.equal(found["bias"], expected) for found in results)


@pytest.mark.parametrize(("loss", "victim"), [("abort", 1), ("continue", 0)])
def test_a_worker_lost_before_it_began_is_named_before_another_begins(tmp_path, loss, victim):
    with LocalServers(workers=3, rules=Rules(on_worker_loss=loss), limits=QUICK) as job:
        others = killed_before_it_declares(job, tmp_path, victim)
        said = [job.ended()]
        (tmp_path / "told").touch()
        said += [child.refusal() for child in others]
    why = "before it gave the servers the first weights" if victim == 0 else "'continue' goes on"
    assert all(f"worker {victim} was lost" in each and why in each for each in said)


def test_a_worker_that_leaves_early_is_named():
    with LocalServers(servers=1) as job:
        workers = job.start(push_ones, (2, 5), 0.0)
        assert torch.equal(workers[0].result(), torch.full((10,), -0.2))
        refusal = workers[1].refusal()
        assert "worker 0 left after 2 pushes of 'w'" in refusal
        assert "worker 1 pushed it 3 times" in refusal


def test_a_worker_that_raises_ends_the_job():
    with LocalServers(servers=1) as job:
        workers = job.start(raise_something)
        assert "some bug" in workers[1].outcome()[1]
        assert "worker 1 raised RuntimeError" in workers[0].refusal()
        assert "worker 1" in job.ended()


@pytest.mark.parametrize(("mode", "staleness"), [("asgd", None), ("asgd", 1), ("dc-asgd", None)])
def test_asynchronous_pushes_all_count(mode, staleness):
    rules = Rules(mode=mode, staleness=staleness, optimizer=SGD(lr=1.0))
    with LocalServers(rules=rules, workers=3) as job:
        workers = job.start(push_ones, (8, 5, 3), 0.01)
        results = [child.result() for child in workers]
        assert job.ended() is None
    if mode == "asgd":
        # Sixteen pushes of one each, whatever their order; the last to end has seen them all.
        assert min(found[0].item() for found in results) == -16
        assert all(
            -16 <= found[0].item() <= -count
            for found, count in zip(results, (8, 5, 3), strict=True)
        )
    else:
        assert all(torch.isfinite(found).all() for found in results)
