"""The flow model message by message, in plain Python: slow, and plain.

It shares no code with the kernel: ranks, ports and links are dictionaries, and rates are filled one
bottleneck after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict

from syncopate.artifacts.cluster import Cluster
from syncopate.schedules.base import Schedule

Link = tuple[int, str, tuple[int, ...]]


class Message:
    """One message: what it waits for, and how far it is."""

    def __init__(self, src: int, dst: int, step: int) -> None:
        self.src, self.dst, self.step = src, dst, step
        self.chunks = self.reduced = 0
        self.after: list[tuple[Message, bool]] = []  # and whether its addition counts
        self.flows_s = self.sent_s = self.added_s = math.nan
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
    for m in messages:
        m.left = m.chunks * unit
    now, waiting, under_way, flowing = 0.0, list(messages), [], []
    while waiting or under_way or flowing:
        for m in list(waiting):
            if all(not math.isnan(other.sent_s) for other, _ in m.after):
                ends = [o.added_s if addition else o.sent_s for o, addition in m.after]
                m.flows_s = max(ends, default=0.0)
                m.flows_s += cluster.level_between(m.src, m.dst).latency_s
                waiting.remove(m)
                under_way.append(m)
        rates = _fair({id(m): paths[id(m)] for m in flowing}, cluster)
        events = [m.flows_s for m in under_way]
        events += [now + m.left / rates[id(m)] for m in flowing]
        then = min(events)
        for m in list(flowing):
            m.left -= rates[id(m)] * (then - now)
            if m.left <= 1e-12 * m.chunks * unit:
                m.sent_s = then
                m.added_s = then + m.reduced * unit * cluster.reduction_s_per_byte
                flowing.remove(m)
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
    """Note what each message waits for: its ranks' rounds before, and the queues of its ports."""
    seen: dict[tuple[int, str], int] = defaultdict(int)
    for m in messages:
        seen[m.step, f"out {m.src}"] += 1
        seen[m.step, f"in {m.dst}"] += 1
    many = any(count > 1 for count in seen.values())  # else one port does for all levels
    for m in messages:
        for rank in (m.src, m.dst):
            before = [o for o in messages if rank in (o.src, o.dst) and o.step < m.step]
            m.after += [(o, rank == o.dst) for o in before]
        earlier = [o for o in messages[: messages.index(m)] if o.step == m.step]
        for o in earlier:
            if not many or _apart(cluster, o) == _apart(cluster, m):
                if o.src == m.src:
                    m.after.append((o, False))
                if o.dst == m.dst:
                    m.after.append((o, True))


def _apart(cluster: Cluster, m: Message) -> int:
    a, b = cluster.coordinates(m.src), cluster.coordinates(m.dst)
    return max(index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


def _path(cluster: Cluster, src: int, dst: int) -> list[Link]:
    found: list[Link] = []
    for index, level in enumerate(cluster.levels):
        here, there = cluster.coordinates(src)[index:], cluster.coordinates(dst)[index:]
        if here != there and level.size > 1:
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
        tightest = min((l for l in rest if rest[l]), key=lambda l: left[l] / len(rest[l]))
        share = left[tightest] / len(rest[tightest])
        for flow in rest[tightest]:
            rates[flow] = share
            for link in paths[flow]:
                left[link] = max(left[link] - share, 0.0)
    return rates


