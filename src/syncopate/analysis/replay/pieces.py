"""Pieces: what one rank computed, without the overlaps that profilers note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.intervals import Interval, near, without
from syncopate.analysis.phases import COMPUTATION
from syncopate.artifacts.timelines.spans import LANES, Mask, Numbers, Spans, Times

SEAM_S = 2e-5
"""Computation of one lane that goes on within this time is one task."""

_BESIDE = 0.1
"""Computation that overlaps the one before by less than this part of it follows it."""

_SHORT = 0.01
"""A shorter part of an iteration's backward does not say when its gradients were there."""

_SMALL_S, _ALONE = 1e-4, 2.0
"""What is computed in a wait is no longer than this, and stands apart by this many times itself."""

_FORWARD, _BACKWARD = LANES.index("forward"), LANES.index("backward")


class Pieces(NamedTuple):
    """Stretches of computation by start; each field is a column."""

    start_s: Times
    end_s: Times
    lane: Numbers
    iteration: Numbers


class _Piece(NamedTuple):
    start_s: float
    end_s: float
    lane: int
    iteration: int


def pieces_of(spans: Spans, stalls: list[Interval]) -> Pieces:
    """Return what one rank computed, by start, cut where it waited for messages.

    What lies within other computation is part of it, and what goes on in one lane is one piece.
    """
    rows = np.flatnonzero(spans.in_lanes(*COMPUTATION))
    rows = rows[np.lexsort((-spans.end_s[rows], spans.start_s[rows]))]
    columns = (spans.start_s, spans.end_s, spans.lane.astype(np.int64), spans.iteration)
    every = Pieces._make(column[rows] for column in columns)
    apart = _apart(every)
    begins = np.flatnonzero(apart)
    several = np.flatnonzero(np.diff(begins, append=len(rows)) > 1).tolist()
    if several:
        ends = np.append(begins[1:], len(rows))
        kept = np.ones(len(rows), bool)
        made: list[_Piece] = []
        places: list[int] = []
        for run in several:
            first, end = int(begins[run]), int(ends[run])
            kept[first:end] = False
            stretches = map(_Piece, *(column[first:end].tolist() for column in every))
            made += _merged(stretches)
            places += range(first, first + len(made) - len(places))
        order = np.argsort(np.concatenate([np.flatnonzero(kept), places]))
        every = Pieces._make(column[order] for column in _with(every, kept, made))
    if stalls:
        cut = sweep.shared(stalls, every.start_s, every.end_s)
        made = [
            piece._replace(start_s=start_s, end_s=end_s)
            for piece in map(_Piece, *(column[cut].tolist() for column in every))
            for start_s, end_s in without(
                [(piece.start_s, piece.end_s)], near(stalls, piece.start_s, piece.end_s)
            )
        ]
        every = _with(every, ~cut & (every.start_s < every.end_s), made)
        order = np.lexsort(every[::-1])
        every = Pieces._make(column[order] for column in every)
    return every


def _with(every: Pieces, kept: Mask, made: Sequence[_Piece]) -> Pieces:
    """Return those that are kept, and behind them others."""
    columns = zip(*made, strict=True) if made else ((),) * len(every)
    return Pieces._make(
        np.concatenate([column[kept], np.array(more, column.dtype)])
        for column, more in zip(every, columns, strict=True)
    )


def _apart(every: Pieces) -> Mask:
    """Say which stretches surely begin a piece if the one before them does."""
    count = len(every.start_s)
    if not count:
        return np.zeros(0, bool)
    until_s = np.maximum.accumulate(every.end_s)[:-1]
    place = np.arange(count)
    gap = np.append(True, every.start_s[1:] > until_s + SEAM_S)
    other = (every.lane[1:] != every.lane[:-1]) | (every.iteration[1:] != every.iteration[:-1])
    other &= (every.start_s[1:] >= until_s) & (every.end_s[1:] > until_s)
    other = np.append(False, other)
    since = np.maximum.accumulate(np.where(gap, place, -1))
    unclear = np.maximum.accumulate(np.where(gap | other, -1, place))
    return np.asarray(gap | (other & (since > unclear)))


def _merged(stretches: Iterator[_Piece]) -> list[_Piece]:
    """Return overlapping stretches, by start, as pieces."""
    found: list[_Piece] = []
    for one in stretches:
        last = found[-1] if found else None
        if last is None or one.start_s > last.end_s + SEAM_S:
            found.append(one)
            continue
        same = (one.lane, one.iteration) == (last.lane, last.iteration)
        lasts_s = one.end_s - one.start_s
        if one.end_s <= last.end_s and (same or 2 * lasts_s <= last.end_s - last.start_s):
            continue
        if same:
            found[-1] = last._replace(end_s=max(one.end_s, last.end_s))
        elif 0 < last.end_s - one.start_s <= _BESIDE * lasts_s:
            found.append(one._replace(start_s=last.end_s))
        else:
            found.append(one)
    return found


def without_small(every: Pieces, begun_s: Times, over_s: Times, channel_s: float) -> Pieces:
    """Leave out what a rank does in the midst of a wait: short forwards and backwards.

    Profilers note them, and they are no step of the training: a message is open all the while, none
    was over just before, and none starts just behind.

    Args:
        every: what a rank computed.
        begun_s: when each message of the rank began, rising.
        over_s: when each was over.
        channel_s: what begins within this time of an end follows it.
    """
    start_s, end_s = every.start_s, every.end_s
    lasts_s = end_s - start_s
    small = ((every.lane == _FORWARD) | (every.lane == _BACKWARD)) & (lasts_s <= _SMALL_S)
    if not small.any() or not len(begun_s):
        return every
    same = every.iteration[1:] == every.iteration[:-1]
    small &= np.append(False, same) & np.append(same, False)
    gap_s = start_s - np.append(-np.inf, end_s[:-1])
    next_s = np.append(start_s[1:], np.inf)
    small &= np.minimum(gap_s, next_s - end_s) > _ALONE * lasts_s
    there = np.searchsorted(begun_s, start_s)
    soon_s = end_s + np.minimum(channel_s, (next_s - end_s) / 4)
    small &= there == np.searchsorted(begun_s, soon_s)
    latest_s = np.append(-np.inf, np.maximum.accumulate(over_s))[there]
    small &= latest_s > end_s
    ended_s = np.sort(over_s)
    last_s = np.append(-np.inf, ended_s)[np.searchsorted(ended_s, start_s, "right")]
    small &= last_s < start_s - np.minimum(channel_s, gap_s / 4)
    return Pieces._make(column[~small] for column in every)


def backward_ends_s(pieces: Pieces) -> tuple[Numbers, Times]:
    """Return iterations, and when all gradients of each were there."""
    mine = pieces.lane == _BACKWARD
    lasts_s = pieces.end_s[mine] - pieces.start_s[mine]
    numbers, of = np.unique(pieces.iteration[mine], return_inverse=True)
    whole_s = np.bincount(of, lasts_s, len(numbers))
    ends_s = np.full(len(numbers), np.nan)
    long = lasts_s >= _SHORT * whole_s[of]
    ends_s[of[long]] = pieces.end_s[mine][long]  # of several the last
    return numbers, ends_s
