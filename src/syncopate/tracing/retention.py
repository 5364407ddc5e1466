"""Retention: which iterations a capture keeps, so that a training of weeks fits on a disk.

The last iterations are kept whole. Of earlier ones every k-th is kept, and those that took
unusually long, each with the one behind it, which says when it was over. A file is thinned when it
has grown to half of its limit, and is then at most a quarter of it, so that the file and its
successor, while that is written, stay below the limit together.

Ranks thin their files by themselves. What they keep fits together, because they keep the same
multiples, and because an iteration that takes long does so on every rank.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from syncopate.errors import InvalidValueError

T = TypeVar("T")

EVERY = 100
LIMIT_BYTES = 256 << 20
_LEAST_LIMIT_BYTES = 1 << 20

UNUSUAL = 1.5
"""An iteration is unusual from this many times the median of its neighbours on."""

_AGAIN_S = 30.0
"""How long after the last try a nearly full file is thinned again: a disk may have room again."""

IDLE = 4.0
"""How much longer than it works a patient thinning rests."""

_NEIGHBOURS = 101
_LARGEST = 1 << 62
_LARGEST_EVERY = 1 << 40


class Retention(NamedTuple):
    """The iterations that a capture keeps.

    Attributes:
        last: how many iterations at the end are kept whole; None: as many as there is room for.
        every: every n-th of the earlier ones is kept; 0: none of them.
        limit_bytes: what a file of a rank takes on the disk at most.
    """

    last: int | None = None
    every: int = EVERY
    limit_bytes: int = LIMIT_BYTES

    @property
    def target_bytes(self) -> int:
        """The largest size of a thinned file."""
        return self.limit_bytes // 4

    def due(self, nbytes: int, thinned_bytes: int, fresh: int, tried_s: float) -> bool:
        """Say whether a file is to be thinned; each time it has grown, so all of it is cheap.

        Args:
            nbytes: that the file has.
            thinned_bytes: that it had when that was tried last, with or without success; 0: never.
            fresh: iterations that were written since.
            tried_s: when that was, by ``time.monotonic``; ``-math.inf``: never.
        """
        if nbytes > self.limit_bytes * 3 // 4 and time.monotonic() - tried_s > _AGAIN_S:
            return True
        if nbytes > self.limit_bytes // 2 and nbytes > thinned_bytes * 3 // 2:
            return True
        return self.last is not None and fresh >= 2 * self.last and nbytes >= 2 * thinned_bytes


class Pace:
    """Leaves most of the time of one core to the training, which computes meanwhile.

    Args:
        patient: whether there is time for that; else it never rests.
    """

    def __init__(self, patient: bool) -> None:
        self._patient = patient
        self._began_s = time.perf_counter()

    def rest(self) -> None:
        """Sleep for :data:`IDLE` times as long as was worked since the last rest."""
        took_s = time.perf_counter() - self._began_s
        if self._patient and took_s > 1e-3:
            time.sleep(took_s * IDLE)
            self._began_s = time.perf_counter()


def retention(
    last: int | None = None,
    every: int | None = None,
    limit_bytes: int | None = None,
    limit_bytes_default: int = LIMIT_BYTES,
) -> Retention:
    """Return the settings: as given, else from the environment, else the defaults.

    The variables are ``SYNCOPATE_TRACE_LAST``, ``_EVERY`` and ``_LIMIT_BYTES``.

    Args:
        last: see :class:`Retention`; None: not given.
        every: likewise.
        limit_bytes: likewise.
        limit_bytes_default: the limit where nothing is said.

    Raises:
        InvalidValueError: no number, or one out of range.
    """
    return Retention(
        _chosen("last", last, 1, None),
        _chosen("every", every, 0, EVERY),
        _chosen("limit_bytes", limit_bytes, _LEAST_LIMIT_BYTES, limit_bytes_default),
    )


def _chosen(name: str, given: int | None, least: int, otherwise: T) -> int | T:
    variable = f"SYNCOPATE_TRACE_{name.upper()}"
    text = os.environ.get(variable, "") if given is None else str(given)
    if not text:
        return otherwise
    if not text.isdecimal() or not least <= int(text) <= _LARGEST:
        what, value = (variable, text) if given is None else (name, given)
        raise InvalidValueError(what, value, f"an integer >= {least}")
    return int(text)


def kept(
    iterations: NDArray[np.int64],
    durations_s: NDArray[np.float64],
    nbytes: NDArray[np.int64],
    keep: Retention,
) -> tuple[NDArray[np.bool_], int]:
    """Return which iterations to keep, and the k of every k-th: doubled until there is room.

    Half of the room is for the last ones, a quarter for every k-th, a quarter for unusual ones.

    Args:
        iterations: in the file, rising.
        durations_s: of each.
        nbytes: that each takes in the file.
        keep: what is asked for.
    """
    count, room = len(iterations), keep.target_bytes
    fits = int(np.searchsorted(np.cumsum(nbytes[::-1]), room // 2, side="right"))
    last = max(fits if keep.last is None else min(keep.last, fits), 1)
    found = np.arange(count) >= count - last
    every = keep.every
    while every <= _LARGEST_EVERY:
        sampled = ~found & (iterations % every == 0) if every else np.zeros(count, np.bool_)
        if nbytes[sampled].sum() <= room // 4:
            found |= sampled
            break
        every *= 2
    else:
        every = 0
    ratio = _ratios(durations_s)
    odd = np.flatnonzero(ratio >= UNUSUAL)
    left = room // 4
    for place in odd[np.argsort(-ratio[odd], kind="stable")].tolist():
        # The one behind it says when it was over, and shows what it left.
        pair = [p for p in (place, place + 1) if p < count and not found[p]]
        left -= int(nbytes[pair].sum())
        if left < 0:
            break
        found[pair] = True
    return found, every


def _ratios(durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much longer than the median of its neighbours each is."""
    ratios = np.ones(len(durations_s))
    for begin in range(0, len(durations_s), _NEIGHBOURS):
        # The last group has neighbours too, where there are any.
        own = slice(begin, begin + _NEIGHBOURS)
        near = durations_s[max(min(begin, len(durations_s) - _NEIGHBOURS), 0) :][:_NEIGHBOURS]
        median_s = float(np.median(near))
        if median_s > 0:
            ratios[own] = durations_s[own] / median_s
    return ratios
