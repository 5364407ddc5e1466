"""Leads: what a rank does by itself after computation, before it comes to the message that follows.

A rank that waits for a message has no gap of its own before the computation that goes on with it.
What it did before it came to the message is its own all the same: input before the first gather of
an iteration, a pause before the ranks that share a layer add their parts. Where the computation
that follows does not wait for the message, its gap holds some of that, which counts there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.replay import Durations, Replay
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times


class Leads(NamedTuple):
    """Leads by task; each field but the first is a column.

    Attributes:
        rows: the parts of messages that start some time after the task that they follow.
        next: the rank's task behind; -1: none.
        lead_s: from the end of the task to the first of these, without the gap of the next task.
        shared_s: what of that gap is before the first of these.
        crosses: whether the first of these is of the next task's iteration, and the task is not.
    """

    rows: Numbers
    next: Numbers
    lead_s: Times
    shared_s: Times
    crosses: Mask

    @classmethod
    def of(cls, replay: Replay) -> Leads:
        """Return the leads of a replay."""
        tasks, parts = replay.tasks, replay.parts
        count = len(tasks.rank)
        rows = np.flatnonzero((parts.task >= 0) & (parts.delay_s > 0))
        first_s = np.full(count, np.inf)
        np.minimum.at(first_s, parts.task[rows], parts.delay_s[rows])
        number = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(number, parts.task[rows], parts.iteration[rows])
        there = np.isfinite(first_s)
        ready_s = tasks.end_s + np.where(there, first_s, 0.0)
        behind = np.full(count, -1)
        behind[tasks.previous[tasks.previous >= 0]] = np.flatnonzero(tasks.previous >= 0)
        gap_s = np.append(tasks.start_s - tasks.gap_s, np.inf)[behind]
        gap_s = np.where(behind >= 0, np.maximum(gap_s, tasks.end_s), np.inf)
        lead_s = np.where(there, np.minimum(ready_s, gap_s) - tasks.end_s, 0.0)
        shared_s = np.where(there, np.maximum(ready_s - gap_s, 0.0), 0.0)
        crosses = there & (behind >= 0) & np.append(tasks.opens, False)[behind]
        return cls(rows, behind, lead_s, shared_s, crosses & (number > tasks.iteration))

    def come(self, durations: Durations, leads_s: Times, replay: Replay) -> None:
        """Let messages come as early as leads, and the gaps that hold the rest, are shorter.

        Args:
            durations: with the gaps that are left; delays are changed here.
            leads_s: that are left, by task.
            replay: that the durations are of.
        """
        gap_s, left_s = (
            np.append(of, 0.0)[self.next] for of in (replay.tasks.gap_s, durations.gaps_s)
        )
        less = np.where(gap_s > 0, 1 - left_s / np.where(gap_s > 0, gap_s, 1.0), 0.0)
        less_s = self.lead_s - leads_s + self.shared_s * less
        task = replay.parts.task[self.rows]
        delays_s = durations.delays_s
        delays_s[self.rows] = np.maximum(delays_s[self.rows] - less_s[task], 0.0)


class Covered(NamedTuple):
    """What pauses of one name cover, by task.

    Attributes:
        inside_s: of the task.
        before_s: of the gap before it.
        after_s: of its lead.
    """

    inside_s: Times
    before_s: Times
    after_s: Times


def covered(replay: Replay, leads: Leads, name: str) -> Covered | None:
    """Return what pauses of a name cover of tasks, gaps and leads; None: there are none."""
    spans, tasks = replay.timeline.columns, replay.tasks
    chosen = spans.take(spans.in_lanes("wait") & spans.named((name,)))
    if not len(chosen):
        return None
    rows, none = dict(sweep.groups(tasks.rank)), np.zeros(0, np.int64)
    found = Covered(*np.zeros((3, len(tasks.rank))))
    for rank, mine in sweep.groups(chosen.rank):
        pauses, at = sweep.union(chosen, mine), rows.get(rank, none)
        begin_s, end_s = tasks.start_s[at], tasks.end_s[at]
        found.inside_s[at] = sweep.common_s(pauses, begin_s, end_s)
        found.before_s[at] = sweep.common_s(pauses, begin_s - tasks.gap_s[at], begin_s)
        found.after_s[at] = sweep.common_s(pauses, end_s, end_s + leads.lead_s[at])
    return found
