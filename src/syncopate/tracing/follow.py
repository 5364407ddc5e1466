"""Follow: the files of a run that goes on, read as they grow.

Of each file only what was appended since is read, and only its last iterations are kept. A file
that takes the place of another, because it was thinned, is read from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.errors import ArtifactError
from syncopate.reading import require_file
from syncopate.tracing.blocks import HEADER, NOTE, RECORDS, Blocks, whole_blocks
from syncopate.tracing.recorder import RECORD, UNPLACED
from syncopate.tracing.run import PATTERN, Run, of_last_run, run_of
from syncopate.tracing.served.read import PATTERNS
from syncopate.tracing.served.rows import ROW, NodeHeader
from syncopate.tracing.trace_file import Header, Of, Written

MOST_ROWS = 50_000
"""Messages of a node that are kept, the last ones."""

_REPEATED = "links"
"""Notes of this are made every two seconds; of those before the kept iterations one is enough."""


class Growing(Generic[Of]):
    """One file that grows.

    Args:
        path: of a rank or node.
        of: the kind of its header.
        last: how many iterations of a rank to keep.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, of: type[Of], last: int) -> None:
        self.path = path
        self._of = of
        self._of_rank = issubclass(of, Header)
        self._dtype = RECORD if self._of_rank else ROW
        self._last = last
        self._inode, self._at, self._line = -1, 0, b""
        self._notes: list[dict[str, Any]] = []
        self._records: NDArray[np.void] = np.empty(0, self._dtype)

    def look(self) -> bool:
        """Read what was appended; say whether anything was.

        Raises:
            OSError: it cannot be read.
            ArtifactError: a device, or a named pipe.
        """
        require_file(self.path)
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._inode or now.st_size < self._at:
                self._inode = now.st_ino
                self._begin()
            if now.st_size == self._at:
                return False
            blocks, self._at = whole_blocks(file, self._at)
        records = [payload for kind, payload in blocks if kind == RECORDS]
        if records:
            self._keep(np.frombuffer(b"".join(records), self._dtype))
        for kind, payload in blocks:
            if kind == HEADER:
                self._line = payload
            elif kind == NOTE:
                self._note(msgspec.json.decode(payload))
        return bool(blocks)

    def content(self) -> Written[Of] | None:
        """Return what is kept; None before the file says whose it is.

        Raises:
            ArtifactError: it is of a version that is not known.
        """
        if not self._line:
            return None
        header = self._of.from_json(self._line, source=self.path)
        return Written(self.path, header, self._records, Blocks(b"", tuple(self._notes), 0))

    def _begin(self) -> None:
        self._at, self._line = 0, b""
        self._notes.clear()
        self._records = np.empty(0, self._dtype)

    def _keep(self, new: NDArray[np.void]) -> None:
        every = np.concatenate([self._records, new])
        if not self._of_rank:
            self._records = every[-MOST_ROWS:]
            return
        numbers = every["iteration"]
        stays = numbers > numbers.max(initial=UNPLACED) - self._last - 1
        if stays.all():
            self._records = every
            return
        # A pause has no number: it belongs to the computation that ends next.
        since_s = every["start_s"][stays & (numbers != UNPLACED)].min(initial=np.inf)
        self._records = every[stays | ((numbers == UNPLACED) & (every["start_s"] >= since_s))]

    def _note(self, note: dict[str, Any]) -> None:
        if _REPEATED in note:
            oldest = self._records["iteration"].min(initial=0) if self._of_rank else 0
            mine = [one for one in self._notes if _REPEATED in one]
            while len(mine) > 1 and mine[1]["iteration"] <= oldest:
                self._notes.remove(mine.pop(0))
        self._notes.append(note)


class Follower:
    """The directory of a run, looked at again and again.

    Args:
        directory: where ranks and nodes write; it need not be there yet.
        last: how many iterations to keep, the last ones.

    Attributes:
        hosts: of the ranks and nodes that were seen.
    """

    def __init__(self, directory: Path, last: int) -> None:
        self.directory = directory
        self.hosts: frozenset[str] = frozenset()
        self._last = last
        self._files: dict[Path, Growing[Any]] = {}

    def look(self) -> Run | None:
        """Return the last iterations; None as long as no file holds any.

        Raises:
            ArtifactError: no file can be read.
        """
        remarks: list[str] = []
        ranks = self._read(Header, (PATTERN,), remarks)
        nodes = self._read(NodeHeader, PATTERNS, remarks)
        if not ranks and not nodes and remarks:
            raise ArtifactError(self.directory, f"none of its files can be read: {remarks[0]}")
        if not any(len(one.records) for one in ranks) and not any(len(n.records) for n in nodes):
            return None
        found, nodes = of_last_run(ranks, nodes, remarks)
        self.hosts = frozenset(one.header.host for one in found.values())
        self.hosts |= {node.header.host for node in nodes}
        return run_of(self.directory, found, nodes, self._last, remarks)

    def _read(self, of: type[Of], patterns: Iterable[str], remarks: list[str]) -> list[Written[Of]]:
        found: list[Written[Of]] = []
        paths = (path for each in patterns for path in self.directory.glob(each))
        for path in sorted(paths):
            one = self._files.setdefault(path, Growing(path, of, self._last))
            try:
                one.look()
                content = one.content()
            except (ArtifactError, OSError) as error:
                remarks.append(str(error))
                continue
            if content is not None:
                found.append(content)
        return found
