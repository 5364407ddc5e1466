"""Shares: how far computation usually has come when messages that are alike start.

That is the part of an iteration's forward, backward or update that is done. A rank that others wait
for does in one task what others do in several, between waits: shares of tasks do not compare.
"""

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
        self._parts, self._done = parts, _done(replay)
        lane = np.where(parts.task >= 0, replay.tasks.lane[parts.task], -1)
        channel = messages.spans.channel[messages.rows]
        code = coded([parts.lane, parts.name, channel, lane])
        kinds, self._alike = np.unique(code, return_inverse=True)
        self._usual = np.full((len(kinds), len(ranks)), np.nan)
        mine = np.flatnonzero(np.isin(parts.rank, ranks))
        at = np.searchsorted(ranks, parts.rank[mine])
        before, own = self._done
        reached = before[parts.task] + replay.recorded.shares * own[parts.task]
        order = np.lexsort((reached[mine], at, self._alike[mine]))
        key = (self._alike[mine] * len(ranks) + at)[order]
        first = runs(key)
        count = np.diff(first, append=len(key))
        low, high = (reached[mine[order[first + half]]] for half in ((count - 1) // 2, count // 2))
        self._usual.ravel()[key[first]] = (low + high) / 2

    def like(self, rows: Numbers, ranks: Sequence[int]) -> tuple[Numbers, Times]:
        """Return those of some messages of which some ranks have the like, and shares by these.

        Args:
            rows: of the parts of messages, which follow a task.
            ranks: by their places among those that computed.
        """
        theirs = self._usual[:, list(ranks)]
        some: Mask = np.asarray(~np.isnan(theirs).all(axis=1))
        usual = np.full(len(theirs), np.nan)
        usual[some] = np.nanmedian(theirs[some], axis=1)
        mine = rows[some[self._alike[rows]]]
        task = self._parts.task[mine]
        before, own = (of[task] for of in self._done)
        share = (usual[self._alike[mine]] - before) / np.where(own > 0, own, 1.0)
        return mine, np.clip(share, 0.0, 1.0)


def _done(replay: Replay) -> tuple[Times, Times]:
    """Return of each task which part of its lane in an iteration was done before, and which it is.

    Behind them stand 0 and 1, for what follows no task.
    """
    tasks, lasts_s = replay.tasks, replay.recorded.tasks_s
    turn = coded([tasks.rank, tasks.iteration, tasks.lane])
    order = np.argsort(turn, kind="stable")
    done_s = np.cumsum(lasts_s[order]) - lasts_s[order]
    first = runs(turn[order])
    count = np.diff(first, append=len(order))
    before_s = np.empty(len(order))
    before_s[order] = done_s - np.repeat(done_s[first], count)
    whole_s = np.bincount(turn, lasts_s)[turn]
    whole_s = np.where(whole_s > 0, whole_s, 1.0)
    return np.append(before_s / whole_s, 0.0), np.append(lasts_s / whole_s, 1.0)
