"""Runs a parameter server's job for a test: a scheduler in a thread, the others in processes."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch

from syncopate import output
from syncopate.errors import SyncopateError
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.wire import faults
from syncopate.paramserver.worker import KVStore
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import Rules
from tests.children import HANGS_S
from tests.multiprocess.harness import child_context

CALM = Limits(heartbeat_s=0.1, silence_s=30.0, join_s=60.0, restart_s=60.0, retry_s=0.3)
"""Limits with which no process is taken for lost, however busy the machine is."""

QUICK = msgspec.structs.replace(CALM, silence_s=4.0)
"""Limits with which a lost process is noticed soon."""


def _main(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        outcome = ("result", function(*args))
    except SyncopateError as error:
        outcome = ("refused", str(error))
    except BaseException:
        outcome = ("error", traceback.format_exc())
    connection.send_bytes(pickle.dumps(outcome))
    connection.close()


class Child:
    """A function that runs in a process of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        context = child_context()
        self._ours, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_main, args=(theirs, function, args), daemon=True)
        self.process.start()
        theirs.close()

    def outcome(self, timeout_s: float = HANGS_S) -> tuple[str, Any]:
        """Return ``(kind, value)``: its result, a refusal or an error; or how it died."""
        if not self._ours.poll(timeout_s):
            return ("late", None)
        try:
            return pickle.loads(self._ours.recv_bytes())
        except EOFError:
            self.process.join(5)
            return ("dead", self.process.exitcode)

    def result(self) -> Any:
        """Return what the function returned."""
        kind, value = self.outcome()
        assert kind == "result", f"{kind}: {value}"
        return value

    def refusal(self) -> str:
        """Return the message of the error that the function raised for the user."""
        kind, value = self.outcome()
        assert kind == "refused", f"{kind}: {value}"
        return value

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(5)


def serve(
    job: Job, state: Path | None, limits: Limits, knobs: str, updaters: tuple[str, ...] = ()
) -> dict[str, int]:
    chance = faults.faults_from({faults.VARIABLE: knobs})
    server = ParameterServer(job, state=state, limits=limits, faults=chance, updaters=updaters)
    server.run()
    return server.refused


def serve_when_there_is_room(job: Job, state: Path, *given: Any) -> dict[str, int]:
    """Serve where ``state`` is on a disk that is full as long as there is a file ``full`` beside.

    A file ``tried`` beside it tells which files could not be written.
    """
    full, tried, replace = state.with_name("full"), state.with_name("tried"), output._replace

    def replace_if_there_is_room(target: Path, data: bytes) -> None:
        if full.exists():
            with tried.open("a") as notes:
                notes.write(f"{target.relative_to(state.parent)}\n")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(target, data)

    output._replace = replace_if_there_is_room
    return serve(job, state, *given)


def work(job: Job, rules: Rules, limits: Limits, knobs: str, *call: Any) -> Any:
    function, *args = call
    if knobs:
        os.environ[faults.VARIABLE] = knobs
    with KVStore(rules, job=job, limits=limits) as store:
        return function(store, *args)


class LocalServers:
    """A scheduler and servers; workers come when a test starts them."""

    def __init__(
        self,
        *,
        servers: int = 2,
        workers: int = 2,
        rules: Rules | None = None,
        state: Path | None = None,
        limits: Limits = CALM,
        key: Path | None = None,
        faults: str = "",
        updaters: tuple[str, ...] = (),
    ) -> None:
        child_context()  # before the scheduler waits for processes
        self.job = Job(port=free_port(), servers=servers, workers=workers, key=key)
        self.rules = rules or Rules()
        self._state, self._limits, self._faults = state, limits, faults
        self.updaters = updaters
        self.error: str | None = None
        self.scheduler = Scheduler(self.job, limits)
        self._thread = threading.Thread(target=self._schedule, daemon=True)
        self._thread.start()
        self.servers = [self._server(rank) for rank in range(servers)]
        self._children = list(self.servers)

    def __enter__(self) -> LocalServers:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def start(self, function: Any, *args: Any, **changed: Any) -> list[Child]:
        """Run ``function(store, *args)`` on every worker."""
        return [self.worker(rank, function, *args, **changed) for rank in range(self.job.workers)]

    def worker(self, rank: int, function: Any, *args: Any, **changed: Any) -> Child:
        """Run ``function(store, *args)`` on one worker; ``changed`` are fields of its job."""
        job = msgspec.structs.replace(self.job, rank=rank, **changed)
        child = Child(work, job, self.rules, self._limits, self._faults, function, *args)
        self._children.append(child)
        return child

    def restart(self, rank: int) -> None:
        """Start a server again."""
        self.servers[rank].end()
        self.servers[rank] = self._server(rank)
        self._children.append(self.servers[rank])

    def ended(self, timeout_s: float = HANGS_S) -> str | None:
        """Wait for the end of the job; return what the scheduler says went wrong."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the scheduler goes on"
        return self.error

    def _server(self, rank: int) -> Child:
        job = msgspec.structs.replace(self.job, rank=rank)
        state = None if self._state is None else self._state / str(rank)
        return Child(serve, job, state, self._limits, self._faults, self.updaters)

    def _schedule(self) -> None:
        try:
            self.scheduler.run()
        except SyncopateError as error:
            self.error = str(error)


def wait_for(condition: Callable[[], Any], timeout_s: float = HANGS_S) -> None:
    """Return when ``condition()`` holds."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it does not come about"
        time.sleep(0.02)
