"""Everything is killed and started again: the job goes on from the last step that all have."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from syncopate.protocol.rules import SGD, Adagrad, Adam, Rules
from tests.multiprocess.paramserver.killable import (
    TABLE,
    Killable,
    gradients,
    require_alike,
    train_rows,
)
from tests.multiprocess.paramserver.servers import serve_when_there_is_room, wait_for

STEPS = 12
AHEAD = 2
"""So many steps workers may take until the test does something to them, and no more."""

SSGD = Rules(mode="ssgd", optimizer=Adam(lr=0.05))


class _Job(Killable):
    """A job of two servers whose workers say how far they are.

    Args:
        until: the step before which workers wait, so that a test that is late on a busy machine
            finds them there, and not at the end; see :meth:`until`.
    """

    def __init__(self, folder, rules, function, *args, until=STEPS):
        super().__init__(folder)
        self.until(until)
        self.work(rules, function, *args)

    def until(self, step):
        """Let workers wait before a step until they may take further ones."""
        file = self.folder / "until"
        file.with_suffix(".new").write_text(str(step))
        file.with_suffix(".new").rename(file)

    def again(self):
        """Start all anew."""
        self.begin(*self.children)

    def reached(self, step):
        """Wait until worker 0 has taken a step."""
        file = self.folder / "taken"
        wait_for(lambda: file.exists() and file.stat().st_size >= step)


def _took_step(store, folder, step):
    if store.rank == 0:
        with (folder / "taken").open("ab") as file:
            file.write(b".")
    wait_for(lambda: int((folder / "until").read_text()) > step + 1 or step + 1 == STEPS)


def _train(store, folder):
    """Train a model of a large tensor and many small ones; return where it began, and weights."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(40)))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    store.init(weights)
    for step in range(store.step, STEPS):
        own = gradients(model, step, store.rank)
        pushed = [store.push(name, gradient) for name, gradient in own.items()]
        pulled = [store.pull(name, weights[name]) for name in weights]
        for handle in (*pushed, *pulled):
            handle.wait()
        _took_step(store, folder, step)
    return store.step, store.resumed, {name: w.clone() for name, w in weights.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with _Job(folder, SSGD, _train, folder) as job:
        (step, resumed, weights), other = job.results()
        require_alike(weights, other[2])
    assert (step, resumed) == (0, False)
    return weights


@pytest.mark.parametrize("steps", [(1,), (4, 9)])
def test_all_that_is_killed_goes_on_from_the_last_step_with_the_same_bits(
    tmp_path, undisturbed, steps
):
    with _Job(tmp_path, SSGD, _train, tmp_path, until=steps[0] + AHEAD) as job:
        for step, after in zip(steps, (*steps[1:], STEPS), strict=True):
            job.reached(step)
            job.kill()
            (tmp_path / "taken").write_bytes(b"." * step)
            job.until(after + AHEAD)
            job.again()
        (began, resumed, weights), other = job.results()
    assert resumed
    assert steps[-1] <= began <= STEPS
    assert other[0] == began
    require_alike(weights, undisturbed)
    require_alike(other[2], undisturbed)


def test_a_job_that_ended_because_of_a_lost_worker_goes_on_when_all_are_started_again(
    tmp_path, undisturbed
):
    with _Job(tmp_path, SSGD, _train, tmp_path, until=3 + AHEAD) as job:
        job.reached(3)
        job.kill("worker 1")
        job.until(STEPS)
        for name in ("scheduler", "server 0", "server 1", "worker 0"):
            assert "worker 1 was" in job.children[name].refusal()
        job.again()
        for began, resumed, weights in job.results():
            assert resumed
            assert began >= 3
            require_alike(weights, undisturbed)


def test_servers_that_live_go_on_from_their_disks_when_the_others_come_back(tmp_path, undisturbed):
    with _Job(tmp_path, SSGD, _train, tmp_path, until=3 + AHEAD) as job:
        job.reached(3)
        killed = ("scheduler", "server 1", "worker 0", "worker 1")
        job.kill(*killed)
        job.until(STEPS)
        job.begin(*killed)
        for began, resumed, weights in job.results():
            assert resumed
            assert began >= 3
            require_alike(weights, undisturbed)


class _Tight(_Job):
    """One whose servers are on a disk that is full as long as a test says so."""

    serve = staticmethod(serve_when_there_is_room)

    def tried(self, name):
        """Wait until each server could not write a file whose name begins so."""
        file, wanted = self.folder / "tried", [f"server-{server}/{name}" for server in range(2)]
        wait_for(lambda: file.exists() and all(each in file.read_text() for each in wanted))


def test_servers_wait_for_room_before_they_write_who_they_are(tmp_path, undisturbed):
    (tmp_path / "full").touch()
    with _Tight(tmp_path, SSGD, _train, tmp_path) as job:
        job.tried("server.json")
        assert not (tmp_path / "taken").exists()
        (tmp_path / "full").unlink()
        for began, _, weights in job.results():
            assert began == 0
            require_alike(weights, undisturbed)


def test_servers_that_go_back_wait_for_room(tmp_path, undisturbed):
    with _Tight(tmp_path, SSGD, _train, tmp_path) as job:
        job.reached(3)
        job.kill()
        (tmp_path / "full").touch()
        job.again()
        job.tried("segment")
        (tmp_path / "full").unlink()
        for began, resumed, weights in job.results():
            assert resumed
            assert began >= 3
            require_alike(weights, undisturbed)


def _train_rows(store, folder):
    bias = torch.zeros(5)
    store.init_rows("user", TABLE, Adagrad(lr=0.1))
    store.init({"bias": bias})
    for step in range(store.step, STEPS):
        train_rows(store, step, bias)
        _took_step(store, folder, step)
    return store.table_state("user") | {"bias": bias}


def test_tables_go_back_to_the_step_too(tmp_path):
    rules = Rules(mode="ssgd", optimizer=SGD(lr=0.01))
    found = []
    for kills in ((), (5,)):
        folder = tmp_path / str(len(kills))
        folder.mkdir()
        until = kills[0] + AHEAD if kills else STEPS
        with _Job(folder, rules, _train_rows, folder, until=until) as job:
            for step in kills:
                job.reached(step)
                job.kill()
                job.until(STEPS)
                job.again()
            found += job.results()
    for other in found[1:]:
        require_alike(other, found[0])


def _count(store, folder):
    total = torch.zeros(3000)
    store.init({"sum": total})
    began = total.clone()
    store.push("sum", torch.ones(3000)).wait()
    store.pull("sum", total).wait()
    _took_step(store, folder, 0)
    if not store.resumed:
        wait_for(lambda: False)  # until it is killed
    return store.step, began


def test_asynchronous_servers_go_on_from_what_each_has(tmp_path):
    with _Job(tmp_path, Rules(mode="asgd", optimizer=SGD(lr=1.0)), _count, tmp_path) as job:
        job.reached(1)
        job.kill()
        job.again()
        for step, began in job.results():
            assert step == 0
            values = set(began.tolist())
            assert values <= {-1, -2, -3}
            assert len(values) <= 2, "each of two servers goes on from its own pushes"


def test_servers_without_their_folders_are_named(tmp_path):
    with _Job(tmp_path, SSGD, _train, tmp_path, until=2 + AHEAD) as job:
        job.reached(2)
        job.kill()
        (tmp_path / "server-1").rename(tmp_path / "elsewhere")
        job.again()
        assert "server 1 is none of them, or comes without its folder" in (
            job.children["server 1"].refusal()
        )


def _leave(store, folder):
    total = torch.zeros(30)
    store.init({"sum": total})
    store.push("sum", torch.ones(30)).wait()
    store.pull("sum", total).wait()
    (folder / f"leaves {store.rank}").touch()
    wait_for((folder / "leave").exists)
    return total


@pytest.mark.parametrize("after_s", [None, 0.0, 0.02, 0.05, 0.1, 0.2])
def test_workers_leave_though_the_scheduler_is_killed_meanwhile(tmp_path, after_s):
    """It is killed before they leave, or so many seconds after they may; then it comes back."""
    with _Job(tmp_path, Rules(optimizer=SGD(lr=1.0)), _leave, tmp_path) as job:
        for rank in range(2):
            wait_for((tmp_path / f"leaves {rank}").exists)
        if after_s is None:
            job.kill("scheduler")
        (tmp_path / "leave").touch()
        if after_s is not None:
            time.sleep(after_s)
            job.kill("scheduler")
        job.begin("scheduler")
        for total in job.results():
            assert torch.equal(total, torch.full((30,), -1.0))
        for name in ("server 0", "server 1"):
            job.children[name].result()
