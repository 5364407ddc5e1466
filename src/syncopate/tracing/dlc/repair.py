"""Repair: what is odd in a DLC trace, and the trace as it should be.

The tracer of the paper was not locked: where two threads wrote at once, two records have the same
number, and what came later stands first. Fig. 8 has two such pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.timelines.spans import Numbers
from syncopate.tracing.dlc.columns import Records, Waited
from syncopate.tracing.dlc.records import Dependency, Record, SetUp

_KINDS = 64
"""A larger share of records than 1 of so many is looked at together, if they name the same peers.

Others are looked at one by one, however many kinds a trace has.
"""


def findings(records: Sequence[Record | SetUp]) -> tuple[str, ...]:
    """Return the oddities of a trace, a sentence each."""
    packed = Records.of(records)
    said = sorted([*_repeated(packed), *_too_early(packed)])
    return tuple(sentence for *_, sentence in said)


def repaired(records: Sequence[Record | SetUp]) -> Records:
    """Return a trace whose records stand in the order of their times, numbered from 0.

    Records that set up connections have no time, and stay where they are.
    """
    packed = Records.of(records)
    timed = np.flatnonzero(packed.timed())
    rows = np.arange(len(packed))
    rows[timed] = timed[np.argsort(packed.time_us[timed], kind="stable")]
    return packed.take(rows).changed(id=np.arange(len(packed)))


def _repeated(records: Records) -> Iterator[tuple[int, int, str]]:
    """Yield the places of records whose number stood before, 0, and what is said of them."""
    order = np.argsort(records.id, kind="stable")
    sorted_ = records.id[order]
    for place in order[1:][sorted_[1:] == sorted_[:-1]].tolist():
        number = records.id[place]
        yield place, 0, f"id {number} stands twice; each record has its own"


def _too_early(records: Records) -> Iterator[tuple[int, int, str]]:
    """Yield the places of records before what they waited for, the name's place from 1, and that.

    A server takes a worker's push although another worker's pull is still under way.
    """
    waits = records.timed() & (records.dependency != Dependency.PUSH_ON_PULL)
    places = _Places(records)
    for named in _named(records, np.flatnonzero(waits)):
        early = np.flatnonzero(places.last(named) > named.rows)
        for row, nth in zip(named.rows[early].tolist(), named.nths[early].tolist(), strict=True):
            record = records[row]
            assert isinstance(record, Record)
            said = f"{record.operation} {record.op_id} stands before {record.depends_on[nth]}"
            yield row, 1 + nth, f"id {record.id}: {said}, for which it waited"


class _Named(NamedTuple):
    """Names of operations that records waited for, a row each.

    Attributes:
        rows: whose they are.
        nths: place of a name among those of its record.
        keys: of the operations, and so ``numbers`` and ``peers``.
    """

    rows: Numbers
    nths: Numbers
    keys: NDArray[Any]
    numbers: NDArray[Any]
    peers: NDArray[Any]


def _named(records: Records, rows: Numbers) -> Iterator[_Named]:
    """Yield what some records waited for, many of a kind at once."""
    peers = {text: place for place, text in enumerate(records.texts)}
    order = rows[np.argsort(records.waited[rows], kind="stable")]
    kinds = np.flatnonzero(np.diff(records.waited[order]))
    few: list[tuple[int, ...]] = []
    for mine in np.split(order, kinds + 1) if len(order) else ():
        how = records.waits[records.waited[mine[0]]]
        keys, numbers = records.waited_key[mine], records.waited_number[mine]
        if how.heads == 2 and len(mine) * _KINDS > len(records):
            for nth, end in enumerate(how.ends):
                if end in peers:
                    nths, ends = (np.full(len(mine), value) for value in (nth, peers[end]))
                    yield _Named(mine, nths, keys, numbers, ends)
            continue
        for row, *of in zip(mine.tolist(), keys.tolist(), numbers.tolist(), strict=True):
            for nth, name in enumerate(how.names(*of)):
                alone, key, number = Waited.of((name,), many=False)
                if alone.heads == 2 and alone.ends[0] in peers:
                    few.append((row, nth, key, number, peers[alone.ends[0]]))
    if few:
        yield _Named(*np.array(few, np.int64).T)


class _Places:
    """Where records stand, by the names of their operations.

    Args:
        records: of a trace.
    """

    def __init__(self, records: Records) -> None:
        rows = np.flatnonzero(records.timed())
        self._fields: list[NDArray[Any]] = [records.key, records.number, records.peer]
        self._known = [np.unique(field[rows]) for field in self._fields]
        codes = self._codes(field[rows] for field in self._fields)
        order = np.argsort(codes, kind="stable")
        self._sorted, self._rows = codes[order], rows[order]

    def _codes(self, fields: Iterable[NDArray[Any]]) -> Numbers:
        """Return a number for each name, equal where names are."""
        codes: Any = 0
        for known, field in zip(self._known, fields, strict=True):
            codes = codes * (len(known) + 1) + np.searchsorted(known, field)
        return np.asarray(codes, np.int64)

    def last(self, named: _Named) -> Numbers:
        """Return where the last record with each name stands; -1: nowhere."""
        found = np.full(len(named.rows), -1)
        if not len(self._rows):
            return found
        fields = (named.keys, named.numbers, named.peers)
        place = np.searchsorted(self._sorted, self._codes(fields), side="right") - 1
        rows = self._rows[np.maximum(place, 0)]
        there = place >= 0
        for mine, wanted in zip(self._fields, fields, strict=True):
            there &= mine[rows] == wanted
        found[there] = rows[there]
        return found
