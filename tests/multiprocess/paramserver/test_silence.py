"""Processes that were stopped or went back in time: the job goes on, or hears who is to blame."""

from __future__ import annotations

import shutil
import signal
import time

import pytest
from msgspec import structs

from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.protocol.rules import SGD, Rules
from tests.children import HANGS_S
from tests.multiprocess.paramserver import servers
from tests.multiprocess.paramserver import test_store as case
from tests.multiprocess.paramserver.servers import CALM, Child, LocalServers, wait_for
from tests.multiprocess.paramserver.test_loss import train_on, train_until

BRIEF = structs.replace(CALM, silence_s=2.0)
"""A process that is stopped for longer than the others wait for a sign of life."""

RULES = Rules(optimizer=SGD(lr=0.1, momentum=0.9))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_server_that_was_stopped_goes_on_and_leaves_no_trace(tmp_path, keeps):
    state = tmp_path / "state" if keeps else None
    with LocalServers(rules=RULES, state=state, limits=BRIEF) as job:
        workers = job.start(train_until, tmp_path, 20)
        wait_for((tmp_path / "0-3").exists)
        job.servers[0].kill(signal.SIGSTOP)
        (tmp_path / "done").touch()
        time.sleep(2 * BRIEF.silence_s)
        job.servers[0].kill(signal.SIGCONT)
        results = [child.result() for child in workers]
        assert job.ended() is None
    assert all(case.same(found, case.alone(RULES, 2, 20)) for found in results)


def test_a_worker_killed_while_others_are_missing_is_named_within_seconds():
    limits = structs.replace(BRIEF, join_s=HANGS_S)
    with LocalServers(workers=2, limits=limits) as job:
        worker = job.worker(1, train_on, None, 1)
        wait_for(lambda: job.scheduler._machine.here["worker"] == 1)
        worker.kill()
        began_s = time.monotonic()
        assert "worker 1 was silent for" in job.ended()
        assert time.monotonic() - began_s < CALM.join_s / 2


def test_a_server_with_the_state_of_an_earlier_step_is_named_and_ends_the_job(tmp_path):
    state = tmp_path / "state" / "0"
    with LocalServers(rules=RULES, servers=1, state=tmp_path / "state") as job:
        workers = job.start(train_on, tmp_path, 10_000)
        wait_for((tmp_path / "0-3").exists)
        job.servers[0].kill(signal.SIGSTOP)
        shutil.copytree(state, tmp_path / "snapshot")
        job.servers[0].kill(signal.SIGCONT)
        wait_for((tmp_path / "0-12").exists)
        job.servers[0].kill()
        job.servers[0].end()
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "snapshot", state)
        job.restart(0)
        for said in (*(child.refusal() for child in workers), job.ended()):
            assert "its state is older than what it said was safe" in said
            assert "server 0 has" in said


def _schedule(job, limits, state):
    Scheduler(job, limits, state=state).run()


def test_a_scheduler_killed_twice_and_started_again_leaves_no_trace(tmp_path):
    """Once it alone, and once with a server that comes back before it does."""
    job = Job(port=free_port(), servers=2, workers=2)
    limits, state = structs.replace(CALM, silence_s=10.0), tmp_path / "state"
    children = []

    def child(*call):
        children.append(Child(*call))
        return children[-1]

    def schedule():
        return child(_schedule, job, limits, state / "scheduler")

    def serve(rank):
        return child(servers.serve, structs.replace(job, rank=rank), state / f"{rank}", limits, "")

    try:
        scheduler, first, _ = schedule(), serve(0), serve(1)
        workers = [
            child(
                servers.work, structs.replace(job, rank=rank), RULES, limits, "",
                train_until, tmp_path, 40,
            )
            for rank in range(2)
        ]  # fmt: skip
        wait_for((tmp_path / "0-5").exists)
        scheduler.kill()
        scheduler.end()
        wait_for((tmp_path / "0-12").exists)  # it is not missed
        scheduler = schedule()
        wait_for((tmp_path / "0-18").exists)
        scheduler.kill()
        first.kill()
        (tmp_path / "done").touch()
        scheduler.end()
        first.end()
        serve(0)
        time.sleep(0.5)
        scheduler = schedule()
        results = [worker.result() for worker in workers]
        scheduler.result()
    finally:
        for each in children:
            each.end()
    assert all(case.same(found, case.alone(RULES, 2, 40)) for found in results)
