"""Least: seconds that messages take at least, without playing them.

Two bounds, both for max-min fair rates and for any others. Messages that follow one another take
their times one after the other, each with the links for itself. And a link carries its messages one
after the other at best: it takes their bytes over its rate, between the earliest that any of them
can begin and the least that is left when any of them is through. That holds for any of its
messages; those of layers that follow one another are looked at.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from syncopate.costs.flows.traffic import ADDED, Traffic
from syncopate.costs.model.pieces import FloatArray, IntArray


def least_seconds(traffic: Traffic, nbytes: FloatArray) -> FloatArray:
    """Return what a traffic takes at least, for each size of the buffer; shape of ``nbytes``.

    It never falls with the size, and as it shrinks it becomes what the traffic takes.

    Args:
        traffic: at least one message.
        nbytes: sizes of the buffer, shape (n,), >= 0.
    """
    slowest = np.append(1 / traffic.rate, 0.0)[traffic.links].max(axis=1)
    # Messages that stand for each other are on their way at the same time.
    alone_s = (traffic.share * traffic.weight * slowest)[:, None] * nbytes
    taken_s = traffic.latency_s[:, None] + alone_s
    added_s = traffic.addition_s[:, None] * nbytes
    begins_s = _before(traffic, taken_s, added_s) + traffic.latency_s[:, None]
    left_s = _after(traffic, taken_s, added_s)
    in_a_row_s = (begins_s + alone_s + left_s).max(axis=0)
    return np.asarray(np.maximum(in_a_row_s, _busiest_s(traffic, nbytes, begins_s, left_s)))


def _before(traffic: Traffic, taken_s: FloatArray, added_s: FloatArray) -> FloatArray:
    """Return the earliest that each message has nothing to wait for; shape (m, n)."""
    edges = traffic.edges
    order = np.argsort(edges.after, kind="stable")
    before, after, kind = edges.before[order], edges.after[order], edges.kind[order]
    found = np.zeros_like(taken_s)
    for low, high in _by_layer(traffic, after):
        first = before[low:high]
        ends_s = found[first] + taken_s[first]
        ends_s += np.where(kind[low:high, None] == ADDED, added_s[first], 0.0)
        heads = np.flatnonzero(np.diff(after[low:high], prepend=-1))
        found[after[low:high][heads]] = np.maximum.reduceat(ends_s, heads, axis=0)
    return found


def _after(traffic: Traffic, taken_s: FloatArray, added_s: FloatArray) -> FloatArray:
    """Return the least that is left to do when the bytes of each message have left."""
    edges = traffic.edges
    found = added_s.copy()
    for low, high in reversed(_by_layer(traffic, edges.before)):
        first, then = edges.before[low:high], edges.after[low:high]
        left_s = taken_s[then] + found[then]
        left_s += np.where(edges.kind[low:high, None] == ADDED, added_s[first], 0.0)
        heads = np.flatnonzero(np.diff(first, prepend=-1))
        each = first[heads]
        found[each] = np.maximum(found[each], np.maximum.reduceat(left_s, heads, axis=0))
    return found


def _by_layer(traffic: Traffic, messages: IntArray) -> list[tuple[int, int]]:
    """Return where in ascending messages those of each layer are, of layers that have any."""
    layers = int(traffic.layer[-1]) + 1
    cuts = np.searchsorted(traffic.layer[messages], np.arange(layers + 1)).tolist()
    return [(low, high) for low, high in pairwise(cuts) if low < high]


def _busiest_s(
    traffic: Traffic, nbytes: FloatArray, begins_s: FloatArray, left_s: FloatArray
) -> FloatArray:
    """Return the most that a link takes for its messages of layers that follow one another."""
    links, layers = len(traffic.rate), int(traffic.layer[-1]) + 1
    flat = traffic.links.ravel()
    message = np.repeat(np.arange(len(traffic)), traffic.links.shape[1])[flat < links]
    place = (flat[flat < links], traffic.layer[message])
    byte_s = np.zeros((links, layers))
    np.add.at(byte_s, place, (traffic.share * traffic.weight)[message])
    byte_s /= traffic.rate[:, None]
    begins, left = (np.full((links, layers, len(nbytes)), np.inf) for _ in range(2))
    np.minimum.at(begins, place, begins_s[message])
    np.minimum.at(left, place, left_s[message])
    found = np.zeros(len(nbytes))
    for first in range(layers):
        carried_s = np.cumsum(byte_s[:, first:], axis=1)[:, :, None] * nbytes
        carried_s += np.minimum.accumulate(begins[:, first:], axis=1)
        carried_s += np.minimum.accumulate(left[:, first:], axis=1)
        carried_s[~np.isfinite(carried_s)] = 0.0
        found = np.maximum(found, carried_s.max(axis=(0, 1)))
    return found
