"""Both ways: the best partition where gradients are pushed in backward and weights pulled again.

On one channel with ideal overlap an iteration is late twice. Pushes end after backward, by the
recurrence that ``optimal.py`` solves; with C the cost of a push,

    f(0) = 0,    f(j) = max(f(i), r_j) + C(i, j),

and forward ends late, because it waits for weights. The bucket that was pushed first is needed
last. So looked at from the end of forward backwards, with D the cost of a pull and n_j what of
forward is left when bucket (i, j] is needed,

    h(0) = 0,    h(j) = max(h(i), n_j) + D(i, j)

is the time from the start of that bucket's pull to the end of forward. With t_f the time of forward
and W that of forward and backward, the iteration takes

    max(h(L), t_f) - t_f + max(f(L), W) + update.

[Note: small at the turn] Both recurrences want small buckets where backward turns into forward: the
last gradients are ready last and their weights are needed first. Elsewhere larger ones save
start-ups.

The dynamic programme keeps for each j the pairs (f, h) of which none is at least as good as another
in both. Neither recurrence ever makes up for a loss, so dropping the others is safe, and the result
is optimal, as long as no set outgrows ``STATES`` pairs, every place may be a cut, and forward needs
weights in the reverse of ready order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from syncopate.costs.model.functions import CostFunction
from syncopate.costs.model.pieces import FloatArray, IntArray
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.search.interference import undominated

STATES = 24
"""Pairs kept per gradient; more are thinned evenly, and the ends are always kept."""


def both_ways(
    problem: Problem,
    forward_s: float,
    computed_s: float,
    stops: Sequence[int],
    channels: int = 1,
) -> Partition:
    """Return a partition with the shortest iteration; see the module.

    Args:
        problem: of an exchange that pulls.
        forward_s: t_f.
        computed_s: W, forward and backward alone.
        stops: where buckets may end, ascending; the last is ``problem.length``.
        channels: of several, each bucket holds up the next no longer than its bytes hold the link,
            or than its channel's share of all there is to start up. That is an estimate.
    """
    pulls = problem.pulls
    assert pulls is not None
    needed_s = np.array(pulls.needed_s)
    push = _occupancy(problem, problem.cost, channels)
    pull = _occupancy(problem, pulls.cost, channels)
    end, late = np.zeros(1), np.zeros(1)
    parent, at = np.full(1, -1, np.int64), np.zeros(1, np.int64)
    starts = np.zeros(1, np.int64)
    for index, stop in enumerate(stops):
        left_s = forward_s - np.minimum.accumulate(needed_s[:stop][::-1])[::-1][starts]
        pushed = np.maximum(end, problem.ready_s[stop - 1]) + push(starts, stop)[at]
        pulled = np.maximum(late, left_s[at]) + pull(starts, stop)[at]
        kept = undominated(pushed, pulled, STATES)
        end, late = np.concatenate((end, pushed[kept])), np.concatenate((late, pulled[kept]))
        parent = np.concatenate((parent, kept))
        at = np.concatenate((at, np.full(len(kept), index + 1)))
        starts = np.append(starts, stop)
    last = np.flatnonzero(at == len(stops))
    total_s = np.maximum(late[last] - forward_s, 0.0) + np.maximum(end[last], computed_s)
    state = int(last[np.argmin(total_s)])
    ends = []
    while at[state]:
        ends.append(int(starts[at[state]]))
        state = int(parent[state])
    return tuple(reversed(ends))


def _occupancy(
    problem: Problem, cost: CostFunction, channels: int
) -> Callable[[IntArray, int], FloatArray]:
    """Return for how long buckets ``[start, stop)`` hold up the next one."""

    def held_s(starts: IntArray, stop: int) -> FloatArray:
        whole_s = problem.bucket_costs(cost, starts, stop)
        if channels == 1:
            return whole_s
        nbytes = (problem.offsets[:, [stop]] - problem.offsets[:, starts]).sum(axis=0)
        bytes_s = np.maximum(whole_s - cost.startup_s, cost.least_s_per_byte * nbytes)
        return np.asarray(np.maximum(bytes_s, whole_s / channels))

    return held_s
