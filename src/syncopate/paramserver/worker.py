"""Worker: the key-value store that a training script uses.

A thread that waits sends and receives. Each store also has a thread that does so while none waits,
so that backward goes on while gradients travel, and one that says that this worker is alive.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import zmq
from torch import Tensor

from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.paramserver.driver import Driven, Driver, Handle, Pending, Pulled, filling
from syncopate.paramserver.job import Job, job_from
from syncopate.paramserver.node import Node, new_token
from syncopate.paramserver.optimizers import States, collecting, whole_states, with_state
from syncopate.paramserver.pieces import Declared, empty, filled
from syncopate.paramserver.tensors import frame_of
from syncopate.paramserver.wire.faults import faults_from
from syncopate.paramserver.wire.security import load_key
from syncopate.paramserver.wire.sockets import Arrival, Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action
from syncopate.protocol.bundle import Place
from syncopate.protocol.limits import Limits
from syncopate.protocol.messages import Refusal
from syncopate.protocol.piece import Slice
from syncopate.protocol.rules import SGD, Adam, Rules
from syncopate.protocol.slice import FIRST
from syncopate.protocol.worker import WorkerMachine

if TYPE_CHECKING:
    from syncopate.collectives.store import Store

QUEUE_BYTES = 1 << 30
"""Bytes of pushes that may be under way; beyond, a push waits."""

_POLL_S = 0.25


class KVStore:
    """This worker's view of the parameter server.

    Attributes:
        rank: of this worker.
        num_workers: how many there are; of servers ``num_servers``.
        rules: how the servers update.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        job: Job | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Join the job; return when all servers and workers are there.

        Args:
            rules: how the servers update, the same on all workers; synchronous SGD without.
            job: where the scheduler is; without, as the environment says
                (:mod:`syncopate.paramserver.job`).
            limits: times and sizes.

        Raises:
            InvalidValueError, UnknownNameError: a value out of its range.
            ArtifactError: the key cannot be read.
            ParameterServerError: the job was not complete in time.
        """
        job = (job or job_from(os.environ, "worker")).require_valid()
        self.rules = job.told(rules or Rules()).require_valid()
        self._limits = (limits or Limits()).require_valid()
        self._token = new_token()
        register = msg.Register(msg.PROTOCOL, job.name, msg.WORKER, self._token, rank=job.rank)
        tap = Tap(msg.WORKER, lambda: self.refused)
        self._wire = Wire(load_key(job.key), self._limits, tap, faults_from(os.environ))
        self._node = Node(self._wire, register, self._limits, job.scheduler)
        self._machine: WorkerMachine | None = None
        self._roster: msg.Roster | None = None
        self._declared: Declared | None = None
        self._pending = Pending()
        self._lr: float | None = None
        self._error: ParameterServerError | None = None
        self._joined = threading.Event()
        self._over = False
        self.rank, self.num_workers, self.num_servers = -1, 0, 0
        driven = Driven(
            over=lambda: self._over,
            busy=lambda: not self._idle(),
            submitted=self._submitted,
            step=self._step,
            wake=self._wire.wake,
            end=self._end,
        )
        self._driver = Driver(driven, "syncopate-worker")
        self._driver.start()
        while not self._joined.wait(_POLL_S):
            pass
        if self._error is not None or self._roster is None:
            self._driver.join()
            raise self._error or ParameterServerError("the job ended before it began")
        self.rank = self._roster.rank
        self.num_workers = len(self._roster.workers)
        self.num_servers = len(self._roster.servers)

    def init(
        self,
        tensors: Mapping[str, Tensor],
        optimizer: SGD | Adam | None = None,
        state: States | None = None,
    ) -> None:
        """Give the servers worker 0's ``tensors``, and every worker the same values.

        Blocks until all workers have called it.

        Args:
            tensors: by the name that push and pull call them; overwritten with worker 0's values.
            optimizer: what the servers update by, instead of that of the rules.
            state: what that remembers of some tensors, as :meth:`state` returned it; worker 0's
                counts.

        Raises:
            InvalidValueError: called twice, or there is none; or a value is out of its range.
            UnknownNameError: an element type that is not sent.
            ParameterServerError: the workers do not agree on names, types or sizes.
        """
        if self._declared is not None:
            raise InvalidValueError("init", "called again", "called once")
        if optimizer is not None:
            self.rules = msgspec.structs.replace(self.rules, optimizer=optimizer).require_valid()
        self._declared = Declared(tensors, self.num_servers, self._limits.slice_bytes)
        self._call(self._begin)
        handles = []
        if self.rank == FIRST:
            known = state or {}
            if fresh := {name: t for name, t in tensors.items() if not known.get(name)}:
                handles.append(self.push_many(fresh))
            handles += [self._first(n, t, known[n]) for n, t in tensors.items() if known.get(n)]
        handles.append(self.pull_many(tensors))
        for handle in handles:
            handle.wait()

    def push(self, key: str, tensor: Tensor, priority: int = 0) -> Handle:
        """Send a gradient in the background; see :meth:`push_many`."""
        return self.push_many({key: tensor}, priority)

    def push_many(self, tensors: Mapping[str, Tensor], priority: int = 0) -> Handle:
        """Send gradients in the background, in their order, as one submission.

        Its handle is done when servers have them, safe on disk where they keep state there.

        Args:
            tensors: by name, one or more, as declared; must not change until the handle is done.
            priority: the highest goes first.

        Raises:
            UnknownNameError, InvalidValueError: no such tensor, or not as it was declared.
            ParameterServerError: the job is over.
        """
        declared = self._ready(next(iter(tensors), ""))
        slices = declared.slices(tensors)
        pieces = filled(declared.layout, slices, tensors)
        nbytes = sum(piece.nbytes for piece in slices)
        self._pending.room.reserve(nbytes, QUEUE_BYTES, lambda: self._error is not None)
        handle = Handle(self._driver, len(slices), lambda: self._pending.room.release(nbytes))
        lr = self._lr

        def push(machine: WorkerMachine, piece: Slice, place: Place) -> list[Action]:
            part, begin, end = place
            number, actions = machine.push(part.key, priority, lr, self._node.now_s())
            self._pending.pushes((part.key, number), pieces[piece.key][begin:end], handle)
            return actions

        self._submit(slices, push, handle)
        return handle

    def pull(self, key: str, out: Tensor, priority: int = 0) -> Handle:
        """Receive weights into ``out``; see :meth:`pull_many`."""
        return self.pull_many({key: out}, priority)

    def pull_many(self, outs: Mapping[str, Tensor], priority: int = 0) -> Handle:
        """Receive weights, with all in them that this worker pushed before, as one submission.

        In mode ``ssgd``: with exactly as many pushes of every worker. A worker that pushes on
        before the handle is done, and loses the connection to a server meanwhile, may get more.

        Args:
            outs: by name, one or more, as declared; not to be used until the handle is done.
            priority: the highest comes first.

        Raises: as :meth:`push_many`.
        """
        declared = self._ready(next(iter(outs), ""))
        slices = declared.slices(outs)
        pieces, finish = empty(declared.layout, slices, outs)
        handle = Handle(self._driver, len(slices), finish)

        def pull(machine: WorkerMachine, piece: Slice, place: Place) -> list[Action]:
            part, begin, end = place
            request, actions = machine.pull(part.key, priority, self._node.now_s())
            data = pieces[piece.key][begin:end]
            self._pending.pulls((part.key, request), filling(data, handle))
            return actions

        self._submit(slices, pull, handle)
        return handle

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return what the servers' optimizer remembers, with all that this worker pushed before.

        Returns:
            Per tensor that was updated: ``"momentum"``; or ``"mean"``, ``"square"`` (elements,)
            and ``"steps"`` (1,); and ``"mean_square"`` with delay compensation.

        Raises:
            InvalidValueError: :meth:`init` was not called.
            ParameterServerError: the job is over.
        """
        declared, found = self._ready("of all"), dict[int, dict[str, Tensor]]()
        layout, names = declared.layout, declared.names
        slices = layout.pieces(names)
        handle = Handle(self._driver, len(slices), None)

        def taking(place: Place) -> Pulled:
            take = collecting(place[0], layout.members(place[0]), found)
            return Pulled(take, handle, taking)

        def pull(machine: WorkerMachine, _: Slice, place: Place) -> list[Action]:
            request, actions = machine.pull(place[0].key, 0, self._node.now_s(), state=True)
            self._pending.pulls((place[0].key, request), taking(place))
            return actions

        self._submit(slices, pull, handle)
        handle.wait()
        return whole_states(layout, names, found)

    def set_learning_rate(self, lr: float) -> None:
        """Let the servers use ``lr`` for every push from now on.

        In mode ``ssgd`` the learning rate of the lowest rank counts.

        Raises:
            InvalidValueError: less than 0, or no number.
        """
        if not lr >= 0:
            raise InvalidValueError("lr", lr, "at least 0")
        self._lr = float(lr)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until all pushes are over, and leave the job.

        Args:
            timeout_s: how long to wait; None: until it is over, or the job is.

        Raises:
            ParameterServerError: the job failed, or the time is over.
        """
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._over and not self._idle() and time.monotonic() <= until_s:
            if not self._driver.drive(lambda: self._idle() or time.monotonic() > until_s):
                time.sleep(0.002)  # another thread drives
        late = not self._over and not self._idle()
        self._end_by(self._leave)
        if self._error is not None:
            raise self._error
        if late:
            raise ParameterServerError(f"pushes were not over within {timeout_s:g} s (timeout_s)")

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Leave; after an exception at once, and end the job."""
        if kind is None:
            self.close()
        else:
            reason = f"worker {self.rank} raised {kind.__name__}: {error}"
            self._end_by(lambda: self._give_up(ParameterServerError(reason)))

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        return dict(self._machine.refused) if self._machine is not None else {}

    def _first(self, key: str, tensor: Tensor, state: Mapping[str, Tensor]) -> Handle:
        """Push the first value of a tensor, and what the optimizer remembers of it."""
        slices = self._ready(key).layout.of_tensor(key)
        payloads = {p.key: with_state(p, tensor, state, self.rules.state) for p in slices}
        handle = Handle(self._driver, len(slices), None)

        def begin(machine: WorkerMachine, piece: Slice, _: Place) -> list[Action]:
            names, payload = payloads[piece.key]
            number, actions = machine.begin(piece.key, names, self._node.now_s())
            self._pending.pushes((piece.key, number), payload, handle)
            return actions

        self._submit(slices, begin, handle)
        return handle

    def _submit(
        self,
        slices: Sequence[Slice],
        each: Callable[[WorkerMachine, Slice, Place], list[Action]],
        handle: Handle,
    ) -> None:
        """Let the driving thread do what ``each`` says of each slice, and of each part of it."""

        def submit() -> None:
            assert self._machine is not None
            for piece in slices:
                actions, parts = self._machine.parts(piece)
                self._do(actions)
                handle.more(len(parts) - 1)
                for place in parts:
                    self._do(each(self._machine, piece, place))

        self._call(submit, handle)

    def _ready(self, key: str) -> Declared:
        if self._error is not None:
            raise self._error
        if self._declared is None:
            raise InvalidValueError("key", key, "declared with init() first")
        return self._declared

    def _call(self, function: Callable[[], None], handle: Handle | None = None) -> None:
        """Let the driving thread call ``function``; at once if none drives."""
        if self._error is not None:
            raise self._error
        if self._over:
            raise ParameterServerError("this store is closed")
        self._pending.call(function, handle)
        self._driver.submit()
        if self._over:  # perhaps just before, and then no thread looked at it
            raise self._error or ParameterServerError("this store is closed")

    def _end_by(self, function: Callable[[], None]) -> None:
        """Call ``function``, which ends it all, and wait for the end."""
        if not self._over:
            self._pending.call(function)
            self._driver.submit()
        self._driver.join()

    def _idle(self) -> bool:
        machine, joined = self._machine, self._roster is not None
        return joined and not self._pending.calls and (machine is None or machine.idle)

    # From here on: what the driving thread does.

    def _submitted(self) -> None:
        try:
            while self._pending.calls and self._error is None:
                call = self._pending.calls[0]
                call.function()
                # Only now: until then close() must not take this worker for idle.
                if self._pending.calls and self._pending.calls[0] is call:
                    self._pending.calls.popleft()
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
        try:
            self._wire.wait(timeout_s)  # a caller interrupted here may go on
        except zmq.ZMQError as error:
            self._broken(error)
        try:
            self._node.take_in(self._do, self._take, self._tick)
        except BaseException as error:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        """Give up; leave it to callers' threads to be interrupted."""
        self._give_up(ParameterServerError(f"worker: {type(error).__name__}: {error}"))
        if not isinstance(error, Exception):
            raise error

    def _end(self) -> None:
        self._over = True
        self._pending.fail(ParameterServerError("this store is closed"))
        self._joined.set()
        self._node.part()
        self._node.close()

    def _begin(self) -> None:
        assert self._roster is not None
        layout = self._ready("").layout
        self._machine = WorkerMachine(self._roster, self._token, layout, self.rules, self._limits)
        for rank, address in enumerate(self._roster.servers):
            self._wire.connect(rank, address)
        self._wire.tap.bundles(layout, self.rules.mode, self._machine.bundles)
        self._do(self._machine.connect(self._node.now_s()))

    def _leave(self) -> None:
        self._node.member.leave()
        self._over = True

    def _take(self, arrival: Arrival) -> None:
        if self._machine is None or not isinstance(arrival.peer, int):
            return
        try:
            message, payload = self._wire.opened(msg.FromServer, arrival)
        except Refusal as refusal:
            self._machine.refused[refusal.kind] += 1
            return
        size = None if payload is None else len(payload)
        for action in self._machine.receive(arrival.peer, message, size, self._node.now_s()):
            if isinstance(action, act.Fill):
                assert payload is not None
                self._pending.arrived(action, payload)
            else:
                self._do([action])

    def _tick(self, now_s: float) -> None:
        if self._machine is not None:
            self._do(self._machine.tick(now_s))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if self._error is not None:
                return
            if isinstance(action, act.SendPush):
                self._send_push(action)
            elif isinstance(action, act.Send):
                self._node.send(action)
            elif isinstance(action, act.Told):
                self._told(action.message)
            elif isinstance(action, act.Released):
                self._pending.released((action.key, action.sequence))
            elif isinstance(action, act.Split):
                self._pending.split(action.cut)
                layout = self._ready("").layout
                self._wire.tap.bundles(layout, self.rules.mode, action.cut.parts)
            else:
                self._manage(action)

    def _send_push(self, action: act.SendPush) -> None:
        push, machine = action.message, self._machine
        assert isinstance(push, msg.Push)
        assert machine is not None
        frame = frame_of(self._pending.pushed[push.key, push.sequence].data, self._wire.let_go)
        self._wire.send(
            action.to,
            push,
            action.priority,
            frame,
            lambda: machine.sent(push.key, self._node.now_s()),
        )

    def _told(self, said: msg.Message) -> None:
        """Take note of what the scheduler said about others."""
        machine, roster = self._machine, self._roster
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
        elif isinstance(said, msg.Lost) and machine is not None:
            self._do(machine.lost(said.rank, said.silent_s))

    def _manage(self, action: Action) -> None:
        if isinstance(action, act.Forget):
            self._wire.forget(action.peer)
        elif isinstance(action, act.Stop):
            self._over = True
        elif isinstance(action, act.Fail):
            self._give_up(ParameterServerError(action.reason, action.ranks))

    def _give_up(self, error: ParameterServerError) -> None:
        """Let all waits know that it is over."""
        self._node.member.fail(str(error))
        self._error = error
        self._over = True
        self._pending.fail(error)


if TYPE_CHECKING:
    _STORE: type[Store] = KVStore  # what the engine sees of it
