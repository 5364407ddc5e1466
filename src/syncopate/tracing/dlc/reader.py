"""Reader: a DLC trace, line by line.

A line that is damaged is reported with its place, and the rest is read.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from syncopate.errors import ArtifactError
from syncopate.reading import readable
from syncopate.tracing.dlc.columns import OPERATIONS, Packer, Records, Waited, bits, fits
from syncopate.tracing.dlc.records import (
    FIELDS,
    MARK,
    SET_UP_FIELDS,
    Dependency,
    Header,
    Operation,
    Record,
    SetUp,
)

_MICROSECONDS = 1_000_000
_HEADER_LINES = 100
_AT_ONCE, _TOLD_AFTER = 128, 64
"""Lines that are read together, and how many times until progress is told again."""
_DEPENDENCIES = {str(int(kind)): int(kind) for kind in Dependency}
_MARKED = {MARK + operation: place for place, operation in enumerate(OPERATIONS)}
_OP_ID = re.compile(r"(\d{1,20})-(-?\d{1,20})-([ws]\d+)")
_OP_IDS = re.compile(f"^{_OP_ID.pattern}$", re.MULTILINE)
_ONE = re.compile(r"(?:\d+-)?-?\d+-[ws]\d+")
_WAITED = re.compile(
    r"^(?:(0|[1-9][0-9]{0,8})-(0|-?[1-9][0-9]{0,17})-([ws][0-9]+)|(.+))$", re.MULTILINE
)
"""One name of an operation, as it is spelled almost always, or anything else."""
_HEADER = re.compile(
    r"num_workers:\s*=\s*(\d+)\s+num_servers:\s*=\s*(\d+)\s+"
    r"(worker|server|scheduler)_hostname:\s*=\s*(\S*)",
)


class Damage(NamedTuple):
    """A line that says nothing.

    Attributes:
        path: the file.
        line: its number, from 1.
        column: of the first character at fault, from 1.
        reason: what is wrong, and what was expected.
    """

    path: str
    line: int
    column: int
    reason: str

    def __str__(self) -> str:
        """Return place and reason, as compilers write them."""
        return f"{self.path}:{self.line}:{self.column}: {self.reason}"


class Trace(NamedTuple):
    """A whole trace.

    Attributes:
        header: what stands above the records.
        records: in the order of the file.
        damage: the lines that could not be read.
    """

    header: Header
    records: Records
    damage: tuple[Damage, ...]


class _FieldError(Exception):
    """A field that cannot be read: its index, and what is wrong with it."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def read(path: str | os.PathLike[str], progress: Callable[[float], None] | None = None) -> Trace:
    """Read a whole trace.

    Args:
        path: the file.
        progress: told now and then which part of the file has been read, in [0, 1].

    Raises:
        ArtifactError: the file cannot be read, or is no DLC trace.
    """
    packer = Packer()
    damage: list[Damage] = []
    with (
        readable(path) as data,
        io.TextIOWrapper(data, encoding="utf-8", errors="replace") as file,
    ):
        header, above = _header(path, file)
        nbytes = max(os.stat(path).st_size, 1)
        for count, (number, rows) in enumerate(_blocks(file, above)):
            if progress is not None and count % _TOLD_AFTER == 0:
                progress(min(file.buffer.tell() / nbytes, 1.0))
            # Only where a line is not as most are, it and those about it are read one by one.
            if _packed(rows, packer):
                continue
            for one in _parsed(path, rows, number):
                if isinstance(one, Damage):
                    damage.append(one)
                else:
                    packer.add(one)
    return Trace(header, packer.records(), tuple(damage))


def _header(path: str | os.PathLike[str], lines: Iterable[str]) -> tuple[Header, int]:
    """Read up to the names of the columns; return also the number of their line."""
    header: Header | None = None
    for number, line in enumerate(lines, start=1):
        if found := _HEADER.search(line):
            header = Header(int(found[1]), int(found[2]), found[4], found[3])
        if line.rstrip("\n").split("\t") == list(FIELDS):
            if header is None:
                break
            return header, number
        if number > _HEADER_LINES:
            break
    raise ArtifactError(
        path,
        "not a DLC trace: expected a header with num_workers, num_servers and the name of the "
        "host, and then the names of the columns",
    )


def _blocks(file: Iterator[str], number: int) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the fields of lines, some at a time, and the number of the line before them."""
    while lines := list(islice(file, _AT_ONCE)):
        yield number, [line.rstrip("\r\n").split("\t") for line in lines]
        number += len(lines)


def _parsed(
    path: str | os.PathLike[str], rows: Iterable[Sequence[str]], number: int
) -> Iterator[Record | SetUp | Damage]:
    for place, fields in enumerate(rows, start=number + 1):
        if fields == [""]:
            continue
        try:
            yield _record(fields)
        except _FieldError as error:
            before = fields[: error.index]
            column = sum(map(len, before)) + len(before) + 1
            yield Damage(os.fspath(path), place, column, str(error))


def _packed(rows: Sequence[Sequence[str]], packer: Packer) -> bool:
    """Add the records of lines column by column; False: one is no record, or damaged."""
    try:
        columns = list(zip(*rows, strict=True))
        *_, names, op_ids, kinds, waited, seconds, parts, depends = columns
        microseconds = list(map(int, parts))
        found = _OP_IDS.findall("\n".join(op_ids))
        if len(found) < len(rows) or min(microseconds) < 0 or max(microseconds) >= _MICROSECONDS:
            return False
        keys, numbers, peers = zip(*found, strict=True)
        at_s = map(int, seconds)
        waits = _WAITED.findall("\n".join(depends))
        alone = {peer: packer.how(Waited(False, 2, (peer,))) for _, _, peer, _ in waits if peer}
        others = {text for *_, text in waits if text}
        known = {text: packer.waited(*_depends(text)) for text in others}
        packer.extend(
            (
                *(map(int, column) for column in columns[:5]),
                [_MARKED[name] for name in names],
                map(int, keys),
                map(int, numbers),
                packer.texts(peers),
                [_DEPENDENCIES[kind] for kind in kinds],
                map(int, waited),
                [s * _MICROSECONDS + us for s, us in zip(at_s, microseconds, strict=True)],
                *zip(
                    *[
                        known[text] if text else (alone[peer], int(key), int(number))
                        for key, number, peer, text in waits
                    ],
                    strict=True,
                ),
            )
        )
    except (ValueError, KeyError, OverflowError, _FieldError):
        return False
    return True


def _record(fields: Sequence[str]) -> Record | SetUp:
    if len(fields) not in (SET_UP_FIELDS, len(FIELDS)):
        raise _FieldError(
            min(len(fields), len(FIELDS)),
            f"{len(fields)} fields; expected {SET_UP_FIELDS} or {len(FIELDS)}, separated by tabs",
        )
    ident, src, dst, length, num_pp = (_number(fields, index) for index in range(5))
    name = fields[5].removeprefix(MARK)
    if name == fields[5]:
        raise _FieldError(5, f"{fields[5]!r} is no operation; expected {MARK!r} and a name")
    if len(fields) == SET_UP_FIELDS:
        return SetUp(ident, src, dst, length, num_pp, name)
    if name not in OPERATIONS:
        raise _FieldError(5, f"unknown operation {name!r}; known: {', '.join(OPERATIONS)}")
    op_id = _OP_ID.fullmatch(fields[6])
    if op_id is None:
        raise _FieldError(6, f"{fields[6]!r} is no op_id; expected one such as '4-7-s0'")
    kind = _number(fields, 7)
    if kind not in list(Dependency):
        raise _FieldError(7, f"dep_type is {kind}; it must be in 0..{len(Dependency) - 1}")
    seconds, microseconds = _number(fields, 9), _number(fields, 10)
    if not 0 <= microseconds < _MICROSECONDS:
        raise _FieldError(10, f"time_usec is {microseconds}; it must be in 0..{_MICROSECONDS - 1}")
    depends_on, many = _depends(fields[11])
    return Record(
        ident,
        src,
        dst,
        length,
        num_pp,
        Operation(name),
        _fitting(6, int(op_id[1]), "key"),
        _fitting(6, int(op_id[2]), "number"),
        op_id[3],
        Dependency(kind),
        _number(fields, 8),
        _fitting(9, seconds * _MICROSECONDS + microseconds, "time_us"),
        depends_on,
        many,
    )


def _number(fields: Sequence[str], index: int) -> int:
    field = FIELDS[index]
    try:
        value = int(fields[index])
    except ValueError:
        raise _FieldError(index, f"{field} is {fields[index]!r}, not an integer") from None
    return _fitting(index, value, field if field in Records.DTYPES else "time_us")


def _fitting(index: int, value: int, column: str) -> int:
    if not fits(column, value):
        rule = f"must be a whole number of {bits(column)} bits"
        raise _FieldError(index, f"{FIELDS[index]} holds {value}; it {rule}")
    return value


def _depends(text: str) -> tuple[tuple[str, ...], bool]:
    """Read ``id_dep``; a list may end with a full stop, as scanned copies of the paper have it."""
    if text == "-1":
        return (), False
    many = text.startswith("(") and text.endswith(")")
    parts = [one for one in re.split("[,.]", text[1:-1]) if one] if many else [text]
    for one in parts:
        if not _ONE.fullmatch(one):
            raise _FieldError(
                11, f"id_dep is {text!r}; expected -1, one such as '6-4-s0', or '(3-s0,)'"
            )
    return tuple(parts), many
