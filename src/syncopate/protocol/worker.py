"""Worker: sequence numbers and windows of pushes, pulls, and what to send again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol import reasons
from syncopate.protocol.actions import Action
from syncopate.protocol.flow import (
    ANSWERS,
    Flow,
    Link,
    Pushed,
    Question,
    RoundTrip,
    believed,
    fits,
    new_flow,
)
from syncopate.protocol.gradients.clipping import Norms
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.bundle import BUNDLE, Partition, Place
from syncopate.protocol.placement.declaring import declared
from syncopate.protocol.placement.layout import Layout
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import ABORT, Rules
from syncopate.protocol.slice import FIRST
from syncopate.protocol.table import TABLES, server_of

_LONGEST_WAIT = 8
"""How many times ``retry_s`` a message waits at most before it is sent again."""

_QUERIES, _PACE_S, _PACE_EACH_S = 32, 0.002, 2e-5
"""Queries at once at most; seconds between two looks for late answers: at least, and a slice."""


class WorkerMachine:
    """One worker, from its roster on.

    Attributes:
        refused: how many messages were refused, by reason.
        due_s: when to call :meth:`tick` at the latest, for an answer that is late by then.
    """

    def __init__(self, roster: msg.Roster, token: str, rules: Rules, limits: Limits) -> None:
        """Begin with nothing declared and nothing pushed.

        Args:
            roster: all nodes.
            token: of this process.
            rules: of what is declared first.
            limits: windows and times.
        """
        self.refused: Counter[str] = Counter()
        self._roster = roster
        self._token = token
        self._layout: Layout | None = None
        self._partition = Partition(())
        self._rules = rules
        self._limits = limits
        self._links = [Link() for _ in roster.servers]
        self._addresses = list(roster.servers)
        first = roster.incarnation.first_push(synchronous=rules.synchronous)
        self._first = first if roster.rank == FIRST else max(first, 0)
        self._sent_before = max(first, 0) + 1 if any(roster.lives[roster.rank :][:1]) else -1
        self._specs: dict[int, Slice] = {}
        self._flows: dict[int, Flow] = {}
        self._tables: dict[int, TableSlice] = {}
        self._request = self._queries = 0
        self._busy: set[int] = set()
        self.due_s = math.inf
        self._norms = Norms((), rules.window)

    @property
    def idle(self) -> bool:
        """Whether every push is done and every pull answered."""
        return not self._busy

    @property
    def pushed(self) -> int:
        """How many pushes of a slice there were at most."""
        return max((flow.pushed for flow in self._flows.values()), default=0)

    @property
    def durable(self) -> bool:
        """Whether a server keeps its state on disk."""
        return any(link.durable for link in self._links)

    @property
    def last_norm(self) -> float | None:
        """The norm of the newest step of which it is known, before it was clipped."""
        return self._norms.last

    @property
    def bundles(self) -> list[Slice]:
        """The parts of bundles at present."""
        return list(self._partition.parts.values())

    def connect(self, now_s: float) -> list[Action]:
        """Say hello to every server."""
        for link in self._links:
            link.heard_s = now_s
        return [action for rank in range(len(self._links)) for action in self._hello(rank, now_s)]

    def declare(self, layout: Layout, rules: Rules) -> list[Action]:
        """Keep tensors on the servers, once."""
        assert self._layout is None
        self._layout, self._rules, self._partition = layout, rules, Partition(layout.bundles)
        self._norms = Norms(set(layout.server_of), rules.window)
        own = {s.key: s for s in layout.slices if s.key not in self._partition}
        own |= self._partition.parts
        self._specs |= own
        self._flows |= {key: new_flow(self._first) for key in own}
        return [
            act.Send(server, each, _URGENT)
            for server, link in enumerate(self._links)
            for each in (declared(layout, rules, server) if link.open else ())
        ]

    def declare_table(self, slices: Iterable[TableSlice]) -> list[Action]:
        """Keep a table on the servers: one slice on each."""
        found: list[Action] = []
        for table in slices:
            key = table.slice.key
            self._tables[key], self._specs[key] = table, table.slice
            self._flows[key] = new_flow(self._first)
            if self._links[server_of(key)].open:
                found.append(act.Send(server_of(key), msg.DeclareTable(table), _URGENT))
        return found

    def parts(self, piece: Slice) -> tuple[list[Action], list[Place]]:
        """Return what to do first, and as what ``piece`` is then pushed or pulled.

        As itself, or as several parts, where it is a bundle that was cut.
        """
        if piece.key in self._flows:
            return [], [(piece, 0, piece.nbytes)]
        return self._alone(piece.key), self._partition.within(piece.key)

    def push(self, push: msg.Push, priority: int, now_s: float) -> tuple[int, list[Action]]:
        """Push what ``push`` says; return its sequence number, under which to keep the payload."""
        flow = self._flows[push.key]
        flow.pushed += 1
        assert flow.pushed == 0 or not isinstance(push, msg.Begin | msg.BeginRows)
        numbered = msgspec.structs.replace(push, sequence=flow.pushed)
        flow.kept[flow.pushed] = Pushed(numbered, priority)
        return flow.pushed, self._send(push.key, now_s)

    def pull(self, pull: msg.Pull, now_s: float) -> tuple[int, list[Action]]:
        """Pull what ``pull`` says, with all that was pushed before; return the request's number."""
        flow = self._flows[pull.key]
        self._request += 1
        after = max(flow.pushed, 0)
        flow.pulls.append(msgspec.structs.replace(pull, after=after, request=self._request))
        return self._request, self._ask(pull.key, now_s) if len(flow.pulls) == 1 else []

    def receive(
        self, server: int, message: msg.Message, payload_bytes: int | None, now_s: float
    ) -> list[Action]:
        """Take in what a server said."""
        self._links[server].heard_s = now_s
        if isinstance(message, msg.Ack | msg.Weights):
            known = message.key in self._flows or message.key in self._partition
            if not known or self._server(message.key) != server:
                return self._refuse(msg.UNKNOWN)
            return self._told(message, payload_bytes, now_s)
        if isinstance(message, msg.Share):
            return [*self._norms.take(server, message)]
        if isinstance(message, msg.Welcome):
            return self._welcome(server, message, now_s)
        if isinstance(message, msg.Refused):
            return [act.Fail(f"server {server}: {message.reason}")]
        # One hello answers all that a server asked before it came.
        late = now_s - self._links[server].asked_s >= self._limits.retry_s / 4
        wanted = isinstance(message, msg.HelloWanted)
        return self._hello(server, now_s) if wanted and late else []

    def _told(
        self, message: msg.Ack | msg.Weights, payload_bytes: int | None, now_s: float
    ) -> list[Action]:
        """Take in what a server said about a slice, or about a bundle that may have been cut."""
        key, found = message.key, list[Action]()
        if key not in self._flows:
            found = self._alone(key)
        if key not in self._flows:
            return found + self._told_each(message, payload_bytes, now_s)
        if isinstance(message, msg.Ack):
            return found + self._acknowledged(message, now_s)
        return found + self._answered(message, payload_bytes, now_s)

    def _told_each(
        self, message: msg.Ack | msg.Weights, payload_bytes: int | None, now_s: float
    ) -> list[Action]:
        places = self._partition.within(message.key)
        weighs = isinstance(message, msg.Weights)
        if weighs and payload_bytes != places[-1][2]:
            return self._refuse(msg.WRONG_SIZE)
        found: list[Action] = []
        for part, begin, end in places:
            each = msgspec.structs.replace(message, key=part.key)
            for action in self._told(each, end - begin if weighs else None, now_s):
                if isinstance(action, act.Fill):
                    action = msgspec.structs.replace(action, part=(begin, end))  # noqa: PLW2901
                found.append(action)
        return found

    def _alone(self, key: int) -> list[Action]:
        """Cut bundles so that what ``key`` stands for goes on without other slices."""
        cuts = self._partition.cut(key)
        for cut in cuts:
            flow, spec = self._flows.pop(cut.key), self._specs.pop(cut.key)
            self._flows |= {part.key: flow.of_part(part.key) for part in cut.parts}
            self._specs |= {part.key: part for part in cut.parts}
            if cut.key in self._busy:
                self._busy.remove(cut.key)
                self._busy.update(part.key for part in cut.parts)
            assert sum(part.numel for part in cut.parts) == spec.numel
        return [act.Split(cut) for cut in cuts]

    def sent(self, key: int, now_s: float) -> None:
        """Take note that a push of a slice has just left this process."""
        cut = key not in self._flows
        for each in [p.key for p, _, _ in self._partition.within(key)] if cut else [key]:
            flow = self._flows[each]
            flow.touched_s = now_s
            flow.queued = max(flow.queued - 1, 0)

    def moved(self, moved: msg.Moved, now_s: float) -> list[Action]:
        """Say hello to a server that came back."""
        server = moved.rank
        self._addresses[server] = moved.address
        self._links[server].heard_s = now_s
        return self._hello(server, now_s)

    def lost(self, worker: int, silent_s: float) -> list[Action]:
        """Go on without a lost worker, or end: as the rules say."""
        if self._rules.on_worker_loss == ABORT:
            return [act.Fail(reasons.lost(worker, silent_s), (worker,))]
        return []

    def tick(self, now_s: float) -> list[Action]:
        """Ask again for answers that are long overdue; call it often."""
        found: list[Action] = []
        wanted = {self._server(key) for key in self._busy}
        for rank, link in enumerate(self._links):
            if link.open and rank not in wanted:
                link.heard_s = now_s
            elif now_s - link.heard_s > link.patience_s(self._limits):
                silent_s, address = now_s - link.heard_s, self._addresses[rank]
                own = self._roster.rank
                return [act.Fail(reasons.out_of_reach(own, rank, address, silent_s))]
            if link.hello_again(now_s, self._limits.retry_s):
                found += self._hello(rank, now_s)
        return found + self._overdue(now_s) if now_s >= self.due_s else found

    def _overdue(self, now_s: float) -> list[Action]:
        """Ask about slices whose answers are late; some at a time."""
        found: list[Action] = []
        self.due_s, soonest_s = math.inf, now_s + _PACE_S + _PACE_EACH_S * len(self._busy)
        for key in sorted(self._busy, key=lambda key: (self._flows[key].touched_s, key)):
            flow = self._flows[key]
            if not self._links[self._server(key)].open:
                continue
            if now_s - flow.touched_s >= flow.wait_s and len(found) < _QUERIES:
                found += self._query(key, now_s)
            self.due_s = min(self.due_s, max(flow.touched_s + flow.wait_s, soonest_s))
        return found

    def _hello(self, server: int, now_s: float) -> list[Action]:
        link, roster = self._links[server], self._roster
        link.open, link.asked_s = False, now_s
        hello = msg.Hello(roster.run, roster.rank, self._token)
        return [act.Forget(server), act.Send(server, hello, _URGENT)]

    def _welcome(self, server: int, welcome: msg.Welcome, now_s: float) -> list[Action]:
        """Declare, and send what the server may not have."""
        link = self._links[server]
        if link.open:  # a hello that was said twice is answered twice
            return [] if welcome.boot == link.boot else self._refuse(msg.REPLAYED)
        again = welcome.boot != link.boot
        if again and link.boot and not welcome.durable:
            reason = f"server {server} started again without its state; `--state DIR` keeps it"
            return [act.Fail(reason)]
        link.boot, link.durable, link.open = welcome.boot, welcome.durable, True
        link.wait_s, self.due_s = 0.0, now_s  # what was asked for may be late by now
        found: list[Action] = [act.Send(server, s, _URGENT) for s in self._declarations(server)]
        for key, flow in self._flows.items():
            if self._server(key) != server:
                continue
            if again:
                flow.received = flow.done
            flow.sent, flow.queued, flow.query = flow.received, 0, None
            # The pull first, as it was: pushes after it are not to be in its answer.
            if flow.pulls:
                found += self._ask(key, now_s)
            found += self._send(key, now_s)
        return found

    def _declarations(self, server: int) -> list[msg.Message]:
        """Return what a server shall keep."""
        layout = self._layout
        tensors = [] if layout is None else declared(layout, self._rules, server)
        own = [table for key, table in self._tables.items() if server_of(key) == server]
        return [*tensors, *map(msg.DeclareTable, own)]

    def _send(self, key: int, now_s: float) -> list[Action]:
        """Send what the window allows."""
        flow, server = self._flows[key], self._server(key)
        link = self._links[server]
        if flow.done < flow.pushed:
            self._busy.add(key)
        found: list[Action] = []
        last = min(flow.pushed, max(flow.done, 0) + self._rules.window)
        while link.open and flow.sent < last:
            flow.sent += 1
            push = flow.kept[flow.sent]
            self._touch(flow, link, now_s)
            sends = [act.Send(server, each, push.priority) for each in push.parts()]
            flow.queued += len(sends)
            found += sends
        return found

    def _ask(self, key: int, now_s: float) -> list[Action]:
        flow, server = self._flows[key], self._server(key)
        self._busy.add(key)
        if not self._links[server].open:
            return []
        self._touch(flow, self._links[server], now_s)
        return [act.Send(server, flow.pulls[0], msg.SOON)]

    def _query(self, key: int, now_s: float) -> list[Action]:
        """Ask what of a flow the server has; see [Note: queries] in messages."""
        flow = self._flows[key]
        flow.touched_s, flow.awaited = now_s, None
        if flow.queued:
            return []  # so long as pushes have not left, the answer to them cannot be late
        flow.wait_s = min(2 * flow.wait_s, _LONGEST_WAIT * self._limits.retry_s)
        self._queries += 1
        pull = flow.pulls[0].request if flow.pulls else 0
        flow.query = Question(self._queries, flow.sent, pull, flow.done)
        query = msg.Query(key, self._queries)
        return [act.Send(self._server(key), query, msg.LAST)]

    def _lost(self, ack: msg.Ack, now_s: float) -> list[Action]:
        """Send again what the answer to a query says is lost."""
        flow, server = self._flows[ack.key], self._server(ack.key)
        query = flow.query
        if query is None or query.number != ack.query:
            return []
        flow.query = None
        if ack.received < query.done:
            name, rank = self._specs[ack.key].name, self._roster.rank
            return [act.Fail(reasons.older(rank, server, name, ack.received, query.done))]
        pull_lost = bool(flow.pulls) and flow.pulls[0].request == query.pull != ack.waiting
        if pull_lost or ack.received < query.sent:
            self._loses(server, now_s)
        found = self._ask(ack.key, now_s) if pull_lost else []
        if ack.received < query.sent:
            if self._links[server].durable:
                # The server may be younger than an acknowledgement that was believed.
                flow.received = min(flow.received, max(ack.received, flow.done))
            flow.sent = max(ack.received, flow.received)
            found += self._send(ack.key, now_s)
        return found

    def _loses(self, server: int, now_s: float) -> None:
        """Wait less for all answers of a server, from the first message on that was lost."""
        link, retry_s = self._links[server], self._limits.retry_s
        before, link.lost_s = link.lossy(now_s, retry_s), now_s
        for key in () if before else self._busy:
            flow = self._flows[key]
            if flow.awaited is not None and self._server(key) == server:
                flow.wait_s = link.late_s(flow.awaited, now_s, retry_s)
                self.due_s = now_s

    def _acknowledged(self, ack: msg.Ack, now_s: float) -> list[Action]:
        said = believed(ack, self._flows[ack.key], self._sent_before)
        if said is None:
            return self._refuse(msg.EARLY)
        return self._over(ack.key, said.received, said.done, now_s) + self._lost(said, now_s)

    def _over(self, key: int, received: int, done: int, now_s: float) -> list[Action]:
        """Let go of the pushes that are over, and send what may follow them."""
        flow, link = self._flows[key], self._links[self._server(key)]
        if received <= flow.received and done <= flow.done:
            return []
        self._came(flow, link.receipts, now_s)
        flow.received = max(flow.received, received)
        for sequence in range(flow.done + 1, done + 1):
            del flow.kept[sequence]
        flow.done = max(flow.done, done)
        self._touch(flow, link, now_s)
        over = flow.done if link.durable else flow.received
        found: list[Action] = [
            act.Released(key, sequence) for sequence in range(flow.released + 1, over + 1)
        ]
        flow.released = max(flow.released, over)
        found += self._send(key, now_s)
        self._rest(key)
        return found

    def _answered(
        self, weights: msg.Weights, payload_bytes: int | None, now_s: float
    ) -> list[Action]:
        flow, spec = self._flows[weights.key], self._specs[weights.key]
        if not flow.pulls or flow.pulls[0].request != weights.request:
            return self._refuse(msg.REPLAYED)
        if type(weights) is not ANSWERS[type(flow.pulls[0])]:
            return self._refuse(msg.MALFORMED)
        if not fits(spec, flow.pulls[0], weights, payload_bytes or 0):
            return self._refuse(msg.WRONG_SIZE)
        link = self._links[self._server(weights.key)]
        self._came(flow, link.answers, now_s)
        after = flow.pulls.popleft().after
        self._touch(flow, link, now_s)
        found: list[Action] = [act.Fill(weights)]
        # Those pushes are in the weights, whether or not their acknowledgements came.
        done = flow.done if link.durable else after
        found += self._over(weights.key, after, done, now_s)
        if flow.pulls:
            found += self._ask(weights.key, now_s)
        self._rest(weights.key)
        return found

    def _server(self, key: int) -> int:
        """Return the server of a slice or a bundle, all of whose slices have the same."""
        if TABLES <= key < BUNDLE:
            return server_of(key)
        assert self._layout is not None
        return self._layout.server_of[key % BUNDLE]

    def _rest(self, key: int) -> None:
        flow = self._flows[key]
        if flow.idle and flow.sent == flow.pushed:
            self._busy.discard(key)

    def _came(self, flow: Flow, awaited: RoundTrip, now_s: float) -> None:
        """Take note of how long an answer took; not of one that came in place of another."""
        if flow.awaited is awaited:
            awaited.took(now_s - flow.touched_s)

    def _touch(self, flow: Flow, link: Link, now_s: float) -> None:
        flow.touched_s = now_s
        flow.awaited = link.receipts if flow.sent > flow.received else link.answers
        flow.wait_s = link.late_s(flow.awaited, now_s, self._limits.retry_s)
        self.due_s = min(self.due_s, now_s + flow.wait_s)

    def _refuse(self, kind: str) -> list[Action]:
        self.refused[kind] += 1
        return []


_URGENT = msg.SOON + 1
"""The priority of what must come before everything else on a connection."""
