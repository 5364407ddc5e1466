"""Exposure: what communication kept each rank from computing, by bucket, and why.

Of one rank, time is *exposed* to communication when at least one push or pull is under way and the
rank computes nothing, in any iteration. Each moment of it is shared equally among the messages
under way. The share of a message before its last rank's arrival is waiting for the slowest, the
share after it is transferring (:mod:`syncopate.analysis.collectives`). Waiting is charged to the
ranks that have not arrived, in equal parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.analysis.collectives import Collectives, collectives
from syncopate.analysis.memoized import memoized
from syncopate.analysis.phases import cut
from syncopate.analysis.sweep import groups, runs
from syncopate.artifacts.timeline import Spans, Timeline
from syncopate.artifacts.timelines.spans import LANES, Numbers, Times, coded

_AT_ONCE = 1 << 16
"""Exposures that are made, or pairs of ranks that are looked at, in one go."""


class Exposure(msgspec.Struct, frozen=True):
    """How long one message kept one rank from computing.

    Attributes:
        iteration: of the message.
        rank: that was kept.
        lane: ``"push"`` or ``"pull"``.
        name: of the message, such as ``"bucket 3"``.
        nbytes: that it carried.
        waiting_s: for ranks that had not arrived.
        transferring_s: after the last had.
        waited_for_s: rank -> its part of ``waiting_s``.
    """

    iteration: int
    rank: int
    lane: str
    name: str
    nbytes: int
    waiting_s: float
    transferring_s: float
    waited_for_s: dict[int, float] = {}


class MessageExposure(NamedTuple):
    """The exposed time of the messages of one name and lane, the mean over ranks and iterations.

    Attributes:
        lane: ``"push"`` or ``"pull"``.
        name: such as ``"bucket 3"``.
        nbytes: the most that one of them carried.
        waiting_s: for ranks that had not arrived.
        transferring_s: after the last had.
        hidden_s: the rest of what they lasted.
        start_s: when the first of them started.
    """

    lane: str
    name: str
    nbytes: int
    waiting_s: float
    transferring_s: float
    hidden_s: float
    start_s: float

    @property
    def exposed_s(self) -> float:
        """What computation did not hide."""
        return self.waiting_s + self.transferring_s


class Exposures:
    """Exposures as columns.

    Args:
        found: the collectives.
        rows: in the order of the exposures, places in the rows of the collectives.
        free: how much time of each rank messages had exposed until when.

    Attributes:
        spans: of the messages.
        waiting_s: for ranks that had not arrived.
        transferring_s: after the last had.
    """

    def __init__(self, found: Collectives, rows: Numbers, free: _Free) -> None:
        self._found, self._rows, self._free = found, rows, free
        self.spans = found.spans.take(found.rows[rows])
        moves_s, ranks = found.moves_s[rows], self.spans.rank
        bounds = (self.spans.start_s, moves_s, self.spans.end_s)
        since, moved, until = (free.until(ranks, at_s) for at_s in bounds)
        self.waiting_s = (moved - since).astype(np.float64)
        self.transferring_s = (until - moved).astype(np.float64)

    def charges(
        self, chosen: NDArray[Any] | None = None
    ) -> Iterator[tuple[Numbers, Numbers, Times]]:
        """Yield which exposures waited for which ranks, and how long, some at a time.

        Args:
            chosen: which exposures to look at, by their places; all when left out.
        """
        found, every = self._found, self._found.spans
        places = np.flatnonzero(self.waiting_s > 0) if chosen is None else chosen
        counts = found.sizes[found.of[self._rows[places]]]
        for count in np.unique(counts).tolist():
            alike = places[counts == count]
            for begin in range(0, len(alike), _AT_ONCE // count + 1):
                some = alike[begin : begin + _AT_ONCE // count + 1]
                first = found.first[found.of[self._rows[some]]]
                members = found.rows[first[:, None] + np.arange(count)]
                order = np.argsort(every.start_s[members], axis=1, kind="stable")
                members = np.take_along_axis(members, order, axis=1)
                since_s = self.spans.start_s[some][:, None]
                until_s = found.moves_s[self._rows[some]][:, None]
                cuts_s = np.clip(every.start_s[members], since_s, until_s)
                ranks = np.broadcast_to(self.spans.rank[some][:, None], cuts_s.shape)
                passed = self._free.until(ranks.ravel(), cuts_s.ravel()).reshape(cuts_s.shape)
                # Between two arrivals all that come later are waited for in equal parts.
                each = np.diff(passed, axis=1) / np.arange(count - 1, 0, -1)
                charged = np.cumsum(each, axis=1).astype(np.float64)
                one, late = np.nonzero(charged > 0)
                yield some[one], every.rank[members[one, late + 1]], charged[one, late]

    def waited_outside_s(self, chosen: NDArray[Any]) -> float:
        """Return how long ranks waited for others that were in no message themselves.

        A rank that comes late because its message before took longer is late by transferring.

        Args:
            chosen: the places of the exposures to look at.
        """
        waited_s = 0.0
        chosen = chosen[self.waiting_s[chosen] > 0]
        for places, late, seconds_s in self.charges(chosen):
            since_s, until_s = self.spans.start_s[places], self._found.moves_s[self._rows[places]]
            within_s = self._free.until(late, until_s) - self._free.until(late, since_s)
            share = np.clip(within_s / (until_s - since_s), 0.0, 1.0)
            waited_s += float((seconds_s * (1 - share)).sum())
        return waited_s

    def by_message(self, iterations: Collection[int] | None = None) -> list[MessageExposure]:
        """Return the exposed time of each name and lane's messages; where given, of iterations."""
        kept = np.arange(len(self))
        if iterations is not None:
            kept = kept[np.isin(self.spans.iteration, list(iterations))]
        spans = self.spans.take(kept)
        if not len(spans):
            return []
        count = len(np.unique(coded([spans.iteration, spans.rank])))
        _, one, group = np.unique(
            coded([spans.lane, spans.name]), return_index=True, return_inverse=True
        )
        nbytes = np.zeros(len(one), np.int64)
        np.maximum.at(nbytes, group, spans.nbytes)
        waiting_s = np.bincount(group, self.waiting_s[kept]) / count
        moving_s = np.bincount(group, self.transferring_s[kept]) / count
        lasts_s = np.bincount(group, spans.end_s - spans.start_s) / count
        hidden_s = np.maximum(lasts_s - waiting_s - moving_s, 0.0)
        columns = (one, nbytes, waiting_s, moving_s, hidden_s, spans.start_s[one])
        return [
            MessageExposure(LANES[spans.lane[at]], spans.texts[spans.name[at]], *values)
            for at, *values in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Exposure]:
        for begin in range(0, len(self), _AT_ONCE):
            yield from self._made(np.arange(begin, min(begin + _AT_ONCE, len(self))))

    def _made(self, places: Numbers) -> Iterator[Exposure]:
        waited: dict[int, dict[int, float]] = defaultdict(dict)
        for some, ranks, seconds_s in self.charges(places):
            for at, rank, waited_s in zip(
                some.tolist(), ranks.tolist(), seconds_s.tolist(), strict=True
            ):
                waited[at][rank] = waited_s
        spans, texts = self.spans, self.spans.texts
        columns = (
            places, spans.iteration[places], spans.rank[places], spans.lane[places],
            spans.name[places], spans.nbytes[places], self.waiting_s[places],
            self.transferring_s[places],
        )  # fmt: skip
        for at, iteration, rank, lane, name, nbytes, waiting_s, transferring_s in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield Exposure(
                iteration=iteration,
                rank=rank,
                lane=LANES[lane],
                name=texts[name],
                nbytes=nbytes,
                waiting_s=waiting_s,
                transferring_s=transferring_s,
                waited_for_s=waited.get(at, {}),
            )


class _Free:
    """How much time of each rank had been exposed until a moment, as a share of each message.

    Within a message it rises while the rank computes nothing, by the time divided among the
    messages that are under way. So what a message has of a stretch is the rise over it.
    """

    def __init__(self, spans: Spans) -> None:
        found, computing, messages = cut(spans, spans.rank)
        exposed = (messages > 0) & ~computing
        # Sums over a long training shall not lose what one message has.
        self._share = exposed / np.maximum(messages, 1).astype(np.longdouble)
        risen = np.cumsum((found.end_s - found.start_s) * self._share)
        self._risen, self._start_s = risen, found.start_s
        self._end_s = found.end_s
        bounds = runs(found.group)
        self._of = dict(
            zip(
                found.group[bounds].tolist(),
                map(slice, bounds.tolist(), [*bounds[1:].tolist(), len(found.group)]),
                strict=True,
            )
        )

    def until(self, ranks: NDArray[Any], at_s: Times) -> NDArray[np.longdouble]:
        """Return how much had been exposed of some ranks until some moments."""
        found = np.zeros(len(at_s), np.longdouble)
        for rank, mine in groups(ranks):
            own = self._of.get(rank)
            if own is None:
                continue
            moment_s = at_s[mine]
            # The piece that a moment is in, or the last before it.
            place = np.searchsorted(self._start_s[own], moment_s, "right") - 1 + own.start
            left_s = np.maximum(self._end_s[place] - moment_s, 0.0)
            found[mine] = self._risen[place] - left_s * self._share[place]
        return found


@memoized
def exposures(timeline: Timeline) -> Exposures:
    """Return the exposure of every rank to every message, by iteration, rank and start."""
    found = collectives(timeline)
    spans = found.spans.take(found.rows)
    order = np.lexsort((found.of, spans.end_s, spans.start_s, spans.rank, spans.iteration))
    return Exposures(found, order, _Free(timeline.columns))
