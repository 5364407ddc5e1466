"""Collectives: the spans of one message on all ranks, put together again.

A rank's push or pull span begins when the rank arrives, which is when its channel takes the message
up, and ends when the rank has what it wants. An all-reduce cannot move its last byte before the
last rank has arrived. So with A the last arrival, what a span lasts up to A is *waiting for the
slowest rank*, and what it lasts after A is *transferring*.

A message to or from a parameter server is no collective: it waits for no other rank here, and all
of it counts as transferring, the server's own time included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.evidence.pipeline import matched
from syncopate.analysis.memoized import memoized
from syncopate.analysis.phases import COMMUNICATION
from syncopate.analysis.sweep import lengths_s, pieces, runs
from syncopate.artifacts.plan import ALLREDUCE, EXCHANGES, SERVED, SHARDED
from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.artifacts.timeline import Span, Spans, Timeline
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times, coded

NAMED = frozenset(
    {
        "all_reduce",
        "reduce_scatter",
        "reduce",
        "all_to_all",
        "gather",
        "send",
        "all_gather",
        "broadcast",
        "scatter",
        "recv",
    }
)
"""Collectives that messages of other tools are called by, as in ``"broadcast 0"``."""

TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Collectives that no rank is done with before all have arrived."""

EXCHANGE = "exchange"
"""What a timeline's metadata call the exchange."""


@dataclass(frozen=True)
class Bandwidth:
    """The bandwidth of one kind of collective, the mean over ranks.

    Attributes:
        collective: which kind.
        nbytes: bytes that they carried in an iteration, in the mean.
        transferring_s: time of an iteration in which at least one was transferring, in the mean.
        bytes_per_s: the first by the second.
        bus_bytes_per_s: the same times the factor of the collective (see ``docs/metrics.md``) at
            the number of ranks that take part, which makes it comparable with the rate of a link.
    """

    collective: str
    nbytes: float
    transferring_s: float
    bytes_per_s: float
    bus_bytes_per_s: float


class Collectives:
    """Collectives as columns.

    Args:
        spans: of the timeline.
        rows: the spans of the first collective by rank, then those of the second, and so on.
        first: where in ``rows`` each begins.
        kinds: what each is, a place in ``names``.
        names: such as ``"all_reduce"``; ``"send"`` and ``"receive"`` go to and come from servers,
            each rank by itself.
        between_two: which are messages of two stages of a pipeline.

    Attributes:
        sizes: on how many ranks each is.
        of: to which collective each of ``rows`` belongs.
        arrived_s: when the last rank of each arrived.
        moves_s: when each of ``rows`` ceases to wait for other ranks: at the last arrival, or at
            its own end where that came before, as of a rank that only sends.
        over_s: when each of ``rows`` was over. What was sent is over for both ends when the first
            of them says so: a send and a receive that a stage calls together end together.
    """

    def __init__(
        self,
        spans: Spans,
        rows: Numbers,
        first: Numbers,
        kinds: Numbers,
        names: Sequence[str],
        *,
        between_two: Mask,
    ) -> None:
        self.spans, self.rows, self.first = spans, rows, first
        self.between_two = between_two
        self.kinds, self.names = kinds, tuple(names)
        self.sizes = np.diff(first, append=len(rows))
        self.of = np.repeat(np.arange(len(first)), self.sizes)
        self.arrived_s = self.most(spans.start_s)
        self.moves_s = np.minimum(self.arrived_s[self.of], spans.end_s[rows])
        ends_s = np.maximum(self.least(spans.end_s), self.arrived_s)
        ends_s = np.where(between_two, ends_s, np.inf)[self.of]
        self.over_s = np.minimum(spans.end_s[rows], ends_s)

    @cached_property
    def together(self) -> Mask:
        """Which are of several ranks, of which none is done before all have come."""
        known = [self.names.index(name) for name in TOGETHER if name in self.names]
        return np.asarray(np.isin(self.kinds, known) & (self.sizes > 1))

    def most(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return for each collective the most of a column of all spans."""
        return np.maximum.reduceat(column[self.rows], self.first) if len(self) else column[:0]

    def least(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return for each collective the least of a column of all spans."""
        return np.minimum.reduceat(column[self.rows], self.first) if len(self) else column[:0]

    def __len__(self) -> int:
        return len(self.first)

    def __iter__(self) -> Iterator[tuple[str, tuple[Span, ...]]]:
        """Yield what each is, and its spans by rank."""
        spans = iter(self.spans.take(self.rows))
        for count, kind in zip(self.sizes.tolist(), self.kinds.tolist(), strict=True):
            yield self.names[kind], tuple(islice(spans, count))


def is_served(timeline: Timeline) -> bool:
    """Say whether messages of a run go to and come from parameter servers."""
    return timeline.metadata.get(EXCHANGE) == SERVED


@memoized
def collectives(timeline: Timeline) -> Collectives:
    """Return every collective of a timeline, in the order in which their last ranks arrived.

    Spans belong together when iteration, lane, name and channel agree; where a rank has several
    such, they are taken in the order in which they started. What one stage of a pipeline sends and
    another receives is one message (:mod:`syncopate.analysis.evidence.pipeline`).
    """
    every = timeline.columns
    at = np.flatnonzero(every.in_lanes(*COMMUNICATION))
    spans = every.take(at)
    kinds, names, exchange = _kinds(timeline, spans)
    code, nth = spans.numbered("iteration", "lane", "name", "channel")
    seen = np.empty(len(at), np.int64)  # where each stands by start, and at first those like it
    seen[np.argsort(spans.start_s, kind="stable")] = np.arange(len(at))
    order = np.lexsort((seen, code))
    begins = runs(code[order])
    seen[order] = np.repeat(seen[order][begins], np.diff(begins, append=len(at)))
    if exchange == SERVED:  # each rank by itself
        rows, first = np.arange(len(at)), np.arange(len(at))
        two = np.full(len(at), -1)
    else:
        together = code * (nth.max(initial=0) + 1) + nth
        two = matched(timeline, spans)
        together = np.where(two >= 0, together.max(initial=0) + 1 + two, together)
        rows = np.lexsort((spans.rank, together))
        first = runs(together[rows])
    arrived_s = np.maximum.reduceat(spans.start_s[rows], first) if len(first) else spans.start_s
    one = rows[first]
    by = (spans.rank[one], nth[one], seen[one], spans.text_order[spans.name[one]], arrived_s)
    order = np.lexsort(by)
    count = np.diff(first, append=len(rows))[order]
    begins = np.cumsum(count) - count
    moved = np.arange(len(rows)) + np.repeat(first[order] - begins, count)
    two = (two >= 0)[one][order]
    return Collectives(every, at[rows[moved]], begins, kinds[one][order], names, between_two=two)


def transferring(found: Collectives, *columns: NDArray[Any]) -> tuple[Numbers, Numbers, Times]:
    """Return how long at least one of the rows that agree in some columns was transferring.

    Returns:
        The place of each group's first row; the group of each row; the seconds of each group.
    """
    _, place, group = np.unique(coded(columns), return_index=True, return_inverse=True)
    moving = pieces(group, found.moves_s, found.spans.end_s[found.rows])
    return place, group, lengths_s(moving, moving.counts[0] > 0, len(place))


def bandwidths(timeline: Timeline) -> tuple[Bandwidth, ...]:
    """Return the bandwidth of each kind of collective."""
    found = collectives(timeline)
    spans, kind = found.spans, found.kinds[found.of]
    place, group, lasts_s = transferring(
        found, kind, spans.iteration[found.rows], spans.rank[found.rows]
    )
    nbytes = np.bincount(group, spans.nbytes[found.rows], len(place))
    factors = _bus_factors(found, members(timeline))[found.of]
    on_bus = np.bincount(group, spans.nbytes[found.rows] * factors, len(place))
    result = []
    for number in sorted(set(found.kinds.tolist()), key=found.names.__getitem__):
        mine = kind[place] == number
        moving_s, sent = float(lasts_s[mine].mean()), float(nbytes[mine].mean())
        per_s = 1 / moving_s if moving_s > 0 else 0.0
        name, bus_bytes_per_s = found.names[number], float(on_bus[mine].mean()) * per_s
        result.append(Bandwidth(name, sent, moving_s, sent * per_s, bus_bytes_per_s))
    return tuple(result)


def bus_of_each(timeline: Timeline) -> dict[int, float]:
    """Return what the messages of each rank reached on the bus, in bytes/s, all kinds together.

    That is the bytes times the factors of their collectives, over the time in which at least one
    was transferring.
    """
    found = collectives(timeline)
    if not len(found):
        return {}
    ranks = found.spans.rank[found.rows]
    place, group, lasts_s = transferring(found, ranks)
    factors = _bus_factors(found, members(timeline))[found.of]
    on_bus = np.bincount(group, found.spans.nbytes[found.rows] * factors, len(place))
    rates = np.divide(on_bus, lasts_s, out=np.zeros(len(place)), where=lasts_s > 0)
    return dict(zip(ranks[place].tolist(), rates.tolist(), strict=True))


def members(timeline: Timeline) -> Numbers:
    """Return how many ranks take part in each collective, recorded or not.

    All ranks of its group do, where the timeline says of which group its channel is; else all.
    """
    found = collectives(timeline)
    every = np.full(len(found), timeline.world_size)
    if not timeline.groups:
        return every
    sizes = np.array([len(group.ranks) for group in timeline.groups])
    channel = found.spans.channel[found.rows[found.first]]
    known = (channel >= 0) & (channel < len(sizes))
    told = np.where(known, sizes[np.where(known, channel, 0)], 0)
    return np.where(told > 0, np.maximum(told, found.sizes), every)


def partners(timeline: Timeline) -> tuple[int, ...]:
    """Return of each rank with how many others it has messages: those of its groups, else all."""
    every = timeline.world_size
    met: list[set[int]] = [set() for _ in range(every)]
    for group in timeline.groups:
        for rank in group.ranks:
            if rank < every:
                met[rank] |= set(group.ranks)
    others = timeline.ranks_in_columns - 1
    return tuple(len(mine) - 1 if mine else others for mine in met)


def _bus_factors(found: Collectives, count: Numbers) -> NDArray[np.float64]:
    """Return busbw / algbw of each collective, by the ranks that take part in it."""
    factors = np.ones(len(found))
    for kind, ranks in np.unique(np.stack([found.kinds, count]), axis=1).T.tolist():
        name = found.names[kind]
        if name in BUS_FACTORS:
            factors[(found.kinds == kind) & (count == ranks)] = BUS_FACTORS[name](ranks)
    return factors


def _kinds(timeline: Timeline, spans: Spans) -> tuple[Numbers, list[str], str]:
    """Return which collective each span of communication is, the names of these, the exchange."""
    exchange = timeline.metadata.get(EXCHANGE, "")
    pulls = spans.in_lanes("pull")
    if exchange not in EXCHANGES:
        exchange = SHARDED if pulls.any() else ALLREDUCE
    pulled = np.zeros(len(spans.texts), bool)
    pulled[spans.name[pulls]] = True
    names: dict[str, int] = {}
    found, group = np.unique(spans.name * 2 + pulls, return_inverse=True)
    kinds = [
        _kind(exchange, "pull" if one % 2 else "push", spans.texts[one // 2], pulled[one // 2])
        for one in found.tolist()
    ]
    places = np.array([names.setdefault(kind, len(names)) for kind in kinds], np.int64)
    return places[group], list(names), exchange


def _kind(exchange: str, lane: str, name: str, pulled: bool) -> str:
    """Return which collective a message is: what its name says, or else that of the exchange."""
    named = name.rpartition(" ")[0]
    if named in NAMED:
        return named
    kind = EXCHANGES[exchange]
    if lane == "push":
        return kind.push if pulled or not kind.replicated else kind.replicated
    # Where nothing is pulled, weights are averaged (local SGD) or rank 0's are broadcast.
    return kind.pull or ("broadcast" if name.startswith("weights") else "all_reduce")
