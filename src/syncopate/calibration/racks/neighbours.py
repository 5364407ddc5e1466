"""Neighbours: the groupings one step away from another.

[Note: a shortlist] Every host could move to every group. Where these are too many to be judged one
by one, each move is first estimated from the pairs of the host that moves alone, as if it changed
nothing for the others, and only those that look best are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from syncopate.calibration.racks.levels import Observed, errors
from syncopate.costs.model.pieces import FloatArray, IntArray

Capacity = Callable[[IntArray], FloatArray]
"""The capacity of each group's uplink, (B, hosts) to (B, groups)."""

_MOST_JUDGED = 400


class Neighbours(NamedTuple):
    """Groupings one step away, each shape (B, hosts).

    Attributes:
        moves: one host is in another group, or in one of its own.
        joins: two groups are one.
        exchanges: two hosts that were a pair change places.
    """

    moves: IntArray
    joins: IntArray
    exchanges: IntArray


def neighbours(labels: IntArray, capacity: Capacity, observed: Observed) -> Neighbours:
    """Return the groupings one step from ``labels``.

    Args:
        labels: the group of each host, groups numbered from 0 without gaps.
        capacity: what uplinks carry.
        observed: the pairs, and the rates for a shortlist.
    """
    hosts, groups = len(labels), int(labels.max()) + 1
    host, target = np.divmod(np.arange(hosts * (groups + 1)), groups + 1)
    host, target = host[target != labels[host]], target[target != labels[host]]
    ends = np.unique(np.stack([observed.pairs.a, observed.pairs.b], axis=1), axis=0)
    ends = ends[labels[ends[:, 0]] != labels[ends[:, 1]]]
    if len(host) > _MOST_JUDGED:
        worse = _estimates(labels, capacity, observed)
        best = np.argsort(worse[host, target], kind="stable")[:_MOST_JUDGED]
        host, target = host[best], target[best]
        one, other = ends[:, 0], ends[:, 1]
        both = worse[one, labels[other]] + worse[other, labels[one]]
        ends = ends[np.argsort(both, kind="stable")[:_MOST_JUDGED]]
    moves = np.repeat(labels[None], len(host), axis=0)
    moves[np.arange(len(host)), host] = target
    into, gone = np.triu_indices(groups, 1)
    joins = np.where(labels[None] == gone[:, None], into[:, None], labels[None])
    swaps = np.repeat(labels[None], len(ends), axis=0)
    rows = np.arange(len(ends))
    swaps[rows, ends[:, 0]], swaps[rows, ends[:, 1]] = labels[ends[:, 1]], labels[ends[:, 0]]
    return Neighbours(moves, joins, swaps)


def _estimates(labels: IntArray, capacity: Capacity, observed: Observed) -> FloatArray:
    """Return by how much more misfit each host seems to have in each group.

    The last column is a group of its own. See [Note: a shortlist].
    """
    pairs = observed.pairs
    groups = int(labels.max()) + 1
    carried = capacity(labels[None])[0]
    a, b = labels[pairs.a], labels[pairs.b]
    crosses = (a != b).astype(np.float64)
    count = np.zeros((pairs.rounds, groups))
    np.add.at(count, (pairs.round, a), crosses)
    np.add.at(count, (pairs.round, b), crosses)
    seems = np.zeros((len(labels), groups + 1))
    for host, here, there in ((pairs.a, a, b), (pairs.b, b, a)):
        others = count[pairs.round]
        others[np.arange(len(here)), here] -= crosses
        share = carried / (others + 1)
        share = np.concatenate([share, np.full((len(here), 1), carried.min())], axis=1)
        far = carried[there] / (others[np.arange(len(here)), there] + (1 - crosses))
        rate = np.minimum(pairs.able, np.minimum(share.T, far)).T
        ratio = np.log(np.maximum(rate, 1e-3) / pairs.able[:, None])
        ratio[np.arange(len(here)), there] = 0.0
        np.add.at(seems, host, errors(ratio, observed.log_ratio[:, None], observed.noise))
    return seems - seems[np.arange(len(labels)), labels][:, None]
