"""Session: a worker in its job: sockets, membership, and what is under way to and from servers.

A thread that waits sends and receives. Each session also has a thread that does so while none
waits, so that backward goes on while gradients travel, and one that says that this worker is alive.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from syncopate.errors import ParameterServerError
from syncopate.paramserver.driver import Call, Driven, Driver, Handle, Pending, Pulled, Pushed
from syncopate.paramserver.job import Job
from syncopate.paramserver.node import Node, new_token
from syncopate.paramserver.tensors import frame_of
from syncopate.paramserver.wire.faults import faults_from
from syncopate.paramserver.wire.security import load_key
from syncopate.paramserver.wire.sockets import Arrival, Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import actions as act
from syncopate.protocol import codec, reasons
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.launch import ONCE
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.bundle import Place
from syncopate.protocol.placement.layout import Layout
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import ABORT, Rules
from syncopate.protocol.worker import WorkerMachine

QUEUE_BYTES = 1 << 30
"""Bytes of pushes that may be under way; beyond, a push waits."""

_POLL_S = 0.25

Each = Callable[[Slice, Place], None]
"""Pushes or pulls a slice, or a part of a bundle that was cut."""


class Session:
    """A worker in its job.

    Attributes:
        driver: which thread drives it.
        pending: what was submitted and is not over.
        machine: the worker's protocol; None before anything was declared.
        error: what ended it; None: nothing did.
    """

    def __init__(
        self,
        job: Job,
        limits: Limits,
        step: int | None = None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the job; return when all servers and workers are there.

        Args:
            job: where its scheduler is.
            limits: times and sizes.
            step: at which this worker brings a job from other servers; None: it brings none.
            watch: called while it waits; what it raises ends this job, too.

        Raises:
            ArtifactError: the key cannot be read.
            ParameterServerError: the job was not complete in time.
        """
        self.pending = Pending()
        self.machine: WorkerMachine | None = None
        self.error: ParameterServerError | None = None
        self._limits, self._token = limits, new_token()
        self._aborts = job.on_worker_loss in ("", ABORT)
        register = msg.Register(
            msg.PROTOCOL,
            job.name,
            msg.WORKER,
            self._token,
            rank=job.rank,
            steps=None if step is None else (step,),
            launch=job.launch if step is None else ONCE,  # it comes back to those of before
            opens=job.opens,
        )
        tap = Tap(msg.WORKER, lambda: self.refused)
        self._wire = Wire(load_key(job.key), limits, tap, faults_from(os.environ))
        self._node = Node(self._wire, register, limits, job.scheduler)
        self._roster: msg.Roster | None = None
        self._layout: Layout | None = None
        self._mode, self._over = "", False
        self._count_workers: Callable[[int], None] = lambda _: None
        self._joined = threading.Event()
        driven = Driven(
            over=lambda: self._over,
            busy=lambda: not self._idle(),
            submitted=self._submitted,
            step=self._step,
            wake=self._wire.wake,
            end=self._end,
        )
        self.driver = Driver(driven, "syncopate-worker")
        self._join(watch)
        if self.error is not None or self._roster is None:
            self.driver.join()
            raise self.error or ParameterServerError("the job ended before it began")

    def _join(self, watch: Callable[[], None]) -> None:
        """Wait until the job is complete; leave it where that is interrupted: no caller can."""
        try:
            while not self._joined.wait(_POLL_S):
                watch()
        except BaseException as error:
            own = not isinstance(error, ParameterServerError)
            self.give_up(str(error) or type(error).__name__, own=own)
            raise

    @property
    def roster(self) -> msg.Roster:
        """All nodes."""
        assert self._roster is not None
        return self._roster

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        return dict(self.machine.refused) if self.machine is not None else {}

    def taken(self, *, synchronous: bool) -> int:
        """Return how many synchronous steps were taken; 0 where updates are asynchronous."""
        pushed = 0 if self.machine is None else self.machine.pushed
        return self.roster.incarnation.taken(synchronous=synchronous, pushed=pushed)

    def count_workers(self, tell: Callable[[int], None]) -> None:
        """Call ``tell`` with the number of workers, now and when it changes."""
        self._count_workers = tell
        tell(len(self.roster.workers))

    def require_going(self) -> None:
        """Refuse to go on where something ended the job.

        Raises:
            ParameterServerError: it says what.
        """
        if self.error is not None:
            raise self.error

    def declare(self, layout: Layout, rules: Rules) -> None:
        """Let the servers keep tensors; once."""

        def declare() -> None:
            self._layout, self._mode = layout, rules.mode
            machine = self._begun(rules)
            self._do(machine.declare(layout, rules))
            self._wire.tap.bundles(layout, rules.mode, machine.bundles)

        self._call(declare)

    def declare_table(self, slices: Sequence[TableSlice]) -> None:
        """Let the servers keep a table."""
        self._call(lambda: self._do(self._begun(slices[0].rules).declare_table(slices)))

    def handle(self, parts: int, nbytes: int = 0) -> Handle:
        """Return what waits for ``parts`` slices, once there is room for ``nbytes`` of pushes."""
        if not nbytes:
            return Handle(self.driver, parts, None)
        room = self.pending.room
        room.reserve(nbytes, QUEUE_BYTES, lambda: self._over)
        return Handle(self.driver, parts, lambda: room.release(nbytes))

    def submit(self, slices: Sequence[Slice], each: Each, handle: Handle) -> None:
        """Let the driving thread do what ``each`` says of each slice, and of each part of it."""

        def submit() -> None:
            assert self.machine is not None
            for piece in slices:
                actions, parts = self.machine.parts(piece)
                self._do(actions)
                handle.more(len(parts) - 1)
                for place in parts:
                    each(piece, place)

        self._call(submit, handle)

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until all pushes and pulls are over, or the job is; say whether they are."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._over and not self._idle() and time.monotonic() <= until_s:
            if not self.driver.drive(lambda: self._idle() or time.monotonic() > until_s):
                time.sleep(0.002)  # another thread drives
        return self._over or self._idle()

    def close(self, timeout_s: float | None) -> None:
        """Wait until all pushes are over, and leave the job.

        Raises:
            ParameterServerError: the job failed, or the time is over.
        """
        late = not self.settle(timeout_s)
        self._end_by(self._leave)
        if self.error is not None:
            raise self.error
        if late:
            raise ParameterServerError(f"pushes were not over within {timeout_s:g} s (timeout_s)")

    def give_up(self, reason: str, *, own: bool = False) -> None:
        """End the job at once; or where this worker's ``own`` script raised, perhaps its part."""
        self._end_by(lambda: self._give_up(ParameterServerError(reason), own=own))

    def _call(self, function: Callable[[], None], handle: Handle | None = None) -> None:
        """Let the driving thread call ``function``; at once if none drives."""
        if self.error is not None:
            raise self.error
        if self._over:
            raise ParameterServerError("this store is closed")
        self.pending.calls.append(Call(function, handle))
        self.driver.submit()
        if self._over:  # perhaps just before, and then no thread looked at it
            raise self.error or ParameterServerError("this store is closed")

    def _end_by(self, function: Callable[[], None]) -> None:
        """Call ``function``, which ends it all, and wait for the end."""
        if not self._over:
            self.pending.calls.append(Call(function))
            self.driver.submit()
        self.driver.join()

    def _idle(self) -> bool:
        machine, joined = self.machine, self._roster is not None
        return joined and not self.pending.calls and (machine is None or machine.idle)

    # From here on: what the driving thread does.

    def _submitted(self) -> None:
        try:
            while self.pending.calls and self.error is None:
                call = self.pending.calls[0]
                call.function()
                # Only now: until then close() must not take this worker for idle.
                if self.pending.calls and self.pending.calls[0] is call:
                    self.pending.calls.popleft()
        except BaseException as error:  # the waits have to hear of it
            self._broken(error)

    def _step(self, timeout_s: float) -> None:
        self._submitted()
        if self._over:
            return
        try:
            self._wire.flush()
        except BaseException as error:
            self._broken(error)
        if self.machine is not None:
            timeout_s = min(timeout_s, max(0.0, self.machine.due_s - self._node.now_s()))
        try:
            self._wire.wait(timeout_s)  # a caller interrupted here may go on
        except zmq.ZMQError as error:
            self._broken(error)
        try:
            self._node.take_in(self._do, self._take, self._tick)
            if self.machine is not None and (now_s := self._node.now_s()) >= self.machine.due_s:
                self._tick(now_s)
        except BaseException as error:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        """Give up; leave it to callers' threads to be interrupted."""
        self._give_up(ParameterServerError(f"worker: {type(error).__name__}: {error}"))
        if not isinstance(error, Exception):
            raise error

    def _end(self) -> None:
        self._over = True
        self.pending.fail(ParameterServerError("this store is closed"))
        self._joined.set()
        self._node.part()
        self._node.close()

    def push(self, push: msg.Push, priority: int, pushed: Pushed) -> None:
        """Push what ``push`` says, but for its number; what is submitted calls this."""
        assert self.machine is not None
        number, actions = self.machine.push(push, priority, self._node.now_s())
        self.pending.pushed[push.key, number] = pushed
        self._do(actions)

    def pull(self, pull: msg.Pull, pulled: Pulled) -> None:
        """Pull what ``pull`` says, but for its number; what is submitted calls this."""
        assert self.machine is not None
        request, actions = self.machine.pull(pull, self._node.now_s())
        self.pending.pulled[pull.key, request] = pulled
        self._do(actions)

    def _begun(self, rules: Rules) -> WorkerMachine:
        """Return this worker's protocol, which begins with what is declared first."""
        if self.machine is None:
            self.machine = WorkerMachine(self.roster, self._token, rules, self._limits)
            for rank, address in enumerate(self.roster.servers):
                self._wire.connect(rank, address)
            self._do(self.machine.connect(self._node.now_s()))
        return self.machine

    def _leave(self) -> None:
        self._node.member.leave()
        self._over = True

    def _take(self, arrival: Arrival) -> None:
        if self.machine is None or not isinstance(arrival.peer, int):
            return
        try:
            message, payload = self._wire.opened(codec.FromServer, arrival)
        except Refusal as refusal:
            self.machine.refused[refusal.kind] += 1
            return
        size = None if payload is None else len(payload)
        for action in self.machine.receive(arrival.peer, message, size, self._node.now_s()):
            if isinstance(action, act.Fill):
                assert payload is not None
                self.pending.arrived(action, payload)
            else:
                self._do([action])

    def _tick(self, now_s: float) -> None:
        if self.machine is not None:
            self._do(self.machine.tick(now_s))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if self.error is not None:
                return
            if isinstance(action, act.Send):
                self._send(action)
            elif isinstance(action, act.Told):
                self._told(action.message)
            elif isinstance(action, act.Released):
                self.pending.pushed.pop((action.key, action.sequence)).handle.part_done()
            elif isinstance(action, act.Split):
                self.pending.split(action.cut)
                assert self._layout is not None
                self._wire.tap.bundles(self._layout, self._mode, action.cut.parts)
            else:
                self._manage(action)

    def _send(self, action: act.Send) -> None:
        said, machine, wire = action.message, self.machine, self._wire
        if isinstance(said, msg.Push):
            assert machine is not None
            data = self.pending.pushed[said.key, said.sequence].part(said)
            wire.send(
                action.to,
                said,
                action.priority,
                frame_of(data, wire.let_go),
                lambda: machine.sent(said.key, self._node.now_s()),
            )
        elif isinstance(said, msg.PullRows):
            asked = self.pending.pulled[said.key, said.request].asked
            assert asked is not None
            wire.send(action.to, said, action.priority, frame_of(asked, wire.let_go))
        else:
            self._node.send(action)

    def _told(self, said: msg.Message) -> None:
        """Take note of what the scheduler said about others."""
        machine, roster = self.machine, self._roster
        if isinstance(said, msg.Roster):
            self._roster = said
            self._joined.set()
        elif isinstance(said, msg.Moved):
            if roster is not None:
                servers = list(roster.servers)
                servers[said.rank] = said.address
                self._roster = msgspec.structs.replace(roster, servers=tuple(servers))
            if machine is not None:
                self._wire.connect(said.rank, said.address)
                self._do(machine.moved(said, self._node.now_s()))
        elif isinstance(said, msg.Taken) and roster is not None:
            tokens = list(roster.workers)
            tokens[said.rank : said.rank + 1] = [said.worker]
            self._roster = msgspec.structs.replace(roster, workers=tuple(tokens))
            self._count_workers(len(tokens))
        elif isinstance(said, msg.Lost) and machine is not None:
            self._do(machine.lost(said.rank, said.silent_s))
        elif isinstance(said, msg.Lost) and self._aborts:
            self._do([act.Fail(reasons.lost(said.rank, said.silent_s), (said.rank,))])

    def _manage(self, action: Action) -> None:
        if isinstance(action, act.Forget):
            self._wire.forget(action.peer)
        elif isinstance(action, act.Stop):
            self._over = True
        elif isinstance(action, act.Fail):
            self._give_up(ParameterServerError(action.reason, action.ranks))

    def _give_up(self, error: ParameterServerError, *, own: bool = False) -> None:
        """Let all waits know that it is over."""
        self._node.member.fail(str(error), own=own)
        self.error = error
        self._over = True
        self.pending.fail(error)
