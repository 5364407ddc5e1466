"""Ranks: starting a command on every rank of a lab, passing signals on, and waiting for all."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from syncopate.artifacts.artifact import Record
from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.lab import launch
from syncopate.lab.kernel import NAMESPACES
from syncopate.lab.names import host_namespace
from syncopate.lab.output import LineBuffer, LineSink
from syncopate.lab.state import hosts_file
from syncopate.lab.stops import Stops
from syncopate.lab.topology import Topology
from syncopate.units import format_count

MASTER_PORT = 29500
INTERFACE = "eth0"
LAB_VARIABLE = "SYNCOPATE_LAB"
"""Environment variable that tells a rank the run id of its lab."""

_POLL_S = 0.1
_TERMINATE_S = 3.0
_DRAIN_S = 0.5
_READ_BYTES = 64 * 1024
_EXIT = "exit"


class RankResult(Record, frozen=True, kw_only=True):
    """How one rank ended.

    Attributes:
        rank: the rank.
        host: name of its host.
        returncode: its exit code; -n when signal n ended it.
        seconds: from the start of the run to its end.
        stopped: whether the lab ended it: after another rank failed, or on request.
    """

    rank: int
    host: str
    returncode: int
    seconds: float
    stopped: bool = False

    def ending(self) -> str:
        """Return how it ended, for people: ``"rank 3 on host1 was ended by SIGKILL"``."""
        name = f"rank {self.rank} on {self.host}"
        if self.returncode >= 0:
            return f"{name} exited with code {self.returncode}"
        with suppress(ValueError):
            return f"{name} was ended by {signal.Signals(-self.returncode).name}"
        return f"{name} was ended by signal {-self.returncode}"


class Outcome(Record, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        ranks: every rank, in rank order.
        first_failed: the rank that failed first, before any signal to the lab; ``None`` for none.
        received: number of the first signal that the lab passed on; ``None`` without any.
        seconds: from the start of the first rank to the end of the last.
    """

    ranks: tuple[RankResult, ...]
    first_failed: int | None
    received: int | None
    seconds: float

    @property
    def exit_code(self) -> int:
        """That of the rank that failed first; else 128 + n when signal n was passed on; else 0."""
        if self.first_failed is None:
            return 0 if self.received is None else 128 + self.received
        code = self.ranks[self.first_failed].returncode
        return code if code > 0 else 128 - code

    def summary(self) -> str:
        """Return one sentence: which rank failed, where and how, and what became of the others."""
        count = format_count(len(self.ranks), "rank")
        stopped = sum(result.stopped for result in self.ranks)
        others = f"; ended {stopped} that still ran" if stopped else ""
        if self.first_failed is None:
            if self.received is None:
                return f"{count} finished in {self.seconds:.1f} s"
            name = signal.Signals(self.received).name
            return f"{name} passed on to {count}, all ended after {self.seconds:.1f} s{others}"
        first = self.ranks[self.first_failed]
        also = [
            str(result.rank)
            for result in self.ranks
            if result.returncode and not result.stopped and result is not first
        ]
        after = f"; then failed: rank {', '.join(also)}" if also else ""
        return f"{first.ending()} after {first.seconds:.1f} s{after}{others}"


@dataclass
class _Running:
    """A rank while it runs."""

    rank: int
    host: str
    process: subprocess.Popen[bytes]
    exit_descriptor: int | None = None
    seconds: float | None = None
    stopped: bool = False
    buffers: dict[str, LineBuffer] = field(
        default_factory=lambda: {"stdout": LineBuffer(), "stderr": LineBuffer()}
    )

    def send(self, number: int) -> None:
        """Signal the rank and its process group, unless the rank has ended already.

        Then its number may be another process's; what it left running ends with the lab.
        """
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


def host_environment(run_id: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of any command on a host of a lab.

    What ``base`` says about threads, buffering and Gloo's or NCCL's interface is left as it is.
    """
    defaults = {
        # All hosts share this machine's cores: with torch's default each rank would use them all.
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }
    return {**defaults, **base, LAB_VARIABLE: run_id}


def rank_environment(topology: Topology, rank: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank."""
    per_host = topology.ranks_per_host
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank % per_host,
        "WORLD_SIZE": topology.world_size,
        "LOCAL_WORLD_SIZE": per_host,
        "GROUP_RANK": topology.host_of(rank),
        "GROUP_WORLD_SIZE": topology.hosts,
        "MASTER_ADDR": topology.address(0),
        "MASTER_PORT": MASTER_PORT,
    }
    return {name: str(value) for name, value in variables.items()}


def launch_command(
    run_id: str, topology: Topology, host: int, command: Sequence[str], *, parent: int
) -> list[str]:
    """Return the command line that runs ``command`` on a host.

    Args:
        run_id: the lab.
        topology: its topology.
        host: where to run.
        command: what to run.
        parent: process whose death ends the command; 0 for none.
    """
    namespace = str(NAMESPACES / host_namespace(run_id, host))
    launcher = [sys.executable, "-I", "-S", str(Path(launch.__file__))]
    name = topology.hostname(host)
    return [*launcher, str(parent), namespace, name, str(hosts_file(run_id)), *command]


def require_command(command: Sequence[str]) -> None:
    """Refuse a command that no host could start.

    Raises:
        InvalidValueError: no command at all.
        SyncopateError: no such program.
    """
    if not command:
        raise InvalidValueError("COMMAND", "", "what to run on every rank, such as python train.py")
    if shutil.which(command[0]) is None:
        raise SyncopateError(
            f"{command[0]}: command not found; give a program on the PATH or a path to one, such "
            "as python train.py"
        )


class RankGroup:
    """The ranks of one run.

    Args:
        run_id: the lab they run in.
        topology: its topology.
        sink: takes their output.
        grace_s: how long the others may go on after a rank failed, and all after a signal.
    """

    def __init__(self, run_id: str, topology: Topology, sink: LineSink, grace_s: float) -> None:
        if not 0 <= grace_s < float("inf"):
            raise InvalidValueError("grace", grace_s, "a finite number of seconds >= 0")
        self._run_id = run_id
        self._topology = topology
        self._sink = sink
        self._grace_s = grace_s
        self._ranks: list[_Running] = []
        self._selector = selectors.DefaultSelector()
        self._begin_s = time.monotonic()
        self._failed: int | None = None
        self._deadline_s: float | None = None
        self._received: list[int] = []

    def run(self, command: Sequence[str], base: Mapping[str, str], stops: Stops) -> Outcome:
        """Start ``command`` on every rank and wait until the last has ended.

        Args:
            command: program and arguments.
            base: environment that the ranks inherit.
            stops: signals to pass on.

        Returns:
            How it went; no rank runs any more.
        """
        try:
            with stops.deferred():
                for rank in range(self._topology.world_size):
                    self._start(rank, command, base)
                while any(running.seconds is None for running in self._ranks):
                    self._read(_POLL_S)
                    self._pass_on(stops.take())
                    self._stop_late()
                self._drain()
                return self._outcome()
        finally:
            self._kill()
            self._selector.close()

    def _start(self, rank: int, command: Sequence[str], base: Mapping[str, str]) -> None:
        host = self._topology.host_of(rank)
        process = subprocess.Popen(
            launch_command(self._run_id, self._topology, host, command, parent=os.getpid()),
            env=host_environment(self._run_id, base) | rank_environment(self._topology, rank),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Its own group: Ctrl-C reaches the lab alone, which passes it on once, to all.
            start_new_session=True,
        )
        running = _Running(rank, self._topology.hostname(host), process)
        self._ranks.append(running)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream.fileno(), selectors.EVENT_READ, (running, name))
        # Ready the moment the rank ends: polling would blame the wrong one of two that fail
        # within a period.
        running.exit_descriptor = os.pidfd_open(process.pid)
        self._selector.register(running.exit_descriptor, selectors.EVENT_READ, (running, _EXIT))

    def _read(self, timeout_s: float) -> bool:
        """Take the output of ranks and note which ended; return whether there was anything."""
        events = self._selector.select(timeout_s)
        for key, _ in events:
            running, name = key.data
            if name == _EXIT:
                self._selector.unregister(key.fd)
                self._ended(running)
                continue
            data = os.read(key.fd, _READ_BYTES)
            buffer = running.buffers[name]
            for line in buffer.feed(data) if data else buffer.flush():
                self._sink(running.rank, name, line)
            if not data:
                self._selector.unregister(key.fd)
        return bool(events)

    def _ended(self, running: _Running) -> None:
        failed = running.process.wait() != 0
        running.seconds = time.monotonic() - self._begin_s
        if failed and self._failed is None and not self._received:
            self._failed = running.rank
            self._allow(self._grace_s)

    def _pass_on(self, numbers: list[int]) -> None:
        for number in numbers:
            insisting = bool(self._received)
            self._received.append(number)
            for running in self._alive():
                running.send(signal.SIGKILL if insisting else number)
                running.stopped = running.stopped or insisting
            self._allow(self._grace_s)

    def _allow(self, seconds: float) -> None:
        self._deadline_s = min(time.monotonic() + seconds, self._deadline_s or float("inf"))

    def _stop_late(self) -> None:
        """Ask the ranks that outlast the grace to end, and kill those that do not."""
        if self._deadline_s is None or time.monotonic() < self._deadline_s:
            return
        for running in self._alive():
            running.send(signal.SIGKILL if running.stopped else signal.SIGTERM)
            running.stopped = True
        self._deadline_s = time.monotonic() + _TERMINATE_S

    def _drain(self) -> None:
        """Read to the end, but not for ever: what a rank has started may hold its pipes open."""
        deadline_s = time.monotonic() + _DRAIN_S
        while self._selector.get_map() and time.monotonic() < deadline_s:
            self._read(_DRAIN_S / 10)
        for running in self._ranks:
            for name, buffer in running.buffers.items():
                for line in buffer.flush():
                    self._sink(running.rank, name, line)

    def _alive(self) -> list[_Running]:
        return [running for running in self._ranks if running.seconds is None]

    def _kill(self) -> None:
        for running in self._ranks:
            running.send(signal.SIGKILL)
            running.process.wait()
            for stream in (running.process.stdout, running.process.stderr):
                if stream is not None:
                    stream.close()
            if running.exit_descriptor is not None:
                os.close(running.exit_descriptor)

    def _outcome(self) -> Outcome:
        return Outcome(
            ranks=tuple(
                RankResult(
                    rank=running.rank,
                    host=running.host,
                    returncode=running.process.returncode,
                    seconds=running.seconds or 0.0,
                    stopped=running.stopped,
                )
                for running in self._ranks
            ),
            first_failed=self._failed,
            received=self._received[0] if self._received else None,
            seconds=time.monotonic() - self._begin_s,
        )
