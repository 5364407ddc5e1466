"""Round trips: every slice in every iteration, from its push to the pulled weights."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.tracing.run import Run
from syncopate.tracing.served.places import places
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.rows import Wired, Work

_Slice = tuple[str, int, int]


def round_trips(run: Run) -> Iterator[RoundTrip]:
    """Yield the round trips of slices in the iterations that a run shows.

    Only a slice counts that was captured whole, of a worker with a rank. Times are those of the
    run's timeline.
    """
    served = run.served
    if served is None:
        return
    ends = {node: _ends(node, served) for node in served.messages if node != "scheduler"}
    updates: dict[tuple[str, int], list[Work]] = defaultdict(list)
    for work in served.work:
        if work.kind == "update":
            updates[work.node, work.key].append(work)
    complete: dict[_Slice, float] = {}
    for node, mine in ends.items():
        for (_, kind, key, iteration), m in mine.items():
            if kind == "Push" and not m.sends:
                one = (node, key, iteration)
                complete[one] = max(complete.get(one, m.time_s), m.time_s)
    for worker, mine in ends.items():
        if worker not in run.ranks:
            continue
        for (server, kind, key, iteration), pushed in mine.items():
            if kind != "Push" or not pushed.sends or iteration < run.first:
                continue
            at = ends.get(server, {})
            three = [at.get((worker, each, key, iteration)) for each in ("Push", "Pull", "Weights")]
            two = [mine.get((server, each, key, iteration)) for each in ("Pull", "Weights")]
            if None in (*three, *two):
                continue
            came, asked, left = (m for m in three if m is not None)
            pulled, back = (m for m in two if m is not None)
            all_s = complete[server, key, iteration] if served.synchronous else came.time_s
            done_s = _updated(updates[server, key], all_s)
            times_s = (
                pushed.queued_s, pushed.time_s, came.time_s, all_s, done_s, pulled.queued_s,
                asked.time_s, left.queued_s, left.time_s, back.time_s,
            )  # fmt: skip
            since_s = (time_s - run.origin_s for time_s in times_s)
            place = run.ranks[worker], run.carriers.get(key, ""), server, key, iteration
            yield RoundTrip(*place, back.nbytes, *since_s)


def _updated(updates: Sequence[Work], since_s: float) -> float:
    """Return when the first update that began since then was over; then, where none is known."""
    at = bisect_left(updates, since_s, key=lambda work: work.start_s)
    return updates[at].end_s if at < len(updates) else since_s


def _ends(node: str, served: Served) -> dict[tuple[str, str, int, int], Wired]:
    """Return the messages of a node that have a place, by peer, kind, key and iteration."""
    mine = served.messages[node]
    return {
        (m.peer, m.kind, m.key, iteration): m
        for index, iteration in places(mine).items()
        for m in (mine[index],)
    }
