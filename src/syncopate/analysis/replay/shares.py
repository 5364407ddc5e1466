"""Shares: how far computation usually has come when messages that are alike start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncopate.analysis.replay.played import Replay
from syncopate.analysis.sweep import runs
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times, coded


class Shares:
    """The medians of the shares of messages by kind and rank.

    Messages are alike of one lane, name and channel that follow computation of one lane.

    Args:
        replay: of a timeline.
        ranks: those that computed, rising.
    """

    def __init__(self, replay: Replay, ranks: Sequence[int]) -> None:
        parts, messages = replay.parts, replay.messages
        lane = np.where(parts.task >= 0, replay.tasks.lane[parts.task], -1)
        channel = messages.spans.channel[messages.rows]
        code = coded([parts.lane, parts.name, channel, lane])
        kinds, self._alike = np.unique(code, return_inverse=True)
        self._usual = np.full((len(kinds), len(ranks)), np.nan)
        mine = np.flatnonzero(np.isin(parts.rank, ranks))
        at, shares = np.searchsorted(ranks, parts.rank[mine]), replay.recorded.shares
        order = np.lexsort((shares[mine], at, self._alike[mine]))
        key = (self._alike[mine] * len(ranks) + at)[order]
        first = runs(key)
        count = np.diff(first, append=len(key))
        low, high = (shares[mine[order[first + half]]] for half in ((count - 1) // 2, count // 2))
        self._usual.ravel()[key[first]] = (low + high) / 2

    def like(self, rows: Numbers, ranks: Sequence[int]) -> tuple[Numbers, Times]:
        """Return those of some messages of which some ranks have the like, and their medians.

        Args:
            rows: of the parts of messages.
            ranks: by their places among those that computed.
        """
        theirs = self._usual[:, list(ranks)]
        some: Mask = np.asarray(~np.isnan(theirs).all(axis=1))
        usual = np.full(len(theirs), np.nan)
        usual[some] = np.nanmedian(theirs[some], axis=1)
        mine = rows[some[self._alike[rows]]]
        return mine, usual[self._alike[mine]]
