"""Detector: sees that a collective failed, here or elsewhere, and turns it into one clear error.

[Note: why a failure spreads] A rank blocked in Gloo notices only its own neighbour. When rank 2
dies, rank 3 fails at once, but rank 0, which waits for rank 3, would sit out its whole time limit.
So a rank that fails closes all its connections, which fails its neighbours, and theirs. A rank that
the chain does not reach learns it from the notices or by the keep-alive connections, see
:mod:`syncopate.collectives.health.monitor`, and closes the connections from its side. A rank
that closes them has said so before, in a notice and to rank 0: see [Note: a notice before closing].
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

import msgspec
import torch.distributed as dist

from syncopate.analysis.evidence.links import Entry
from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import transport
from syncopate.collectives.health.blame import Call, Notice, PeerError, Verdict, name_ranks
from syncopate.collectives.health.monitor import STORE_LIMIT_S, InFlight, Monitor
from syncopate.collectives.health.notices import GRACE_S, Notices, judge
from syncopate.collectives.health.store_calls import StoreCall, call_store
from syncopate.collectives.nccl.streams import Completion
from syncopate.collectives.runner import Runner
from syncopate.errors import CollectiveError, SyncopateError

_POLL_S = 0.05
_detectors: weakref.WeakSet[FailureDetector] = weakref.WeakSet()
_CLOSE = Call("close", 0, 0)


class FailureDetector:
    """The failure state of one communicator; used from all its threads.

    Args:
        runners: of every channel; at least one.
        rank: this rank.
        world_size: number of ranks.

    Raises:
        InvalidValueError: the environment gives no usable time of silence.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        rank: int,
        world_size: int,
    ) -> None:
        group = runners[0].group
        self._groups = [runner.group for runner in runners]
        self._further = tuple(runner.interrupt for runner in runners)
        self._gloo = set(transport.backends(group).values()) == {"gloo"}
        self._process = os.getpid()
        self._rank = rank
        self._world_size = world_size
        self._peers = [peer for peer in range(world_size) if peer != rank]
        store = transport.group_store(group, "syncopate", STORE_LIMIT_S)
        self._notices = Notices(store, rank, world_size)
        self._broken: tuple[str, Verdict] | None = None
        self._interrupted = False
        self._places = itertools.count(-1, -1)  # of what is no collective
        self._diagnosing = threading.Lock()
        self._in_flight = InFlight()
        sent = [runner.sent for runner in runners]
        self._monitor = Monitor(self._notices, rank, self._in_flight, self._give_up, sent)
        _detectors.add(self)
        _say_uncaught()

    @property
    def here(self) -> bool:
        """Whether this process made it; a forked child has the sockets of its parent."""
        return os.getpid() == self._process

    @property
    def expected(self) -> Cluster | None:
        """What links are judged by, if anything but each other; rank 0's counts."""
        return self._monitor.expected

    def expect(self, cluster: Cluster | None) -> None:
        """Judge links by what ``cluster`` says of them; one of other ranks changes nothing."""
        if cluster is None or cluster.world_size == self._world_size:
            self._monitor.expected = cluster

    @property
    def entry(self) -> Entry:
        """Where this rank is, and what its connections have carried; for any thread."""
        return self._monitor.entry

    def add(self, runner: Runner) -> None:
        """Watch over a further channel, of the same ranks."""
        self._groups.append(runner.group)
        self._further = (*self._further, runner.interrupt)
        self._monitor.add(runner.sent)

    def require_whole(self, call: Call) -> None:
        """Refuse a collective after an earlier one failed.

        Raises:
            CollectiveError: with the reason and the ranks of the first failure.
        """
        if self._broken is not None:
            first, verdict = self._broken
            raise CollectiveError(
                call.label,
                f"the communicator is broken since {first}: {verdict.reason}; "
                "start again from a checkpoint",
                verdict.ranks,
            )

    def run(self, call: Call, work: Callable[[], Completion | None]) -> Completion | None:
        """Run ``work``, the body of ``call``, and supervise it until its completion.

        Raises:
            CollectiveError: it failed; names the ranks held responsible.
        """
        with self._supervised(call):
            completion = work()
        if completion is not None:
            self._in_flight.queue(call, completion)
        return completion

    def beside(self, label: str) -> AbstractContextManager[None]:
        """Supervise a block of messages between some of the ranks, as over a collective.

        Its ``RuntimeError`` becomes a ``CollectiveError`` that names the ranks lost.
        """
        return self._supervised(Call(label, next(self._places), -1))

    @contextmanager
    def _supervised(self, call: Call) -> Iterator[None]:
        self.require_whole(call)
        began_s = time.perf_counter()
        self._in_flight.enter(call, began_s)
        try:
            yield
        except BaseException as error:
            self._ended(call, error, time.perf_counter() - began_s)
            raise
        self._ended(call, None, time.perf_counter() - began_s)

    @contextmanager
    def guest(
        self,
        label: str,
        group: dist.ProcessGroup,
        interrupt: Callable[[], None],
    ) -> Iterator[None]:
        """Supervise a block as :meth:`beside` does; break ``group`` when the communicator breaks.

        Args:
            label: what the block does.
            group: a group over the same ranks that the block uses.
            interrupt: what else makes the block fail then.
        """
        further = self._further
        self._groups.append(group)
        self._further = (*further, interrupt)
        try:
            with self.beside(label):
                yield
        finally:
            self._further = further
            self._groups.remove(group)

    def say_ended(self, error: Exception) -> None:
        """Tell the other ranks that ``error`` ends this process, unless one of theirs did."""
        if self._broken is None:
            said = _first_line(error)
            reason = f"rank {self._rank} failed by itself: {said}"
            self._break(_CLOSE, Verdict((self._rank,), reason))
            self._announce(Notice(_CLOSE, "error", text=said))

    def stop(self) -> None:
        """End the thread; of no consequence for the peers."""
        # Ranks that wait in Gloo find the connections closed; in other backends nothing tells them.
        self._monitor.stop(left=self._gloo)

    def close(self) -> None:
        """End the thread, say goodbye, and close the connections.

        A rank that still waits for this one then fails at once, and finds the goodbye.
        """
        self._monitor.stop(left=True)
        if self._broken is None:
            call_store(lambda: self._notices.put(Notice(_CLOSE, "left")), STORE_LIMIT_S)
        for group in self._groups:
            transport.hang_up(group, self._peers)

    def interrupt(self) -> None:
        """Break every connection, in good order: what is under way fails."""
        self._announce(Notice(_CLOSE, "left"))
        self._disconnect()

    def _announce(self, notice: Notice) -> None:
        """Say what happened here, before the others see it; [Note: a notice before closing]."""
        self._monitor.say_failed()
        if not self._monitor.store_unreachable:
            call_store(lambda: self._notices.put(notice), STORE_LIMIT_S)

    def _disconnect(self) -> tuple[int, ...]:
        """Break every connection; return the peers that had closed theirs before."""
        closed: set[int] = set()
        self._interrupted = True
        for group in list(self._groups):
            closed.update(transport.break_connections(group, self._peers))
        for interrupt in self._further:
            interrupt()
        return tuple(sorted(closed))

    def _ended(self, call: Call, error: BaseException | None, waited_s: float) -> None:
        """Turn the end of ``call`` into a :class:`CollectiveError` where it failed."""
        self._in_flight.leave(call)
        if error is None and self._interrupted:
            # What an aborted backend leaves behind may look finished.
            error = RuntimeError(transport.INTERRUPTED)
        if error is None:
            return
        if isinstance(error, SyncopateError):
            self._break(call, Verdict((), str(error)))
        elif isinstance(error, RuntimeError):
            raise self._failed(call, error, waited_s) from error
        else:
            self._stopped(call, error)

    def _stopped(self, call: Call, error: BaseException) -> None:
        """Note that ``error`` ended ``call`` midway: the peers wait for messages that never come.

        A process that Ctrl-C ends closes its connections by itself, and soon; one that raised may
        go on, and so may one that catches Ctrl-C, such as a notebook.
        """
        whole = self._broken is None
        self._break(call, Verdict((self._rank,), f"rank {self._rank} was interrupted"))
        if whole and isinstance(error, Exception):
            self._tell_stopped(call, error)
        elif whole:
            self._monitor.tell_if_it_lives(functools.partial(self._tell_stopped, call, error))

    def _tell_stopped(self, call: Call, error: BaseException) -> None:
        self._announce(Notice(call, "error", text=_first_line(error)))
        self._disconnect()

    def _break(self, call: Call, verdict: Verdict) -> Verdict:
        """Note why the communicator is at its end, and tell the others; the first reason holds."""
        if self._broken is None:
            self._broken = (call.title, verdict)
            self._monitor.tell(verdict)
        return self._broken[1]

    def _give_up(self, call: Call, waited_s: float, verdict: Verdict | None) -> None:
        """Break a collective that cannot finish; why may still have to be found out."""
        if verdict is not None:
            self._break(call, verdict)
        before = self._in_flight.before(call)
        self._announce(Notice(call, "interrupted", (), waited_s, before=before))
        self._disconnect()

    def _failed(self, call: Call, error: RuntimeError, waited_s: float) -> CollectiveError:
        # One diagnosis per communicator: threads of other channels fail soon after, and wait here.
        with self._diagnosing:
            if self._broken is None:
                verdict = self._break(call, self._diagnose(call, error, waited_s))
            else:
                verdict = self._broken[1]
        return CollectiveError(call.title, verdict.reason, verdict.ranks)

    def _diagnose(self, call: Call, error: RuntimeError, waited_s: float) -> Verdict:
        peers = (error.peer,) if isinstance(error, PeerError) else ()
        kind = transport.failure_kind(error)
        text = _first_line(error) if kind == "error" else ""
        notice = Notice(call, kind, peers, waited_s, text, self._in_flight.before(call))
        if kind == "closed":
            # Where rank 0 died its keep-alive connection ends a moment later, and then no rank asks
            # its store: for every call to a store that is gone torch prints a page.
            time.sleep(_POLL_S)
        known = self._monitor.known() or self._monitor.store_is_gone()
        if known is not None:
            self._break(call, known)
        self._announce(notice)
        closed = self._disconnect()
        if known is not None:
            return known
        if kind == "closed" and not peers:
            notice = msgspec.structs.replace(notice, waiting_on=closed)
            call_store(lambda: self._notices.put(notice), STORE_LIMIT_S)
        return self._consult(notice) or _without_store(notice, closed, error)

    def _consult(self, notice: Notice) -> Verdict | None:
        """Return what the notices or the keep-alive say; None when neither says anything."""
        consulted = StoreCall(lambda: self._judge(notice))
        began_s = time.monotonic()
        # Where the store's host went silent, there is no answer. A neighbour may have found
        # that out, and closed its connections, a moment before this rank does. And where the store
        # is gone with rank 0, the keep-alive has yet to bring what rank 0 said, or that it died.
        limit_s = max(GRACE_S + STORE_LIMIT_S, self._monitor.limit_s)
        while time.monotonic() - began_s < limit_s:
            known = self._monitor.known() or self._monitor.store_is_gone()
            if known is not None:
                return known
            if consulted.answered:
                return consulted.answer()
            consulted.wait(_POLL_S)
            if consulted.over:
                time.sleep(_POLL_S)
        return None

    def _judge(self, notice: Notice) -> Verdict:
        return judge(self._notices, self._rank, notice, lambda: self._monitor.losses)


@functools.cache
def _say_uncaught() -> None:
    """Tell the other ranks, from now on, of an exception that ends this process.

    They would find its connections closed otherwise, and take it for a dead process. It goes before
    the ``sys.excepthook`` that is there.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            for detector in [one for one in list(_detectors) if one.here]:
                with suppress(Exception):  # the user's own error must be shown
                    detector.say_ended(error)
        previous(kind, error, trace)

    sys.excepthook = hook


def _without_store(notice: Notice, closed: tuple[int, ...], error: RuntimeError) -> Verdict:
    """Return what this rank can say alone."""
    ranks = notice.waiting_on or closed
    if 0 in closed:
        ranks = (0,)
    whom = f"lost {name_ranks(ranks)}" if ranks else _first_line(error)
    return Verdict(
        ranks,
        f"{whom}, and the rendezvous store that says more is gone too "
        "(it lives on rank 0 unless torchrun hosts it)",
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
