"""Read: spans of any origin, a row each, as CSV or Parquet."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.artifacts.timeline import PAUSES, Group
from syncopate.errors import ArtifactError, MissingPackageError
from syncopate.reading import opened
from syncopate.tracing.foreign.chrome.device import ranks_of
from syncopate.tracing.foreign.profiler import by_updates, keyed
from syncopate.tracing.foreign.ranktrace import LANE_OF, Launch, RankTrace, Work
from syncopate.tracing.foreign.tables.columns import (
    TIMES,
    Mapped,
    WrongError,
    kind_of,
    places_of,
)
from syncopate.tracing.foreign.tables.midst import waits

TOOL = "a table"
_SUFFIXES = (".csv", ".tsv", ".parquet")
_PARQUET = b"PAR1"
_MOST_IN_HEADER = 1 << 16
_MOST = Decimal(10) ** 30
"""No number of a table is as large."""


def is_table(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is a table: Parquet, or text whose first line has the needed columns.

    Raises:
        ArtifactError: it cannot be read.
    """
    begins = _read(path, _MOST_IN_HEADER)
    if begins.startswith(_PARQUET):
        return True
    header = _header(_first_line(begins.decode("utf-8-sig", "replace")))
    try:
        places_of(path, header, Mapped())
    except ArtifactError:
        return False
    return True


def has_name_of_table(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is called as tables are."""
    return Path(str(path).removesuffix(".gz")).suffix.lower() in _SUFFIXES


def read_tables(
    paths: Sequence[str | os.PathLike[str]], mapping: Mapped | None = None
) -> list[RankTrace]:
    """Return the ranks of tables, whose rows may stand in any order and any of the files.

    Raises:
        ArtifactError: a table lacks a column, or a value is none; with file, row and column.
    """
    rows: list[_Row] = []
    for path in paths:
        rows += _rows(path, mapping or Mapped())
    if not rows:
        raise ArtifactError(paths[0], "it has no rows")
    groups = _groups(rows)
    by_rank: dict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    named = {rank for group in groups.values() for rank in group.ranks}
    size = max([*by_rank, *named]) + 1
    sharded = any(row.kind == "reduce_scatter" for row in rows)
    return [_rank(rank, size, own, groups, sharded) for rank, own in sorted(by_rank.items())]


class _Row(NamedTuple):
    """One row; ``iteration`` is -1 where the table does not say it."""

    rank: int
    iteration: int
    kind: str
    start_ns: int
    end_ns: int
    nbytes: int
    group: str
    name: str


def _rank(
    rank: int, size: int, rows: list[_Row], groups: Mapping[str, Group], sharded: bool
) -> RankTrace:
    rows.sort(key=lambda row: (row.start_ns, row.end_ns))
    launches, work = [], []
    for row in rows:
        end_ns = max(row.start_ns, row.end_ns)
        if row.kind in LANE_OF or row.kind in ("push", "pull"):
            kind = _collective(row.kind, sharded)
            group = groups[row.group]
            launch = Launch(None, kind, group, row.start_ns, end_ns, row.nbytes)
            launches.append(launch._replace(detail=row.name, iteration=row.iteration))
        else:
            lane = "wait" if row.kind in PAUSES else row.kind
            name = row.kind if row.kind in PAUSES else row.name or row.kind
            work.append(Work(name, lane, row.start_ns, end_ns, row.iteration))
    work += list(waits(launches, work))
    told = [row for row in rows if row.iteration >= 0]
    if told:  # those rows that say none are of the iteration that has begun
        begun: dict[int, int] = {}
        for row in told:
            begun.setdefault(row.iteration, row.start_ns)
        marks = tuple(sorted((at_ns - 1, number) for number, at_ns in begun.items()))
    else:
        marks = tuple(by_updates(work))
    trace = RankTrace(rank, size, TOOL, tuple(launches), tuple(work), marks, host=TOOL)
    wrong = sum(row.end_ns < row.start_ns for row in rows)
    if wrong:
        trace = trace._replace(notes=(f"{wrong} rows end before they begin, and count as 0",))
    return keyed(trace)


def _collective(kind: str, sharded: bool) -> str:
    """Return the collective of a message; one that is only a push is what gradients travel by."""
    if kind == "push":
        return "reduce_scatter" if sharded else "all_reduce"
    return "all_gather" if kind == "pull" else kind


def _groups(rows: Iterable[_Row]) -> dict[str, Group]:
    """Return the groups by what the table calls them: their ranks are those that have such rows."""
    there: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        there[row.group].add(row.rank)
    return {
        text: Group(name=text, ranks=ranks_of(text) or tuple(sorted(ranks)) if text else ())
        for text, ranks in there.items()
    }


def _rows(path: str | os.PathLike[str], mapping: Mapped) -> Iterator[_Row]:
    names, records = _records(path)
    places = places_of(path, names, mapping)
    kinds = {theirs.lower(): own for own, theirs in mapping.kinds.items()}
    known: dict[str, str] = {}

    def kind(text: str) -> str:
        if text not in known:
            known[text] = kind_of(text, kinds)
        return known[text]

    for number, record in enumerate(records, start=2):
        field = "columns"
        try:
            values = {}
            for field, (place, _) in places.items():
                values[field] = record[place]
            field = "rank"
            rank = _rank_number(values["rank"])
            field = "iteration"
            told = values.get("iteration", "")
            iteration = -1 if told in ("", None) else _whole(told)
            field = "kind"
            told_kind = kind(str(values["kind"]))
            field = "start"
            start_ns = _ns(values["start"], places["start"][1])
            field = "end" if "end" in places else "duration"
            end_ns = _ns(values[field], places[field][1])
            end_ns += start_ns if field == "duration" else 0
            field = "bytes"
            told = values.get("bytes", "")
            nbytes = 0 if told in ("", None) else max(_whole(told), 0)
        except (ValueError, InvalidOperation, IndexError, OverflowError) as error:
            reason = str(error) if isinstance(error, WrongError) else _wrong(field, record, places)
            raise ArtifactError(path, reason, f"row {number}, column {field}") from None
        group, name = values.get("group", ""), values.get("name", "")
        yield _Row(
            rank, iteration, told_kind, start_ns, end_ns, nbytes, str(group or ""), str(name or "")
        )


def _wrong(field: str, record: Sequence[Any], places: Mapping[str, tuple[int, int]]) -> str:
    if field == "columns" or max(place for place, _ in places.values()) >= len(record):
        return f"it has {len(record)} columns, which are too few"
    rule = "a time" if field in TIMES else "a number"
    return f"{record[places[field][0]]!r} is not {rule}"


def _rank_number(value: Any) -> int:
    found = re.search(r"(\d+)$", str(value).strip().removesuffix(".0"))
    if found is None or int(found[1]) >= MAX_RANKS or str(value).strip().startswith("-"):
        raise WrongError(f"{value!r} is not a rank, 0 to {MAX_RANKS - 1}")
    return int(found[1])


def _whole(value: Any) -> int:
    return int(_number(value))


def _ns(value: Any, unit: int) -> int:
    """Return a time in nanoseconds; as a float, seconds since 1970 would lose them."""
    return round(_number(value) * unit)


def _number(value: Any) -> Decimal:
    number = Decimal(str(value).strip())
    if not abs(number) < _MOST:
        raise ValueError
    return number


def _records(path: str | os.PathLike[str]) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """Return the names of columns, and the rows."""
    data = _read(path)
    if data.startswith(_PARQUET):
        return _parquet(data, path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtifactError(path, f"it is no text in UTF-8, and no Parquet file: {error}") from None
    line = _first_line(text)
    return _header(line), _parsed(text, _delimiter(line), path)


def _parsed(text: str, delimiter: str, path: str | os.PathLike[str]) -> Iterator[Sequence[str]]:
    """Yield the rows behind the header that are not empty."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        next(rows, None)
        yield from filter(None, rows)
    except csv.Error as error:
        raise ArtifactError(path, f"damaged: {error}", f"line {rows.line_num}") from None


def _first_line(text: str) -> str:
    return re.split(r"[\r\n]", text[:_MOST_IN_HEADER], maxsplit=1)[0]


def _header(line: str) -> list[str]:
    return next(csv.reader([line], delimiter=_delimiter(line)), [])


def _delimiter(line: str) -> str:
    return max((",", "\t", ";"), key=line.count)


def _parquet(
    data: bytes, path: str | os.PathLike[str]
) -> tuple[list[str], Iterable[Sequence[Any]]]:
    try:
        from pyarrow import parquet  # noqa: PLC0415  # it is optional
    except ImportError:
        told = MissingPackageError("reading Parquet", "pyarrow")
        reason = f"{told}; or write the table as CSV"
        raise ArtifactError(path, reason) from None
    try:
        found = parquet.read_table(io.BytesIO(data)).to_pydict()
    except Exception as error:  # pyarrow raises errors of many kinds
        raise ArtifactError(path, f"a damaged Parquet file: {error}") from None
    return list(found), zip(*found.values(), strict=True)


def _read(path: str | os.PathLike[str], most: int = -1) -> bytes:
    try:
        with opened(path) as file:
            return file.read(most)
    except OSError as error:
        raise ArtifactError(path, f"cannot be read: {error}") from None
