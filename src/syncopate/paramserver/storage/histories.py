"""Histories: the records of each slice on disk, in their order, and the steps that they lead to.

[Note: a common step] Each slice is committed by itself, so servers that are killed at once have
slices of different versions. Where workers wait for their pushes in every step, no slice is two
versions ahead of another one: a worker pushes the next step when all of this one is on disk. So
with the newest version and the one before of every slice, all servers can go back to the same step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from syncopate.paramserver.storage.state import Identity, Record
from syncopate.protocol.membership.incarnation import GOING, NOTHING, Incarnation
from syncopate.protocol.placement.bundle import Partition, bundles_of
from syncopate.protocol.slice import Position

_MOST_STEPS = 16

Histories = Mapping[int, Sequence[Record]]
"""The records of each slice, by key."""


def newest(histories: Histories) -> dict[int, list[Record]]:
    """Return what leads to the newest version of each slice: a whole record, and those that add."""
    return {key: _up_to(records, len(records) - 1) for key, records in histories.items()}


def before(histories: Histories) -> dict[int, list[Record]]:
    """Return what leads to the version before the newest of each slice that has both."""
    found: dict[int, list[Record]] = {}
    for key, records in histories.items():
        found |= as_of({key: records}, records[-1].position.version - 1)
    return found


def as_of(histories: Histories, version: int) -> dict[int, list[Record]]:
    """Return what leads to ``version`` of each slice that has it."""
    found = {}
    for key, records in histories.items():
        places = [at for at, each in enumerate(records) if each.position.version == version]
        if places:
            found[key] = _up_to(records, places[-1])
    return found


def chains_at(
    known: Identity, histories: Histories, incarnation: Incarnation
) -> dict[int, list[Record]]:
    """Return what leads to the step that an incarnation goes on from."""
    return as_of(histories, incarnation.step) if known.synchronous else newest(histories)


def positions_at(
    known: Identity,
    chains: Mapping[int, Sequence[Record]],
    incarnation: Incarnation,
    workers: int,
) -> dict[int, Position]:
    """Return the positions of slices there: of the new workers no push has come yet.

    Args:
        known: what the server keeps.
        chains: what leads to the weights.
        incarnation: which one it is.
        workers: how many there are.
    """
    first = incarnation.first_push(synchronous=known.synchronous)
    applied = dict.fromkeys(range(workers), first)
    return {key: Position(chain[-1].position.version, applied) for key, chain in chains.items()}


def steps_of(known: Identity, histories: Histories) -> tuple[int, ...] | None:
    """Return the steps that a server can go on from, as it tells the scheduler.

    Args:
        known: what it keeps.
        histories: all its records.

    Returns:
        Versions of which it has every slice. :data:`GOING` where updates are asynchronous. And
        :data:`NOTHING` where nothing was updated yet. None: any, for it keeps no slice.
    """
    if known.rules is None and not known.tables:
        return (NOTHING,)
    if not (known.slices or known.tables):
        return None
    versions = {each.position.version for records in histories.values() for each in records}
    begun = max(versions, default=0) > 0
    found: list[int] = [] if begun else [NOTHING]
    if not known.synchronous:
        return (*found, GOING) if _has_all(known, set(histories)) else tuple(found)
    there = [version for version in sorted(versions) if _has_all(known, as_of(histories, version))]
    return (*found, *there[-_MOST_STEPS:])


def _has_all(known: Identity, keys: Collection[int]) -> bool:
    """Say whether ``keys`` are all slices that a server keeps, or bundles of them."""
    wanted = {table.slice.key for table in known.tables}
    if known.rules is not None:
        partition = Partition(bundles_of(known.slices, known.rules.apart), keys)
        wanted |= partition.parts.keys()
        wanted |= {piece.key for piece in known.slices if piece.key not in partition}
    return wanted.issubset(keys)


def _up_to(records: Sequence[Record], last: int) -> list[Record]:
    first = last
    while first and records[first].adds:
        first -= 1
    return list(records[first : last + 1])
