"""Links: which links between hosts are slow, from what the connections of all ranks carried.

[Note: the kernel keeps count] A rank that waits for a slow network cannot tell it from ranks that
compute. Its kernel can: for each connection it counts the bytes that arrived and the time in which
any were under way, without the time in which the receiver had no room for more. Their quotient is
the rate of the link, regardless of what the ranks do in between, and no message pays for it.

[Note: beyond doubt] A link looks slower than it is where other connections of its hosts are
busy at the same time, and where messages are short: the kernel may hold back the last
acknowledgement of a message for 40 ms. So a link is accused only if it would still be slow had all
that its hosts sent or received passed while it was busy, and each collective ended in such a pause.
Then only traffic that this communicator knows nothing of can be to blame instead. A link looks
faster than it is where messages are short: a token bucket lets them through at any rate. So what
others are compared with is the best rate at which much was carried by long collectives. Among four
equal hosts of a lab, rings, trees and pipelines of 1 to 16 MiB, the lowest figure, with no pauses
taken off, was 0.74 of the best at 1 Gbit/s and 0.45 at 10 Gbit/s.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import InvalidValueError
from syncopate.units import KIB, MIB

RECORDED = "links"
"""What a timeline's metadata call what connections carried, as JSON: ``before`` and ``after``, each
rank -> :class:`Entry`."""

SLOW_SHARE = 0.25
"""A link is slow whose rate, over what is expected of it, is below this share of the best one's."""

_ENOUGH_BYTES = 8 * MIB
"""What a link carries at least to have others compared with it."""

_LONG_BYTES = 512 * KIB
"""What it carries at least in each collective: a link's burst is a part of that."""

_ENOUGH_S = 0.5
"""How long a link is busy at least to be accused: the kernel counts in ticks of up to 10 ms."""

_GRAIN_S = 0.05
"""What ticks may have missed of the time of a link that others are compared with."""

_HELD_BACK_S = 0.04
"""For how long a kernel may hold back an acknowledgement."""

_COMPARABLE = 0.4
"""What a link of a trace carries at least, as a part of what the busiest does, to be looked at.

In one plan some links carry half of what others do, and some bytes are sent twice."""

_AS_SLOW = 2.0
"""A host whose best link is within this factor of the slow ones has no better one."""


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """The bytes that one connection of a rank has sent since it was made.

    Attributes:
        channel: whose it is.
        peer: the rank at its other end.
        nbytes: bytes that arrived there.
        busy_s: time in which any were under way; as the kernel counts it.
    """

    channel: int
    peer: int
    nbytes: int
    busy_s: float


class Entry(msgspec.Struct, frozen=True):
    """Where a rank is.

    Attributes:
        host: its host's name.
        entered: number of the last collective it entered, by channel.
        carried: what its connections have carried, those that carried much.
        blocks: how often it began or ended a block of messages that are no collective.
        call: the last collective that it began, on any channel; empty before the first.
        inside: whether that one is under way.
    """

    host: str
    entered: dict[int, int]
    carried: tuple[Carried, ...] = ()
    blocks: int = 0
    call: str = ""
    inside: bool = False


NOWHERE = Entry("", {})
"""Of a rank of which nothing is known."""

_Unit = tuple[object, ...]
"""A host, or what one unit of a cluster's level is: the level and the coordinates from there on."""


@dataclass(frozen=True)
class Link:
    """The traffic from one rank to another on another host, on all channels.

    Attributes:
        src: the rank that sent.
        dst: the rank that received.
        nbytes: what arrived.
        busy_s: how long the busiest of the connections was busy.
        slowed_s: that, less what the ends of its collectives may have taken.
        best_bytes_per_s: the rate of its best connection; 0 where none carried enough to tell.
    """

    src: int
    dst: int
    nbytes: int
    busy_s: float
    slowed_s: float
    best_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The rate, as far as only these connections used the link."""
        return self.nbytes / max(self.busy_s, _GRAIN_S)


@dataclass(frozen=True)
class Finding:
    """Links that are slow.

    Attributes:
        links: them, by ranks.
        hosts: whose they are, where all links of these hosts are slow and the others' are not.
        expected_bytes_per_s: what the first of them should reach.
        cluster: name of the cluster that says so; empty where the other links do, in the median.
    """

    links: tuple[Link, ...]
    hosts: tuple[str, ...]
    expected_bytes_per_s: float
    cluster: str = ""


class SlowLinks(NamedTuple):
    """Ranks whose hosts have slow links.

    Attributes:
        ranks: which.
        bytes_per_s: what the slowest of these links carried.
        expected_bytes_per_s: what it should.
    """

    ranks: tuple[int, ...] = ()
    bytes_per_s: float = 1.0
    expected_bytes_per_s: float = 1.0


def links_between(
    before: Mapping[int, Entry], after: Mapping[int, Entry], *, doubts: bool = True
) -> tuple[Link, ...]:
    """Return the traffic between hosts from one sample to the next.

    What a rank carried outside collectives is not told from the rest: where it exchanged messages
    with others meanwhile, its links are left out.

    Args:
        before: where the ranks were and what they had carried; nothing of those not in it.
        after: the same later; links to ranks that are not in it are left out.
        doubts: whether short messages count for nothing, and each collective may have ended in a
            pause; see [Note: beyond doubt].
    """
    links = []
    for rank, entry in sorted(after.items()):
        earlier = before.get(rank, NOWHERE)
        if aside(earlier, entry):
            continue
        had = {(one.channel, one.peer): one for one in earlier.carried}
        parts: dict[int, list[tuple[int, float, int]]] = {}
        for one in entry.carried:
            if one.peer not in after or after[one.peer].host == entry.host:
                continue
            past = had.get((one.channel, one.peer))
            nbytes = one.nbytes - (past.nbytes if past else 0)
            busy_s = one.busy_s - (past.busy_s if past else 0.0)
            calls = entry.entered.get(one.channel, -1) - earlier.entered.get(one.channel, -1)
            if nbytes > 0:
                parts.setdefault(one.peer, []).append((nbytes, busy_s, max(calls, 1)))
        links += [_joined(rank, peer, found, doubts) for peer, found in sorted(parts.items())]
    return tuple(links)


def aside(before: Entry, after: Entry) -> bool:
    """Say whether a rank exchanged messages outside collectives, or does."""
    return before.blocks != after.blocks or after.blocks % 2 == 1


def _joined(src: int, dst: int, parts: Sequence[tuple[int, float, int]], doubts: bool) -> Link:
    """Return a link, from (bytes, seconds busy, collectives) of its connections."""
    long_bytes, held_back_s = (_LONG_BYTES, _HELD_BACK_S) if doubts else (0, 0.0)
    long = [
        nbytes / (busy_s + _GRAIN_S)
        for nbytes, busy_s, calls in parts
        if nbytes >= max(_ENOUGH_BYTES, calls * long_bytes)
    ]
    return Link(
        src=src,
        dst=dst,
        nbytes=sum(nbytes for nbytes, _, _ in parts),
        busy_s=max(busy_s for _, busy_s, _ in parts),
        slowed_s=max(busy_s - calls * held_back_s for _, busy_s, calls in parts),
        best_bytes_per_s=max(long, default=0.0),
    )


def conclusive(links: Sequence[Link]) -> bool:
    """Return whether there was enough traffic to judge by."""
    return any(link.nbytes >= _ENOUGH_BYTES for link in links) and any(
        link.busy_s >= _ENOUGH_S for link in links
    )


def slow_links(
    links: Sequence[Link], hosts: Mapping[int, str], cluster: Cluster | None = None
) -> Finding | None:
    """Return the links that are slow beyond doubt; see [Note: beyond doubt].

    With a cluster each link is measured by what its levels carry, so that racks are not accused of
    their uplinks: slow is below :data:`SLOW_SHARE` of what the best link makes of its levels, or,
    where all do badly, of what the cluster says. Without one all links should be equal.

    Args:
        links: what passed between hosts.
        hosts: host name of each of their ranks.
        cluster: of these ranks, if known.
    """
    sent: Counter[_Unit] = Counter()
    received: Counter[_Unit] = Counter()
    crossed = {link: _crossed(link, hosts, cluster) for link in links}
    for link in links:
        for source, target, _ in crossed[link]:
            sent[source] += link.nbytes
            received[target] += link.nbytes
    reached = {link: link.best_bytes_per_s / _narrowest(crossed[link]) for link in links}
    shares = {
        link: max(
            reached[link],
            *(
                max(sent[source], received[target]) / link.slowed_s / bandwidth
                for source, target, bandwidth in crossed[link]
            ),
        )
        for link in links
        if link.slowed_s >= _ENOUGH_S
    }
    best = max(reached.values(), default=0.0)
    limits = [best] if cluster is None else [min(best, 1.0), 1.0]
    for limit in limits:
        slow = tuple(link for link, share in shares.items() if share < SLOW_SHARE * limit)
        if slow:
            return _finding(slow, links, hosts, cluster)
    return None


def _finding(
    slow: tuple[Link, ...],
    links: Sequence[Link],
    hosts: Mapping[int, str],
    cluster: Cluster | None,
) -> Finding:
    faulty = _hosts_of(slow, links, hosts)
    if cluster is not None:
        expected = _narrowest(_crossed(slow[0], hosts, cluster))
        return Finding(slow, faulty, expected, cluster.name)
    others = [link for link in links if link not in slow and link.nbytes >= _ENOUGH_BYTES]
    return Finding(slow, faulty, statistics.median(link.bytes_per_s for link in others))


def _crossed(
    link: Link, hosts: Mapping[int, str], cluster: Cluster | None
) -> list[tuple[_Unit, _Unit, float]]:
    """Return the units that a link leads from and to, and what each sends and receives at most.

    Without a cluster that is 1: then shares are rates.
    """
    if cluster is None:
        return [((hosts[link.src],), (hosts[link.dst],), 1.0)]
    source, target = cluster.coordinates(link.src), cluster.coordinates(link.dst)
    return [
        ((index, *source[index:]), (index, *target[index:]), level.bandwidth_bytes_per_s)
        for index, level in enumerate(cluster.levels)
        if source[index:] != target[index:]
    ]


def _narrowest(crossed: Sequence[tuple[_Unit, _Unit, float]]) -> float:
    return min(bandwidth for _, _, bandwidth in crossed)


def _hosts_of(
    slow: Sequence[Link], links: Sequence[Link], hosts: Mapping[int, str]
) -> tuple[str, ...]:
    """Return the hosts at fault; none where the links do not tell."""
    accused = [{hosts[link.src], hosts[link.dst]} for link in slow]
    fastest: dict[str, float] = {}
    for link in links:
        for host in (hosts[link.src], hosts[link.dst]):
            fastest[host] = max(fastest.get(host, 0.0), link.bytes_per_s)
    limit = _AS_SLOW * max(link.bytes_per_s for link in slow)
    poor = {host for pair in accused for host in pair if fastest[host] <= limit}
    # Of two hosts that only have each other either may be the slow one.
    sure = {host for pair in accused for host in pair & poor if pair - poor}
    faulty = sure or set.intersection(*accused) & poor
    if all(pair & faulty for pair in accused) and (sure or len(faulty) == 1):
        return tuple(sorted(faulty))
    return ()


def recorded(timeline: Timeline) -> tuple[tuple[Link, ...], dict[int, str]]:
    """Return the busy links that a timeline tells of, and each rank's host; nothing otherwise.

    Raises:
        InvalidValueError: its metadata are damaged.
    """
    text = timeline.metadata.get(RECORDED)
    if text is None:
        return (), {}
    try:
        both = msgspec.json.decode(text, type=dict[str, dict[int, Entry]])
        before, after = both["before"], both["after"]
    except (msgspec.DecodeError, KeyError, RecursionError) as error:
        rule = f"what connections carried, as JSON ({error})"
        raise InvalidValueError(f"metadata {RECORDED!r}", timeline.name, rule) from None
    # A trace is short and its messages may be, so that bursts pass at any rate: only links that
    # carried about as much in the same collectives are compared.
    links = links_between(before, after, doubts=False)
    least = _COMPARABLE * max((link.nbytes for link in links), default=0)
    hosts = {rank: entry.host for rank, entry in after.items()}
    return tuple(link for link in links if link.nbytes >= least), hosts
