"""Repair: what is odd in a DLC trace, and the trace as it should be.

The tracer of the paper was not locked: where two threads wrote at once, two records have the same
number, and what came later stands first. Fig. 8 has two such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncopate.tracing.dlc.records import Dependency, Record, SetUp


def findings(records: Sequence[Record | SetUp]) -> tuple[str, ...]:
    """Return what is odd about a trace, a sentence each; empty: nothing."""
    said = []
    seen: set[int] = set()
    at = {r.op_id: place for place, r in enumerate(records) if isinstance(r, Record)}
    for place, record in enumerate(records):
        if record.id in seen:
            said.append(f"id {record.id} stands twice; each record has its own")
        seen.add(record.id)
        # A server takes a worker's push although another worker's pull is still under way.
        if isinstance(record, SetUp) or record.dependency is Dependency.PUSH_ON_PULL:
            continue
        for one in record.depends_on:
            if at.get(one, -1) > place:
                said.append(
                    f"id {record.id}: {record.operation} {record.op_id} stands before {one}, "
                    "for which it waited"
                )
    return tuple(said)


def repaired(records: Sequence[Record | SetUp]) -> tuple[Record | SetUp, ...]:
    """Return a trace whose records stand in the order of their times, numbered from 0.

    Records that set up connections have no time, and stay where they are.
    """
    timed = iter(sorted((r for r in records if isinstance(r, Record)), key=_time))
    ordered = [record if isinstance(record, SetUp) else next(timed) for record in records]
    return tuple(record._replace(id=number) for number, record in enumerate(ordered))


def _time(record: Record) -> int:
    return record.time_us
