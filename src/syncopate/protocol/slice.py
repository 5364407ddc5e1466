"""Slice: one slice at its server: which pushes count, when to update, which pulls to answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol import reasons
from syncopate.protocol.actions import Action, Peer
from syncopate.protocol.flow import ANSWERS
from syncopate.protocol.gradients.clipping import StepNorm
from syncopate.protocol.gradients.narrow import push_bytes
from syncopate.protocol.messages import Refusal
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import CONTINUE, DC_ASGD, Rules
from syncopate.protocol.table import ID_BYTES, columns_of
from syncopate.units import dtype_bytes

FIRST = 0
"""The worker whose values the servers begin with."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a slice's weights: its version, and how many pushes of each worker.

    Attributes:
        version: how many updates.
        applied: the last push of each worker that is in it.
        origins: where updates are asynchronous, of each worker whose place another process took:
            how often, and how many pushes those of before had sent. The process counts from there.
    """

    version: int = -1
    applied: dict[int, int] = {}
    origins: dict[int, tuple[int, int]] = {}


class Workers(msgspec.Struct):
    """The workers that take part: shared by the slices of a server.

    Attributes:
        here: ranks that push and pull.
        left: ranks that said goodbye, or were lost where the rules say to go on.
        lost: those of them that were lost.
        lives: how many processes had a worker's place before, for those where any had.
    """

    here: set[int]
    left: set[int] = msgspec.field(default_factory=set)
    lost: set[int] = msgspec.field(default_factory=set)
    lives: dict[int, int] = msgspec.field(default_factory=dict)


class _Waiting(msgspec.Struct, frozen=True):
    peer: Peer
    pull: msg.Pull


class SliceMachine:
    """One slice.

    A worker's pushes of a slice are numbered. The server takes them in their order only, so one
    number for each worker says which it has: that makes every push count exactly once.

    Attributes:
        spec: which slice it is.
        position: what is in its weights.
        on_disk: whether its first value is, where it is to be: no worker has it before. Else one
            could push what follows from it, and it would be lost by itself.
    """

    def __init__(
        self,
        spec: Slice,
        rules: Rules,
        workers: Workers,
        position: Position,
        norm: StepNorm | None = None,
        *,
        has_before: bool = False,
    ) -> None:
        """Begin at ``position``.

        Args:
            spec: which slice it is.
            rules: how it is updated.
            workers: those that take part.
            position: what is in the weights.
            norm: of the step that the server takes next; None: it does not clip.
            has_before: whether the version before is kept, too.
        """
        self.spec = spec
        self.on_disk = True
        self._rules = rules
        self._workers = workers
        self._version = position.version
        self._applied = dict(position.applied)
        self._received = dict(position.applied)
        self._rates: dict[tuple[int, int], float | None] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._added: list[int] = []
        # Gradients whose mean is made, of an update that waits for the norm of the step.
        self._norm = norm
        self._measured: tuple[tuple[int, int], ...] | None = None
        # Of pushes of rows of which some parts have come: which, by worker.
        self._parts: dict[int, set[int]] = {}
        self._has_before = has_before
        self._origins = dict(position.origins)
        for worker in sorted(workers.lives):
            self.seat(worker)

    @property
    def position(self) -> Position:
        """The content of the weights."""
        return Position(self._version, dict(self._applied), dict(self._origins))

    @property
    def oldest(self) -> int:
        """The oldest version that a pull can have."""
        return self._version - self._has_before

    def seat(self, worker: int) -> list[Action]:
        """Go on with another process in the place of a worker; [Note: places] in ``places``."""
        self._waiting.pop(worker, None)
        found: list[Action] = []
        if self._parts.pop(worker, None) is not None:
            found.append(act.Unstage(self.spec.key, worker, self.received(worker) + 1))
        life, known = self._workers.lives[worker], self._origins.get(worker, (0, 0))
        if not self._rules.synchronous and life > known[0]:
            if worker not in self._received and self._version >= 0:
                self._applied[worker] = self._received[worker] = self._slowest(worker)
            self._origins[worker] = life, max(self.received(worker), 0)
        return found

    def _counted(self, worker: int, number: int) -> int:
        """Return how a push is counted here that is a worker's own ``number``-th."""
        return number + self._origins[worker][1] if number and worker in self._origins else number

    def own(self, worker: int, counted: int) -> int:
        """Return how a worker itself counts a push, or 0 for one of a process before it."""
        _, origin = self._origins.get(worker, (0, 0))
        return max(counted - origin, min(counted, 0))

    def cut(self, parts: Iterable[Slice]) -> list[SliceMachine]:
        """Return a machine for each of ``parts``, in the state of this one, their bundle's."""
        found = []
        for part in parts:
            machine = SliceMachine(part, self._rules, self._workers, self.position, self._norm)
            machine._has_before, machine.on_disk = self._has_before, self.on_disk
            machine._received = dict(self._received)
            machine._rates = dict(self._rates)
            machine._added = list(self._added)
            machine._measured = self._measured
            machine._waiting = {
                worker: _Waiting(w.peer, msgspec.structs.replace(w.pull, key=part.key))
                for worker, w in self._waiting.items()
            }
            found.append(machine)
        return found

    def received(self, worker: int) -> int:
        """Return the last sequence number that came from ``worker``; -1: none."""
        return self._received.get(worker, _before_first(worker))

    def applied(self, worker: int) -> int:
        """Return the last sequence number of ``worker`` that is in the weights; -1: none."""
        return self._applied.get(worker, _before_first(worker))

    def push(self, worker: int, push: msg.Push, nbytes: int) -> list[Action]:
        """Take in a push of ``worker`` with a payload of ``nbytes``.

        Raises:
            Refusal: it came before, it came too early, or its payload has another size.
        """
        name = self.spec.name
        if self._origins:
            number = self._counted(worker, push.sequence)
            push = msgspec.structs.replace(push, sequence=number)
        state = push.state if isinstance(push, msg.Begin | msg.BeginRows) else ()
        if state and (push.sequence or not set(state) <= set(self._rules.state)):
            raise Refusal(msg.MALFORMED, f"state {state} with push {push.sequence} of {name}")
        self._require_size(push, state, nbytes)
        last = self.received(worker)
        if push.sequence <= last:
            raise Refusal(msg.REPLAYED, f"push {push.sequence} of {name} came before")
        if push.sequence != last + 1:
            raise Refusal(msg.EARLY, f"push {push.sequence} of {name}; {last + 1} comes first")
        if push.sequence > max(self.applied(worker), 0) + self._rules.window:
            raise Refusal(msg.EARLY, f"push {push.sequence} of {name} is beyond the window")
        if isinstance(push, msg.PushRows):
            return self._push_rows(worker, push)
        self._received[worker] = push.sequence
        staged = act.Stage(self.spec.key, worker, push.sequence)
        if push.sequence == 0:
            self._version = 0
            self._applied[worker] = 0
            return [staged, act.Initialise(self.spec.key, worker, state), *self.advance()]
        self._rates[worker, push.sequence] = push.lr
        return [staged, *self.advance()]

    def _require_size(self, push: msg.Push, state: tuple[str, ...], nbytes: int) -> None:
        name, table = self.spec.name, self.spec.table
        if isinstance(push, msg.Skip):
            if nbytes or table is not None or not (push.sequence and self._rules.synchronous):
                reason = f"push {push.sequence} of {name} says that it has no gradient"
                raise Refusal(msg.MALFORMED, reason)
            return
        if table is None or not isinstance(push, msg.PushRows):
            if (table is None) == isinstance(push, msg.PushRows):
                raise Refusal(msg.MALFORMED, f"no push of {name}: a table's has rows, no other has")
            wanted = push_bytes(self.spec, self._rules.push_dtype)
            if not push.sequence:
                wanted = self.spec.carried_bytes(state)
            if nbytes != wanted:
                reason = f"{nbytes} bytes for {name}; a push of it has {wanted}"
                raise Refusal(msg.WRONG_SIZE, reason)
            return
        if (push.sequence == 0) != isinstance(push, msg.BeginRows) or push.part >= push.parts:
            reason = f"push {push.sequence} of {name} in part {push.part} of {push.parts}"
            raise Refusal(msg.MALFORMED, reason)
        if nbytes % (wanted := table.row_bytes(columns_of(state))):
            reason = f"{nbytes} bytes for rows of {name}; each row of a push has {wanted}"
            raise Refusal(msg.WRONG_SIZE, reason)

    def _push_rows(self, worker: int, push: msg.PushRows) -> list[Action]:
        """Take in a part of a push of rows, which counts when all parts of it have come."""
        here = self._parts.setdefault(worker, set())
        here.add(push.part)
        key, number = self.spec.key, push.sequence
        found: list[Action] = [
            act.Stage(key, worker, number, number=push.part, reached=push.reached)
        ]
        if isinstance(push, msg.BeginRows):
            found.append(act.Initialise(key, worker, push.state, push.steps))
        if len(here) < push.parts:
            return found
        del self._parts[worker]
        self._received[worker] = number
        if isinstance(push, msg.BeginRows):
            self._version = self._applied[worker] = 0
        else:
            self._rates[worker, number] = push.lr
        return found + self.advance()

    def require_pull(self, pull: msg.Pull, asked_bytes: int, most: int) -> None:
        """Refuse a pull of another kind, and to answer with more than a frame may hold.

        Args:
            pull: of this slice.
            asked_bytes: that came with it.
            most: bytes that a frame may hold.

        Raises:
            Refusal: it is one.
        """
        spec, state = self.spec, self._rules.state
        table, nbytes, what = spec.table, 0, "the optimizer's state"
        if (table is not None) != isinstance(pull, msg.PullRows | msg.PullTable):
            raise Refusal(msg.MALFORMED, f"no pull of {spec.name}: that of a table says which rows")
        if isinstance(pull, msg.PullState):
            nbytes = spec.carried_bytes(state)
        elif table is not None and isinstance(pull, msg.PullRows | msg.PullTable):
            what = f"{pull.count} rows"
            nbytes = pull.count * table.width * dtype_bytes(table.dtype)
            if isinstance(pull, msg.PullTable):
                nbytes = pull.count * table.row_bytes(columns_of(state))
            elif asked_bytes != pull.count * ID_BYTES:
                reason = f"{asked_bytes} bytes for the numbers of {pull.count} rows of {spec.name}"
                raise Refusal(msg.WRONG_SIZE, reason)
        if nbytes > most:
            reason = f"{spec.name} with {what} in {nbytes} bytes; at most {most}"
            raise Refusal(msg.WRONG_SIZE, f"{reason} (payload_bytes, --max-payload)")

    def pull(self, peer: Peer, worker: int, pull: msg.Pull) -> list[Action]:
        """Answer a pull of ``worker``, now or as soon as its pushes are in the weights."""
        if self._origins:
            pull = msgspec.structs.replace(pull, after=self._counted(worker, pull.after))
        self._waiting[worker] = _Waiting(peer, pull)
        asked = [act.Ask(self.spec.key, worker)] if isinstance(pull, msg.PullRows) else []
        return [*asked, *self._answers()]

    def waiting(self, worker: int) -> int:
        """Return the request of the pull of ``worker`` that waits; 0: none does."""
        return self._waiting[worker].pull.request if worker in self._waiting else 0

    def drop(self, worker: int) -> None:
        """Answer no pull of ``worker`` any more."""
        self._waiting.pop(worker, None)

    def advance(self) -> list[Action]:
        """Update as often as what is here allows, and answer the pulls that waited for it."""
        if self._version < 0:
            return []
        found: list[Action] = []
        while (update := self._next()) is not None:
            found.append(update)
            if isinstance(update, act.Fail):
                return found
            found += self._answers()  # with the version they asked for, before the next one
        return found + self._adds() + self._answers()

    def _adds(self) -> list[Action]:
        """Add what is here of the next update, in the order of the ranks, as far as it goes.

        So a server holds one sum, and of the gradients only those that came before their turn.
        """
        if not self._rules.synchronous or self._measured is not None:
            return []
        version, found = self._version + 1, list[Action]()
        for worker in sorted(self._workers.here.union(self._received)):
            if worker in self._added:
                continue
            if self.received(worker) >= version:
                self._added.append(worker)
                found.append(act.Add(self.spec.key, worker, version))
            elif worker in self._workers.here:
                break
        return found

    def _next(self) -> act.Update | act.Measure | act.Fail | None:
        if self._rules.synchronous:
            return self._next_synchronous()
        for worker in sorted(self._received):
            sequence = self.applied(worker) + 1
            if sequence <= self.received(worker) and self._near(sequence - 1):
                self._applied[worker] = sequence
                compensate = worker if self._rules.mode == DC_ASGD else None
                return self._update(((worker, sequence),), compensate)
        return None

    def _next_synchronous(self) -> act.Update | act.Measure | act.Fail | None:
        if self._measured is not None:
            return self._next_clipped(self._measured)
        version = self._version + 1
        workers = self._workers
        there = sorted(w for w in self._received if self.received(w) >= version)
        if not workers.here.intersection(there):
            return None
        missing = {w for w in workers.left - workers.lost if self.received(w) < version}
        if missing and self._rules.on_worker_loss != CONTINUE:
            return act.Fail(self._why_left(min(missing), min(there)), tuple(missing))
        if not workers.here.issubset(there):
            return None
        gradients = tuple((worker, version) for worker in there)
        if self._norm is not None:
            self._measured = gradients
            return act.Measure(self.spec.key, version, gradients)
        self._applied |= dict(gradients)
        return self._update(gradients, None)

    def _next_clipped(self, gradients: tuple[tuple[int, int], ...]) -> act.Update | None:
        """Update if the norm of the step is known; see [Note: clipping] in ``clipping``."""
        assert self._norm is not None
        norm = self._norm.of(self._version + 1)
        if norm is None:
            return None
        self._measured = None
        self._applied |= dict(gradients)
        return msgspec.structs.replace(self._update(gradients, None), norm=norm)

    def _update(self, gradients: tuple[tuple[int, int], ...], compensate: int | None) -> act.Update:
        self._version += 1
        self._has_before = self._rules.keeps_before
        self._added.clear()
        rates = [self._rates.pop(gradient) for gradient in gradients]
        rate = next((rate for rate in rates if rate is not None), None)
        return act.Update(self.spec.key, self._version, gradients, rate, compensate)

    def _near(self, pushes: int) -> bool:
        """Say whether a worker with ``pushes`` pushes is within the bound on staleness."""
        bound = self._rules.staleness
        return bound is None or pushes - self._slowest() <= bound

    def _slowest(self, besides: int = -1) -> int:
        """Return how many pushes of the slowest worker are in the weights."""
        others = self._workers.here - {besides}
        return min((max(self.applied(worker), 0) for worker in others), default=0)

    def _answers(self) -> list[Action]:
        ready = [
            worker for worker, waiting in self._waiting.items() if self._ready(worker, waiting)
        ]
        return [self._answer(worker) for worker in ready]

    def _ready(self, worker: int, waiting: _Waiting) -> bool:
        after = waiting.pull.after
        if self._rules.synchronous:
            return self._version >= after
        begun = self._version >= 0 and self.on_disk
        return begun and self.applied(worker) >= after and self._near(after)

    def _answer(self, worker: int) -> Action:
        waiting = self._waiting.pop(worker)
        pull = waiting.pull
        if self._rules.keeps_before and max(pull.after, 0) < self.oldest:
            # A server that died as it cut a bundle does not have the version before on its disk.
            return act.Fail(reasons.not_there_any_more(worker, self.spec.name, pull.after))
        before = self._has_before and self._version == pull.after + 1
        weights = ANSWERS[type(pull)](self.spec.key, self._version - before, pull.request)
        backup = worker if self._rules.mode == DC_ASGD and type(pull) is msg.Pull else None
        asker = worker if isinstance(pull, msg.PullRows) else -1
        rows = (pull.begin, pull.count) if isinstance(pull, msg.PullTable) else (0, 0)
        return act.Answer(waiting.peer, weights, pull.priority, backup, asker, rows, before)

    def _why_left(self, worker: int, other: int) -> str:
        name = self.spec.name
        return (
            f"worker {worker} left after {max(self.received(worker), 0)} pushes of {name!r}, and "
            f"worker {other} pushed it {self.received(other)} times; in mode 'ssgd' all push as "
            "often (on_worker_loss='continue' goes on without)"
        )


def _before_first(worker: int) -> int:
    return -1 if worker == FIRST else 0
