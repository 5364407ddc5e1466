"""Groups: which of them have slow links, by what the same messages take in groups like them.

Ranks that hold the same part of a model, share a layer, or are neighbours in a pipeline exchange as
many bytes as other ranks in the same place do. Messages are alike of one collective, as many ranks
and as many bytes; where no bytes are known, of one name and label; those of two stages also of the
same stages, where there are several pipelines. A message takes from its last arrival to the first
rank that is done with it. A group has a slow link where its messages usually take more than 1.5
times as long as those of the median group, and by more than clocks are wrong. What these groups
have in common has the slow link: one rank, or all of a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from syncopate.analysis.collectives import is_served
from syncopate.analysis.evidence.pipeline import SEND, stages
from syncopate.analysis.replay import Changed, Replay
from syncopate.analysis.work import SEVERAL
from syncopate.artifacts.timelines.spans import Numbers, Times

_LONGER, _LEAST_S = 1.5, 1e-4
"""Messages of a group with a slow link take so many times as long, and so much longer."""


_Alike = tuple[str, int, int, tuple[int, ...], str]


class SlowGroups(NamedTuple):
    """Groups that have a slow link in common.

    Attributes:
        ranks: whose link is slow.
        rows: the parts of their messages.
        factors: by which those take less in the groups like them.
    """

    ranks: tuple[int, ...]
    rows: Numbers
    factors: Times

    def like_others(self, changed: Changed) -> None:
        """Let messages take as long as those of the groups like theirs."""
        moved_s = changed.durations.transfers_s
        moved_s[self.rows] = np.where(
            moved_s[self.rows] > 0, moved_s[self.rows] * self.factors, moved_s[self.rows]
        )


class _Slow(NamedTuple):
    """A group whose messages take longer: its ranks, their messages, the share that others take.

    Of its ranks ``well`` are also in groups whose messages do not.
    """

    ranks: frozenset[int]
    messages: Numbers
    share: float
    well: frozenset[int]


def slow_groups(replay: Replay) -> tuple[SlowGroups, ...]:
    """Return the groups with slow links; those that share a rank together."""
    found = replay.messages
    if is_served(replay.timeline) or not len(found):
        return ()
    takes_s = np.minimum.reduceat(replay.recorded.transfers_s, found.first)
    counted = np.isin(replay.parts.iteration[found.first], replay.iterations)
    least_s = max(_LEAST_S, 2 * replay.clocks_off_s)
    where: dict[_Alike, dict[tuple[int, ...], list[int]]] = defaultdict(dict)
    for at, key, ranks in _messages(replay):
        where[key].setdefault(ranks, []).append(at)
    slow: list[_Slow] = []
    for groups in where.values():
        usual_s = {}
        for ranks, of in groups.items():
            mine = np.array(of)[counted[of]]
            if len(mine) >= SEVERAL:
                usual_s[ranks] = float(np.median(takes_s[mine]))
        shares = _shares(usual_s, least_s)
        well = frozenset(rank for ranks in groups if ranks not in shares for rank in ranks)
        slow += [
            _Slow(frozenset(ranks), np.array(groups[ranks]), share, well & frozenset(ranks))
            for ranks, share in shares.items()
        ]
    return tuple(_in_common(replay, slow))


def _shares(
    usual_s: Mapping[tuple[int, ...], float], least_s: float
) -> dict[tuple[int, ...], float]:
    """Return which groups are slow, and the share of their time that the others take."""
    found = {}
    for ranks, own_s in usual_s.items():
        others_s = sorted(s for other, s in usual_s.items() if other != ranks)
        if others_s:
            theirs_s = max(others_s[(len(others_s) - 1) // 2], 0.0)
            if own_s > max(_LONGER * theirs_s, theirs_s + least_s):
                found[ranks] = theirs_s / own_s
    return found


def _messages(replay: Replay) -> Iterator[tuple[int, _Alike, tuple[int, ...]]]:
    """Yield each message of several ranks: its place, what is alike, and its ranks."""
    found = replay.messages
    nbytes = found.most(found.spans.nbytes).tolist()
    ranks = replay.parts.rank
    of_stages = stages(replay.timeline)
    place = {rank: at for at, mine in enumerate(of_stages) for rank in mine}
    several = max(map(len, of_stages), default=0) > 1
    columns = (found.first, found.sizes, found.kinds, found.between_two)
    labels = [group.name.rstrip("0123456789.-_ ") for group in replay.timeline.groups]
    spans = found.spans
    for at, (first, size, kind, two) in enumerate(
        zip(*(one.tolist() for one in columns), strict=True)
    ):
        if size < 2:
            continue
        own = tuple(ranks[first : first + size].tolist())
        name = found.names[kind]
        of = tuple(place.get(rank, -1) for rank in own) if two and several else ()
        told = ""
        if not nbytes[at]:
            row = found.rows[first]
            channel = int(spans.channel[row])
            told = spans.texts[spans.name[row]] + " "
            told += labels[channel] if 0 <= channel < len(labels) else str(channel)
        yield at, (SEND if two else name, size, nbytes[at], of, told), own


def _in_common(replay: Replay, slow: Sequence[_Slow]) -> Iterator[SlowGroups]:
    """Yield slow groups, those that share ranks as one."""
    joined: list[list[_Slow]] = []
    for one in slow:
        touching = [rows for rows in joined if any(one.ranks & other.ranks for other in rows)]
        joined = [rows for rows in joined if rows not in touching]
        joined.append([one, *(row for rows in touching for row in rows)])
    for rows in joined:
        sets = [row.ranks for row in rows]
        ranks = frozenset.intersection(*sets) or frozenset.union(*sets)
        ranks = ranks.difference(*(row.well for row in rows)) or ranks
        parts = [np.flatnonzero(np.isin(replay.messages.of, row.messages)) for row in rows]
        factors = [np.full(len(own), row.share) for own, row in zip(parts, rows, strict=True)]
        yield SlowGroups(tuple(sorted(ranks)), np.concatenate(parts), np.concatenate(factors))
