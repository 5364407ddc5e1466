"""Server: sessions of workers, the slices that one server keeps, and what it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from syncopate.errors import SyncopateError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol import reasons
from syncopate.protocol.actions import SCHEDULER, Action, Peer
from syncopate.protocol.gradients.clipping import StepNorm
from syncopate.protocol.limits import Limits
from syncopate.protocol.membership.incarnation import GOING, NOTHING
from syncopate.protocol.messages import SOON, Refusal
from syncopate.protocol.placement.bundle import BUNDLE, Cut, Partition, Place, bundles_of
from syncopate.protocol.placement.declaring import Declarations
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import CONTINUE, Rules
from syncopate.protocol.slice import FIRST, Position, SliceMachine, Workers
from syncopate.protocol.table import TABLES, columns_of, require_rows, server_of


class Seat(msgspec.Struct, frozen=True):
    """A server's identity.

    Attributes:
        roster: of the run.
        boot: a random number of this process.
        durable: whether it keeps its state on disk.
    """

    roster: msg.Roster
    boot: str
    durable: bool = False


class Kept(msgspec.Struct, frozen=True):
    """A server's state from disk: its declaration, and the position of every slice.

    ``before`` are the keys of those of which it also has the version before.
    """

    digest: str
    rules: Rules | None
    slices: tuple[Slice, ...]
    positions: dict[int, Position]
    tables: tuple[TableSlice, ...] = ()
    before: frozenset[int] = frozenset()


class ServerMachine:
    """One server, from the first roster on.

    Attributes:
        refused: how many messages were refused, by reason.
        rules: what the workers declared; None before.
        digest: of the layout that they declared; empty before.
        tables: what is kept of tables, by key.
    """

    def __init__(self, seat: Seat, limits: Limits, kept: Kept | None = None) -> None:
        """Begin with what was on disk, if anything was."""
        self.refused: Counter[str] = Counter()
        self.rules: Rules | None = None
        self.digest = ""
        self.tables: dict[int, TableSlice] = {}
        self._seat = seat
        self._limits = limits
        self._tokens = list(seat.roster.workers)
        lives = {rank: life for rank, life in enumerate(seat.roster.lives) if life}
        self._workers = Workers(here=set(range(len(self._tokens))), lives=lives)
        self._taken: dict[str, msg.Taken] = {}
        self._gone: set[str] = set()
        self._undecided: dict[int, float] = {}
        self._step = seat.roster.incarnation.step
        self._norm = StepNorm()
        self._sessions: dict[Peer, int] = {}
        self._former: set[Peer] = set()
        self._peers: dict[int, Peer] = {}
        self._slices: dict[int, SliceMachine] = {}
        self._durable: dict[int, Position] = {}
        self._declarations = Declarations()
        self._partition = Partition(())
        self._splits: list[Action] = []
        self._before = kept.before if kept is not None else frozenset[int]()
        if kept is not None:
            if kept.rules is not None:
                self._keep(kept.digest, kept.rules, kept.slices, kept.positions)
            for table in kept.tables:
                self._keep_table(table, kept.positions)
            known = kept.positions.items()
            self._durable = {key: at for key, at in known if key in self._slices}

    @property
    def specs(self) -> tuple[Slice, ...]:
        """The slices that are kept, and of those in bundles the parts that there are."""
        return tuple(machine.spec for machine in self._slices.values())

    @property
    def rank(self) -> int:
        """This server's rank."""
        return self._seat.roster.rank

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return len(self._seat.roster.servers)

    def receive(self, peer: Peer, message: msg.Message, payload_bytes: int | None) -> list[Action]:
        """Take in what ``peer`` said.

        Args:
            peer: the connection.
            message: what it said.
            payload_bytes: the size of the payload that came with it; None: none came.
        """
        try:
            found = self._receive(peer, message, payload_bytes)
        except Refusal as refusal:
            found = self.refuse(peer, refusal)
        splits, self._splits = self._splits, []
        return [*splits, *found]

    def knows(self, peer: Peer) -> bool:
        """Say whether ``peer`` is a worker's connection."""
        return peer in self._sessions

    def refuse(self, peer: Peer, refusal: Refusal) -> list[Action]:
        """Count a refusal; tell a worker of another run that it is one."""
        self.refused[refusal.kind] += 1
        if refusal.kind == msg.OTHER_RUN or (
            refusal.kind == msg.WRONG_SIZE and peer in self._sessions
        ):
            return [act.Send(peer, msg.Refused(refusal.reason))]
        return []

    @property
    def _declared(self) -> list[Rules]:
        """The rules of all that is kept."""
        return ([] if self.rules is None else [self.rules]) + [
            table.rules for table in self.tables.values()
        ]

    def lost(self, worker: int, silent_s: float) -> list[Action]:
        """Go on without a lost worker, or end: as the rules say, once they are declared."""
        self._workers.lost.add(worker)
        declared = self._declared
        started = bool(declared) and all(s.position.version >= 0 for s in self._slices.values())
        if worker == FIRST and not started:
            return [act.Fail(reasons.lost_at_first(worker, silent_s), (worker,))]
        if not declared:
            self._undecided[worker] = silent_s
            return []
        if any(each.on_worker_loss != CONTINUE for each in declared):
            return [act.Fail(reasons.lost(worker, silent_s), (worker,))]
        return self.left(worker)

    def _decide(self) -> list[Action]:
        """Do what the rules say, now that they are declared, about workers lost before."""
        undecided, self._undecided = self._undecided, {}
        return [action for lost in undecided.items() for action in self.lost(*lost)]

    def taken(self, taken: msg.Taken) -> list[Action]:
        """Let another process take a worker's place, and tell the scheduler from where it can.

        Nothing counts from now on that the one before says; [Note: places] in ``places``.
        """
        rank, found, lives = taken.rank, list[Action](), self._workers.lives
        if rank > len(self._tokens) or taken.life < lives.get(rank, 0):
            return []  # what came before it is not known here, or what came after it is
        if taken.worker not in self._tokens:
            self._gone.update(self._tokens[rank : rank + 1])
            self._tokens[rank : rank + 1] = [taken.worker]
            self._workers.here.add(rank)
            lives[rank] = taken.life
            if (peer := self._peers.pop(rank, None)) is not None:
                self._sessions.pop(peer, None)
                self._former.add(peer)
                found.append(act.Forget(peer))
            for slice_ in self._slices.values():
                found += slice_.seat(rank)
            found += self._advance(self._slices.values())
        self._taken[taken.worker] = taken
        return [*found, *self._stands()]

    def _stands(self) -> list[Action]:
        """Answer the scheduler, as soon as all that is here is on disk where it is to be."""
        here = {key: machine.position.version for key, machine in self._slices.items()}
        at = here
        if self._seat.durable:
            at = {key: self._durable.get(key, Position()).version for key in here}
        synchronous = all(each.synchronous for each in self._declared)
        if not self._taken or (synchronous and at != here):
            return []
        step, oldest = NOTHING if self.rules is None else None, NOTHING
        if at and synchronous:
            step = min(at.values())
            oldest = max(machine.oldest for machine in self._slices.values())
        elif at:
            step = GOING if min(at.values()) >= 0 else NOTHING
        tokens, self._taken = list(self._taken), {}
        token = self._seat.boot
        return [act.Send(SCHEDULER, msg.Stands(token, each, step, oldest)) for each in tokens]

    def left(self, worker: int) -> list[Action]:
        """Count on no more pushes of ``worker``."""
        self._workers.here.discard(worker)
        self._workers.left.add(worker)
        if (peer := self._peers.pop(worker, None)) is not None:
            self._sessions.pop(peer, None)
            self._former.add(peer)
        for slice_ in self._slices.values():
            slice_.drop(worker)
        return self._never_begun() or self._advance(self._slices.values())

    def _never_begun(self) -> list[Action]:
        """End the job if some slice has no first value, and the worker that gives it has left."""
        empty = [each.spec.name for each in self._slices.values() if each.position.version < 0]
        if not empty or FIRST not in self._workers.left:
            return []
        reason = (
            f"worker {FIRST} left and never gave {empty[0]!r} its first value; all workers declare "
            "the same tensors and tables"
        )
        return [act.Fail(reason, (FIRST,))]

    def positions(self, keys: Iterable[int]) -> dict[int, Position]:
        """Return what is in the weights of the slices ``keys``."""
        return {key: self._slices[key].position for key in keys}

    def measured(self, measure: act.Measure, squares: float) -> list[Action]:
        """Take in the sum of squares of a mean gradient; tell the workers those of all slices."""
        slices = len(self._slices) - len(self.tables)
        if not self._norm.measured(measure.key, squares, measure.version, slices):
            return []
        return [self._share(worker) for worker in sorted(self._peers)]

    def _share(self, worker: int) -> Action:
        share = self._norm.share
        assert share is not None
        return act.Send(self._peers[worker], share, SOON)

    def committed(self, positions: Mapping[int, Position]) -> list[Action]:
        """Tell the workers that their pushes up to ``positions`` are safe on disk."""
        found: list[Action] = []
        for key, position in self._expanded(positions).items():
            before = self._durable.get(key, Position())
            self._durable[key] = position
            if not self._slices[key].on_disk:
                self._slices[key].on_disk = True
                found += self._slices[key].advance()
            for worker, sequence in position.applied.items():
                if before.applied.get(worker) != sequence and worker in self._peers:
                    found.append(self._ack(worker, self._slices[key]))
        return [*found, *self._stands()]

    def _expanded(self, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Return positions of what is there; that of a bundle that was cut is its parts'."""
        found: dict[int, Position] = {}
        for key, position in positions.items():
            if key in self._slices:
                found[key] = position
            else:
                found |= {part.key: position for part, _, _ in self._partition.within(key)}
        return found

    def _receive(self, peer: Peer, message: msg.Message, payload_bytes: int | None) -> list[Action]:
        if isinstance(message, msg.Push | msg.PullRows) != (payload_bytes is not None):
            reason = "a push has a payload, and a pull of rows; nothing else has"
            raise Refusal(msg.MALFORMED, reason)
        if isinstance(message, msg.Hello):
            return self._hello(peer, message)
        worker = self._sessions.get(peer)
        if worker is None:
            # What a worker asked before it left may come after the scheduler's word of that.
            if peer not in self._former:
                self.refused[msg.UNKNOWN] += 1
            return [act.Send(peer, msg.HelloWanted())]
        if isinstance(message, msg.Declare | msg.DeclareTable | msg.Norm):
            return self._told(worker, message)
        if not isinstance(message, msg.Push | msg.Pull | msg.Query):
            raise Refusal(msg.MALFORMED, "a server takes no such message")
        of_table = TABLES <= message.key < BUNDLE
        if message.key not in self.tables if of_table else self.rules is None:
            return [act.Send(peer, msg.HelloWanted())]
        return self._serve(peer, worker, message, payload_bytes or 0)

    def _told(
        self, worker: int, message: msg.Declare | msg.DeclareTable | msg.Norm
    ) -> list[Action]:
        """Take in what concerns more than a slice."""
        if isinstance(message, msg.Declare):
            return self._declare(worker, message)
        if isinstance(message, msg.DeclareTable):
            return self._declare_table(worker, message.table)
        # [Note: clipping] in ``clipping``.
        return self._advance(self._slices.values()) if self._norm.take(message) else []

    def _serve(
        self, peer: Peer, worker: int, message: msg.Push | msg.Pull | msg.Query, nbytes: int
    ) -> list[Action]:
        if message.key not in self._slices and message.key in self._partition:
            for cut in self._partition.cut(message.key):
                self._take_apart(cut)
            if message.key not in self._slices:
                places = self._partition.within(message.key)
                return self._serve_each(places, worker, message, nbytes)
        slice_ = self._slices.get(message.key)
        if slice_ is None:
            raise Refusal(msg.UNKNOWN, f"no slice {message.key} here")
        if isinstance(message, msg.Push):
            return self._push(worker, slice_, message, nbytes)
        if isinstance(message, msg.Pull):
            slice_.require_pull(message, nbytes, self._limits.payload_bytes)
            return slice_.pull(peer, worker, message)
        again = [] if self._norm.share is None else [self._share(worker)]
        return [*again, self._ack(worker, slice_, message.number)]

    def _serve_each(
        self,
        places: list[Place],
        worker: int,
        message: msg.Push | msg.Pull | msg.Query,
        nbytes: int,
    ) -> list[Action]:
        """Serve a message for a bundle that was cut as one for each of its parts."""
        if isinstance(message, msg.Begin):
            raise Refusal(msg.MALFORMED, f"an optimizer's state of {len(places)} parts at once")
        wanted = 0 if isinstance(message, msg.Skip) else places[-1][2]
        if isinstance(message, msg.Push) and nbytes != wanted:
            reason = f"{nbytes} bytes for {len(places)} parts; a push of them has {wanted}"
            raise Refusal(msg.WRONG_SIZE, reason)
        found: list[Action] = []
        for part, begin, end in places:
            each = msgspec.structs.replace(message, key=part.key)
            size = end - begin if wanted else 0
            for action in self._serve(self._peers[worker], worker, each, size):
                if isinstance(action, act.Stage):
                    action = msgspec.structs.replace(action, part=(begin, end))  # noqa: PLW2901
                found.append(action)
        return found

    def _take_apart(self, cut: Cut) -> None:
        """Let the parts of a bundle go on by themselves; see [Note: bundles] in ``bundle``."""
        self._norm.split(cut)
        machines = self._slices.pop(cut.key).cut(cut.parts)
        self._slices |= {machine.spec.key: machine for machine in machines}
        if cut.key in self._durable:
            position = self._durable.pop(cut.key)
            self._durable |= {part.key: position for part in cut.parts}
        self._splits.append(act.Split(cut))

    def _hello(self, peer: Peer, hello: msg.Hello) -> list[Action]:
        roster = self._seat.roster
        if hello.run != roster.run:
            raise Refusal(msg.OTHER_RUN, f"run {hello.run}; this is another run")
        if hello.token in self._gone:
            reason = f"another process has the place of worker {hello.rank} by now"
            raise Refusal(msg.OTHER_RUN, reason)
        if hello.rank >= len(self._tokens) or self._tokens[hello.rank] != hello.token:
            raise Refusal(msg.OTHER_RUN, f"not worker {hello.rank} of this run")
        if hello.rank in self._workers.left:
            reason = f"worker {hello.rank} was given up, or left; the others went on without it"
            raise Refusal(msg.OTHER_RUN, reason)
        before = self._peers.get(hello.rank)
        if before is not None:
            del self._sessions[before]
        self._sessions[peer] = hello.rank
        self._peers[hello.rank] = peer
        forget = [act.Forget(before)] if before not in (None, peer) and before else []
        return [*forget, act.Send(peer, msg.Welcome(self._seat.boot, self._seat.durable))]

    def _declare(self, worker: int, declare: msg.Declare) -> list[Action]:
        if self.rules is not None:
            if (declare.digest, declare.rules) == (self.digest, self.rules):
                return []
            return [
                act.Fail(reasons.declared_otherwise(worker, self.rules, declare.rules), (worker,))
            ]
        if reason := self._why_not(declare):
            return [act.Fail(f"worker {worker} declared {reason}", (worker,))]
        slices = self._declarations.add(worker, declare)
        if slices is None:
            return []
        self._keep(declare.digest, declare.rules, slices, {})
        return [act.Keep(declare.rules, slices), *self._decide()]

    def _why_not(self, declare: msg.Declare) -> str:
        """Say why nothing of a declaration can be kept; empty: it can."""
        groups, most = len(declare.rules.groups), self._limits.payload_bytes
        for slice_ in declare.slices:
            if slice_.nbytes > most:
                return f"a slice of {slice_.nbytes} bytes; at most {most} (payload_bytes)"
            if slice_.group > groups:
                return f"a slice of group {slice_.group}; the last one is {groups}"
        return reasons.not_there_before("these tensors") if self._step > 0 else ""

    def _declare_table(self, worker: int, table: TableSlice) -> list[Action]:
        spec, known = table.slice, self.tables.get(table.slice.key)
        if (
            spec.table is None
            or not TABLES <= spec.key < BUNDLE
            or server_of(spec.key) != self.rank
        ):
            return [act.Fail(f"worker {worker} declared {spec.name} as no table here", (worker,))]
        try:
            spec.table.require_valid()
            require_rows(table.rules.require_valid())
        except SyncopateError as error:
            return [act.Fail(f"worker {worker} declared a table: {error}", (worker,))]
        nbytes = spec.table.row_bytes(columns_of(table.rules.state))
        if nbytes > (most := self._limits.payload_bytes):
            reason = f"rows of {nbytes} bytes, state and all; at most {most} (payload_bytes)"
            return [act.Fail(f"worker {worker} declared {reason}", (worker,))]
        if known == table:
            return []
        if known is None and self._step <= 0:
            self._keep_table(table, {})
            return self._never_begun() or [act.KeepTable(table), *self._decide()]
        reason = reasons.not_there_before(f"the table {spec.name!r}")
        if known is not None:
            reason = (
                f"the table {spec.name!r} as {spec.table}, updated by {table.rules}, and another "
                f"worker {known.slice.name!r} as {known.slice.table}, updated by {known.rules}; "
                "all workers declare the same tables in the same order"
            )
        return [act.Fail(f"worker {worker} declared {reason}", (worker,))]

    def _keep_table(self, table: TableSlice, positions: Mapping[int, Position]) -> None:
        spec = table.slice
        self.tables[spec.key] = table
        position, before = positions.get(spec.key, Position()), spec.key in self._before
        machine = SliceMachine(spec, table.rules, self._workers, position, has_before=before)
        self._put(machine)

    def _put(self, machine: SliceMachine) -> None:
        machine.on_disk = not self._seat.durable or machine.position.version >= 0
        self._slices[machine.spec.key] = machine

    def _keep(
        self,
        digest: str,
        rules: Rules,
        slices: Collection[Slice],
        positions: Mapping[int, Position],
    ) -> None:
        self.digest, self.rules = digest, rules
        self._partition = Partition(bundles_of(slices, rules.apart), positions)
        alone = [spec for spec in slices if spec.key not in self._partition]
        by_group = [rules.of(group) for group in range(len(rules.groups) + 1)]
        norm = self._norm if rules.clip_norm is not None else None
        for spec in [*alone, *self._partition.parts.values()]:
            position = positions.get(spec.key, Position())
            own, before = by_group[spec.group], spec.key in self._before
            self._put(SliceMachine(spec, own, self._workers, position, norm, has_before=before))

    def _push(self, worker: int, slice_: SliceMachine, push: msg.Push, nbytes: int) -> list[Action]:
        before = slice_.position.applied
        try:
            found = slice_.push(worker, push, nbytes)
        except Refusal as refusal:
            if refusal.kind == msg.WRONG_SIZE:
                raise
            # A worker that sends again missed the answer.
            self.refused[refusal.kind] += 1
            return [self._ack(worker, slice_)]
        after = slice_.position.applied
        told = {worker}
        if not self._seat.durable:
            told |= {w for w, sequence in after.items() if before.get(w) != sequence}
        acks = [self._ack(w, slice_) for w in sorted(told) if w in self._peers]
        # Workers hear of it before the update is computed: it follows from what came.
        return [found[0], *acks, *found[1:]]

    def _ack(self, worker: int, slice_: SliceMachine, query: int = 0) -> Action:
        key = slice_.spec.key
        position = self._durable.get(key, Position()) if self._seat.durable else slice_.position
        done = slice_.own(worker, position.applied.get(worker, -1 if worker == FIRST else 0))
        received = slice_.own(worker, slice_.received(worker))
        ack = msg.Ack(key, received, done, query, slice_.waiting(worker) if query else 0)
        # The answer to a query goes behind the weights that wait: [Note: queries] in messages.
        return act.Send(self._peers[worker], ack, msg.LAST if query else SOON)

    def _advance(self, slices: Iterable[SliceMachine]) -> list[Action]:
        found: list[Action] = []
        for slice_ in slices:
            before = slice_.position.applied
            found += slice_.advance()
            if not self._seat.durable:
                after = slice_.position.applied
                moved = sorted(w for w, n in after.items() if before.get(w) != n)
                found += [self._ack(w, slice_) for w in moved if w in self._peers]
        return found
