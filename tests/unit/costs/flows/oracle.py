"""The flow model message by message, in plain Python: slow, and plain.

It shares no code with the kernel: ranks, ports and links are dictionaries, and rates are filled one
bottleneck after the other.
"""

from __future__ import annotations

from collections import defaultdict

from syncopate.artifacts.cluster import Cluster
from syncopate.schedules.base import Schedule

Link = tuple[int, str, tuple[int, ...]]


class Message:
    """One message: what waits for it, and how far it is."""

    def __init__(self, src: int, dst: int, step: int) -> None:
        self.src, self.dst, self.step = src, dst, step
        self.chunks = self.reduced = 0
        self.missing = 0
        self.then: list[tuple[Message, bool]] = []  # and whether they wait for the addition
        self.ready_s = self.flows_s = self.added_s = 0.0
        self.left = 0.0


def replay(
    schedule: Schedule,
    cluster: Cluster,
    nbytes: float,
    offsets: tuple[int, ...] | None = None,
) -> float:
    """Return how long a schedule takes with a buffer of ``nbytes``.

    Chunk c is the share of the buffer from ``offsets[c]`` to ``offsets[c + 1]``; by default all are
    as long.
    """
    cuts = tuple(range(schedule.chunks + 1)) if offsets is None else offsets
    messages = _messages(schedule, cuts)
    if not messages or nbytes == 0:
        return 0.0
    _wait(messages, cluster)
    return _play(messages, cluster, nbytes / cuts[-1])


def _play(messages: list[Message], cluster: Cluster, unit: float) -> float:
    paths = {id(m): _path(cluster, m.src, m.dst) for m in messages}
    now, flowing = 0.0, list[Message]()
    started = [m for m in messages if not m.missing]
    under_way = list(started)
    for m in messages:
        m.left = m.chunks * unit
        m.flows_s = cluster.level_between(m.src, m.dst).latency_s
    while under_way or flowing:
        rates = _fair({id(m): paths[id(m)] for m in flowing}, cluster)
        ends = {id(m): now + m.left / rates[id(m)] for m in flowing}
        then = min([*ends.values(), *(m.flows_s for m in under_way)])
        for m in list(flowing):
            m.left -= rates[id(m)] * (then - now)
            if ends[id(m)] <= then * (1 + 1e-14):
                m.added_s = then + m.reduced * unit * cluster.reduction_s_per_byte
                flowing.remove(m)
                for other, addition in m.then:
                    other.ready_s = max(other.ready_s, m.added_s if addition else then)
                    other.missing -= 1
                    if not other.missing:
                        other.flows_s += other.ready_s
                        under_way.append(other)
        for m in list(under_way):
            if m.flows_s <= then * (1 + 1e-14):
                under_way.remove(m)
                flowing.append(m)
        now = then
    return max(m.added_s for m in messages)


def _messages(schedule: Schedule, cuts: tuple[int, ...]) -> list[Message]:
    found: dict[tuple[int, int, int], Message] = {}
    for t in schedule.transfers:
        length = cuts[t.stop] - cuts[t.start]
        if length:
            message = found.setdefault((t.round, t.src, t.dst), Message(t.src, t.dst, t.round))
            message.chunks += length
            message.reduced += length if t.op == "reduce" else 0
    return list(found.values())


def _wait(messages: list[Message], cluster: Cluster) -> None:
    """Note what waits for each message: its ranks' next round, and the queues of its ports."""
    by_rank: dict[int, list[Message]] = defaultdict(list)
    for m in messages:
        by_rank[m.src].append(m)
        by_rank[m.dst].append(m)
    many = any(
        sum(o.step == m.step and getattr(o, end) == rank for o in by_rank[rank]) > 1
        for m in messages
        for end, rank in (("src", m.src), ("dst", m.dst))
    )  # else one port does for all levels
    for rank, own in by_rank.items():
        for index, m in enumerate(own):
            earlier = [o.step for o in own if o.step < m.step]
            for o in own:
                if earlier and o.step == max(earlier):
                    o.then.append((m, rank == o.dst))
                    m.missing += 1
            for o in own[:index]:
                same = o.step == m.step and (o.src == rank) == (m.src == rank)
                if same and (not many or _apart(cluster, o) == _apart(cluster, m)):
                    o.then.append((m, rank == o.dst))
                    m.missing += 1


def _apart(cluster: Cluster, m: Message) -> int:
    a, b = cluster.coordinates(m.src), cluster.coordinates(m.dst)
    return max(index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


def _path(cluster: Cluster, src: int, dst: int) -> list[Link]:
    found: list[Link] = []
    for index, level in enumerate(cluster.levels):
        here, there = cluster.coordinates(src)[index:], cluster.coordinates(dst)[index:]
        if here != there and level.joins:
            found += [(index, "up", here), (index, "down", there)]
    return found


def _fair(paths: dict[int, list[Link]], cluster: Cluster) -> dict[int, float]:
    """Return max-min fair rates: the tightest link's flows first, then the next one's."""
    rates: dict[int, float] = {}
    left = {
        link: cluster.levels[link[0]].bandwidth_bytes_per_s
        for path in paths.values()
        for link in path
    }
    while len(rates) < len(paths):
        rest = {link: [f for f in paths if f not in rates and link in paths[f]] for link in left}
        tightest = min((x for x in rest if rest[x]), key=lambda x: left[x] / len(rest[x]))
        share = left[tightest] / len(rest[tightest])
        for flow in rest[tightest]:
            rates[flow] = share
            for link in paths[flow]:
                left[link] = max(left[link] - share, 0.0)
    return rates
