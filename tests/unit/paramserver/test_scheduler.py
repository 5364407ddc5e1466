"""A scheduler that keeps its state: on a full disk the job stays as it is until there is room."""

from __future__ import annotations

import threading
import time

import pytest

from syncopate.errors import ParameterServerError
from syncopate.paramserver import scheduler as module
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.storage.durable import Run, RunFile
from syncopate.paramserver.wire.sockets import Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.limits import Limits
from tests.children import HANGS_S
from tests.unit.paramserver.full_disk import refuse_as_full

LIMITS = Limits(silence_s=HANGS_S)


class Member:
    """A server or worker that says what a test tells it."""

    def __init__(self, job, role):
        self.token = role
        self.wire = Wire(None, LIMITS, Tap(role))
        self.wire.connect(SCHEDULER, job.scheduler)
        self.says(msg.Register(msg.PROTOCOL, job.name, role, role, "tcp://here"))

    def says(self, message):
        self.wire.send(SCHEDULER, message)
        self.wire.drain(HANGS_S)

    def hears(self, kind):
        until_s = time.monotonic() + HANGS_S
        while time.monotonic() < until_s:
            for arrival in self.wire.receive(0.01):
                if isinstance(self.wire.opened(codec.FromScheduler, arrival)[0], kind):
                    return
        raise AssertionError(f"no {kind.__name__}")


class Disk:
    """One that is full as long as a test says so.

    Attributes:
        full: whether it is.
        tried: set when something was to be written meanwhile.
    """

    def __init__(self, monkeypatch):
        self.full, self.tried = False, threading.Event()
        write = RunFile.keep

        def keep(file, *given):
            if not self.full:
                return write(file, *given)
            self.tried.set()
            return refuse_as_full(file.path)

        monkeypatch.setattr(RunFile, "keep", keep)
        monkeypatch.setattr(module, "AGAIN_S", 0.01)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def running(disk, tmp_path):
    """Give a scheduler that runs, and its server and worker; all are there."""
    job = Job(port=free_port())
    scheduler = Scheduler(job, LIMITS, state=tmp_path)
    ended = []

    def run():
        try:
            scheduler.run()
        except ParameterServerError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    members = [Member(job, role) for role in ("server", "worker")]
    for member in members:
        member.hears(msg.Roster)
    yield thread, ended, *members
    for member in members:
        member.wire.close(0)


def test_it_waits_for_room_and_says_meanwhile_that_it_lives(running, disk, tmp_path, caplog):
    thread, ended, server, worker = running
    disk.full = True
    worker.says(msg.Leave(worker.token))
    assert disk.tried.wait(HANGS_S)
    server.says(msg.Heartbeat(server.token))
    server.hears(msg.Heartbeat)
    assert thread.is_alive()
    disk.full = False
    worker.hears(msg.Left)
    server.hears(msg.Finish)
    for member in (server, worker):
        member.says(msg.Leave(member.token, heard=True))
    thread.join(HANGS_S)
    assert ended == []
    assert Run.load(tmp_path / "scheduler.json").over
    path = tmp_path / "scheduler.json"
    assert caplog.messages == [
        f"{path}: cannot write: No space left on device; "
        "the job stays as it is until there is room",
        f"{path}: there is room again",
    ]


def test_a_job_that_fails_does_not_wait_for_room(running, disk):
    thread, ended, server, worker = running
    disk.full = True
    worker.says(msg.Failed(worker.token, "some bug"))
    server.hears(msg.Abort)
    for member in (server, worker):
        member.says(msg.Leave(member.token, heard=True))
    thread.join(HANGS_S)
    assert ended == ["worker 0: some bug"]
