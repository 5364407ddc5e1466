"""Stages: BlueConnect with message chunks that are in several stages at once, in few messages.

Where its factors are the levels and the ranks are in their order, all ranks do the same in every
round: each sends one message at every level whose stage is at work, as long as all others', and
its unit's link carries as many as it has ranks. So a round of one rank stands for that of all, and
rounds, which begin and end together, add up. Rounds are of few kinds, for any number of ranks: a
kind is played once, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.flows.curve import played_pieces
from syncopate.costs.flows.traffic import Edges, Traffic
from syncopate.costs.model.pieces import Pieces, summed
from syncopate.costs.papers.levels import Links
from syncopate.recipe import ORDER
from syncopate.schedules.algorithms.blueconnect import STAGES, together
from syncopate.schedules.compose import topology_order

_Sent = tuple[int, float, bool]
"""What a rank sends in a round: the index of the level, the share of the buffer, and whether it is
added."""


STAGED = ("all_reduce", "blueconnect")


def staged_pieces(cluster: Cluster, options: Sequence[Mapping[str, Any]]) -> list[Pieces] | None:
    """Return the price of BlueConnect's all-reduce with each of several options.

    Args:
        cluster: the machines.
        options: ``factors``, ``pipelines``, ``stages`` and ``order`` of the algorithm.

    Returns:
        None where one of them does not fit the levels, or ranks are not in their order.
    """
    links = Links(cluster)
    near = topology_order(cluster)
    orders = (tuple(told.get(ORDER) or range(links.ranks)) for told in options)
    if not links.equal or len(links.sizes) < 2 or any(order != near for order in orders):
        return None
    counted: list[Counter[tuple[_Sent, ...]]] = []
    for told in options:
        factors = told.get("factors")
        names = told.get("stages") or ("recursive",) * len(links.sizes)
        pipelines = told.get("pipelines", 1)
        known = len(names) == len(links.sizes) and all(name in STAGES for name in names)
        if not known or factors is None or tuple(factors) != links.sizes or pipelines < 1:
            return None
        counted.append(_rounds(links, names, pipelines))
    kinds = list(dict.fromkeys(kind for rounds in counted for kind in rounds))
    played = played_pieces([_traffic(links, kind) for kind in kinds])
    costs = dict(zip(kinds, played, strict=True))
    found = []
    for told, rounds in zip(options, counted, strict=True):
        whole = summed([(times, costs[kind]) for kind, times in rounds.items()])
        found.append(whole.of_share(1 / told.get("pipelines", 1)))
    return found


def _rounds(links: Links, names: Sequence[str], pipelines: int) -> Counter[tuple[_Sent, ...]]:
    """Return how often a rank has each kind of round, with shares of a message chunk."""
    down = [
        [(index, share / links.units[index], True) for share in _shares(name, size)]
        for index, (name, size) in enumerate(zip(names, links.sizes, strict=True))
    ]
    up = [[(index, share, False) for index, share, _ in stage[::-1]] for stage in down[::-1]]
    stages = [*down, *up]
    found: Counter[tuple[_Sent, ...]] = Counter()
    lengths = [len(stage) for stage in stages]
    for active in together(lengths, pipelines):
        for step in range(max(lengths[stage] for stage, _, _ in active)):
            steps = [(stages[stage], step - late) for stage, _, late in active]
            found[tuple(sorted(of[at] for of, at in steps if 0 <= at < len(of)))] += 1
    return found


def _shares(name: str, size: int) -> list[float]:
    """Return what a rank sends in each round of a stage, as a share of what the stage works on."""
    schedule = STAGES[name](size)
    table = schedule.table
    sent = table.src == 0
    chunks = np.bincount(table.round[sent], (table.stop - table.start)[sent])
    return [float(count) / schedule.chunks for count in chunks]


def _traffic(links: Links, kind: tuple[_Sent, ...]) -> Traffic:
    """Return one rank's round, in which every unit's link has its ranks' share of the rate.

    What a rank receives is as much as what it sends, over the same links the other way.
    """
    count, levels = len(kind), len(links.levels)
    level = np.array([index for index, _, _ in kind])
    share = np.array([share for _, share, _ in kind])
    none = np.empty(0, np.int64)
    return Traffic(
        latency_s=np.array([links.levels[index].latency_s for index in level]),
        share=share,
        addition_s=links.gamma * share * np.array([reduced for _, _, reduced in kind]),
        weight=np.ones(count),
        links=np.where(np.arange(levels) <= level[:, None], np.arange(levels), levels),
        rate=np.array([lv.bandwidth_bytes_per_s for lv in links.levels]) / np.array(links.units),
        edges=Edges(none, none, none),
        layer=np.zeros(count, np.int64),
        kinds=np.arange(levels),
    )
