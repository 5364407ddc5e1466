"""Served: what the nodes of a parameter server noted, as analysis takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from syncopate.analysis.serving import Message, Messages, Overhead
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.tracing.dlc import Header, Record, Records, SetUp
from syncopate.tracing.run import Run
from syncopate.tracing.served.places import places
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.round_trips import round_trips


def messages_of(traces: Mapping[str, tuple[Header, Sequence[Record | SetUp]]]) -> Messages:
    """Return the messages of DLC traces, timed from the first one's first.

    Args:
        traces: name -> header and records.
    """
    places: dict[str, int] = {}
    parts: list[dict[str, Any]] = []
    origin_us = None
    for header, records in traces.values():
        packed = Records.of(records)
        timed = packed.timed()
        rows: Any = slice(None) if timed.all() else np.flatnonzero(timed)
        if not timed.any():
            continue
        # Seconds since 1970 as floats would lose tenths of a microsecond.
        origin_us = packed.time_us[rows][0] if origin_us is None else origin_us
        names = [places.setdefault(text, len(places)) for text in packed.texts]
        codes = packed.nodes()[rows] * 2 + packed.of_operations("by_worker")[rows]
        nodes, whose = np.unique(codes, return_inverse=True)
        own = [
            places.setdefault(f"w{node}" if worker else f"s{node - header.workers}", len(places))
            for node, worker in (divmod(code, 2) for code in nodes.tolist())
        ]
        part = {
            "node": np.array(own, np.int32)[whose],
            "push": packed.of_operations("push")[rows],
            "sends": packed.of_operations("sends")[rows],
            "key": packed.key[rows],
            "iteration": packed.iterations()[rows].astype(np.int32),
            "peer": np.array(names, np.int32)[packed.peer[rows]],
            "time_s": (packed.time_us[rows] - origin_us) * 1e-6,
            "nbytes": packed.length[rows],
        }
        parts.append(part)
    columns = {
        field: np.concatenate([np.empty(0, dtype), *(part.pop(field) for part in parts)])
        for field, dtype in Messages.DTYPES.items()
    }
    return Messages(tuple(places), columns)


def computed_of(served: Served) -> Iterator[Overhead]:
    """Yield what servers computed in the iterations of the training: updates and searches."""
    for one in served.work:
        if one.kind in ("update", "search") and one.number > 0:
            took_s = one.end_s - one.start_s
            yield Overhead(one.kind, one.node, one.number - 1, took_s, one.key, one.peer)


def trips_of(run: Run | None) -> list[RoundTrip]:
    """Return the ways of slices in the iterations of a run that are shown; none without servers.

    Their times are those of the run's timeline.
    """
    return [] if run is None else [*round_trips(run)]


def messages_in(run: Run) -> list[Message]:
    """Return the messages of a run in the iterations that are shown, as its DLC traces have them.

    Microseconds as there, so that analysis of the run and of the traces says the same.
    """
    found: list[Message] = []
    served, origin_us = run.served, None
    if served is None:
        return found
    for node, mine in served.messages.items():
        for index, iteration in places(mine).items():
            m = mine[index]
            time_us = round((served.epoch_s + m.time_s) * 1e6)
            origin_us = time_us if origin_us is None else origin_us
            if not run.first or iteration >= run.first:
                push, at_s = m.kind in ("Push", "Ack"), (time_us - origin_us) * 1e-6
                found.append(Message(node, push, m.sends, m.key, iteration, m.peer, at_s, m.nbytes))
    return found
