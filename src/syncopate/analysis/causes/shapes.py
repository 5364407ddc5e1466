"""Shapes: which part of a lane's time in an iteration each of its tasks usually takes, by rank.

A rank may be slow in one task of several alone: in one of two models, or in one micro-batch. What
makes it as fast as the others makes that task shorter, and leaves the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncopate.analysis.sweep import runs
from syncopate.artifacts.timelines.spans import Numbers, Times

_OTHER = 0.05
"""A rank's tasks are of another shape where so much of its time is in other ones."""


class Shapes:
    """The shapes of lanes.

    Args:
        rank: of each task, by place, rising.
        at: its iteration, by place.
        lane: the part of an iteration that it belongs to.
        tasks_s: how long each takes; those of a rank are by start.
    """

    def __init__(self, rank: Numbers, at: Numbers, lane: Numbers, tasks_s: Times) -> None:
        self._rank, self._lane = rank, lane
        self._turn = (rank * (int(at.max(initial=0)) + 1) + at) * (int(lane.max(initial=0)) + 1)
        self._turn += lane
        order = np.argsort(self._turn, kind="stable")
        first = runs(self._turn[order])
        count = np.diff(first, append=len(order))
        self._nth, self._count = np.empty((2, len(order)), np.int64)
        self._nth[order] = np.arange(len(order)) - np.repeat(first, count)
        self._count[order] = np.repeat(count, count)
        whole_s = np.bincount(self._turn, tasks_s)[self._turn]
        self._share = tasks_s / np.where(whole_s > 0, whole_s, 1.0)
        self._known: dict[tuple[int, int], tuple[Numbers, Times]] = {}

    def like(self, tasks_s: Times, rank: int, lane: int, others: Sequence[int]) -> None:
        """Give tasks of a rank the shape that those of others have; their sum stays.

        Args:
            tasks_s: how long tasks take, changed here.
            rank: whose.
            lane: of which part of an iteration.
            others: the ranks to be like.
        """
        mine, own = self._usual(rank, lane)
        theirs = [found for at in others if len(found := self._usual(at, lane)[1]) == len(own)]
        if len(own) < 2 or not theirs or own.min() <= 0:
            return
        usual = np.median(theirs, axis=0)
        if np.abs(own - usual).sum() / 2 <= _OTHER:
            return
        turn = np.unique(self._turn[mine], return_inverse=True)[1]
        before_s = np.bincount(turn, tasks_s[mine])
        tasks_s[mine] *= (usual / own)[self._nth[mine]]
        after_s = np.bincount(turn, tasks_s[mine])
        tasks_s[mine] *= (before_s / np.where(after_s > 0, after_s, 1.0))[turn]

    def _usual(self, rank: int, lane: int) -> tuple[Numbers, Times]:
        """Return the tasks of a rank's iterations that have the usual number, and their shape."""
        if (rank, lane) not in self._known:
            own = slice(*np.searchsorted(self._rank, [rank, rank + 1]).tolist())
            rows = own.start + np.flatnonzero(self._lane[own] == lane)
            count = int(np.median(self._count[rows])) if len(rows) else 0
            rows = rows[self._count[rows] == count]
            share = self._share[rows[np.argsort(self._nth[rows], kind="stable")]]
            usual = np.median(share.reshape(count, -1), axis=1) if len(rows) else np.zeros(0)
            self._known[rank, lane] = rows, usual / max(float(usual.sum()), 1e-30)
        return self._known[rank, lane]
