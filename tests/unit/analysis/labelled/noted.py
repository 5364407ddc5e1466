"""Notes: how a tool writes down what ranks did, and what it gets wrong."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from tests.unit.analysis.labelled.machine import COMPUTED, Row


def clocks_off(rows: Iterable[Row], by_s: float, seed: int) -> list[Row]:
    """Each rank's clock is off by up to so much."""
    off: dict[int, float] = {}
    found = []
    for row in rows:
        if row.rank not in off:
            off[row.rank] = random.Random(f"clock {seed} {row.rank}").uniform(-by_s, by_s)
        by = off[row.rank] + 1.0
        found.append(row._replace(start_s=row.start_s + by, end_s=row.end_s + by))
    return found


def clocks_drift(rows: Iterable[Row], by_s: float, drift: float, seed: int) -> list[Row]:
    """Each rank's clock is off by up to so much, and runs faster or slower by up to a part."""
    found = []
    for row in rows:
        luck = random.Random(f"clock {seed} {row.rank}")
        by, rate = luck.uniform(-by_s, by_s) + 1.0, 1 + luck.uniform(-drift, drift)
        found.append(row._replace(start_s=row.start_s * rate + by, end_s=row.end_s * rate + by,
                                  called_s=row.called_s * rate + by))  # fmt: skip
    return found


def labels_alike(rows: Iterable[Row]) -> list[Row]:
    """Groups of one kind have one label: all tensor-parallel groups are ``"tp"``."""
    return [row._replace(group=row.group.rstrip("0123456789.")) for row in rows]


def one_cut(rows: Sequence[Row], rank: int, share: float) -> list[Row]:
    """Of one rank what it wrote last is missing."""
    last_s = share * max(row.end_s for row in rows)
    return [row for row in rows if row.rank != rank or row.end_s <= last_s]


def ends_late(rows: Iterable[Row], by_s: float, seed: int) -> list[Row]:
    """The ends of messages are noted later, each by up to so much."""
    luck = random.Random(f"late {seed}")
    return [
        row._replace(end_s=row.end_s + luck.uniform(0.2, 1.0) * by_s)
        if row.kind not in COMPUTED
        else row
        for row in rows
    ]


def as_called(rows: Iterable[Row]) -> list[Row]:
    """Messages begin when they are called, though others of their queue are under way."""
    return [row._replace(start_s=row.called_s) if row.group else row for row in rows]


def whole_passes(rows: Sequence[Row]) -> list[Row]:
    """A forward and a backward of a micro-batch is one row, with the messages in its midst."""
    found: list[Row] = []
    last: dict[int, int] = {}
    for row in sorted(rows, key=lambda one: one.start_s):
        if row.kind in ("send", "recv"):
            last.pop(row.rank, None)
        if row.kind not in COMPUTED:
            found.append(row)
            continue
        at = last.get(row.rank)
        before = found[at] if at is not None else None
        if before and (before.kind, before.iteration) == (row.kind, row.iteration):
            found[at] = before._replace(end_s=row.end_s)  # type: ignore[index]
            continue
        last[row.rank] = len(found)
        found.append(row)
    return found


def with_small_spans(rows: Sequence[Row], lasts_s: float = 2e-5) -> list[Row]:
    """Ranks do something short while they wait for their messages."""
    mine: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.kind in COMPUTED:
            mine[row.rank].append(row)
    more = []
    for own in mine.values():
        own.sort(key=lambda one: one.start_s)
        for one, other in pairwise(own):
            gap_s = other.start_s - one.end_s
            if gap_s > 5 * lasts_s and one.iteration == other.iteration:
                at_s = one.end_s + 0.4 * gap_s
                more.append(one._replace(start_s=at_s, end_s=at_s + lasts_s))
    return [*rows, *more]


def of_ranks(rows: Iterable[Row], ranks: Iterable[int]) -> list[Row]:
    """Some ranks were recorded."""
    kept = frozenset(ranks)
    return [row for row in rows if row.rank in kept]


def table(rows: Iterable[Row], path: Path) -> Path:
    """Write rows as a table."""
    lines = ["rank,iteration,kind,start,end,bytes,group"]
    lines += [
        f"{r.rank},{r.iteration},{r.kind},{r.start_s:.9f},{r.end_s:.9f},{r.nbytes or ''},{r.group}"
        for r in rows
    ]
    path.write_text("\n".join(lines))
    return path
