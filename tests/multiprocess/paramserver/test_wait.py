"""A worker that dies is waited for: another process takes its place, at the step where it was."""

from __future__ import annotations

import os
import signal
import time

import msgspec
import pytest
import torch
from torch import nn

from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from tests.multiprocess.paramserver.killable import (
    LIMITS,
    TABLE,
    Killable,
    gradients,
    require_alike,
    train_rows,
)
from tests.multiprocess.paramserver.servers import LocalServers, wait_for

STEPS = 12
WAIT = Rules(mode="ssgd", optimizer=Adam(lr=0.05), on_worker_loss="wait")


def dies_once(folder, rank, step):
    """Kill this process in ``step`` if the test wants that, and it was not killed there before."""
    wanted, done = (folder / f"{what}-{rank}-{step}" for what in ("dies", "died"))
    if wanted.exists() and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def train(store, folder):
    """Train a model; where this worker dies it has pushed half of its gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(20)))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    dies_once(folder, store.rank, "joined")
    store.init(weights)
    for step in range(store.step, STEPS):
        own = list(gradients(model, step, store.rank).items())
        half = len(own) // 2
        pushed = [store.push(name, gradient) for name, gradient in own[:half]]
        if (folder / f"dies-{store.rank}-{step}").exists():
            for handle in pushed:
                handle.wait()
            dies_once(folder, store.rank, step)
        pushed += [store.push(name, gradient) for name, gradient in own[half:]]
        pulled = [store.pull(name, weights[name]) for name in weights]
        for handle in (*pushed, *pulled):
            handle.wait()
        (folder / f"took-{store.rank}-{step}").touch()
    return store.step, store.resumed, {name: w.clone() for name, w in weights.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with LocalServers(rules=WAIT, limits=LIMITS) as job:
        (step, resumed, weights), other = [each.result() for each in job.start(train, folder)]
        assert job.ended() is None
    assert (step, resumed) == (0, False)
    require_alike(weights, other[2])
    return weights


def died(folder, rank, step):
    """Return a condition: that the worker has died there."""
    return (folder / f"died-{rank}-{step}").exists


@pytest.mark.parametrize(
    ("rank", "step"), [(1, 5), (0, 5), (1, "joined"), (0, "joined"), (0, 0), (1, STEPS - 1)]
)
def test_another_process_goes_on_in_the_middle_of_the_step_with_the_same_bits(
    tmp_path, undisturbed, rank, step
):
    (tmp_path / f"dies-{rank}-{step}").touch()
    with LocalServers(rules=WAIT, limits=LIMITS) as job:
        workers = job.start(train, tmp_path)
        wait_for(died(tmp_path, rank, step))
        workers[rank] = job.worker(rank, train, tmp_path)
        found = [each.result() for each in workers]
        assert job.ended() is None
    began = found[rank][0]
    assert began == (step if isinstance(step, int) else 0)
    assert found[rank][1] == (began > 0)
    for _, _, weights in found:
        require_alike(weights, undisturbed)


def test_workers_die_at_once_and_again_and_come_back_without_saying_their_ranks(
    tmp_path, undisturbed
):
    for rank, step in ((0, 3), (1, 3), (1, 4), (0, 7)):
        (tmp_path / f"dies-{rank}-{step}").touch()
    with LocalServers(rules=WAIT, limits=LIMITS) as job:
        workers = job.start(train, tmp_path)
        for rank in range(2):
            wait_for(died(tmp_path, rank, 3))
        workers = [job.worker(-1, train, tmp_path) for _ in range(2)]
        wait_for(died(tmp_path, 1, 4))
        more = [job.worker(1, train, tmp_path)]
        wait_for(died(tmp_path, 0, 7))
        more.append(job.worker(0, train, tmp_path))
        for child in more:
            require_alike(child.result()[2], undisturbed)
        assert {child.outcome()[0] for child in workers} == {"dead"}
        assert job.ended() is None


@pytest.mark.parametrize("also", ["server 1", "scheduler", "all"])
def test_a_worker_and_others_die_at_once_where_all_keep_state(tmp_path, undisturbed, also):
    (tmp_path / "dies-1-5").touch()
    with Killable(tmp_path) as job:
        job.work(WAIT, train, tmp_path)
        wait_for(died(tmp_path, 1, 5))
        others = ["scheduler", "server 0", "server 1"] if also == "all" else [also]
        job.kill(*others)
        job.begin(*others, "worker 1")
        found = job.results()
    assert found[1][0] == 5
    for _, _, weights in found:
        require_alike(weights, undisturbed)


def train_table(store, folder):
    """Train a table and a tensor; where this worker dies it has pushed the table."""
    bias = torch.zeros(5)
    store.init_rows("user", TABLE, Adagrad(lr=0.1))
    store.init({"bias": bias})
    for step in range(store.step, STEPS):

        def may_die(pushed, step=step):
            if (folder / f"dies-{store.rank}-{step}").exists():
                pushed.wait()
                time.sleep(0.5)  # the other one's push is there by now, so servers have updated
                dies_once(folder, store.rank, step)

        train_rows(store, step, bias, may_die)
    return store.table_state("user") | {"bias": bias}


@pytest.mark.parametrize("state", [False, True])
def test_tables_are_what_they_were_before_the_step(tmp_path, state):
    rules = Rules(mode="ssgd", optimizer=SGD(lr=0.01), on_worker_loss="wait")
    found = []
    for dies in ((), (1, 0)):
        folder = tmp_path / str(len(dies))
        folder.mkdir()
        for rank in dies:
            (folder / f"dies-{rank}-{5 + rank}").touch()
        with Killable(folder) as job:
            job.work(rules, train_table, folder)
            for rank in reversed(dies):
                wait_for(died(folder, rank, 5 + rank))
                servers = ["server 0", "server 1"] if state else []
                if state:
                    job.kill(*servers)
                job.begin(*servers, f"worker {rank}")
            found += job.results()
    for other in found[1:]:
        require_alike(other, found[0])


def count(store, folder, pushes):
    """Push ones; return how many pushes of all workers are in the weights, and of how many."""
    total = torch.zeros(10)
    store.init({"sum": total})
    for push in range(pushes):
        if (folder / f"dies-{store.rank}-{push}").exists():
            dies_once(folder, store.rank, push)
        store.push("sum", torch.ones(10)).wait()
        store.pull("sum", total).wait()
    (folder / f"pushed-{store.rank}").touch()
    wait_for((folder / "leave").exists)
    store.pull("sum", total).wait()
    return total.tolist()[0], store.num_workers


@pytest.mark.parametrize("staleness", [None, 1])
def test_asynchronous_pushes_count_once_each_and_one_worker_more_may_come(tmp_path, staleness):
    rules = Rules(mode="asgd", optimizer=SGD(lr=1.0), on_worker_loss="wait", staleness=staleness)
    (tmp_path / "dies-1-3").touch()
    with LocalServers(rules=rules, limits=LIMITS) as job:
        workers = job.start(count, tmp_path, 5)
        wait_for(died(tmp_path, 1, 3))
        workers[1] = job.worker(1, count, tmp_path, 2)
        wait_for(lambda: all((tmp_path / f"pushed-{rank}").exists() for rank in range(2)))
        workers.append(job.worker(2, count, tmp_path, 1))
        wait_for((tmp_path / "pushed-2").exists)
        (tmp_path / "leave").touch()
        found = [child.result() for child in workers]
        assert job.ended() is None
    assert found == [(-5 - 3 - 2 - 1, 3)] * 3


def test_a_second_process_is_refused_while_the_first_one_lives(tmp_path):
    with LocalServers(rules=WAIT, limits=LIMITS) as job:
        workers = job.start(hold, tmp_path)
        wait_for((tmp_path / "holds").exists)
        assert "worker 1 is here, and was heard" in job.worker(1, train, tmp_path).refusal()
        assert "no worker is lost" in job.worker(2, train, tmp_path).refusal()
        assert "there is no worker 7" in job.worker(7, train, tmp_path).refusal()
        (tmp_path / "go").touch()
        for child in workers:
            child.result()
        assert job.ended() is None


def hold(store, folder):
    """Be there until the test says so."""
    store.init({"w": torch.zeros(3)})
    (folder / "holds").touch()
    wait_for((folder / "go").exists)


def test_a_job_ends_where_no_process_comes_in_time_and_names_the_worker(tmp_path):
    (tmp_path / "dies-1-2").touch()
    with LocalServers(rules=WAIT, limits=LIMITS) as job:
        workers = job.start(train, tmp_path)
        wait_for(died(tmp_path, 1, 2))
        # All have come by now, for which a busy machine may take longer.
        places = job.scheduler._machine._places
        places._limits = msgspec.structs.replace(LIMITS, join_s=3.0)
        said = [workers[0].refusal(), job.ended()]
    assert all("worker 1 was lost, and no process took its place within 3 s" in s for s in said)


def fails_once(store, folder):
    """Raise in the first process of worker 1."""
    store.init({"w": torch.zeros(3)})
    if store.rank == 1 and not (folder / "raised").exists():
        (folder / "raised").touch()
        raise RuntimeError("some bug")
    out = torch.zeros(3)
    store.push("w", torch.ones(3)).wait()
    store.pull("w", out).wait()
    return out.tolist()


def test_a_worker_that_raises_is_waited_for_too(tmp_path):
    rules = Rules(mode="ssgd", optimizer=SGD(lr=1.0), on_worker_loss="wait")
    with LocalServers(rules=rules, limits=LIMITS) as job:
        workers = job.start(fails_once, tmp_path)
        assert "some bug" in workers[1].outcome()[1]
        workers[1] = job.worker(1, fails_once, tmp_path)
        assert [child.result() for child in workers] == [[-1.0] * 3] * 2
        assert job.ended() is None
