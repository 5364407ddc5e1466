"""Launch: scheduler, servers and workers of a job as processes of this machine."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.lab.stops import Stops
from syncopate.paramserver.job import Job
from syncopate.protocol.rules import CONTINUE, WAIT
from syncopate.ranks import MOST_LOCAL

_POLL_S = 0.05
_GRACE_S = 5.0
_STOP_S = 5.0
_LAST_LINES = 15
_SIGNALLED = 128
_READ = 1 << 16
_UNGIVEN = range(20000, 28000)
"""Ports that no system gives to connections by itself."""

_TRIED = 32
"""How many of them are tried."""


class Ended(NamedTuple):
    """How a job of local processes ended.

    Attributes:
        exit_code: of the process that failed first, 128 + n after signal n; 0: none did.
        who: that process, such as ``"worker 1"``; empty: none.
        last_lines: what it wrote last.
    """

    exit_code: int
    who: str = ""
    last_lines: tuple[str, ...] = ()


class _Child:
    """A process, and the last lines it wrote."""

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], quiet: bool = False
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.environment = environment
        self.quiet = quiet
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.start()

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C is for this process to pass on."""
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._pass_on, args=streams, daemon=True)
            for streams in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def exit_code(self) -> int | None:
        """Return how it ended, as a shell says it; None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else _SIGNALLED - code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def read(self) -> None:
        """Wait for what it wrote last."""
        for reader in self._readers:
            reader.join(1.0)

    def _pass_on(self, source: IO[bytes], target: IO[str]) -> None:
        for piece in _pieces(source):
            text = piece.decode(errors="replace")
            if text.strip("\r\n"):
                self.lines.append(text.rstrip("\r\n"))
            if self.quiet:
                continue
            with suppress(ValueError, OSError):
                target.write(text)
                target.flush()


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines as they come; a carriage return ends one too, as in a progress line."""
    rest = b""
    while read := os.read(source.fileno(), _READ):
        *whole, rest = re.split(rb"(?<=[\r\n])", rest + read)
        yield from whole
    if rest:
        yield rest


class LocalJob:
    """The processes of a job on this machine."""

    def __init__(
        self, job: Job, command: Sequence[str], *, state: Path | None, restarts: int
    ) -> None:
        """Start nothing yet.

        Args:
            job: how many servers and workers; its port is chosen here.
            command: what every worker runs.
            state: a folder with one for the scheduler and each server; None: nothing is on disk.
            restarts: how often processes that die are started again, all together: scheduler and
                servers where they keep state, and workers where the job waits for them.

        Raises:
            InvalidValueError: there is no such command, or there are too many processes.
        """
        if (count := job.servers + job.workers) > MOST_LOCAL:
            rule = f"at most {MOST_LOCAL} on one machine"
            raise InvalidValueError("number of servers and workers", count, rule)
        self.job = msgspec.structs.replace(job, port=free_port())
        self._port = free_port()
        if shutil.which(command[0]) is None:
            raise InvalidValueError("COMMAND", command[0], "a program that is there")
        self._command = tuple(command)
        self._state = state
        self._restarts = restarts
        self._children: list[_Child] = []
        self._helpers: list[_Child] = []
        self._lost: list[_Child] = []
        self._stops = Stops()

    def run(self, remark: Callable[[str], None]) -> Ended:
        """Start all, and wait for the end; nothing is left behind however that comes.

        Args:
            remark: says a line to the user.
        """
        # A signal that ends this process ends the others, too, and one more does so at once.
        stops = self._stops
        stops.install()
        try:
            with stops.deferred():
                try:
                    self._start()
                    return self._watch(remark)
                finally:
                    self._stop()
        finally:
            stops.restore()

    def _start(self) -> None:
        job = self.job
        syncopate = [sys.executable, "-m", "syncopate", "ps"]
        line = [*syncopate, "scheduler", *self._kept("scheduler")]
        self._helpers.append(_Child("scheduler", line, self._told("scheduler"), quiet=True))
        for rank in range(job.servers):
            line = [*syncopate, "server", *self._kept(f"server-{rank}")]
            self._helpers.append(_Child(f"server {rank}", line, self._told("server", rank)))
        for rank in range(job.workers):
            self._children.append(
                _Child(f"worker {rank}", self._command, self._told("worker", rank))
            )

    def _kept(self, name: str) -> list[str]:
        """Return the options by which a process keeps its state."""
        return [] if self._state is None else ["--state", str(self._state / name)]

    def _told(self, role: str, rank: int = -1) -> dict[str, str]:
        job = msgspec.structs.replace(
            self.job, rank=rank, host="" if role != "server" else "127.0.0.1"
        )
        # As torchrun does: workers share the cores, and with torch's default each would use all.
        ranks = {} if role != "worker" else self._torchrun(rank)
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.job.workers))}
        shown = _terminal() if role == "worker" else {}
        told = threads | shown | os.environ | {"DMLC_RANK": ""}
        return told | ranks | job.environment(role)

    def _torchrun(self, rank: int) -> dict[str, str]:
        """Return what torchrun would tell a worker, so that the workers are ranks, too.

        Not where the job waits for workers that are lost: one that comes later is no rank.
        """
        if self.job.on_worker_loss == WAIT:
            return {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port)}
        for who, count in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            told |= {who: str(rank), count: str(self.job.workers)}
        return told

    def _watch(self, remark: Callable[[str], None]) -> Ended:
        ended_s: float | None = None
        while True:
            self._stops.check()
            everybody = [*self._children, *self._helpers]
            codes = {child: child.exit_code() for child in everybody}
            for child, code in codes.items():
                if not code or child in self._lost:
                    continue
                if self._goes_on_without(child, codes):
                    self._lost.append(child)
                    remark(f"{child.name} ended with exit code {code}; the others go on without it")
                    continue
                if self._restarts > 0 and self._may_return(child):
                    self._restarts -= 1
                    remark(f"{child.name} ended with exit code {code}; started again")
                    child.start()
                    continue
                return self._blame(child)
            kept = [child for child in everybody if child not in self._lost]
            if all(codes[child] == 0 for child in self._children if child in kept):
                ended_s = ended_s or time.monotonic()
                late = time.monotonic() - ended_s > _GRACE_S
                if late or all(codes[child] == 0 for child in kept):
                    return Ended(0)
            time.sleep(_POLL_S)

    def _may_return(self, child: _Child) -> bool:
        """Say whether a process that ended badly may be started again."""
        if child in self._helpers:
            return self._state is not None
        return self.job.on_worker_loss == WAIT

    def _goes_on_without(self, child: _Child, codes: Mapping[_Child, int | None]) -> bool:
        """Say whether the others go on without a worker that ended badly."""
        others = [c for c in self._children if c is not child and not codes[c]]
        return self.job.on_worker_loss == CONTINUE and child in self._children and bool(others)

    def _blame(self, first: _Child) -> Ended:
        """Say which failed: of those that end now, the one the scheduler names, or the first."""
        everybody = [*self._children, *self._helpers]
        until_s = time.monotonic() + _STOP_S
        while time.monotonic() < until_s and any(c.exit_code() is None for c in everybody):
            self._stops.check()
            time.sleep(_POLL_S)
        scheduler = self._helpers[0]
        failed = [child for child in everybody if child.exit_code() and child is not scheduler]
        if scheduler.exit_code() and failed:
            scheduler.read()
            said = scheduler.lines[-1] if scheduler.lines else ""
            found = {child: re.search(rf"{child.name}\b", said) for child in failed}
            named = {child: at.start() for child, at in found.items() if at is not None}
            first = min(named, key=named.__getitem__, default=first)
        first.read()
        return Ended(first.exit_code() or 1, first.name, tuple(first.lines))

    def _stop(self) -> None:
        everybody = [*self._children, *self._helpers]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in everybody:
                child.signal(number)
            until_s = time.monotonic() + _STOP_S
            while time.monotonic() < until_s and not self._stops.take():
                if all(child.exit_code() is not None for child in everybody):
                    break
                time.sleep(_POLL_S)
        for child in everybody:
            child.read()
        if _terminal():  # a progress line hides the cursor, and who was ended did not show it again
            with suppress(ValueError, OSError):
                print("\x1b[?25h", end="", file=sys.stderr, flush=True)


def _terminal() -> dict[str, str]:
    """Return how rich knows that a pipe ends at a terminal: progress lines move there, too."""
    if not sys.stderr.isatty():
        return {}
    columns = str(shutil.get_terminal_size().columns)
    return {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "COLUMNS": columns}


def free_port() -> int:
    """Return a port that no process uses right now.

    If possible it is one that systems give to no connection, so that it stays free. A seed of the
    script neither chooses it nor is moved on by it.

    Raises:
        ParameterServerError: there is none.
    """
    for port in (*random.SystemRandom().sample(_UNGIVEN, _TRIED), 0):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ParameterServerError("no port of this machine is free")
