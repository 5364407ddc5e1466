"""Collectives: the spans of one message on all ranks, put together again.

A rank's push or pull span begins when the rank arrives, which is when its channel takes the message
up, and ends when the rank has what it wants. An all-reduce cannot move its last byte before the
last rank has arrived. So with A the last arrival, what a span lasts up to A is *waiting for the
slowest rank*, and what it lasts after A is *transferring*.

A message to or from a parameter server is no collective: it waits for no other rank here, and all
of it counts as transferring, the server's own time included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from syncopate.analysis.intervals import length_s, union
from syncopate.analysis.phases import COMMUNICATION
from syncopate.benchmark import BUS_FACTORS
from syncopate.plan import ALLREDUCE, EXCHANGES, SERVED, SHARDED
from syncopate.timeline import Span, Timeline

EXCHANGE = "exchange"
"""What a timeline's metadata call the exchange."""


@dataclass(frozen=True)
class Collective:
    """One message, on every rank that took part.

    Attributes:
        spans: one for each of these ranks, by rank.
        collective: what it was, such as ``"all_reduce"``; ``"send"`` and ``"receive"`` go to and
            come from servers, each rank by itself.
    """

    spans: tuple[Span, ...]
    collective: str

    @property
    def iteration(self) -> int:
        """The training iteration it belongs to."""
        return self.spans[0].iteration

    @property
    def lane(self) -> str:
        """``"push"`` or ``"pull"``."""
        return self.spans[0].lane

    @property
    def name(self) -> str:
        """What it carries, such as ``"bucket 3"``."""
        return self.spans[0].name

    @cached_property
    def nbytes(self) -> int:
        """Bytes that it carries."""
        return max(span.nbytes for span in self.spans)

    @cached_property
    def arrived_s(self) -> float:
        """When the last rank arrived."""
        return max(span.start_s for span in self.spans)

    @cached_property
    def last(self) -> int:
        """Which rank arrived last; of several the first."""
        return max(self.spans, key=lambda span: (span.start_s, -span.rank)).rank

    def moves_from_s(self, span: Span) -> float:
        """Return when one of its spans ceases to wait for other ranks.

        That is the last arrival, or the span's own end where it ended before: a rank that only
        sends may be done while others are still to come.
        """
        return min(self.arrived_s, span.end_s)

    def waited_for(self, at_s: float) -> tuple[int, ...]:
        """Return the ranks that had not arrived by then."""
        return tuple(span.rank for span in self.spans if span.start_s > at_s)


@dataclass(frozen=True)
class Bandwidth:
    """What the collectives of one kind reached, in the mean over ranks.

    Attributes:
        collective: which kind.
        nbytes: bytes that they carried in an iteration, in the mean.
        transferring_s: time of an iteration in which at least one was transferring, in the mean.
        bytes_per_s: the first by the second.
        bus_bytes_per_s: the same times the factor of the collective (see ``docs/metrics.md``),
            which makes it comparable with the rate of a link.
    """

    collective: str
    nbytes: float
    transferring_s: float
    bytes_per_s: float
    bus_bytes_per_s: float


def collectives(timeline: Timeline) -> tuple[Collective, ...]:
    """Return every collective of a timeline, in the order in which their last ranks arrived.

    Spans belong together when iteration, lane, name and channel agree; where a rank has several
    such, they are taken in the order in which they started.
    """
    found: dict[tuple[int, str, str, int], dict[int, list[Span]]] = defaultdict(dict)
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        if span.lane in COMMUNICATION:
            key = (span.iteration, span.lane, span.name, span.channel)
            found[key].setdefault(span.rank, []).append(span)
    pulled = {span.name for span in timeline.spans if span.lane == "pull"}
    exchange = timeline.metadata.get(EXCHANGE, "")
    if exchange not in EXCHANGES:
        exchange = SHARDED if pulled else ALLREDUCE
    together: list[Collective] = []
    for (_, lane, name, _), by_rank in found.items():
        kind = _kind(exchange, lane, name, name in pulled)
        for index in range(max(map(len, by_rank.values()))):
            there = [mine[index] for _, mine in sorted(by_rank.items()) if index < len(mine)]
            if exchange == SERVED:
                together += [Collective((span,), kind) for span in there]
            else:
                together.append(Collective(tuple(there), kind))
    return tuple(sorted(together, key=lambda one: (one.arrived_s, one.name)))


def bandwidths(timeline: Timeline, found: Sequence[Collective] = ()) -> tuple[Bandwidth, ...]:
    """Return what each kind of collective reached.

    Args:
        timeline: measured or simulated.
        found: its :func:`collectives`, where they are at hand.
    """
    groups: dict[str, dict[tuple[int, int], list[tuple[Span, float]]]] = defaultdict(dict)
    for one in found or collectives(timeline):
        for span in one.spans:
            rows = groups[one.collective].setdefault((one.iteration, span.rank), [])
            rows.append((span, one.moves_from_s(span)))
    result = []
    for kind, by_iteration_and_rank in sorted(groups.items()):
        each = list(by_iteration_and_rank.values())
        nbytes = sum(span.nbytes for mine in each for span, _ in mine) / len(each)
        moving_s = sum(
            length_s(union((moves_s, span.end_s) for span, moves_s in mine)) for mine in each
        ) / len(each)
        rate = nbytes / moving_s if moving_s > 0 else 0.0
        factor = BUS_FACTORS[kind](timeline.world_size) if kind in BUS_FACTORS else 1.0
        result.append(Bandwidth(kind, nbytes, moving_s, rate, rate * factor))
    return tuple(result)


def _kind(exchange: str, lane: str, name: str, pulled: bool) -> str:
    """Return which collective a message of an exchange is."""
    kind = EXCHANGES[exchange]
    if lane == "push":
        return kind.push if pulled or not kind.replicated else kind.replicated
    # Where nothing is pulled, weights are averaged (local SGD) or rank 0's are broadcast.
    return kind.pull or ("broadcast" if name.startswith("weights") else "all_reduce")
