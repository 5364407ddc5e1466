"""A job of protocol machines whose workers die, and have their places taken by other processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.membership.incarnation import NOTHING, Incarnation
from syncopate.protocol.table import TABLES
from syncopate.protocol.worker import WorkerMachine
from tests.unit.protocol.network import Log, Server, World


class EndedError(Exception):
    """The job has ended with a sentence: the step that a worker goes on from is gone."""


class MortalWorld(World):
    """A world in which workers die.

    Attributes:
        deaths: how many are left.
        counts: of the dead, by worker and slice: how many pushes they were told to be over, and how
            many they sent.
    """

    def __init__(self, rules: Any, *, deaths: int, **given: Any) -> None:
        self.deaths = deaths
        self.ghosts: set[tuple[int, int, int]] = set()
        self.dead: dict[int, dict[int, msg.Stands]] = {}
        self.counts: dict[tuple[int, int], tuple[int, int]] = {}
        super().__init__(rules, **given)
        self.lives = [0] * len(self.workers)

    def idle(self) -> bool:
        """Say whether all workers live, and know that all is over."""
        return not self.dead and super().idle()

    def step(self, calm: bool) -> None:
        """Let one thing happen; some of what the dead said still arrives."""
        kind = self.random.random()
        if kind < 0.01 and self.deaths and not calm:
            self.deaths -= 1
            self.die(self.random.randrange(len(self.workers)))
        elif kind < 0.06 and self.dead:
            self.introduce(self.random.choice(sorted(self.dead)))
        else:
            super().step(calm)

    def go_on(self, rank: int) -> None:
        """Let a worker that lives begin a round, once all its pushes of the last are over."""
        if rank not in self.dead and self.workers[rank].idle:
            super().go_on(rank)

    def die(self, rank: int) -> None:
        """Kill a worker; what it has sent is under way."""
        for server in range(len(self.servers)):
            self.ghosts.add((rank, server, self.connections[rank, server]))
            self.connections[rank, server] += 1
        self.packets = [p for p in self.packets if p.to_server or p.worker != rank]
        self.waiting[rank] = {}
        if rank not in self.dead:
            self.note_counts(rank)
        self.lives[rank] += 1
        self.dead[rank] = {}

    def note_counts(self, rank: int) -> None:
        """Note how far a worker's pushes came."""
        for key, flow in self.workers[rank]._flows.items():
            over, sent = self.counts.get((rank, key), (0, 0))
            counts = over + max(flow.released, 0), sent + max(flow.sent, 0)
            self.counts[rank, key] = counts

    @staticmethod
    def gathered(server: Server, action: act.Update | act.Measure) -> tuple[object, ...]:
        """Return gradients as servers count them, on from those of the process before."""
        World.gathered(server, action)
        return action.gradients

    def deliver(self, calm: bool) -> None:
        """Let a packet arrive, also what a dead worker sent."""
        ghosts = [p for p in self.packets if (p.worker, p.server, p.connection) in self.ghosts]
        if ghosts and self.random.random() < 0.3:
            packet = ghosts[0]
            self.packets.remove(packet)
            size = None if packet.payload is None else self.nbytes(packet.message)
            peer = f"{packet.worker}.{packet.connection}".encode()
            machine = self.servers[packet.server].machine
            found = machine.receive(peer, packet.message, size)
            self.do_server(packet.server, found, packet.payload)
        else:
            super().deliver(calm)

    def taken(self, rank: int) -> msg.Taken:
        """Return what servers hear of the process that has a worker's place."""
        return msg.Taken(rank, f"token {rank}.{self.lives[rank]}", self.lives[rank])

    def introduce(self, rank: int) -> None:
        """Tell a server of the process that comes; it begins when all have answered."""
        answers = self.dead[rank]
        silent = [server for server in range(len(self.servers)) if server not in answers]
        if silent:
            server = self.random.choice(silent)
            found = self.servers[server].machine.taken(self.taken(rank))
            self.do_server(server, found)
            return
        del self.dead[rank]
        step = min(each.step for each in answers.values() if each.step is not None)
        if max(each.oldest for each in answers.values()) > max(step, 0):
            raise EndedError
        step = NOTHING if step <= 0 else step
        roster = self.roster(rank)
        roster = replace(roster, incarnation=Incarnation(step=step))
        token, tables = self.taken(rank).worker, self.tables
        machine = WorkerMachine(roster, token, self.rules, self.limits)
        machine.declare(self.layout, self.rules)
        self.workers[rank] = machine
        # One that gives no first value has them in round 0, and the first one gives them then.
        self.done[rank] = -1 if step == NOTHING else step if self.rules.synchronous else 0
        self.do_worker(rank, machine.connect(self.now_s))
        self.do_worker(rank, machine.declare_table(tables))

    def roster(self, rank: int) -> msg.Roster:
        """Return what a node hears by now."""
        before = self.servers[0].seat.roster
        tokens = tuple(
            self.taken(each).worker if self.lives[each] else before.workers[each]
            for each in range(len(self.workers))
        )
        return replace(before, rank=rank, workers=tokens, lives=tuple(self.lives))

    def crash(self, rank: int) -> None:
        """Kill a server; it hears by whom places were taken when it comes back."""
        for answers in self.dead.values():
            answers.pop(rank, None)
        server = self.servers[rank]
        told = self.roster(rank)
        server.seat = replace(server.seat, roster=told)
        super().crash(rank)

    def do_server(self, rank: int, actions: Iterable[act.Action], payload: object = None) -> None:
        """Carry out what a server asks for."""
        server, rest = self.servers[rank], []
        for action in actions:
            message = getattr(action, "message", None)
            if isinstance(message, msg.Stands):
                for worker, answers in self.dead.items():
                    if message.worker == self.taken(worker).worker:
                        answers[rank] = message
            elif isinstance(action, act.Fail) and "there only are newer weights" in action.reason:
                raise EndedError
            elif isinstance(action, act.Unstage):
                assert action.key >= TABLES
                server.staged.pop((action.key, action.worker, action.sequence), None)
            else:
                rest.append(action)
        super().do_server(rank, rest, payload)

    @staticmethod
    def answer(server: Server, action: act.Answer) -> Log:
        """Return the weights of an answer, as they were before the last update if it says so."""
        log = World.answer(server, action)
        return log[:-1] if action.before else log

    def do_worker(self, rank: int, actions: Iterable[act.Action], payload: object = None) -> None:
        """Carry out what a worker asks for that lives."""
        if rank not in self.dead:
            super().do_worker(rank, actions, payload)
