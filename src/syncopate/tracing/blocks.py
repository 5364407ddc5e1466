"""Blocks: what files of ranks and nodes are made of, and how much of a damaged one is read.

[Note: blocks]
A block begins with a frame: a marker, the kind, the block's number, its length, how many records
came before, which iterations it holds, and checksums of the payload and of the frame itself. Where
a payload is damaged its frame still says what is lost. Where a frame is, the next marker is looked
for; numbers say how many blocks are missing, and whether records are. A block at the end that is
not whole, because the process was killed, is the end.

Files of version 1 have frames without marker and numbers, so they are read up to the first damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from syncopate.errors import ArtifactError
from syncopate.reading import read_whole
from syncopate.tracing.recorder import RECORD
from syncopate.tracing.served.rows import ROW

MARKER = b"\xabSB\x91"
"""How a block begins."""

_FRAME = struct.Struct("<4scIIQiiII")
"""Marker, kind, number, length, records before, first and last iteration, the two checksums."""
_CHECKED = _FRAME.size - 4

_FRAME_1 = struct.Struct("<cII")
"""Of version 1: kind, length, checksum of the payload."""

assert ROW.itemsize == RECORD.itemsize  # so that lost ones can be counted in files of both

RECORDS, NOTE, HEADER = b"R", b"N", b"H"
_LONGEST_HEADER = 1 << 16
_MOST_NUMBER = (1 << 32) - 1
NOWHERE = (-1, -1)
_MOST_STRETCHES = 8


class Blocks(NamedTuple):
    """The content of a file behind its first line.

    Attributes:
        records: the bytes of its records, joined.
        notes: what else was said, in order.
        missing_bytes: at the end of the file, of a block that is not whole.
        lost_blocks: how many were damaged, and are left out.
        lost: first and last iteration of each stretch that lacks something for that.
    """

    records: bytes
    notes: tuple[dict[str, Any], ...]
    missing_bytes: int
    lost_blocks: int = 0
    lost: tuple[tuple[int, int], ...] = ()

    def shortcomings(self, path: str | os.PathLike[str]) -> Iterator[str]:
        """Yield what is lost of a file, a sentence each."""
        if self.lost_blocks:
            many = self.lost_blocks > 1
            said = f"{path}: damaged: {self.lost_blocks} block{'s are' if many else ' is'} left out"
            if self.lost:
                stretches = [f"{a}" if a == b else f"{a} to {b}" for a, b in self.lost]
                count = sum(last - first + 1 for first, last in self.lost)
                said += (
                    f"; {count} iteration{'s are' if count > 1 else ' is'} not whole for that: "
                    + ", ".join(stretches[:_MOST_STRETCHES])
                    + (" and others" if len(stretches) > _MOST_STRETCHES else "")
                )
            yield said
        if self.missing_bytes:
            yield (
                f"{path}: ends in the midst of a block; its last {self.missing_bytes} bytes are "
                "left out"
            )


def frame(kind: bytes, payload: bytes, number: int, before: int, span: tuple[int, int]) -> bytes:
    """Return what stands before a payload.

    Args:
        kind: :data:`RECORDS`, :data:`NOTE` or :data:`HEADER`.
        payload: the block's.
        number: of the block.
        before: how many records came before it.
        span: the first and last iteration of its records.
    """
    fields = (MARKER, kind, number & _MOST_NUMBER, len(payload), before, *span)
    begin = _FRAME.pack(*fields, zlib.crc32(payload), 0)[:_CHECKED]
    return begin + struct.pack("<I", zlib.crc32(begin))


def walk(file: BinaryIO) -> Iterator[tuple[bool, bytes]]:
    """Yield the blocks of a file of our own: whether each is a note, and its payload."""
    file.readline()
    while data := file.read(_FRAME.size):
        fields = _frame_at(data, 0)
        if fields is None:  # another program wrote into it
            data += file.read()
            found = _first(data, 1)
            if found is None:
                return
            file.seek(found - len(data), os.SEEK_CUR)
            continue
        payload = file.read(fields[3])
        if fields[1] != HEADER and zlib.crc32(payload) == fields[-2]:
            yield fields[1] == NOTE, payload


def whole_blocks(file: BinaryIO, at: int) -> tuple[list[tuple[bytes, bytes]], int]:
    """Return the whole blocks of a file that grows, from a place on.

    Args:
        file: of version 2.
        at: where to begin: 0, or what the call before returned.

    Returns:
        The kind and payload of each block that is not damaged; and where they end.
    """
    file.seek(at)
    end = 0
    found: list[tuple[bytes, bytes]] = []
    for block in _blocks_in(file.read(), 0):
        if block.payload is not None:
            found.append((block.kind, block.payload))
        end = block.end
    return found, at + end


def read_blocks(path: str | os.PathLike[str]) -> tuple[bytes, Blocks]:
    """Read a file's first line, and what is whole behind it.

    Raises:
        ArtifactError: it cannot be read, or has no first line.
    """
    try:
        data = read_whole(path)
    except OSError as error:
        raise ArtifactError(path, f"cannot read this trace: {error.strerror or error}") from None
    if not data:
        raise ArtifactError(path, "not a trace: it is empty")
    line, newline, _ = data[:_LONGEST_HEADER].partition(b"\n")
    begin = data.find(MARKER)
    if begin >= 0 and (begin <= len(line) + 1 or not newline):
        return _blocks(path, data, line, begin)
    if newline and _says_version_1(line):
        return line, _blocks_1(path, data, len(line) + 1)
    if begin >= 0 and _first(data, begin) is not None:
        return _blocks(path, data, line, begin)
    if not newline:
        raise ArtifactError(path, "not a trace: its first line, which names the rank, is missing")
    return line, Blocks(b"", (), len(data) - len(line) - 1)


class _Block(NamedTuple):
    """One block of a file: where it ends, and its payload; None: that is damaged."""

    kind: bytes
    number: int
    nbytes: int
    before: int
    span: tuple[int, int]
    end: int
    payload: bytes | None


def _blocks_in(data: bytes, at: int) -> Iterator[_Block]:
    """Yield the blocks of a file of version 2 from a place on, up to one that is not whole."""
    while (place := at if _frame_at(data, at) else _first(data, at + 1)) is not None:
        _, kind, number, nbytes, before, first, last, checksum, _ = _FRAME.unpack_from(data, place)
        at = place + _FRAME.size + nbytes
        payload = data[at - nbytes : at]
        if len(payload) < nbytes:
            return
        whole = zlib.crc32(payload) == checksum
        span = first, last
        yield _Block(kind, number, nbytes, before, span, at, payload if whole else None)


def _blocks(
    path: str | os.PathLike[str], data: bytes, line: bytes, at: int
) -> tuple[bytes, Blocks]:
    """Return the header and what is whole of a file of version 2."""
    records: list[bytes] = []
    notes: list[dict[str, Any]] = []
    lost: list[tuple[int, int]] = []
    expected = count = lost_blocks = 0
    newest, since = -1, None  # since: the iteration from which on records are missing
    for block in _blocks_in(data, at):
        first, last = block.span
        lost_blocks += max(block.number - expected, 0)
        if block.before > count and since is None:
            since = newest
        if since is not None and first >= 0:
            lost.append((first if since < 0 else since, first))
            since = None
        count = block.before + block.nbytes // ROW.itemsize * (block.kind == RECORDS)
        if block.payload is None:
            lost_blocks += 1
            lost += [block.span] if last >= 0 else []
            since = newest if block.kind == RECORDS and last < 0 else since
        elif block.kind == HEADER:
            line = block.payload
        elif block.kind == NOTE:
            notes.append(_note(path, block.payload))
        elif block.kind == RECORDS:
            records.append(block.payload)
        newest = max(newest, last)
        expected, at = block.number + 1, block.end
    if since is not None and newest >= 0:
        lost.append((max(since, 0), newest))
    missing = len(data) - at
    return line, Blocks(b"".join(records), tuple(notes), missing, lost_blocks, _stretches(lost))


def _stretches(lost: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return lost iterations in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((min(one), max(one)) for one in lost):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _first(data: bytes, at: int) -> int | None:
    """Return where the next whole frame is; None: nowhere."""
    while (at := data.find(MARKER, at)) >= 0:
        if _frame_at(data, at) is not None:
            return at
        at += 1
    return None


def _frame_at(data: bytes, at: int) -> tuple[Any, ...] | None:
    """Return the fields of the frame at a place; None where no whole one is."""
    if data[at : at + len(MARKER)] != MARKER or at + _FRAME.size > len(data):
        return None
    fields = _FRAME.unpack_from(data, at)
    return fields if zlib.crc32(data[at : at + _CHECKED]) == fields[-1] else None


class _Version(msgspec.Struct):
    schema_version: int = 0


def _says_version_1(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Version).schema_version == 1
    except (ValueError, RecursionError):
        return False


def _blocks_1(path: str | os.PathLike[str], data: bytes, at: int) -> Blocks:
    """Return what is whole of a file of version 1, up to the first damage."""
    records: list[bytes] = []
    notes: list[dict[str, Any]] = []
    while at + _FRAME_1.size <= len(data):
        kind, length, checksum = _FRAME_1.unpack_from(data, at)
        payload = data[at + _FRAME_1.size : at + _FRAME_1.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        if kind == RECORDS:
            records.append(payload)
        elif kind == NOTE:
            notes.append(_note(path, payload))
        else:
            break
        at += _FRAME_1.size + length
    return Blocks(b"".join(records), tuple(notes), len(data) - at)


def _note(path: str | os.PathLike[str], payload: bytes) -> dict[str, Any]:
    try:
        note: dict[str, Any] = msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ArtifactError(path, f"damaged: a note cannot be read: {error}") from None
    return note
