"""Classes: messages that do the same at the same time are played once.

Two messages are alike when they have the same α and bytes, wait for messages that are alike, and
pass links that are alike; two links are alike when they are of one level and direction and the
same messages pass them, up to likeness. By induction over events, what is alike happens at the same
time at the same rate. So the links that are alike make one link with the rates of all of them, and
the messages one message that counts as many times.

Likeness is found by refinement, as colours of a graph are (Weisfeiler and Leman 1968): everything
begins alike, and what is found to differ makes others differ, until nothing changes. Colours are
64-bit hashes: among a million messages two that differ get the same with a chance of 3e-8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncopate.costs.flows.traffic import Edges, Traffic
from syncopate.costs.model.pieces import FloatArray

_Colours = NDArray[np.uint64]


def by_class(traffic: Traffic) -> Traffic:
    """Return the traffic with one message and one link for all that are alike."""
    colours, link_colours = _refined(traffic)
    _, first, of, counts = np.unique(
        colours, return_index=True, return_inverse=True, return_counts=True
    )
    # Numbered by their first message, so that classes wait for ones before them alone.
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of, first, counts = number[of], first[order], counts[order]
    _, link_first, link_of = np.unique(link_colours, return_index=True, return_inverse=True)
    rate = np.bincount(link_of, traffic.rate).astype(float)
    link_of = np.append(link_of, len(rate))
    edges = traffic.edges
    mine = first[of[edges.after]] == edges.after
    table = np.stack([of[edges.before[mine]], of[edges.after[mine]], edges.kind[mine]])
    before, after, kind = np.unique(table, axis=1)
    return Traffic(
        latency_s=traffic.latency_s[first],
        share=traffic.share[first],
        addition_s=traffic.addition_s[first],
        weight=np.bincount(of, traffic.weight).astype(float),
        links=link_of[traffic.links[first]],
        rate=rate,
        edges=Edges(before, after, kind),
        layer=traffic.layer[first],
        kinds=traffic.kinds[link_first],
    )


def _refined(traffic: Traffic) -> tuple[_Colours, _Colours]:
    """Refine the colours of messages and of links until another round changes none."""
    fixed = _hashed(traffic.latency_s, traffic.share, traffic.addition_s)
    waits = _Waits(traffic)
    kinds = _hashed(traffic.kinds.astype(float))
    link_colours = kinds
    known = (0, 0)
    while True:
        passed = np.append(link_colours, np.uint64(0))[traffic.links]
        colours = waits.coloured(fixed + _mixed(passed).sum(axis=1, dtype=np.uint64))
        crossing = np.zeros(len(traffic.rate) + 1, np.uint64)
        for column in traffic.links.T:
            np.add.at(crossing, column, _mixed(colours))
        link_colours = _mixed(kinds + _mixed(crossing[:-1]))
        found = len(np.unique(colours)), len(np.unique(link_colours))
        if found == known:
            return colours, link_colours
        known = found


class _Waits:
    """The dependencies of each message, layer by layer."""

    def __init__(self, traffic: Traffic) -> None:
        edges = traffic.edges
        order = np.argsort(edges.after, kind="stable")
        self.before, self.after = edges.before[order], edges.after[order]
        self.kind = _hashed(edges.kind[order].astype(float))
        layers = int(traffic.layer[-1]) + 1
        self.cuts = np.searchsorted(traffic.layer, np.arange(layers + 1))
        self.edge_cuts = np.searchsorted(self.after, self.cuts)

    def coloured(self, own: _Colours) -> _Colours:
        """Return the colours of messages from what they are by themselves."""
        colours = own.copy()
        for low, high, first, last in zip(
            self.cuts[:-1], self.cuts[1:], self.edge_cuts[:-1], self.edge_cuts[1:], strict=True
        ):
            if first < last:
                waited = _mixed(colours[self.before[first:last]] + self.kind[first:last])
                after = self.after[first:last]
                heads = np.flatnonzero(np.diff(after, prepend=-1))
                colours[after[heads]] += np.add.reduceat(waited, heads)
            colours[low:high] = _mixed(colours[low:high])
        return colours


def _hashed(*columns: FloatArray) -> _Colours:
    """Return a number for every row of values; equal rows get equal numbers."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = _mixed(found + np.ascontiguousarray(column + 0.0).view(np.uint64))
    return found


def _mixed(values: _Colours) -> _Colours:
    """Return numbers that say nothing of how alike the values are (splitmix64's finalizer)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
