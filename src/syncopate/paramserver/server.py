"""Server: keeps slices of the weights, updates them, and answers pulls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from syncopate.errors import ParameterServerError
from syncopate.paramserver.job import Job, own_host
from syncopate.paramserver.node import Node, new_token
from syncopate.paramserver.storage import histories
from syncopate.paramserver.storage.histories import Histories
from syncopate.paramserver.storage.shard import Shard
from syncopate.paramserver.storage.state import Committer, Identity, Record, StateFolder
from syncopate.paramserver.storage.updaters import Updaters
from syncopate.paramserver.tensors import keep_freed_memory
from syncopate.paramserver.wire.faults import Faults
from syncopate.paramserver.wire.security import load_key
from syncopate.paramserver.wire.sockets import Arrival, RefusalLog, Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Action
from syncopate.protocol.limits import Limits
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.bundle import BUNDLE
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.server import Kept, Seat, ServerMachine

_EARLY, _EARLY_BYTES = 1024, 4096
"""How many messages are kept of those who come before this server knows who is who, and how long
they may be: a worker says hello, and nothing else."""


_Computed = act.Stage | act.Ask | act.Add | act.Initialise | act.Measure | act.Update | act.Answer


class ParameterServer:
    """One server of a job."""

    def __init__(
        self,
        job: Job,
        *,
        port: int = 0,
        state: Path | None = None,
        limits: Limits | None = None,
        faults: Faults | None = None,
        updaters: Collection[str] = (),
    ) -> None:
        """Listen, and read what is on disk.

        Args:
            job: where the scheduler is.
            port: to listen on; 0: any free one.
            state: a folder to keep state in; None: in memory alone.
            limits: times and sizes.
            faults: for tests.
            updaters: names of classes that it may import, as ``"package.module:Class"``.

        Raises:
            ParameterServerError: it cannot listen.
            ArtifactError: key or state cannot be trusted.
        """
        self._job = job.require_valid()
        self._limits = (limits or Limits()).require_valid()
        self._port, self._state, self._faults = port, state, faults
        self._updaters = Updaters(updaters)
        self._begin()

    def _begin(self) -> None:
        """Read what is on disk, listen, and ask the scheduler to be let in."""
        state, job = self._state, self._job
        self._folder = StateFolder(state) if state is not None else None
        self._identity = self._folder.identity() if self._folder is not None else None
        self._histories: Histories = {}
        if self._folder is not None and self._identity is not None:
            self._folder.keeps_earlier = self._identity.synchronous
            self._histories = self._folder.read(self._identity.run)
        self._machine: ServerMachine | None = None
        self._shard = Shard(self._updaters)
        self._committer: Committer | None = None
        # Bundles that were split: nothing on disk counts any more that is under their keys.
        self._dropped: set[int] = set()
        self._unsaved = False  # whether the identity on disk is another one
        self._over = self._again = False
        self._failure: ParameterServerError | None = None
        self._boot = new_token()
        self._refusals = RefusalLog("a server")
        # What workers say who heard of this server before it heard of them.
        self._early: deque[Arrival] = deque(maxlen=_EARLY)
        tap = Tap(msg.SERVER, lambda: self.refused)
        tap.counters.kept = self._kept
        tap.counters.waiting = lambda: self._shard.waiting
        wire = Wire(load_key(job.key), self._limits, tap, self._faults)
        try:
            address = wire.listen(own_host(job), self._port)
            self._node = Node(wire, self._register(address), self._limits, job.scheduler)
        except BaseException:
            wire.close(0)
            raise

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        counts = dict(self._machine.refused) if self._machine is not None else {}
        return counts | self._node.wire.turned_away

    def _kept(self) -> tuple[int, int]:
        """Return how many slices are kept, and the bytes of their weights."""
        machine = self._machine
        specs = () if machine is None else machine.specs
        return len(specs), sum(spec.nbytes for spec in specs)

    def run(self) -> None:
        """Serve until the job is over; the process is the server's from here on.

        Raises:
            ParameterServerError: it cannot go on; the message says who is to blame.
            ArtifactError: state cannot be written.
        """
        keep_freed_memory()
        self._serve()
        while self._again:
            self._begin()
            self._serve()

    def _serve(self) -> None:
        """Serve until the job is over, or all its workers are gone."""
        try:
            while not self._over:
                self._node.step(self._do, self._take, self._tick)
                self._commit()
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            self._node.member.fail(reason or type(error).__name__)
            raise
        finally:
            self._node.part()
            if self._committer is not None:
                self._committer.close()
            self._refusals.note(self.refused, last=True)
            self._node.close()
        if self._failure is not None:
            raise self._failure

    def _register(self, address: str) -> msg.Register:
        known = self._identity
        return msg.Register(
            msg.PROTOCOL,
            self._job.name,
            msg.SERVER,
            self._boot,
            address,
            self._job.rank if known is None else known.rank,
            "" if known is None else known.run,
            self._folder is not None,
            None if known is None else histories.steps_of(known, self._histories),
        )

    def _take(self, arrival: Arrival) -> None:
        machine = self._machine
        if machine is None:
            if len(arrival.frames) == 1 and len(arrival.frames[0]) <= _EARLY_BYTES:
                self._early.append(arrival)
            return
        try:
            message, payload = self._node.wire.opened(codec.ToServer, arrival)
            if (
                payload is not None
                and isinstance(message, msg.PushRows | msg.PullRows)
                and machine.knows(arrival.peer)
            ):
                self._shard.require_rows(message, payload, machine.rank, machine.servers)
        except Refusal as refusal:
            self._do(machine.refuse(arrival.peer, refusal))
            return
        size = None if payload is None else len(payload)
        found = machine.receive(arrival.peer, message, size)
        if machine.knows(arrival.peer):
            self._node.wire.admit(arrival)
        self._do(found, payload)

    def _tick(self, now_s: float) -> None:
        self._refusals.note(self.refused)

    def _do(self, actions: list[Action], payload: zmq.Frame | None = None) -> None:
        for action in actions:
            if self._over:
                return
            if isinstance(action, _Computed):
                self._compute(action, payload)
            elif isinstance(action, act.Send):
                self._node.send(action)
            elif isinstance(action, act.Told):
                self._told(action.message)
            else:
                self._manage(action)

    def _compute(self, action: _Computed, payload: zmq.Frame | None) -> None:
        shard, wire, began_s = self._shard, self._node.wire, time.perf_counter()
        if isinstance(action, act.Stage):
            assert payload is not None
            shard.stage(action, payload)
        elif isinstance(action, act.Ask):
            assert payload is not None
            shard.ask(action, payload)
        elif isinstance(action, act.Add):
            shard.add(action)
        elif isinstance(action, act.Initialise):
            shard.initialise(action)
            wire.tap.worked("initialise", action.key, (0, 0, None), began_s)
        elif isinstance(action, act.Measure):
            assert self._machine is not None
            self._do(self._machine.measured(action, shard.measure(action)))
        elif isinstance(action, act.Update):
            shard.update(action)
            wire.tap.worked("update", action.key, (action.version, 0, None), began_s)
        else:
            asked, frame = shard.answer(action, wire.let_go)
            wire.tap.worked("search", asked.key, (asked.version, asked.request, action.to), began_s)
            wire.send(action.to, asked, action.priority, frame)

    def _told(self, said: msg.Message) -> None:
        """Take note of what the scheduler said about others."""
        machine = self._machine
        if isinstance(said, msg.Roster):
            self._join(said)
        elif isinstance(said, msg.Lost) and machine is not None:
            self._do(machine.lost(said.rank, said.silent_s))
        elif isinstance(said, msg.Left) and machine is not None:
            self._do(machine.left(said.rank))
        elif isinstance(said, msg.Taken) and machine is not None:
            self._do(machine.taken(said))

    def _manage(self, action: Action) -> None:
        if isinstance(action, act.Keep):
            self._keep(action)
        elif isinstance(action, act.KeepTable):
            self._keep_table(action.table)
        elif isinstance(action, act.Split):
            self._shard.split(action.cut)
            self._dropped.add(action.cut.key)
            self._note_bundles(action.cut.parts)
        elif isinstance(action, act.Unstage):
            self._shard.unstage(action)
        elif isinstance(action, act.Forget):
            self._node.wire.forget(action.peer)
        elif isinstance(action, act.BeginAgain):
            self._over = self._again = True
        elif isinstance(action, act.Stop):
            self._over = True
        elif isinstance(action, act.Fail):
            self._node.member.fail(action.reason)
            self._failure = ParameterServerError(action.reason, action.ranks)
            self._over = True

    def _join(self, roster: msg.Roster) -> None:
        known, now = self._identity, roster.incarnation
        back = known is not None and known.incarnation != now.number
        if known is not None and back and not now.resumed:
            known = Identity(job=known.job, run=known.run, rank=known.rank)
            self._histories = {}
        chains, kept = histories.newest(self._histories), None
        before: Mapping[int, Sequence[Record]] = {}
        if known is not None and (known.rules is not None or known.tables):
            positions = {key: chain[-1].position for key, chain in chains.items()}
            if back:
                chains = histories.chains_at(known, self._histories, now)
                positions = histories.positions_at(known, chains, now, len(roster.workers))
            elif known.keeps_before:
                before = histories.before(self._histories)
            there = frozenset(before)
            kept = Kept(known.digest, known.rules, known.slices, positions, known.tables, there)
        self._histories = {}
        self._machine = ServerMachine(
            Seat(roster, self._boot, self._folder is not None), self._limits, kept
        )
        if kept is not None:
            self._restore(kept, chains, before)
        if self._folder is not None:
            self._committer = Committer(self._folder, roster.run, self._node.wire.wake)
            if known is None or back:
                known = known or Identity(job=self._job.name, run=roster.run, rank=roster.rank)
                self._change_identity(known, incarnation=now.number)
            if back:
                self._write_anew(self._committer)
        while self._early:
            self._take(self._early.popleft())

    def _restore(
        self,
        kept: Kept,
        chains: Mapping[int, Sequence[Record]],
        before: Mapping[int, Sequence[Record]],
    ) -> None:
        """Take back what was on disk: what leads to the newest versions, and to those before."""
        assert self._machine is not None
        specs = self._machine.specs
        if kept.rules is not None:
            self._shard.keep(kept.rules, specs)
        for table in kept.tables:
            self._shard.keep_table(table)
        current = {spec.key for spec in specs}
        self._dropped = set(chains) - current
        for key in current.intersection(chains):
            for record in before.get(key, ()):
                self._shard.restore(key, record.tensors)
            if key in before:
                self._shard.keep_before(key)
            for record in chains[key]:
                self._shard.restore(key, record.tensors)

    def _write_anew(self, committer: Committer) -> None:
        """Write all that is kept since this server went back, in the place of all that was there.

        The identity is written after it: until then the server goes back once more.
        """
        records: dict[int, Record] = {}
        if self._machine is not None:
            at = self._machine.positions(self._shard.held)
            records = {key: self._shard.record(key, at[key], whole=True) for key in at}
        committer.begin(records, identity=self._identity, anew=True)
        self._dropped.clear()
        self._unsaved = False

    def _keep(self, action: act.Keep) -> None:
        assert self._machine is not None
        self._shard.keep(action.rules, self._machine.specs)
        self._note_bundles(self._machine.specs)
        if self._folder is not None and self._identity is not None:
            known, digest = self._identity, self._machine.digest
            self._change_identity(known, digest=digest, rules=action.rules, slices=action.slices)

    def _keep_table(self, table: TableSlice) -> None:
        self._shard.keep_table(table)
        if self._folder is not None and self._identity is not None:
            self._change_identity(self._identity, tables=(*self._identity.tables, table))

    def _change_identity(self, known: Identity, **changed: Any) -> None:
        """Take another identity, which the next commit writes."""
        assert self._folder is not None
        self._identity = msgspec.structs.replace(known, **changed)
        self._folder.keeps_earlier = self._identity.synchronous
        self._unsaved = True

    def _note_bundles(self, slices: Iterable[Slice]) -> None:
        """Note those that are bundles for the trace; it knows slices from what is declared."""
        assert self._machine is not None
        assert self._machine.rules is not None
        bundles = [each for each in slices if each.key >= BUNDLE]
        self._node.wire.tap.keeps(self._machine.rank, self._machine.rules.mode, bundles)

    def _commit(self) -> None:
        """Let what changed be written, and tell scheduler and workers what is."""
        committer, machine, shard = self._committer, self._machine, self._shard
        if committer is None or machine is None:
            return
        if (positions := committer.finished()) is not None:
            self._node.member.settle()  # the first commit has the identity
            self._do(machine.committed(positions))
        if committer.busy or not (shard.changed or self._unsaved):
            return
        whole = committer.wants_all
        keys = sorted(shard.held if whole else shard.changed)
        at = machine.positions(keys)
        records = {key: shard.record(key, at[key], whole=whole) for key in keys}
        dropped = tuple(self._dropped) if records else ()
        committer.begin(records, dropped, identity=self._identity if self._unsaved else None)
        self._dropped.difference_update(dropped)
        self._unsaved = False
