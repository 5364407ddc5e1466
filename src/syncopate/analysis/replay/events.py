"""Events of a replay, and the edges between them.

[Note: events and edges] Played, a timeline is a system of maxima and sums. Each event is a begin of
a task or a move of a message; it is at the maximum, over its edges, of an earlier event plus a
weight, and weights are sums of durations. Events of one level depend on earlier levels alone, so a
level is one step of numpy, for all ranks and all changes that are tried at once.
"""

from __future__ import annotations

import numpy as np

from syncopate.analysis.sweep import runs
from syncopate.errors import InvalidValueError
from syncopate.spans import Numbers, Times


class Events:
    """Events by level.

    Args:
        source: from which event each edge goes.
        target: to which.
        count: how many events there are; the last is the origin.
        name: of the timeline that they are of.

    Raises:
        InvalidValueError: they go round in circles.
    """

    def __init__(self, source: Numbers, target: Numbers, count: int, name: str) -> None:
        self._count = count
        level = _levels(source, target, count)
        if level is None:
            rule = "times that do not contradict each other: the clocks of its ranks are off"
            raise InvalidValueError("timeline", name, rule)
        self._order = np.lexsort((target, level[target]))
        self._source, target = source[self._order], target[self._order]
        heads = runs(target)
        self._target = target[heads]
        bounds = runs(level[self._target]).tolist()
        self._steps = []
        for first, end in zip(bounds, [*bounds[1:], len(heads)], strict=True):
            edges = slice(int(heads[first]), int(heads[end]) if end < len(heads) else len(source))
            self._steps.append((edges, slice(first, end), heads[first:end] - edges.start))

    @property
    def numbers(self) -> int:
        """How many numbers a change takes while it is played."""
        return self._count + 2 * len(self._source)

    def played(self, weights: Times) -> Times:
        """Return when each event is, from the origin; a column for each column of weights."""
        at_s = np.zeros((self._count, weights.shape[1]))
        weights = weights[self._order]
        for edges, targets, heads in self._steps:
            reached_s = at_s[self._source[edges]] + weights[edges]
            if len(heads) < len(reached_s):
                reached_s = np.maximum.reduceat(reached_s, heads, axis=0)
            at_s[self._target[targets]] = reached_s
        return at_s


def _levels(source: Numbers, target: Numbers, count: int) -> Numbers | None:
    """Return the length of the longest way to each event; None where there are circles."""
    pairs = np.unique(source * count + target)
    source, target = pairs // count, pairs % count
    left = np.bincount(target, minlength=count).tolist()
    begins = np.searchsorted(source, np.arange(count + 1)).tolist()
    follows, level = target.tolist(), [0] * count
    ready = [event for event, before in enumerate(left) if not before]
    seen = 0
    while ready:
        event = ready.pop()
        seen += 1
        above = level[event] + 1
        for after in follows[begins[event] : begins[event + 1]]:
            level[after] = max(level[after], above)
            left[after] -= 1
            if not left[after]:
                ready.append(after)
    return np.array(level) if seen == count else None
