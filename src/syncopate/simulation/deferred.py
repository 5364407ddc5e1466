"""Deferred: updates that are left to the next forward, each before the layer that needs it.

Where averages of gradients arrive behind backward (``engine/exchange/pull/averages.py``), a bucket
is updated when its averages have come, in the thread of forward. To computation that is a forward
which is longer by the update, in places: where it waits for a bucket, that bucket's update follows.
So what plays iterations is given that longer forward, and no update behind backward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from syncopate.artifacts.workload import Workload
from syncopate.simulation.traffic import Traffic


class Update(NamedTuple):
    """One stretch of updates in a forward.

    Attributes:
        begin_s: the progress of the longer forward at which it begins.
        lasts_s: how long it takes alone.
    """

    begin_s: float
    lasts_s: float


class Played(NamedTuple):
    """The workload that is played where updates are deferred.

    Attributes:
        workload: with the longer forward.
        traffic: whose messages are needed there.
        updates: where in forward updates are, in order; none where they are not deferred.
    """

    workload: Workload
    traffic: Traffic
    updates: tuple[Update, ...] = ()


def played_as(workload: Workload, traffic: Traffic) -> Played:
    """Return the workload to play; the given one where no update is deferred."""
    if not traffic.deferred:
        return Played(workload, traffic)
    by_need: dict[float, float] = {0.0: traffic.update_s}  # of what came with backward
    for pull in traffic.pulls:
        if pull is not None:
            by_need[pull.needed_s] = by_need.get(pull.needed_s, 0.0) + pull.update_s
    more_s, updates = 0.0, []
    needed: dict[float, float] = {}
    for needed_s, lasts_s in sorted(by_need.items()):
        needed[needed_s] = needed_s + more_s
        if lasts_s > 0:
            updates.append(Update(needed_s + more_s, lasts_s))
        more_s += lasts_s
    longer = structs.replace(workload, forward_s=workload.forward_s + more_s, update_s=0.0)
    pulls = tuple(
        None if pull is None else pull._replace(needed_s=needed[pull.needed_s], update_s=0.0)
        for pull in traffic.pulls
    )
    pushes = tuple(push._replace(ready_s=push.ready_s + more_s) for push in traffic.pushes)
    moved = replace(traffic, pushes=pushes, pulls=pulls, update_s=0.0, deferred=False)
    return Played(longer, moved, tuple(updates))
