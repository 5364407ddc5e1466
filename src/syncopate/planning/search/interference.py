"""Interference: the best partition on one channel when overlap is not free.

While a collective runs beside backward, computation progresses at rate ρ (``compute_rate``) and the
collective takes σ times as long (``collective_stretch``); see [Note: interference] in
``simulation/iteration.py``. When a gradient is ready then depends on how long communication has run
before, so "the earliest end of the first j gradients" is no longer all there is to know about a
partition. Two figures are:

    t, when the last collective ended, and
    δ, the delay: wall-clock time minus the progress of computation, at t.

The next bucket (i, j] of cost C starts at ``s = max(t, r_j + δ)`` and ends at ``s + σ C`` with the
delay ``δ + (1 - ρ) σ C``, or sooner when backward ends on the way; the iteration's communication
and backward end at ``max(t, W + δ)`` with W all computation. So the dynamic programme keeps, for
each j, the *set* of pairs (t, δ) of which none is at least as good as another in both.

[Note: when it is exact] Dropping a dominated pair is safe if the pair ahead stays ahead, which
holds if overlap pays: a collective of cost C hidden entirely behind computation costs the
computation (1 - ρ) σ C, which must not exceed C. That is ``(1 - ρ) σ <= 1``, and then the partition
is optimal, as long as no set outgrows ``STATES`` pairs and every place may be a cut. If overlap
does not pay, starting a collective as soon as possible may be wrong in itself, and this is a
heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncopate.artifacts.cluster import Interference
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.planning.problem import Partition, Problem

STATES = 48
"""Pairs kept per gradient; more are thinned evenly, and the ends are always kept."""


@dataclass(frozen=True)
class _States:
    """Pairs worth keeping after some gradients; all arrays of shape (n,).

    Attributes:
        end_s: t.
        delay_s: δ.
        parent: index of the state it came from, counted over all states so far.
        stop: how many gradients have been sent.
    """

    end_s: FloatArray
    delay_s: FloatArray
    parent: IntArray
    stop: IntArray


def overlap_pays(interference: Interference) -> bool:
    """Return whether hiding a collective costs computation no more than running it afterwards."""
    return (1 - interference.compute_rate) * interference.collective_stretch <= 1


def least_disturbing(
    problem: Problem, compute_s: float, interference: Interference, stops: Sequence[int]
) -> Partition:
    """Return a partition with the earliest end under interference; see the module.

    Args:
        problem: ready times, sizes and costs.
        compute_s: W, forward and backward alone.
        interference: ρ and σ.
        stops: where buckets may end, ascending; the last is ``problem.length``.
    """
    known = _States(np.zeros(1), np.zeros(1), np.full(1, -1, np.int64), np.zeros(1, np.int64))
    for stop in stops:
        ready_s = float(problem.ready_s[stop - 1])
        cost = problem.bucket_costs(problem.cost, known.stop, stop)
        end, delay = _send(known, ready_s, cost, compute_s, interference)
        kept = undominated(end, delay)
        known = _States(
            np.concatenate((known.end_s, end[kept])),
            np.concatenate((known.delay_s, delay[kept])),
            np.concatenate((known.parent, kept)),
            np.concatenate((known.stop, np.full(len(kept), stop))),
        )
    last = np.flatnonzero(known.stop == problem.length)
    finish = np.maximum(known.end_s[last], compute_s + known.delay_s[last])
    state = int(last[np.argmin(finish)])
    ends = []
    while known.stop[state]:
        ends.append(int(known.stop[state]))
        state = int(known.parent[state])
    return tuple(reversed(ends))


def _send(
    states: _States,
    ready_s: float,
    cost_s: FloatArray,
    compute_s: float,
    interference: Interference,
) -> tuple[FloatArray, FloatArray]:
    """Return t and δ of each state after one more bucket."""
    rate, stretch = interference.compute_rate, interference.collective_stretch
    start = np.maximum(states.end_s, states.delay_s + ready_s)
    left = np.maximum(compute_s - (start - states.delay_s), 0.0)
    until_backward_ends = left / rate if rate > 0 else np.where(left > 0, np.inf, 0.0)
    overlapped = np.minimum(cost_s * stretch, until_backward_ends)
    end = start + overlapped + (cost_s - overlapped / stretch)
    hidden = overlapped < until_backward_ends
    delay = np.where(hidden, states.delay_s + (1 - rate) * overlapped, end - compute_s)
    return end, delay


def undominated(first: FloatArray, second: FloatArray, most: int = STATES) -> IntArray:
    """Return the indices of pairs that no other pair equals or beats in both, by ascending first.

    Args:
        first: shape (n,); smaller is better.
        second: shape (n,); smaller is better.
        most: keep no more than so many.
    """
    order = np.lexsort((second, first))
    least = np.minimum.accumulate(second[order])
    better = np.concatenate(([True], least[1:] < least[:-1]))
    kept = order[better]
    if len(kept) > most:
        kept = kept[np.linspace(0, len(kept) - 1, most).round().astype(np.int64)]
    return kept
