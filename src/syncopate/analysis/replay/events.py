"""Events of a replay, and the edges between them.

[Note: events and edges] Played, a timeline is a system of maxima and sums. Each event is a begin of
a task or a move of a message; it is at the maximum, over its edges, of an earlier event plus a
weight, and weights are sums of durations. Events of one level depend on earlier levels alone, so a
level is one step of numpy, for all ranks and all changes that are tried at once.

[Note: windows] A long training of few ranks has very many levels of very few events. Its events
are cut by time into windows, and one step plays the same level of all windows. What comes into a
window from earlier ones is guessed at first. A guess that is off by the same time everywhere only
moves the window by that time; and as ranks wait for each other, other differences are soon
forgotten. So windows are moved to fit, and played again from better guesses until all of them fit:
two or three times, as a rule. Where they do not, levels are played one by one. (Maleki, Musuvathi
and Mytkowicz, Parallelizing dynamic programming through rank convergence, 2014.)
"""

from __future__ import annotations

from functools import partial

import numpy as np

from syncopate.analysis.sweep import runs
from syncopate.artifacts.timelines.spans import Numbers, Times
from syncopate.errors import InvalidValueError

_WINDOWS, _LEAST = 128, 256
"""There are at most so many windows, and each has at least so many events in the mean."""

_WIDE = 512
"""Levels that have so many edges in the mean are played one by one."""

_TIMES = 4
"""Windows are played as often, at most."""

_MENDED = 64
"""How often edges that go back are looked for, at most."""

_FITS_S = 1e-10
"""Guesses are off by the same time everywhere where they differ by less."""


class Events:
    """Events by level.

    Args:
        source: from which event each edge goes.
        target: to which.
        at_s: when each event was, from the origin, about; the origin is the last.
        name: of the timeline that they are of.

    Raises:
        InvalidValueError: they go round in circles.
    """

    def __init__(self, source: Numbers, target: Numbers, at_s: Times, name: str) -> None:
        self._count = count = len(at_s)
        windows = _windows(source, target, at_s)
        level = _levels(source, target, windows)
        if level is None:
            rule = "times that do not contradict each other: the clocks of its ranks are off"
            raise InvalidValueError("timeline", name, rule)
        self._number = int(windows.max()) + 1
        depth = np.zeros(self._number, np.int64)
        np.maximum.at(depth, windows, level + 1)
        self._windows, self._about_s = windows, at_s
        alone = level + (np.cumsum(depth) - depth)[windows]
        self._one_by_one = partial(_Steps, source, target, alone)
        self._steps: _Steps | None = None
        self._at_once: _Steps | None = None
        self._edges = len(source)
        if self._number > 1 and len(source) < _WIDE * depth.sum():
            outside = windows[source] < windows[target]
            self._at_once = _Steps(np.where(outside, source + count, source), target, level)
            self._outside = np.flatnonzero(outside)
            self._outside = self._outside[np.argsort(windows[target[outside]], kind="stable")]
            self._from = source[self._outside]
            into = windows[target[self._outside]]
            self._into, self._first = into[runs(into)], runs(into)

    @property
    def numbers(self) -> int:
        """How many numbers a change takes while it is played."""
        return self._count * (3 if self._at_once else 1) + 2 * self._edges

    def played(self, weights: Times) -> Times:
        """Return when each event is, from the origin; a column for each column of weights."""
        if weights.shape[1] == 1:  # numpy is faster without the second dimension
            return self._played(weights[:, 0])[:, None]
        return self._played(weights)

    def _played(self, weights: Times) -> Times:
        found = self._played_at_once(weights)
        if found is not None:
            return found
        self._steps = self._steps or self._one_by_one()
        at_s = np.zeros((self._count, *weights.shape[1:]))
        self._steps.play(at_s, weights[self._steps.order])
        return at_s

    def _played_at_once(self, weights: Times) -> Times | None:
        """Return the same, played by [Note: windows]; None: they do not fit."""
        if self._at_once is None:
            return None
        # Behind what is played stands what was guessed, which comes from outside of windows.
        at_s = np.zeros((2 * self._count, *weights.shape[1:]))
        new_s, guessed_s = at_s[: self._count], at_s[self._count :]
        guessed_s.T[:] = self._about_s
        weights = weights[self._at_once.order]
        for _ in range(_TIMES):
            self._at_once.play(at_s, weights)
            moved_s, fits = self._moved(new_s, guessed_s)
            new_s += moved_s[self._windows]
            if fits:
                return new_s.copy()
            guessed_s[:] = new_s
        return None

    def _moved(self, new_s: Times, guessed_s: Times) -> tuple[Times, bool]:
        """Return by how much each window moves to fit behind the others, and whether all do."""
        off_s = new_s[self._from] - guessed_s[self._from]
        windows = self._windows[self._from]
        moved_s = np.zeros((self._number, *new_s.shape[1:]))
        fits = True
        ends = np.append(self._first[1:], len(windows))
        for window, first, end in zip(self._into, self._first, ends, strict=True):
            by_s = off_s[first:end] + moved_s[windows[first:end]]
            moved_s[window] = by_s.max(axis=0)
            fits = fits and bool(np.all(moved_s[window] - by_s.min(axis=0) <= _FITS_S))
        return moved_s, fits


class _Steps:
    """Edges by the level of their targets: a step for each level.

    Args:
        source: from which event each edge goes.
        target: to which.
        level: of each event.

    Attributes:
        order: of the edges.
    """

    def __init__(self, source: Numbers, target: Numbers, level: Numbers) -> None:
        self.order = np.argsort(level[target] * len(level) + target)
        self._source, target = source[self.order], target[self.order]
        heads = runs(target)
        self._target = target[heads]
        bounds = runs(level[self._target]).tolist()
        self._steps = []
        for first, end in zip(bounds, [*bounds[1:], len(heads)], strict=True):
            edges = slice(int(heads[first]), int(heads[end]) if end < len(heads) else len(source))
            self._steps.append((edges, slice(first, end), heads[first:end] - edges.start))

    def play(self, at_s: Times, weights: Times) -> None:
        """Set when each target of an edge is; a column for each column of weights in order."""
        for edges, targets, heads in self._steps:
            reached_s = at_s[self._source[edges]] + weights[edges]
            if len(heads) < len(reached_s):
                reached_s = np.maximum.reduceat(reached_s, heads, axis=0)
            at_s[self._target[targets]] = reached_s


def _windows(source: Numbers, target: Numbers, at_s: Times) -> Numbers:
    """Return the window of each event: no edge goes back, what waits for none is in the first."""
    count = len(at_s)
    number = min(max(count // _LEAST, 1), _WINDOWS)
    order = np.argsort(at_s, kind="stable")
    found = np.empty(count, np.int64)
    found[order] = np.arange(count) * number // count
    found[np.bincount(target, minlength=count) == 0] = 0
    for _ in range(_MENDED):
        back = np.flatnonzero(found[source] > found[target])
        if not len(back):
            return found
        np.maximum.at(found, target[back], found[source[back]])
    return np.zeros(count, np.int64)  # by clocks that differ widely


def _levels(source: Numbers, target: Numbers, windows: Numbers) -> Numbers | None:
    """Return the length of the longest way to each event within its window; None: circles."""
    count = len(windows)
    inside = windows[source] == windows[target]
    source, target = source[inside], target[inside]
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    left = np.bincount(target, minlength=count)
    many = np.bincount(source, minlength=count)
    begins = np.cumsum(many) - many
    level = np.zeros(count, np.int64)
    ready, seen, depth = np.flatnonzero(left == 0), 0, 0
    while len(ready):
        seen += len(ready)
        level[ready] = depth
        depth += 1
        ready = ready[many[ready] > 0]
        each = many[ready]
        step = np.arange(int(each.sum())) + np.repeat(begins[ready] - np.cumsum(each) + each, each)
        after = target[step]
        np.subtract.at(left, after, 1)
        ready = np.unique(after[left[after] == 0])
    return level if seen == count else None
