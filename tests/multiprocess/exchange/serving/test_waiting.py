"""A worker of a served model dies, and another process trains on in its place: the same bits."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

import syncopate
from syncopate.errors import InvalidValueError
from syncopate.protocol.rules import Rules
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.killable import require_alike
from tests.multiprocess.paramserver.servers import QUICK, LocalServers, wait_for

STEPS = 8
WAIT = Rules(on_worker_loss="wait")


class Net(nn.Module):
    """A table, layers, and one that is reached now and then, by one worker or by none."""

    def __init__(self, sparse=True):
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(50, 6, sparse=sparse)
        self.first = nn.Linear(6, 32)
        self.rare = nn.Linear(32, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, words, rare):
        x = torch.relu(self.first(self.words(words)))
        return self.last(self.rare(x) if rare else x)


def train(store, folder, delay=None):
    """Train; worker 1 dies once in the middle of a step, where the test wants that."""
    model = Net(sparse=delay is None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = syncopate.distribute(model, optimizer, exchange=store, delay=delay)
    for step in range(store.step, STEPS):
        own = torch.Generator().manual_seed(100 * step + store.rank)
        words = torch.randint(50, (8,), generator=own)
        optimizer.zero_grad()
        rare = step % 4 == 1 and store.rank == 1
        model(words, rare).square().mean().backward()
        if step == 5 and store.rank == 1 and (folder / "dies").exists():
            (folder / "dies").rename(folder / "died")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    return store.step, {name: w.clone() for name, w in model.state_dict().items()}


def test_a_model_is_trained_on_from_the_step_of_the_worker_that_died(tmp_path):
    found = []
    for dies in (False, True):
        with LocalServers(rules=WAIT, limits=QUICK) as job:
            if dies:
                (tmp_path / "dies").touch()
            workers = job.start(train, tmp_path)
            if dies:
                wait_for((tmp_path / "died").exists)
                workers[1] = job.worker(1, train, tmp_path)
            found += [child.result() for child in workers]
            assert job.ended() is None
    assert [step for step, _ in found] == [0, 0, 0, 5]
    for _, weights in found[1:]:
        require_alike(weights, found[0][1])


def test_what_a_worker_has_by_itself_is_refused(tmp_path):
    with LocalServers(rules=WAIT, servers=1, workers=1, limits=QUICK) as job:
        (child,) = job.start(train, tmp_path, 2)
        assert "delay is" in (said := child.refusal())
        assert "left out with on_worker_loss='wait'" in said


def refused(rank, _world, job):
    with syncopate.KVStore(WAIT, job=job, limits=QUICK) as store:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(InvalidValueError, match="each is a process without"):
            syncopate.distribute(model, optimizer, exchange=store)


def test_ranks_of_a_process_group_are_refused():
    with LocalServers(rules=WAIT, servers=1, workers=2, limits=QUICK) as job:
        run_ranks(refused, 2, job.job)
