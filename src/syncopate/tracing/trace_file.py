"""Trace file: what one rank or one node captured, appended to as the training goes on.

A line of JSON says whose file it is. Blocks follow: records of :mod:`syncopate.tracing.recorder` or
rows of :mod:`syncopate.tracing.served.rows`, or notes, which are JSON. The first block repeats the
line, so that damage to either costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.output import new_file, new_successor
from syncopate.tracing.blocks import (
    HEADER,
    NOTE,
    NOWHERE,
    RECORDS,
    Blocks,
    frame,
    read_blocks,
    walk,
)
from syncopate.tracing.recorder import RECORD
from syncopate.tracing.retention import Retention
from syncopate.tracing.served.rows import ROW, NodeHeader
from syncopate.tracing.thinning import Thinning


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
    SCHEMA_VERSION: ClassVar[int] = 2
    OLDEST_VERSION: ClassVar[int | None] = 1

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
        """The name of its file."""
        return f"rank-{self.rank}"


Of = TypeVar("Of", bound=Artifact)


class Written(NamedTuple, Generic[Of]):
    """The content of a trace file.

    Attributes:
        path: the file.
        header: whose it is.
        records: the events of a rank; messages and work of a node.
        blocks: what else was said, and what is lost.
    """

    path: Path
    header: Of
    records: NDArray[np.void]
    blocks: Blocks

    @property
    def notes(self) -> tuple[dict[str, Any], ...]:
        """The other notes, in order."""
        return self.blocks.notes

    def shortcomings(self, what: str) -> Iterator[str]:
        """Yield what is lost of it, a sentence each; its records are called ``what``."""
        yield from self.blocks.shortcomings(self.path)
        dropped = max((note.get("dropped", 0) for note in self.notes), default=0)
        if dropped:
            yield f"{self.path}: {dropped} {what} were dropped: there was no room for them"


RankFile = Written[Header]
NodeFile = Written[NodeHeader]


class TraceWriter:
    """Appends to the file of one rank or node.

    Args:
        directory: of the run; must exist.
        header: whose file it is.
        retention: what of it is kept when it grows.

    Attributes:
        path: the file: ``rank-3.trace``, or ``rank-3-2.trace`` beside one of an earlier run.

    Raises:
        ArtifactError: the file cannot be made.
    """

    def __init__(
        self, directory: Path, header: Header | NodeHeader, retention: Retention | None = None
    ) -> None:
        self.path, self._file = new_file(directory, header.stem, ".trace")
        fields = {"kind": header.KIND, "schema_version": header.SCHEMA_VERSION}
        self._line = msgspec.json.encode(fields | msgspec.to_builtins(header))
        self._retention = retention or Retention()
        self._of_rank = isinstance(header, Header)
        self._number = self._count = self._nbytes = self._thinned_bytes = self._until = 0
        self._newest = -1
        self._tried_s = -math.inf
        try:
            self._append(self._head())
        except OSError as error:
            self.close()
            with contextlib.suppress(OSError):
                self.path.unlink()
            reason = f"cannot write: {error.strerror or error}"
            raise ArtifactError(self.path, reason) from None

    def write(self, records: NDArray[np.void], notes: list[dict[str, Any]]) -> None:
        """Append notes, and records behind them, at once: all of it, or nothing.

        Raises:
            FileNotFoundError: the file was removed, and can never be written again.
            OSError: it cannot be written now, or has reached its limit.
        """
        if not notes and not len(records):
            return
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed")
        before = self._number, self._count
        span = self._span(records)
        try:
            blocks = [self._block(NOTE, msgspec.json.encode(note)) for note in notes]
            if len(records):
                blocks.append(self._block(RECORDS, records.tobytes(), span, len(records)))
            data = b"".join(blocks)
            if self._nbytes + len(data) > self._retention.limit_bytes:
                raise OSError(errno.EFBIG, "its limit is reached")
            self._append(data)
        except OSError:
            self._number, self._count = before
            raise
        self._newest = max(self._newest, span[1])

    def thin(self, *, last: bool = False) -> None:
        """Keep what is to be kept alone, in a new file that takes the place of this.

        A file that has not grown stays as it is.

        Args:
            last: nothing is written any more: do so wherever a number of iterations was asked for,
                and do not share the processor.

        Raises:
            OSError: it cannot be written; the file is as it was.
        """
        wanted, fresh = self._retention.last, max(self._newest - self._until, 0)
        if last:
            due = wanted is not None and fresh > 0 and self._newest >= wanted
        else:
            sizes = self._nbytes, self._thinned_bytes
            due = self._retention.due(*sizes, fresh, self._tried_s)
        if not due or os.fstat(self._file.fileno()).st_nlink == 0:
            return
        try:
            with self.path.open("rb") as mine:
                self._write_anew(mine, patient=not last)
            self._until = self._newest
        finally:  # to read all of it at each flush would be too much
            self._thinned_bytes, self._tried_s = self._nbytes, time.monotonic()

    def _write_anew(self, mine: BinaryIO, *, patient: bool) -> None:
        thinning = Thinning(self._retention, of_rank=self._of_rank, patient=patient)
        for one in walk(mine):
            thinning.see(*one)
        thinning.choose()
        counts, before = (self._number, self._count, self._nbytes), self._file
        successor, self._file = new_successor(self.path)
        self._number = self._count = self._nbytes = 0
        try:
            self._append(self._head())
            mine.seek(0)
            for one in walk(mine):
                for is_note, payload in thinning.keep(*one):
                    self._append(self._kept(is_note, payload))
            for is_note, payload in thinning.rest():
                self._append(self._kept(is_note, payload))
            successor.replace(self.path)
        except BaseException:
            written, self._file = self._file, before
            self._number, self._count, self._nbytes = counts
            written.close()
            successor.unlink(missing_ok=True)
            raise
        before.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _kept(self, is_note: bool, payload: bytes) -> bytes:
        if is_note:
            return self._block(NOTE, payload)
        records = np.frombuffer(payload, RECORD if self._of_rank else ROW)
        return self._block(RECORDS, payload, self._span(records), len(records))

    def _span(self, records: NDArray[np.void]) -> tuple[int, int]:
        """Return the first and last iteration of records."""
        if not self._of_rank:
            return NOWHERE
        numbers = records["iteration"]
        numbers = numbers[numbers >= 0]
        return (int(numbers.min()), int(numbers.max())) if len(numbers) else NOWHERE

    def _head(self) -> bytes:
        return self._line + b"\n" + self._block(HEADER, self._line)

    def _block(
        self, kind: bytes, payload: bytes, span: tuple[int, int] = NOWHERE, count: int = 0
    ) -> bytes:
        begin = frame(kind, payload, self._number, self._count, span)
        self._number += 1
        self._count += count
        return begin + payload

    def _append(self, data: bytes) -> None:
        """Append all of it; where that fails, leave no part.

        Raises:
            OSError: it cannot be written.
        """
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError:
            # What is left of a block would be taken for damage.
            with contextlib.suppress(OSError):
                self._file.truncate(self._nbytes)
            self._file.seek(self._nbytes)
            raise
        self._nbytes += len(data)


def read_trace(path: str | os.PathLike[str]) -> RankFile:
    """Read one rank's file, as far as it is whole.

    Raises:
        ArtifactError: it cannot be read, or is no trace of a version that is known.
    """
    return _read(path, Header)


def _read(path: str | os.PathLike[str], of: type[Of]) -> Written[Of]:
    line, blocks = read_blocks(path)
    header = of.from_json(line, source=path)
    records, dtype = blocks.records, RECORD if issubclass(of, Header) else ROW
    if len(records) % dtype.itemsize:
        reason = f"its records have {len(records)} bytes; each is of {dtype.itemsize}"
        raise ArtifactError(path, f"damaged: {reason}")
    rows = np.frombuffer(records, dtype)
    return Written(Path(path), header, rows, blocks._replace(records=b""))


def read_traces(
    paths: Sequence[Path],
    of: type[Of],
    remarks: list[str],
    progress: Callable[[str, float], None] | None = None,
) -> list[Written[Of]]:
    """Read files of ranks or nodes; say in ``remarks`` which cannot be read.

    Args:
        paths: the files.
        of: the kind of their headers.
        remarks: a sentence is added for each that cannot be read.
        progress: told what is read, and which part has been, in [0, 1].
    """
    found: list[Written[Of]] = []
    for place, path in enumerate(paths):
        if progress is not None:
            progress(path.name, place / len(paths))
        try:
            found.append(_read(path, of))
        except ArtifactError as error:
            remarks.append(str(error))
    return found


def texts_of(notes: tuple[dict[str, Any], ...]) -> list[str]:
    """Return the table of texts that notes hold; empty where a note is lost that held one."""
    texts: list[str] = []
    for note in notes:
        mine = note.get("texts", ())
        begin = note.get("from", len(texts))
        texts += [""] * (begin + len(mine) - len(texts))
        texts[begin : begin + len(mine)] = mine
    return texts
