"""Recorded file: what a rank of a training of plain torch appends to, and thins when it grows.

What it looks like :mod:`syncopate.tracing.foreign.recording.recorded` says.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.errors import ArtifactError
from syncopate.output import new_file, new_successor
from syncopate.tracing.foreign.recording.recorded import (
    CLOSE,
    Block,
    Call,
    Launched,
    RecordedRank,
    block_in,
    described,
    first_line,
    line_of,
    set_by_ns,
)
from syncopate.tracing.retention import Pace, Retention, kept

T = TypeVar("T")

LIMIT_BYTES = 32 << 20
"""What a file takes at most, where nothing is said: reading it takes ten times that of memory."""

_LAUNCH_BYTES, _STEP_BYTES = 70, 250
"""About what a collective takes in a file, and a step with its forward and backward."""

_GATHERED = 2000
"""Collectives and steps that a block has when a file is written anew."""


class RecordedWriter:
    """Appends to the file of one rank.

    Args:
        directory: of the run; must exist.
        about: whose file it is; its fields that blocks hold are left out.
        retention: what of it is kept when it grows.

    Attributes:
        path: the file: ``rank-3.json``, or ``rank-3-2.json`` beside one of an earlier run.

    Raises:
        ArtifactError: the file cannot be made.
    """

    def __init__(
        self, directory: Path, about: RecordedRank, retention: Retention | None = None
    ) -> None:
        self.path, self._file = new_file(directory, f"rank-{about.rank}", ".json")
        self._retention = retention or Retention(limit_bytes=LIMIT_BYTES)
        self._about = described(about)
        self._number = self._nbytes = self._thinned_bytes = 0
        self._fresh = self._removed = 0
        self._tried_s = -math.inf
        try:
            self._begin()
        except OSError as error:
            self.close()
            with contextlib.suppress(OSError):
                self.path.unlink()
            reason = f"cannot write: {error.strerror or error}"
            raise ArtifactError(self.path, reason) from None

    def write(self, block: Block) -> None:
        """Append a block: all of it, or nothing.

        Raises:
            FileNotFoundError: the file was removed, and can never be written again.
            OSError: it cannot be written now, or has reached its limit.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed")
        line = self._line(_renumbered(block, self._removed))
        if self._nbytes + len(line) > self._retention.limit_bytes:
            raise OSError(errno.EFBIG, "its limit is reached")
        self._append(line)
        self._fresh += sum(step.optimizer == 0 for step in block.steps)

    def thin(self, *, last: bool = False) -> None:
        """Write the file anew with less in it, where it has grown.

        Args:
            last: nothing is written any more: keep no more than was asked for.

        Raises:
            OSError: it cannot be written; the file is as it was.
        """
        sizes = self._nbytes, self._thinned_bytes
        due = self._retention.due(*sizes, self._fresh, self._tried_s)
        if not due and not (last and self._retention.last is not None and self._fresh):
            return
        try:
            chosen = _Chosen(self._walk(patient=not last), self._retention)
            if chosen.removes:
                self._write_anew(chosen, patient=not last)
            self._fresh = 0
        finally:  # to read all of it at each writing would be too much
            self._thinned_bytes, self._tried_s = self._nbytes, time.monotonic()

    def _write_anew(self, chosen: _Chosen, *, patient: bool) -> None:
        before, counts = self._file, (self._number, self._nbytes)
        successor, self._file = new_successor(self.path)
        try:
            self._number = self._nbytes = 0
            self._begin()
            for block in chosen.blocks(self._walk(patient=patient)):
                self._append(self._line(block))
            successor.replace(self.path)
        except BaseException:
            written, self._file = self._file, before
            self._number, self._nbytes = counts
            written.close()
            successor.unlink(missing_ok=True)
            raise
        self._removed += chosen.removed
        before.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _walk(self, *, patient: bool) -> Iterator[Block]:
        """Yield the blocks of the file; patiently: leave most of the time to others."""
        pace = Pace(patient)
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                if (block := block_in(line)) is not None:
                    yield block[1]
                pace.rest()

    def _line(self, block: Block) -> bytes:
        return line_of(self._number, block, self._about)

    def _begin(self) -> None:
        head = first_line(self._about)
        self._put(head + CLOSE, 0)
        self._nbytes = len(head)

    def _append(self, line: bytes) -> None:
        """Put a line before the brackets at the end; where that fails, leave no part.

        Raises:
            OSError: it cannot be written.
        """
        try:
            self._put(line + CLOSE, self._nbytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._put(CLOSE, self._nbytes)
                self._file.truncate(self._nbytes + len(CLOSE))
            raise
        self._nbytes += len(line)
        self._number += 1

    def _put(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._file.fileno(), view, at)
            view, at = view[done:], at + done


def _renumbered(block: Block, by: int) -> Block:
    """Return a block whose collectives have lower numbers."""
    if not by:
        return block
    launches = tuple((record - by, *rest) for record, *rest in block.launches)
    return msgspec.structs.replace(block, launches=launches)


class _Chosen:
    """Which parts of a file stay.

    Args:
        blocks: all of it.
        retention: what to keep.

    Attributes:
        removes: whether there is anything to remove.
        removed: how many collectives were, once :meth:`blocks` is through.
    """

    def __init__(self, blocks: Iterable[Block], retention: Retention) -> None:
        marks: list[tuple[int, int]] = []
        starts: list[NDArray[np.int64]] = []
        for block in blocks:
            marks += [(step.start_ns, step.number) for step in block.steps if step.optimizer == 0]
            starts.append(np.array([launch[3] for launch in block.launches], np.int64))
        self._moments, numbers = np.array(sorted(marks), np.int64).reshape(-1, 2).T
        # Of an iteration all is there when the step before it is, which says when it began.
        whole = np.diff(numbers, prepend=-1) == 1
        begins_ns = np.concatenate([[0], self._moments])[:-1]
        durations_s = np.where(whole, (self._moments - begins_ns) * 1e-9, 0.0)
        durations_s[begins_ns == 0] = 0.0
        launches = np.sort(np.concatenate(starts or [np.empty(0, np.int64)]))
        ends = np.searchsorted(launches, self._moments)
        nbytes = np.diff(ends, prepend=0) * _LAUNCH_BYTES + _STEP_BYTES
        found, _ = kept(numbers, durations_s, nbytes, retention)
        # What no step follows is of the iteration that goes on, and stays.
        self._stays = np.append(found & whole, True)
        self.removes = bool((whole & ~found).any())
        self.removed = 0
        self._newest = -1
        self._numbers: dict[int, int] = {}

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield what stays of the same blocks, gathered into larger ones."""
        held: list[Block] = []
        count = 0
        for block in blocks:
            if held and set_by_ns(held[-1], block):
                yield _one(held)
                held, count = [], 0
            held.append(self._of(block))
            count += len(held[-1].launches) + len(held[-1].steps)
            if count > _GATHERED:
                yield _one(held)
                held, count = [], 0
        if held:
            yield _one(held)

    def _of(self, block: Block) -> Block:
        launches: list[Launched] = []
        again, self._numbers = self._numbers, {}
        stays = self._at(launch[3] for launch in block.launches)
        for (record, *rest), stay in zip(block.launches, stays, strict=True):
            if record <= self._newest:  # it was under way before
                number = again.get(record)
            else:
                self._newest, self.removed = record, self.removed + (not stay)
                number = record - self.removed if stay else None
            if number is not None:
                self._numbers[record] = number
                launches.append((number, *rest))  # type: ignore[arg-type]
        starts = [step.start_ns for step in block.steps]
        # A step belongs to the iteration that it ends, and says when the next one begins.
        steps = zip(block.steps, self._at(s - 1 for s in starts), self._at(starts), strict=True)
        return msgspec.structs.replace(
            block,
            launches=tuple(launches),
            steps=tuple(s for s, ends, begins in steps if ends or (begins and s.optimizer == 0)),
            forwards=_picked(block.forwards, self._at(begin for begin, _ in block.forwards)),
            backwards=_picked(block.backwards, self._at(block.backwards)),
        )

    def _at(self, moments: Iterable[int]) -> list[bool]:
        """Return whether the iterations of moments stay."""
        places = np.searchsorted(self._moments, np.array([*moments], np.int64), side="right")
        stays: list[bool] = self._stays[places].tolist()
        return stays


def _picked(values: Sequence[T], stays: Sequence[bool]) -> tuple[T, ...]:
    return tuple(value for value, one in zip(values, stays, strict=True) if one)


def _one(blocks: Sequence[Block]) -> Block:
    """Return several blocks as one."""
    calls: dict[Call, int] = {}
    launches: list[Launched] = []
    for block in blocks:
        for record, number, call, *times in block.launches:
            place = calls.setdefault(block.calls[call], len(calls))
            launches.append((record, number, place, *times))  # type: ignore[arg-type]
    return Block(
        written_ns=blocks[-1].written_ns,
        ahead_ns=blocks[-1].ahead_ns,
        steps=tuple(step for block in blocks for step in block.steps),
        forwards=tuple(one for block in blocks for one in block.forwards),
        backwards=tuple(one for block in blocks for one in block.backwards),
        calls=tuple(calls),
        launches=tuple(launches),
        groups={name: ranks for block in blocks for name, ranks in block.groups.items()},
    )
