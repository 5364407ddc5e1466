"""Files of a parameter server's nodes, as they would capture a small job with known times."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from syncopate.tracing.served.rows import (
    ASKED,
    KINDS,
    NOBODY,
    SENDS,
    NodeHeader,
    RowQueue,
)
from syncopate.tracing.trace_file import TraceWriter

UPDATE_S = 0.0005
HOP_S = 0.001
"""How long every message is on its way."""


class Said(NamedTuple):
    """A message, in the order of the columns of a row."""

    kind: str
    key: int = -1
    number: int = 0
    other: int = 0
    nbytes: int = 10
    asked: bool = False


class Job:
    """Nodes that say things to each other, and write down when."""

    def __init__(
        self,
        workers: int = 2,
        servers: int = 1,
        keys: int = 2,
        clocks: dict[str, float] | None = None,
        *,
        late_s: dict[str, float] | None = None,
        behind_s: dict[str, float] | None = None,
    ) -> None:
        """Be a job.

        Args:
            workers: how many.
            servers: how many.
            keys: slices, of the servers in turn.
            clocks: node -> by how much its clock is ahead; those of nodes in it have their own.
            late_s: server -> how much later it gives weights to be sent.
            behind_s: worker -> how much later it pushes; then each pulls behind its own pushes.
        """
        self.late_s, self.behind_s = late_s or {}, behind_s or {}
        self.workers, self.servers, self.keys = workers, servers, keys
        self.clocks = clocks or {}
        self.rows: dict[str, list[tuple[float, tuple]]] = defaultdict(list)
        self.peers: dict[str, dict[str, int]] = defaultdict(dict)
        self.mode = "ssgd"
        self.began_s = 1000.0

    def server_of(self, key: int) -> str:
        return f"s{key % self.servers}"

    def say(self, source: str, target: str, at_s: float, said: Said) -> float:
        """Send a message; return when it arrives."""
        self._seen(source, target, at_s, said, SENDS)
        self._seen(target, source, at_s + HOP_S, said, 0)
        return at_s + HOP_S

    def _seen(self, node: str, peer: str, at_s: float, said: Said, flags: int) -> None:
        place = self.peers[node].setdefault(peer, len(self.peers[node]))
        kind, flags = KINDS.index(said.kind), flags | (ASKED if said.asked else 0)
        clock_s = at_s + self.clocks.get(node, 0.0)
        row = (kind, flags, place, said.key, said.number, said.other, 0, said.nbytes)
        self.rows[node].append((clock_s, (*row, clock_s - 0.0001, clock_s)))

    def update(self, node: str, key: int, version: int, at_s: float) -> None:
        """Note that a server updated."""
        clock_s = at_s + self.clocks.get(node, 0.0)
        row = (KINDS.index("update"), 0, NOBODY, key, version, 0, 0, 0)
        self.rows[node].append((clock_s, (*row, clock_s, clock_s + UPDATE_S)))

    def connect(self, at_s: float) -> None:
        """Let every worker say hello to every server."""
        for rank in range(self.workers):
            for server in range(self.servers):
                w, s = f"w{rank}", f"s{server}"
                self.say(w, s, at_s, Said("Hello", nbytes=76))
                self.say(s, w, at_s + 0.002, Said("Welcome", nbytes=44))
                self.say(w, s, at_s + 0.004, Said("Declare", nbytes=300))

    def first_values(self, at_s: float) -> None:
        """Let worker 0 give every slice its first value, and all workers pull it."""
        for key in range(self.keys):
            s = self.server_of(key)
            came_s = self.say("w0", s, at_s, Said("Push", key, 0, nbytes=100 + key))
            self.say(s, "w0", came_s + 0.0001, Said("Ack", key, 0, 0))
            for rank in range(self.workers):
                self.pull(rank, key, 0, at_s + 0.003)

    def pull(
        self,
        rank: int,
        key: int,
        after: int,
        at_s: float,
        request: int = 0,
        *,
        since_s: float = 0.0,
    ) -> None:
        """Let a worker pull a slice, which is not there before ``since_s``."""
        s = self.server_of(key)
        request = request or after * 100 + key + 1
        came_s = self.say(f"w{rank}", s, at_s, Said("Pull", key, after, request))
        left_s = max(came_s, since_s) + 0.0002 + self.late_s.get(s, 0.0)
        self.say(s, f"w{rank}", left_s, Said("Weights", key, after, request, 104 + key))

    def iteration(self, number: int, start_s: float, *, pulls: bool = True) -> None:
        """Let all workers push every slice, worker 1 later than worker 0, and pull it.

        As a synchronous server does, it says first that a push came, and when all came, that they
        are over.
        """
        sequence = number + 1
        for key in range(self.keys):
            s = self.server_of(key)
            begin_s = start_s + 0.0005 * key
            sent_s = [
                begin_s + 0.002 * rank + self.behind_s.get(f"w{rank}", 0.0)
                for rank in range(self.workers)
            ]
            for rank, at_s in enumerate(sent_s):
                self.say(f"w{rank}", s, at_s, Said("Push", key, sequence, nbytes=110 + key))
                if rank < self.workers - 1:
                    early = Said("Ack", key, sequence, sequence - 1)
                    self.say(s, f"w{rank}", at_s + HOP_S + 0.00005, early)
            last_s = max(sent_s) + HOP_S
            for rank in range(self.workers):
                self.say(s, f"w{rank}", last_s + 0.0001, Said("Ack", key, sequence, sequence))
            self.update(s, key, sequence, last_s + 0.0002)
            for rank in range(self.workers) if pulls else ():
                own_s = sent_s[rank] + HOP_S if self.behind_s else last_s
                self.pull(rank, key, sequence, own_s + 0.003, since_s=last_s + 0.001)

    def write(
        self, directory: Path, *, leave_out: tuple[str, ...] = (), run: str = "job"
    ) -> list[Path]:
        """Write every node's file; return their paths."""
        paths = []
        for node, rows in self.rows.items():
            if node in leave_out:
                continue
            role = "scheduler" if node == "scheduler" else {"w": "worker", "s": "server"}[node[0]]
            ring = RowQueue(len(rows) + 1)
            for _, row in sorted(rows, key=lambda one: one[0]):
                ring.add(row)
            writer = TraceWriter(directory, self._header(node, role, run))
            names = {str(place): peer for peer, place in self.peers[node].items()}
            slices = [(k, f"t{k}", "float32", 0, 25) for k in range(self.keys)]
            notes: list[dict[str, object]] = [{"peers": names}]
            if role != "scheduler":
                notes.append({"server": 0, "mode": self.mode, "slices": slices})
            writer.write(ring.take(), notes)
            writer.close()
            paths.append(writer.path)
        return paths

    def _header(self, node: str, role: str, run: str) -> NodeHeader:
        return NodeHeader(
            run=run,
            role=role,
            rank=int(node[1:]) if role != "scheduler" else 0,
            workers=self.workers,
            servers=self.servers,
            host=f"host-of-{node}",
            machine="one" if node not in self.clocks else node,
            clock="time.perf_counter",
            began_s=self.began_s,
            began_clock_s=self.clocks.get(node, 0.0),
        )
