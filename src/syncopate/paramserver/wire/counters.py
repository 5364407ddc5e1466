"""Counters: what one node sent, received and updated so far, in numbers alone.

They are kept whether anybody asks or not, so a message costs two look-ups and two additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from syncopate.metrics.prometheus import Metric, Sample
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Peer
from syncopate.protocol.figures import Figures

_MOST = 1 << 20
"""Slices and workers of which a server remembers which weights were sent last."""

Kept = Callable[[], tuple[int, int]]
"""Returns how many slices a server keeps, and the bytes of their weights."""


class Counters:
    """What one node did; any thread may read them.

    Args:
        role: ``"worker"``, ``"server"`` or ``"scheduler"``.
        refused: returns how many messages were refused, by reason.

    Attributes:
        rank: of the node; -1: none yet.
        kept: what a server keeps.
        waiting: returns how many gradients, and sums of them, a server holds for later updates.
        queued: returns how many messages wait to be sent.
        here: of a scheduler, returns how many servers and workers are here.
    """

    def __init__(self, role: str, refused: Callable[[], Mapping[str, int]] = dict) -> None:
        self.role = role
        self.rank = -1
        self.kept: Kept = lambda: (0, 0)
        self.waiting: Callable[[], int] = lambda: 0
        self.queued: Callable[[], int] = lambda: 0
        self._refused = refused
        self.here: Callable[[], Mapping[str, int]] = dict
        self._counts: dict[tuple[type, str], list[int]] = {}
        self._step = 0
        self._versions: dict[int, int] = {}
        self._given: dict[tuple[Peer, int], int] = {}
        self._stale = [0, 0, 0]  # pushes, their staleness together, and the most

    def sent(self, peer: Peer, message: msg.Message, nbytes: int) -> None:
        """Count a message that ZeroMQ was given."""
        self._count(type(message), "sent", nbytes)
        if isinstance(message, msg.Push):
            self._step = max(self._step, message.sequence)
        elif isinstance(message, msg.Weights) and len(self._given) < _MOST:
            self._given[peer, message.key] = message.version

    def received(self, peer: Peer, message: msg.Message | None, nbytes: int) -> None:
        """Count a message that was taken from ZeroMQ; None: one that cannot be read."""
        self._count(type(message), "received", nbytes)
        if not isinstance(message, msg.Push):
            return
        given = self._given.get((peer, message.key))
        if given is not None:
            stale = max(self._versions.get(message.key, given) - given, 0)
            one = self._stale
            self._stale = [one[0] + 1, one[1] + stale, max(one[2], stale)]

    def updated(self, key: int, version: int) -> None:
        """Take note that a slice has another version."""
        self._versions[key] = version
        self._step = max(self._step, version)

    def figures(self) -> Figures:
        """Return what a heartbeat says of this node."""
        slices, nbytes = self.kept()
        refused = sum(self._refused().values())
        return Figures(self._step, slices, nbytes, self.queued(), refused)

    def metrics(self) -> Iterator[Metric]:
        """Yield what is known now, for Prometheus."""
        mine = {"role": self.role, "rank": str(self.rank)}
        messages, nbytes = [], []
        sent_first = sorted(self._counts.items(), key=lambda one: one[0][1] != "sent")
        for (kind, way), (count, size) in sent_first:
            name = "unreadable" if kind is type(None) else kind.__name__
            labels = mine | {"kind": name, "way": way}
            messages.append(Sample(count, labels))
            nbytes.append(Sample(size, labels))
        yield Metric("syncopate_ps_messages_total", "counter", "Messages, by kind.", messages)
        yield Metric("syncopate_ps_bytes_total", "counter", "Bytes of their frames.", nbytes)
        refused = [Sample(n, mine | {"reason": why}) for why, n in self._refused().items()]
        yield Metric("syncopate_ps_refused_total", "counter", "Messages refused.", refused)
        said = self.figures()
        yield _gauge("queued_messages", "Messages that wait to be sent.", said.queued, mine)
        if self.role == "scheduler":
            here = [Sample(n, {"role": role}) for role, n in self.here().items()]
            yield Metric("syncopate_ps_nodes", "gauge", "Nodes that are here.", here)
            return
        yield _gauge("step", "Most pushes of a slice, or its highest version.", said.step, mine)
        if self.role == "server":
            yield _gauge("slices", "Slices that are kept.", said.slices, mine)
            yield _gauge("weights_bytes", "Bytes of their weights.", said.nbytes, mine)
            told = "Gradients, and sums of them, that wait for others."
            yield _gauge("waiting_gradients", told, self.waiting(), mine)
            yield from self._staleness(mine)

    def _staleness(self, mine: dict[str, str]) -> Iterator[Metric]:
        """Yield by how many updates pushes were behind the weights that they were computed with."""
        count, total, most = self._stale
        told = "Updates of a slice between the weights that a worker was sent and its push"
        for name, what, value in (
            ("pushes", "Pushes of which that is known.", count),
            ("updates", f"{told}, summed up.", total),
        ):
            metric = f"syncopate_ps_stale_{name}_total"
            yield Metric(metric, "counter", what, [Sample(value, mine)])
        yield _gauge("stale_updates_most", f"{told}, the most.", most, mine)

    def _count(self, kind: type, way: str, nbytes: int) -> None:
        one = self._counts.get((kind, way))
        if one is None:
            one = self._counts.setdefault((kind, way), [0, 0])
        one[0] += 1
        one[1] += nbytes


def _gauge(name: str, what: str, value: float, labels: Mapping[str, str]) -> Metric:
    return Metric(f"syncopate_ps_{name}", "gauge", what, [Sample(value, labels)])
