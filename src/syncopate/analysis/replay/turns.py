"""Turns: which message of a rank waited for which other on its channel."""

from __future__ import annotations

import numpy as np

from syncopate.analysis import sweep
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times


def in_turn(
    begun_s: Times,
    over_s: Times,
    channel: Numbers,
    *,
    idle: Mask,
    late_s: float,
    channel_s: float,
) -> tuple[Numbers, Times, Numbers]:
    """Return the message before each on its channel, by [Note: ends that are late].

    Where several are under way at once, such as sends and receives, a message that began while its
    rank stood still waited for one that was over just then, or for none.

    Args:
        begun_s: when each began, rising.
        over_s: when each was over.
        channel: of each.
        idle: whether its rank stood still when it began.
        late_s: by how much ends are noted late at most.
        channel_s: a message that begins within this time of the end of another waited for it.

    Returns:
        The message before; -1: none. When each was over for the next, and which one says so.
    """
    ends_s, count = over_s.copy(), len(begun_s)
    before = np.full(count, -1)
    order = np.argsort(channel, kind="stable")
    same = np.diff(channel[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    after = np.flatnonzero(before >= 0)
    one = before[after]
    noted_s = ends_s[one] - begun_s[after]
    most_s = np.minimum(late_s, (begun_s[after] - begun_s[one]) / 2)
    several = after[(noted_s > 0) & (noted_s > most_s)]
    before[several] = -1
    cut = (noted_s > 0) & (noted_s <= most_s)
    ends_s[one[cut]] = begun_s[after[cut]]
    ended_by = np.full(count, count)
    ended_by[one[cut]] = after[cut]
    several = several[idle[several]]
    for _, mine in sweep.groups(channel[several]):
        rows = several[mine]
        those = np.flatnonzero(channel == channel[rows[0]])
        by_end = those[np.argsort(over_s[those], kind="stable")]
        place = np.searchsorted(over_s[by_end], begun_s[rows] + 1e-9, "right")
        for last, behind in ((by_end[place - 1], False), (np.append(by_end, -1)[place], True)):
            most_s = np.minimum(late_s, (begun_s[rows] - begun_s[last]) / 2) * behind
            apart_s = over_s[last] - begun_s[rows]
            just = (place < len(by_end)) if behind else (place > 0)
            just &= (begun_s[last] < begun_s[rows]) & (before[rows] < 0)
            just &= (apart_s >= -channel_s) & (apart_s <= most_s + 1e-9)
            before[rows[just]] = last[just]
            ends_s[last[just]] = np.minimum(ends_s[last[just]], begun_s[rows[just]])
            ended_by[last[just]] = np.minimum(ended_by[last[just]], rows[just])
    return before, ends_s, ended_by
