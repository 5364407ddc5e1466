"""Trace file: what one rank or one node captured, appended to as the training goes on.

A line of JSON says whose file it is. Blocks follow, each with its length and a checksum in front:
records of :mod:`syncopate.tracing.recorder` or rows of :mod:`syncopate.tracing.served.rows`, or a
note, which is JSON. A file whose end is missing, because its process was killed, is read up to its
last whole block.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts import Artifact
from syncopate.cluster import MAX_RANKS
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.output import new_file
from syncopate.tracing.recorder import RECORD, Records
from syncopate.tracing.served.rows import NodeHeader

_FRAME = struct.Struct("<cII")
_RECORDS, _NOTE = b"R", b"N"
_LONGEST_HEADER = 1 << 16


class Header(Artifact, frozen=True, kw_only=True):
    """Whose file it is.

    Attributes:
        run: a random name that all ranks of a run share.
        rank: whose events they are.
        world_size: number of ranks.
        host: the rank's.
        clock: what its times are of.
        began_s: seconds since 1970 when the file was begun.
        offset_s: its clock minus rank 0's; None: not measured.
        offset_error_s: by how much that may be wrong.
    """

    KIND: ClassVar[str] = "trace"

    run: str
    rank: int
    world_size: int
    host: str
    clock: str
    began_s: float
    offset_s: float | None = None
    offset_error_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= MAX_RANKS:
            raise InvalidValueError("world_size", self.world_size, f"in 1..{MAX_RANKS}")
        if not 0 <= self.rank < self.world_size:
            raise InvalidValueError("rank", self.rank, f"in 0..{self.world_size - 1}")

    @property
    def stem(self) -> str:
        """What its file is called."""
        return f"rank-{self.rank}"


class Written(NamedTuple):
    """What a trace file holds.

    Attributes:
        path: the file.
        header: whose it is.
        records: its events.
        notes: what else was said, in order.
        missing_bytes: at the end of the file, of a block that is not whole.
    """

    path: Path
    header: Header
    records: Records
    notes: tuple[dict[str, Any], ...]
    missing_bytes: int


class Blocks(NamedTuple):
    """What a file holds behind its first line.

    Attributes:
        records: the bytes of its records, joined.
        notes: what else was said, in order.
        missing_bytes: at the end of the file, of a block that is not whole.
    """

    records: bytes
    notes: tuple[dict[str, Any], ...]
    missing_bytes: int


class TraceWriter:
    """Appends to the file of one rank or node.

    Args:
        directory: of the run; must exist.
        header: whose file it is.

    Attributes:
        path: the file: ``rank-3.trace``, or ``rank-3-2.trace`` beside one of an earlier run.

    Raises:
        ArtifactError: the file cannot be made.
    """

    def __init__(self, directory: Path, header: Header | NodeHeader) -> None:
        self.path, self._file = new_file(directory, header.stem, ".trace")
        fields = {"kind": header.KIND, "schema_version": header.SCHEMA_VERSION}
        self._file.write(msgspec.json.encode(fields | msgspec.to_builtins(header)) + b"\n")

    def write(self, records: NDArray[np.void], notes: list[dict[str, Any]]) -> None:
        """Append notes, and records behind them, at once.

        Raises:
            OSError: it cannot be written.
        """
        blocks = [_block(_NOTE, msgspec.json.encode(note)) for note in notes]
        if len(records):
            blocks.append(_block(_RECORDS, records.tobytes()))
        if blocks:
            self._file.write(b"".join(blocks))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _block(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload


def read_trace(path: str | os.PathLike[str]) -> Written:
    """Read one rank's file, as far as it is whole.

    Raises:
        ArtifactError: it cannot be read, or is no trace of a version that is known.
    """
    line, blocks = read_blocks(path)
    header = Header.from_json(line, source=path)
    records: Records = rows_of(path, blocks.records, RECORD)
    return Written(Path(path), header, records, blocks.notes, blocks.missing_bytes)


def read_blocks(path: str | os.PathLike[str]) -> tuple[bytes, Blocks]:
    """Read a file's first line, and what is whole behind it.

    Raises:
        ArtifactError: it cannot be read, or has no first line.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(path, f"cannot read this trace: {error.strerror}") from None
    line, newline, _ = data[:_LONGEST_HEADER].partition(b"\n")
    if not newline:
        raise ArtifactError(path, "not a trace: its first line, which says whose it is, is missing")
    records: list[bytes] = []
    notes: list[dict[str, Any]] = []
    at = len(line) + 1
    while (block := _read_block(data, at)) is not None:
        kind, payload = block
        at += _FRAME.size + len(payload)
        if kind == _RECORDS:
            records.append(payload)
        else:
            notes.append(_note(path, payload))
    return line, Blocks(b"".join(records), tuple(notes), len(data) - at)


def rows_of(path: str | os.PathLike[str], records: bytes, dtype: np.dtype[np.void]) -> Any:
    """Return the bytes of a file's records as an array.

    Raises:
        ArtifactError: they are no whole number of records.
    """
    if len(records) % dtype.itemsize:
        reason = f"its records have {len(records)} bytes; each is of {dtype.itemsize}"
        raise ArtifactError(path, f"damaged: {reason}")
    return np.frombuffer(records, dtype)


def _note(path: str | os.PathLike[str], payload: bytes) -> dict[str, Any]:
    try:
        note: dict[str, Any] = msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ArtifactError(path, f"damaged: a note cannot be read: {error}") from None
    return note


def _read_block(data: bytes, at: int) -> tuple[bytes, bytes] | None:
    """Return kind and payload of the block at a place; None where no whole one is."""
    if at + _FRAME.size > len(data):
        return None
    kind, length, checksum = _FRAME.unpack_from(data, at)
    payload = data[at + _FRAME.size : at + _FRAME.size + length]
    whole = len(payload) == length and zlib.crc32(payload) == checksum
    return (kind, payload) if whole and kind in (_RECORDS, _NOTE) else None
