"""Runs a function on several local ranks, each its own process with Gloo initialised.

The parent hosts the TCP store, as ``torchrun`` does, so any rank may die without taking the store
with it. On Linux the ranks come from a fork server that has torch imported already, which makes a
rank cost tens of milliseconds instead of seconds; elsewhere they are spawned.
"""

from __future__ import annotations

import datetime
import faulthandler
import functools
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

import syncopate
from syncopate.units import DTYPE_BYTES
from tests.children import HANGS_S

REAL_DTYPES: tuple[torch.dtype, ...] = tuple(
    getattr(torch, name) for name in DTYPE_BYTES if not name.startswith("complex")
)
"""Every dtype of a gradient but the complex ones, which not every backend adds."""

_PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "scipy.optimize",
    "encodings.idna",
    "pytest",
    "hypothesis.strategies",
    "syncopate.engine.selfplan.phases",
    "syncopate.calibration.calibrate",
    "syncopate.paramserver.worker",
    "syncopate.cli.app",
    "tests.multiprocess.exchange.cases",
]
"""What the fork server imports once, so that no rank has to: what most modules of tests import.

There is one fork server for all tests of a process, so there is one list.
"""


@functools.cache
def child_context() -> Any:
    """Return what makes processes that have imported torch, this package and pytest already."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # The first process waits until all that is imported, after a boot for more than a minute. No
    # time limit of a test may run meanwhile.
    first = context.Process(target=int)
    first.start()
    first.join()
    return context


class RankFailedError(AssertionError):
    """Some rank raised, died or did not finish; the message holds every rank's story."""


def _process_main(
    connection: Connection, call: Callable[[], Any], timeout_s: float, environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(max(timeout_s - 3.0, timeout_s * 0.8), exit=False)
    try:
        message = ("result", call())
    except BaseException:  # the parent re-raises it, whatever it is
        message = ("error", traceback.format_exc())
    connection.send_bytes(pickle.dumps(message))
    connection.close()
    # Destroying a group waits for peers that may be dead or hung: the process just ends.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@dataclass(frozen=True)
class _Rank:
    """What one rank's process does; it travels pickled."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    world_size: int
    port: int
    timeout_s: float
    backend: str = "gloo"

    def __call__(self) -> Any:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        timeout = datetime.timedelta(seconds=self.timeout_s)
        store = dist.TCPStore("127.0.0.1", self.port, None, is_master=False, timeout=timeout)
        _meeting.append(dist.PrefixStore("cases", store))
        if "syncopate" in self.backend:
            syncopate.register_backend()
        dist.init_process_group(
            self.backend, store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )
        return self.function(self.rank, self.world_size, *self.args)


# -- several cases in one start of ranks --------------------------------------------------------

_meeting: list[dist.Store] = []
"""Where this rank's process tells the others how its cases ended; empty where there is no rank."""


class Cases:
    """Runs several cases in one start of ranks, and reports all that failed together at the end.

    ::

        with Cases() as case:
            for number in (1, 2):
                with case(f"of {number}"):
                    assert number == 2

    After each case the ranks tell each other how it ended. Where it failed, they go on to the next
    one if no rank had anything but a failed assertion; otherwise what they have between them may be
    broken, and the cases that follow are left out.

    Args:
        patience_s: how long a rank whose case failed waits for others, which may be waiting for it.
    """

    _count = 0

    def __init__(self, *, patience_s: float = 15.0) -> None:
        self._patience = datetime.timedelta(seconds=patience_s)
        self._failures: list[str] = []
        self._passed = 0

    def __enter__(self) -> Cases:
        return self

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Run one case; all ranks run the same ones, under the same names."""
        outcome = _PASSED
        try:
            yield
        except _BrokenOffError:
            raise
        except (Exception, pytest.fail.Exception) as error:
            outcome = _FAILED if isinstance(error, _OF_TESTS) else _BROKEN
            self._failures.append(f"in case {name}:\n{traceback.format_exc()}")
        everywhere = self._told(outcome)
        self._passed += set(everywhere) == {_PASSED}
        if outcome == _PASSED and set(everywhere) != {_PASSED}:
            others = [rank for rank, other in enumerate(everywhere) if other != _PASSED]
            self._failures.append(f"in case {name}: failed on ranks {others}")
        if _BROKEN in everywhere:
            raise _BrokenOffError

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and not issubclass(kind, _BrokenOffError):
            return
        if self._failures:
            rest = "the cases that follow were left out" if kind is not None else "no case left out"
            count = f"{len(self._failures)} failed, {self._passed} passed, {rest}"
            raise AssertionError("\n".join([count, *self._failures])) from None

    def _told(self, outcome: bytes) -> list[bytes]:
        if not _meeting:
            return [outcome]
        Cases._count += 1
        keys = [f"{Cases._count}/{rank}" for rank in range(dist.get_world_size())]
        _meeting[-1].set(keys[dist.get_rank()], outcome)
        try:
            if outcome != _PASSED:
                _meeting[-1].wait(keys, self._patience)
        except dist.DistStoreError:
            return [_BROKEN]
        return [_meeting[-1].get(key) for key in keys]


_PASSED, _FAILED, _BROKEN = b"passed", b"failed", b"broken"
_OF_TESTS = (AssertionError, pytest.fail.Exception)


class _BrokenOffError(Exception):
    """No more cases are run."""


def _collect(
    processes: list[Any], connections: list[Connection], deadline_s: float
) -> list[tuple[str, Any]]:
    """Return each rank's ``(kind, value)``: result, error, dead or late."""
    outcomes: dict[int, tuple[str, Any]] = {}
    pending = dict(enumerate(connections))
    while pending and (left_s := deadline_s - time.monotonic()) > 0:
        ready = wait(list(pending.values()), timeout=left_s)
        for rank in [rank for rank, connection in pending.items() if connection in ready]:
            try:
                outcomes[rank] = pickle.loads(pending.pop(rank).recv_bytes())
            except EOFError:
                processes[rank].join(5)
                outcomes[rank] = ("dead", f"exit code {processes[rank].exitcode}")
    for rank in pending:
        outcomes[rank] = ("late", "still running at the time limit")
    return [outcomes[rank] for rank in range(len(processes))]


def run_processes(
    calls: Sequence[Callable[[], Any]], *, timeout_s: float, may_die: Collection[int] = ()
) -> list[Any]:
    """Make each call in a process of its own, all at once.

    Args:
        calls: one for each rank; they and what they return travel pickled.
        timeout_s: limit for all of them.
        may_die: ranks that are allowed to end without a result; theirs is then ``None``.

    Returns:
        One result per rank, in rank order.

    Raises:
        RankFailedError: a rank raised, ended without a result, or was still running at the limit.
    """
    context = child_context()
    deadline_s = time.monotonic() + timeout_s
    processes, connections = [], []
    for call in calls:
        ours, theirs = context.Pipe(duplex=False)
        args = (theirs, call, timeout_s, dict(os.environ))
        process = context.Process(target=_process_main, args=args, daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    try:
        outcomes = _collect(processes, connections, deadline_s)
    finally:
        for process in processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join(5)
    bad = [
        f"rank {rank}: {kind}\n{value}"
        for rank, (kind, value) in enumerate(outcomes)
        if kind != "result" and not (kind == "dead" and rank in may_die)
    ]
    if bad:
        raise RankFailedError("\n".join(bad))
    return [value if kind == "result" else None for kind, value in outcomes]


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = HANGS_S,
    may_die: Collection[int] = (),
    backend: str = "gloo",
) -> list[Any]:
    """Run ``function(rank, world_size, *args)`` on ``world_size`` local ranks, all at once.

    Args:
        function: a module-level function; its arguments and result travel pickled.
        world_size: how many ranks.
        args: further arguments, the same on every rank.
        timeout_s: limit for the whole call, and the timeout of each rank's default group.
        may_die: ranks that are allowed to end without a result (killed by the test itself);
            theirs is then ``None``.
        backend: of the ranks' default group.

    Returns:
        One result per rank, in rank order.

    Raises:
        RankFailedError: a rank raised, ended without a result, or was still running at the limit.
    """
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    ranks = [
        _Rank(function, args, rank, world_size, store.port, timeout_s, backend)
        for rank in range(world_size)
    ]
    return run_processes(ranks, timeout_s=timeout_s, may_die=may_die)
