"""Capture: what this process does, written to the directory of the run as it goes on.

A training notes its events in a ring (:mod:`syncopate.tracing.recorder`), a node of a parameter
server its messages in another (:mod:`syncopate.tracing.served.rows`). A thread appends them to a
file of each several times a second, so that a process that is killed loses the last moments alone,
and a slow disk holds up no rank: events without room are counted.

[Note: before and after distribute]
``trace`` knows nothing of ranks. The file is begun when a model is distributed, or at once where
one is already. The environment variable ``SYNCOPATE_TRACE`` is looked at when a model is.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from syncopate.artifacts.timeline import PAUSES
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.output import new_directory
from syncopate.tracing.merge import ClockOffset
from syncopate.tracing.pauses import Pauses
from syncopate.tracing.recorder import Recorder
from syncopate.tracing.retention import Retention, retention
from syncopate.tracing.served.rows import WORKER, NodeHeader, RowQueue
from syncopate.tracing.trace_buffer import BufferedTrace
from syncopate.tracing.trace_file import Header, TraceWriter

VARIABLE = "SYNCOPATE_TRACE"
"""The environment variable that names the directory of the run."""

CAPACITY = 1 << 16
"""Events that wait to be written at most: 3.5 MiB."""

FLUSH_S = 0.2
"""How often events are written."""

SAMPLE_S = 2.0
"""How often it is noted what connections have carried."""

_PATIENCE_S = 10.0
"""How long a capture that stops waits for a disk."""

_log = logging.getLogger("syncopate")


class Member(NamedTuple):
    """The identity of this process in a run.

    Attributes:
        run: a random name that all ranks share.
        rank: of this process.
        world_size: number of ranks.
        offset: its clock minus rank 0's; None: not measured.
    """

    run: str
    rank: int
    world_size: int
    offset: ClockOffset | None


class Traced(Protocol):
    """A training that can be captured."""

    @property
    def member(self) -> Member:
        """The identity of this process."""

    def begin_trace(self, capture: Capture, model: int) -> None:
        """Note events in ``capture.recorder`` from now on, as those of the ``model``-th."""

    def end_trace(self) -> None:
        """Record finished steps, and stop."""

    def sample(self) -> None:
        """Record counters that only grow; another thread calls it now and then."""


class TracedNode(Protocol):
    """A node of a parameter server that can be captured."""

    @property
    def header(self) -> NodeHeader:
        """Whose file it is."""

    def begin_trace(self, buffer: BufferedTrace) -> None:
        """Note messages from now on."""

    def end_trace(self) -> None:
        """Stop recording."""


class Capture:
    """What :func:`trace` returns: a capture that goes on until the process or the block ends.

    Attributes:
        directory: of the run.
        recorder: where events wait to be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        capacity: int = CAPACITY,
        flush_s: float = FLUSH_S,
        keep: Retention | None = None,
    ) -> None:
        """Make the directory.

        Args:
            directory: of the run.
            capacity: events that wait to be written at most.
            flush_s: how often they are written.
            keep: which iterations stay in long runs; None: the defaults.

        Raises:
            ArtifactError: it cannot be written to.
        """
        self.directory = new_directory(directory)
        self.recorder = Recorder(capacity)
        self._flush_s = flush_s
        self._keep = keep or Retention()
        self._models: weakref.WeakKeyDictionary[Traced, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._own = BufferedTrace(self.recorder)
        self._buffers = [self._own]
        self._nodes: weakref.WeakKeyDictionary[TracedNode, BufferedTrace] = (
            weakref.WeakKeyDictionary()
        )
        self._pauses = Pauses()
        self._lock = threading.RLock()
        # Held while the disk is waited for, so nothing that a training waits for takes it.
        self._writing = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.active = False

    @property
    def path(self) -> str | None:
        """This rank's file; None before there is one."""
        return None if self._own.path is None else str(self._own.path)

    @property
    def dropped(self) -> int:
        """How many events there was no room for."""
        return sum(buffer.waiting.dropped for buffer in self._buffers)

    def start(self) -> None:
        """Go on, between two iterations; does nothing where it goes on already.

        Raises:
            InvalidValueError: another capture goes on.
        """
        if self.active:
            return
        _require_alone(self.directory, self)
        self.active = True
        self._pauses.begin()
        _current[:] = [self]
        for subject in list(_subjects):
            self._attach(subject)
        for node in list(_nodes):
            self._attach_node(node)

    def stop(self) -> None:
        """Write what there is, and capture nothing until :meth:`start`."""
        if not self.active or os.getpid() != self._process:
            return
        self.active = False
        self._pauses.end()
        for subject in list(self._models):
            subject.end_trace()
        for node in list(self._nodes):
            node.end_trace()
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():  # the disk hangs, and the training goes on or ends
                _log.warning("%s: the disk does not answer; the rest is lost", self.path)
                return
            self._thread = None
        self.flush()
        for buffer in self._buffers:
            buffer.thin(last=True)

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def paused(self, name: str, start_s: float, end_s: float) -> None:
        """Note why this process stood still, by ``time.perf_counter``."""
        if self.active:
            self._pauses.note(name, start_s, end_s)

    def note(self, note: dict[str, Any]) -> None:
        """Write something that is no event, before the events that come from now on."""
        self._own.note(note)

    def flush(self) -> None:
        """Write what waits; what cannot be written counts as dropped."""
        if os.getpid() != self._process:
            return  # a copy of the process would write its parent's events into its parent's file
        with self._writing:
            for pause in self._pauses.take():
                self.recorder.add([pause])
            for buffer in list(self._buffers):
                buffer.flush()
                buffer.thin()
            if all(buffer.broken for buffer in self._buffers):
                self._ends.set()

    def _attach(self, subject: Traced) -> None:
        """Capture a training; the first one says who this process is."""
        with self._lock:
            if self._own.writer is None:
                header = _header(subject.member)
                self._own.writer = TraceWriter(self.directory, header, self._keep)
            if subject not in self._models:
                self._models[subject] = self._count
                self._count += 1
            self._write_in_background()
        subject.begin_trace(self, self._models[subject])

    def _attach_node(self, node: TracedNode) -> None:
        """Capture a node of a parameter server, to a file of its own."""
        with self._lock:
            if node not in self._nodes:
                header = node.header
                buffer = BufferedTrace(RowQueue(), TraceWriter(self.directory, header, self._keep))
                self._nodes[node] = buffer
                self._buffers.append(buffer)
                if header.role == WORKER:  # joins the files of this process
                    self._own.note({"job": header.run, "worker": header.rank})
            self._write_in_background()
        node.begin_trace(self._nodes[node])

    def _write_in_background(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._ends.clear()
            self._thread = threading.Thread(
                target=self._write_on, name="syncopate-trace", daemon=True
            )
            self._thread.start()

    def _write_on(self) -> None:
        sampled_s = time.monotonic()
        while not self._ends.wait(self._flush_s):
            if time.monotonic() - sampled_s > SAMPLE_S:
                sampled_s = time.monotonic()
                with self._lock:
                    subjects = list(self._models)
                for subject in subjects:
                    subject.sample()
            self.flush()


def _header(member: Member) -> Header:
    return Header(
        run=member.run,
        rank=member.rank,
        world_size=member.world_size,
        host=socket.gethostname(),
        clock="time.perf_counter",
        began_s=time.time(),
        offset_s=None if member.offset is None else member.offset.seconds,
        offset_error_s=0.0 if member.offset is None else member.offset.error_s,
    )


_subjects: weakref.WeakSet[Traced] = weakref.WeakSet()
_nodes: weakref.WeakSet[TracedNode] = weakref.WeakSet()
_current: list[Capture] = []


def trace(
    directory: str | os.PathLike[str],
    *,
    last: int | None = None,
    every: int | None = None,
    limit_bytes: int | None = None,
) -> Capture:
    """Capture what this process's trainings do, for ``syncopate analyze DIRECTORY``.

    Every rank calls it with the same directory, before ``distribute`` or between two iterations,
    and writes a file of its own there. A worker of a parameter server writes another, with its
    messages; servers and scheduler do where ``SYNCOPATE_TRACE`` is set.

    It goes on until the process ends, until ``stop()``, or to the end of a ``with`` block. Clocks
    of several hosts are compared by messages where every rank called it before ``distribute``; else
    what the ranks did together says how far they differ.

    Setting the environment variable ``SYNCOPATE_TRACE`` does the same without touching the script.

    A file grows to half of ``limit_bytes`` with every iteration in it. Then it is thinned: the last
    iterations stay, of earlier ones every so-many-th, and those that took 1.5 times the median of
    their neighbours or longer. ``SYNCOPATE_TRACE_LAST``, ``_EVERY`` and ``_LIMIT_BYTES`` say the
    same where arguments do not.

    Args:
        directory: of the run; made where it is not there.
        last: how many iterations at the end are kept whole, also in files that are not too long;
            None: as many as there is room for.
        every: every n-th of the earlier ones is kept, 100 where nothing is said; 0: none.
        limit_bytes: what a file of this process takes at most, 256 MiB where nothing is said.

    Returns:
        The capture: ``stop()`` and ``start()`` switch it, ``dropped`` counts what it had no room
        for.

    Raises:
        ArtifactError: the directory cannot be written to.
        InvalidValueError: this process captures to another directory already, or a number is out
            of range.

    Example:
        >>> with syncopate.trace("runs/a"):  # doctest: +SKIP
        ...     train()
    """
    keep = retention(last, every, limit_bytes)
    path = os.path.realpath(directory)
    for capture in _current:
        if capture.active and os.path.realpath(capture.directory) == path:
            return capture
        _require_alone(path)
    capture = Capture(directory, keep=keep)
    capture.start()
    return capture


@contextmanager
def pause(name: str) -> Iterator[None]:
    """Say what this rank does instead of training while the block runs; for traces alone.

    `syncopate explain` then knows what the others wait for. Garbage collections, and what
    ``distribute`` does in a first run to find its plan, are noted by themselves. Where nothing is
    captured it does nothing.

    Args:
        name: ``"input"``, ``"garbage collection"``, ``"evaluation"``, ``"checkpoint"`` or
            ``"self-planning"``.

    Raises:
        UnknownNameError: no such pause.

    Example:
        >>> with syncopate.pause("checkpoint"):  # doctest: +SKIP
        ...     torch.save(model.state_dict(), "model.pt")
    """
    if name not in PAUSES:
        raise UnknownNameError("pause", name, PAUSES)
    start_s = time.perf_counter()
    try:
        yield
    finally:
        end_s = time.perf_counter()
        for capture in _current:
            capture.paused(name, start_s, end_s)


def _require_alone(directory: str | os.PathLike[str], own: Capture | None = None) -> None:
    """Refuse a second capture at the same time.

    Raises:
        InvalidValueError: another one goes on.
    """
    for capture in _current:
        if capture.active and capture is not own:
            rule = f"{capture.directory}, to which this process captures already; or stop() that"
            raise InvalidValueError("directory", os.fspath(directory), rule)


def wanted() -> bool:
    """Say whether this process is to capture what it does."""
    return any(capture.active for capture in _current) or bool(_named())


def writing() -> bool:
    """Say whether a capture has begun a file of this process's trainings."""
    return any(capture.path is not None for capture in _current)


def current() -> Capture | None:
    """Return the capture that goes on, begun here where the environment asks for one.

    Raises:
        ArtifactError: the directory that the environment names cannot be written to.
    """
    if not _current and (directory := _named()):
        try:
            trace(directory)
        except ArtifactError as error:
            raise ArtifactError(f"{VARIABLE}: {error.path}", error.reason) from None
    return _current[0] if _current else None


def enrol(subject: Traced) -> None:
    """Register a training, which is captured now or when a capture begins."""
    _subjects.add(subject)
    _begin(lambda capture: capture._attach(subject))


def dismiss(subject: Traced) -> None:
    """Note that a training is over."""
    _subjects.discard(subject)
    subject.end_trace()


def enrol_node(node: TracedNode) -> None:
    """Register a node of a parameter server, which is captured now or when a capture begins."""
    _nodes.add(node)
    _begin(lambda capture: capture._attach_node(node))


def _begin(attach: Callable[[Capture], None]) -> None:
    if (capture := current()) is None or not capture.active:
        return
    try:
        attach(capture)
    except ArtifactError as error:  # the others are there already, and would wait for it
        _log.warning("%s; nothing is captured", error)


def dismiss_node(node: TracedNode) -> None:
    """Note that a node is done; write what it noted."""
    _nodes.discard(node)
    node.end_trace()
    for capture in _current:
        if node in capture._nodes:
            capture.flush()


def _named() -> str:
    return os.environ.get(VARIABLE, "")


@atexit.register
def _end() -> None:
    for capture in _current:
        capture.stop()
