"""A job of protocol machines over a network that loses, doubles, delays and reorders messages.

There are no tensors: a slice's weights are the list of the updates that made them, and a gradient
is the worker and number of its push. So whatever was applied twice, never or in the wrong order
shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.bundle import BUNDLE, Cut, Partition, bundles_of
from syncopate.protocol.placement.layout import Layout, TensorSpec
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import Rules
from syncopate.protocol.server import Kept, Seat, ServerMachine
from syncopate.protocol.slice import Position
from syncopate.protocol.table import ID_BYTES, TABLES, Table, key_of
from syncopate.protocol.worker import WorkerMachine

Log = tuple[tuple[tuple[int, int], ...], ...]
"""Weights: the gradients of each update, in order."""

_MOST_STEPS = 60_000
TENSORS = 3
TABLE = Table(rows=100, width=3)
ROWS_ASKED = 2


class Trouble(NamedTuple):
    """What goes wrong with messages, servers and connections, and when messages are sent again."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    crashes: int = 0
    closes: int = 0
    retry_s: float = 1.0


class Habit(NamedTuple):
    """How workers push and pull.

    Attributes:
        period: they pull in every so many rounds.
        together: how often they submit many slices at once.
        apart: whether that is any number of them, or all.
        tables: of how many tables they push and pull rows besides, in several parts each.
    """

    period: int = 1
    together: float = 0.0
    apart: bool = True
    tables: int = 0


_USUAL = Habit()


class Packet(NamedTuple):
    """A message under way, over one connection of a worker to a server."""

    worker: int
    server: int
    connection: int
    to_server: bool
    message: msg.Message
    payload: object


class Server:
    """A server, its shard and its disk."""

    def __init__(self, seat: Seat, limits: Limits) -> None:
        self.seat = seat
        self.limits = limits
        self.disk: dict[int, tuple[Position, Log]] = {}
        self.both: set[int] = set()
        self.declared: tuple[str, Rules | None, tuple] = ("", None, ())
        self.tables: tuple[TableSlice, ...] = ()
        self.boots = 0
        self.failed: list[act.Fail] = []
        self.start()

    def start(self) -> None:
        """Begin with what is on disk."""
        self.boots += 1
        seat = Seat(self.seat.roster, f"boot {self.boots}", self.seat.durable)
        kept = None
        if self.declared[1] is not None or self.tables:
            positions = {key: position for key, (position, _) in self.disk.items()}
            rules = [self.declared[1], *(table.rules for table in self.tables)]
            keeps = any(each is not None and each.keeps_before for each in rules)
            before = self.both.intersection(positions) if keeps else ()
            kept = Kept(*self.declared, positions, self.tables, frozenset(before))
        self.machine = ServerMachine(seat, self.limits, kept)
        self.weights = {key: log for key, (_, log) in self.disk.items()}
        self.staged: dict[tuple[int, int, int], object] = {}
        self.sums: dict[int, tuple[object, ...]] = {}
        self.means: dict[int, tuple[object, ...]] = {}
        self.asked: dict[tuple[int, int], object] = {}
        self.writing: dict[int, tuple[Position, Log]] = {}
        self.split: set[int] = set()

    def take_apart(self, cut: Cut) -> None:
        """Let the parts of a bundle be by themselves; they are written at once."""
        keys = [part.key for part in cut.parts]
        for number in [number for number in self.staged if number[0] == cut.key]:
            content = self.staged.pop(number)
            self.staged |= {(key, *number[1:]): content for key in keys}
        for held in (self.weights, self.sums, self.means):
            if cut.key in held:
                held.update(dict.fromkeys(keys, held.pop(cut.key)))
        self.split.discard(cut.key)
        if keys[0] in self.weights:
            self.split.update(keys)

    def wrote(self, written: dict[int, tuple[Position, Log]]) -> None:
        """Note what is on disk; of a bundle that was cut nothing counts any more.

        A slice has the version before there, too, once it was written at both.
        """
        for key, (position, _) in written.items():
            old = self.disk[key][0].version if key in self.disk else None
            if old != position.version:
                self.both.discard(key)
            if old == position.version - 1:
                self.both.add(key)
        self.disk |= written
        partition = Partition(bundles_of(self.declared[2]), self.disk)
        for key in list(self.disk):
            if key in partition and key not in partition.parts:
                del self.disk[key]


class World:
    """Workers, servers and what is between them."""

    def __init__(
        self,
        rules: Rules,
        *,
        workers: int,
        servers: int,
        rounds: int,
        trouble: Trouble,
        random: Random,
        durable: bool = True,
        habit: Habit = _USUAL,
    ) -> None:
        self.together, self.apart = habit.together, habit.apart
        self.tables = [
            TableSlice(Slice(key_of(table, s), f"e{table}", "float32", 0, 300, TABLE), rules)
            for table in range(habit.tables)
            for s in range(servers)
        ]
        self.rules, self.rounds, self.trouble, self.random = rules, rounds, trouble, random
        self.limits = Limits(retry_s=trouble.retry_s)
        tensors = [TensorSpec(f"t{i}", "float32", 5 * i) for i in range(TENSORS)]
        self.layout = Layout(tensors, servers, slice_bytes=16)
        self.now_s = 0.0
        self.packets: list[Packet] = []
        self.sent: list[Packet] = []
        tokens = tuple(f"token {rank}" for rank in range(workers))
        addresses = tuple(f"server {rank}" for rank in range(servers))
        rosters = [msg.Roster("run", rank, addresses, tokens) for rank in range(workers)]
        self.servers = [
            Server(Seat(msg.Roster("run", rank, addresses, tokens), "", durable), self.limits)
            for rank in range(servers)
        ]
        self.workers = [
            WorkerMachine(rosters[rank], tokens[rank], rules, self.limits)
            for rank in range(workers)
        ]
        self.connections = {(w, s): 0 for w in range(workers) for s in range(servers)}
        self.done = [-1] * workers
        self.waiting: list[dict[tuple[int, int], int]] = [{} for _ in range(workers)]
        self.pulled: list[tuple[int, int, int, Log]] = []
        self.norms: set[float | None] = set()
        self.period = habit.period
        self.crashes, self.closes = trouble.crashes, trouble.closes
        for rank, machine in enumerate(self.workers):
            machine.declare(self.layout, rules)
            self.do_worker(rank, machine.connect(self.now_s))
            self.do_worker(rank, machine.declare_table(self.tables))

    def run(self) -> dict[int, Log]:
        """Run to the end; return the weights of every slice."""
        for step in range(_MOST_STEPS):
            if all(done == self.rounds for done in self.done) and self.idle():
                logs = {key: log for s in self.servers for key, log in s.weights.items()}
                whole = Partition(self.layout.bundles)
                for key in [key for key in logs if key >= BUNDLE]:
                    logs |= dict.fromkeys((m.key for m in whole.members(key)), logs.pop(key))
                return logs
            self.step(calm=step > _MOST_STEPS // 4)
        raise AssertionError(f"hangs: rounds done {self.done}, {len(self.packets)} packets")

    def idle(self) -> bool:
        """Say whether all workers know that all is over."""
        return all(machine.idle for machine in self.workers)

    def step(self, calm: bool) -> None:
        """Let one thing happen."""
        kind = self.random.random()
        if kind < 0.65 and self.packets:
            self.deliver(calm)
        elif kind < 0.8:
            self.go_on(self.random.randrange(len(self.workers)))
        elif kind < 0.9:
            self.commit(self.random.choice(self.servers))
        elif kind < 0.97:
            self.now_s += 0.3
            for rank, machine in enumerate(self.workers):
                self.do_worker(rank, machine.tick(self.now_s))
        elif kind < 0.985 and self.crashes:
            self.crashes -= 1
            self.crash(self.random.randrange(len(self.servers)))
        elif self.closes:
            self.closes -= 1
            self.close(self.random.choice(sorted(self.connections)))

    def deliver(self, calm: bool) -> None:
        """Let a packet arrive, or not."""
        random, trouble = self.random, self.trouble
        index = random.randrange(len(self.packets))
        if calm or random.random() >= trouble.reorder:
            # What goes one way over one connection stays in its order.
            index = [p[:4] for p in self.packets].index(self.packets[index][:4])
        packet = self.packets.pop(index)
        if not calm and random.random() < trouble.drop:
            return
        if not calm and random.random() < trouble.duplicate:
            self.packets.insert(random.randint(0, len(self.packets)), packet)
        if self.connections[packet.worker, packet.server] != packet.connection:
            return
        size = None
        if packet.payload is not None:
            size = self.nbytes(packet.message)
        if packet.to_server:
            machine = self.servers[packet.server].machine
            peer = f"{packet.worker}.{packet.connection}".encode()
            actions = machine.receive(peer, packet.message, size)
            self.do_server(packet.server, actions, packet.payload)
        else:
            machine = self.workers[packet.worker]
            actions = machine.receive(packet.server, packet.message, size, self.now_s)
            self.do_worker(packet.worker, actions, packet.payload)

    def nbytes(self, message: msg.Message) -> int:
        """Return the bytes of what goes along with a message."""
        if isinstance(message, msg.PullRows):
            return ROWS_ASKED * ID_BYTES
        if isinstance(message, msg.Rows):
            return ROWS_ASKED * (TABLE.row_bytes() - ID_BYTES)
        if isinstance(message, msg.PushRows):
            return TABLE.row_bytes()
        key = message.key
        members = self.layout.slices[key : key + 1]
        if key >= BUNDLE:
            members = Partition(self.layout.bundles).members(key)
        return sum(member.nbytes for member in members)

    def go_on(self, rank: int) -> None:
        """Let a worker push everything, and in every so many rounds pull everything.

        It goes on before it has what it pulled, until it wants to pull again. Where there are
        bundles it does so by them, or slice by slice.
        """
        pulls = (self.done[rank] + 1) % self.period == 0
        if (self.waiting[rank] and pulls) or self.done[rank] == self.rounds:
            return
        self.done[rank] += 1
        machine = self.workers[rank]
        pieces = list(self.layout.slices)
        if self.random.random() < self.together:
            names = [f"t{i}" for i in range(TENSORS)]
            first = self.random.randint(1, TENSORS) if self.apart else TENSORS
            pieces = self.layout.pieces(names[:first])
            if names[first:]:
                pieces += self.layout.pieces(names[first:])
        for piece in pieces:
            actions, places = machine.parts(piece)
            self.do_worker(rank, actions)
            for part, _, _ in places:
                self.push_and_pull(rank, part.key, pulls)
        for table in self.tables:
            self.push_and_pull_rows(rank, table.slice.key, pulls)

    def push_and_pull_rows(self, rank: int, key: int, pulls: bool) -> None:
        """Push a table in some parts, and pull it."""
        machine = self.workers[rank]
        if self.done[rank] or rank == 0:
            kind = msg.PushRows if self.done[rank] else msg.BeginRows
            push = kind(key, 0, parts=self.random.randint(1, 3))
            self.do_worker(rank, machine.push(push, 0, self.now_s)[1])
        if pulls:
            pull = msg.PullRows(key, 0, 0, count=ROWS_ASKED)
            request, actions = machine.pull(pull, self.now_s)
            self.waiting[rank][key, request] = self.done[rank]
            self.do_worker(rank, actions)

    def push_and_pull(self, rank: int, key: int, pulls: bool) -> None:
        """Push a slice, or a part of a bundle, and pull it."""
        machine = self.workers[rank]
        if self.done[rank] or rank == 0:
            _, actions = machine.push(msg.Push(key, 0), 0, self.now_s)
            self.do_worker(rank, actions)
        if not pulls:
            return
        request, actions = machine.pull(msg.Pull(key, 0, 0), self.now_s)
        self.waiting[rank][key, request] = self.done[rank]
        self.do_worker(rank, actions)

    def commit(self, server: Server) -> None:
        """End a write to disk that was begun, or begin one."""
        if not server.seat.durable or not server.weights:
            return
        if server.writing:
            written, server.writing = server.writing, {}
            server.wrote(written)
            actions = server.machine.committed({key: at for key, (at, _) in written.items()})
            self.do_server(self.servers.index(server), actions)
            return
        drawn = {key for key in server.weights if self.random.random() < 0.7}
        if self.rules.clip_norm is not None:
            drawn = set(server.weights)  # all change together
        keys = sorted(drawn | server.split)
        server.split.clear()
        positions = server.machine.positions(keys)
        server.writing = {key: (positions[key], server.weights[key]) for key in keys}

    def crash(self, rank: int) -> None:
        """Kill a server and start it again with what is on its disk."""
        self.servers[rank].start()
        for worker in range(len(self.workers)):
            self.close((worker, rank))
            moved = msg.Moved(rank, f"server {rank}")
            self.do_worker(worker, self.workers[worker].moved(moved, self.now_s))

    def close(self, connection: tuple[int, int]) -> None:
        """Close a connection; it opens again at once, as another one."""
        self.connections[connection] += 1
        self.packets = [
            p for p in self.packets if self.connections[p.worker, p.server] == p.connection
        ]

    def do_server(self, rank: int, actions: Iterable[act.Action], payload: object = None) -> None:
        """Carry out what a server asks for."""
        server = self.servers[rank]
        for action in actions:
            if isinstance(action, act.Send):
                weights = self.answer(server, action) if isinstance(action, act.Answer) else None
                self.to_worker(rank, action.to, action.message, weights)
            elif isinstance(action, act.Keep):
                server.declared = (server.machine.digest, action.rules, action.slices)
            elif isinstance(action, act.KeepTable):
                server.tables += (action.table,)
            elif TABLES <= getattr(action, "key", -1) < BUNDLE:
                self.do_table(server, action, payload)
            elif isinstance(action, act.Stage):
                server.staged[action.key, action.worker, action.sequence] = payload
            elif isinstance(action, act.Split):
                server.take_apart(action.cut)
            elif isinstance(action, act.Add):
                gradient = server.staged.pop((action.key, action.worker, action.sequence))
                server.sums[action.key] = (*server.sums.get(action.key, ()), gradient)
            elif isinstance(action, act.Initialise):
                assert server.staged.pop((action.key, action.worker, 0)) == (action.worker, 0)
                server.weights[action.key] = ()
            elif isinstance(action, act.Measure | act.Update):
                self.update(rank, action)
            elif isinstance(action, act.Fail):
                server.failed.append(action)
            else:
                assert isinstance(action, act.Forget)

    @staticmethod
    def answer(server: Server, action: act.Answer) -> Log:
        """Return the weights of an answer; to a pull of rows it has those that were asked for."""
        if action.worker >= 0:
            asked = server.asked.pop((action.message.key, action.worker))
            assert asked == (action.worker, action.message.request)
        return server.weights[action.message.key]

    @staticmethod
    def do_table(server: Server, action: act.Action, payload: object) -> None:
        """Begin or update a table; all parts of its pushes have to be there."""
        if isinstance(action, act.Ask):
            server.asked[action.key, action.worker] = payload
        elif isinstance(action, act.Stage):
            number = (action.key, action.worker, action.sequence)
            server.staged.setdefault(number, {})[action.number] = payload
        elif isinstance(action, act.Initialise):
            server.staged.pop((action.key, action.worker, 0))
            server.weights[action.key] = ()
        elif isinstance(action, act.Update):
            for worker, sequence in action.gradients:
                parts = server.staged.pop((action.key, worker, sequence))
                counts = {count for _, _, count in parts.values()}
                assert len(counts) == 1
                assert parts == {p: (worker, sequence, max(counts)) for p in range(max(counts))}
            server.weights[action.key] += (action.gradients,)
            assert len(server.weights[action.key]) == action.version
        else:
            assert isinstance(action, act.Add)

    def squares(self, key: int) -> float:
        """Return the sum of squares of a gradient: the same number for each slice in it."""
        return float(len(Partition(self.layout.bundles).members(key)) if key >= BUNDLE else 1)

    @staticmethod
    def gathered(server: Server, action: act.Update | act.Measure) -> tuple[object, ...]:
        """Return gradients that were added, and then those that are staged."""
        added = server.sums.pop(action.key, ())
        rest = action.gradients[len(added) :]
        staged = [server.staged.pop((action.key, *gradient)) for gradient in rest]
        return (*added, *staged)

    def update(self, rank: int, action: act.Update | act.Measure) -> None:
        """Make a mean of gradients; or apply gradients, or their mean that was made before."""
        server = self.servers[rank]
        if isinstance(action, act.Measure):
            server.means[action.key] = self.gathered(server, action)
            found = server.machine.measured(action, self.squares(action.key))
            self.do_server(rank, found)
            return
        self.norms.add(action.norm)
        clips = self.rules.clip_norm is not None
        mean = server.means.pop(action.key) if clips else self.gathered(server, action)
        assert mean == action.gradients
        server.weights[action.key] += (action.gradients,)
        assert len(server.weights[action.key]) == action.version

    def to_worker(self, rank: int, peer: bytes, message: msg.Message, payload: object) -> None:
        """Send over the connection that ``peer`` names."""
        worker, _, connection = peer.decode().partition(".")
        packet = Packet(int(worker), rank, int(connection), False, message, payload)
        if self.connections[packet.worker, rank] == packet.connection:
            self.put(packet)

    def put(self, packet: Packet) -> None:
        """Let a packet be under way."""
        self.sent.append(packet)
        self.packets.append(packet)

    def do_worker(self, rank: int, actions: Iterable[act.Action], payload: object = None) -> None:
        """Carry out what a worker asks for."""
        machine = self.workers[rank]
        for action in actions:
            if isinstance(action, act.Send):
                content: object = None
                if isinstance(action.message, msg.Push):
                    content = (rank, action.message.sequence)
                    if isinstance(action.message, msg.PushRows):
                        content = (*content, action.message.parts)
                    machine.sent(action.message.key, self.now_s)
                elif isinstance(action.message, msg.PullRows):
                    content = (rank, action.message.request)
                connection = self.connections[rank, action.to]
                self.put(Packet(rank, action.to, connection, True, action.message, content))
            elif isinstance(action, act.Fill):
                done = self.waiting[rank].pop((action.answer.key, action.answer.request))
                self.pulled.append((rank, action.answer.key, done, payload))
            elif isinstance(action, act.Split):
                waiting = self.waiting[rank]
                for number in [number for number in waiting if number[0] == action.cut.key]:
                    done = waiting.pop(number)
                    waiting |= {(part.key, number[1]): done for part in action.cut.parts}
            else:
                assert isinstance(action, act.Forget | act.Released), action
