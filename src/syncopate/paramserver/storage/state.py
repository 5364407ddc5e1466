"""State: a server's weights, optimizer states and positions on disk.

A folder holds ``server.json`` (who the server is and what it keeps) and *segments*, numbered from
1. A commit writes one segment with every slice that changed since the last, so commits are as small
as what they save; of several records of one slice the one in the highest segment counts. A segment
appears whole or not at all, and ends in a checksum. Segments of which no record counts are removed;
when those that stay hold more than three times what counts, the next commit writes everything anew.

With synchronous updates the newest record of the version before counts, too: slices are committed
one by one, and so all servers have a step that they can go back to together
(:mod:`~syncopate.paramserver.storage.histories`).

A slice's record says which pushes are in its weights. So each slice is consistent by itself,
whichever commit was the last.

Of a table a record has the rows that changed since the one before, and adds to it: all of them
count, up to one that has all rows anew.
"""

from __future__ import annotations

import logging
import re
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from syncopate.artifacts.artifact import Artifact
from syncopate.errors import ArtifactError
from syncopate.output import UNFINISHED, write_output
from syncopate.paramserver.storage.durable import AGAIN_S, is_full, save_durably, sync_folder
from syncopate.paramserver.tensors import dtype_of, flat_bytes
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import Rules
from syncopate.protocol.slice import Position
from syncopate.units import dtype_name

_MAGIC = b"SYNCSEG1"
_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
_NAME = re.compile(r"segment-(\d{12})")
_SLACK = 3
_IDENTITY = "server.json"

_log = logging.getLogger("syncopate")


class Identity(Artifact, frozen=True, kw_only=True):
    """A server's identity, and what it keeps.

    Attributes:
        job: the job's name.
        run: of the run.
        rank: of the server.
        digest: of the layout.
        rules: how tensors are updated; None: none are kept.
        slices: of them.
        tables: its shares of tables.
        incarnation: how often the run had gone on after all its workers were gone.
    """

    KIND = "parameter_server"

    job: str
    run: str
    rank: int
    digest: str = ""
    rules: Rules | None = None
    slices: tuple[Slice, ...] = ()
    tables: tuple[TableSlice, ...] = ()
    incarnation: int = 0

    @property
    def synchronous(self) -> bool:
        """Whether it keeps anything, and updates it synchronously."""
        return any(rules.synchronous for rules in self._kept)

    @property
    def keeps_before(self) -> bool:
        """Whether the version before of each slice is kept in memory, too."""
        return any(rules.keeps_before for rules in self._kept)

    @property
    def _kept(self) -> list[Rules]:
        own = [] if self.rules is None else [self.rules]
        return [*own, *(table.rules for table in self.tables)]


class _Field(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    numel: int


class Record(msgspec.Struct, frozen=True):
    """A slice as it was at a commit.

    Attributes:
        position: what is in it.
        tensors: by name.
        adds: whether it adds to the records before it, which go on to count.
        whole_nbytes: what it would take by itself, where it adds.
    """

    position: Position
    tensors: dict[str, Tensor]
    adds: bool = False
    whole_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        """What counts of it on disk, and of those before it."""
        own = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())
        return max(own, self.whole_nbytes)


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    key: int
    position: Position
    fields: tuple[_Field, ...]
    adds: bool = False
    whole_nbytes: int = 0


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    run: str
    entries: tuple[_Entry, ...]


class _Written(NamedTuple):
    """A record on disk: its segment, and what :class:`Record` has."""

    number: int
    version: int
    nbytes: int
    adds: bool


class StateFolder:
    """The folder of one server; one thread at a time.

    Attributes:
        path: where it is.
        keeps_earlier: whether the version before the newest of each slice counts, too.
    """

    def __init__(self, path: Path) -> None:
        """Use ``path``, which is made when something is written."""
        self.path = path
        self.keeps_earlier = False
        self._sizes: dict[int, int] = {}
        # By key: the records that count, in their order.
        self._written: dict[int, list[_Written]] = {}
        # Keys that count no more once those that came in their place have two versions.
        self._dropped: set[int] = set()
        self._next = 1

    @property
    def wants_all(self) -> bool:
        """Whether the next commit should hold all slices, to make the others superfluous."""
        counts = sum(map(_counted, self._written.values()))
        return len(self._sizes) > 1 and sum(self._sizes.values()) > _SLACK * counts

    def identity(self) -> Identity | None:
        """Read the server's identity; None where the folder has none.

        Raises:
            ArtifactError: the file cannot be trusted.
        """
        path = self.path / _IDENTITY
        return Identity.load(path) if path.exists() else None

    def save_identity(self, identity: Identity) -> None:
        """Write the server's identity.

        Raises:
            ArtifactError: it cannot be written.
        """
        save_durably(identity, self.path / _IDENTITY)

    def read(self, run: str) -> dict[int, list[Record]]:
        """Read all records of every slice, in their order; remove what a killed write left.

        Raises:
            ArtifactError: a segment is damaged, or of another run.
        """
        found: dict[int, list[Record]] = {}
        for path in sorted(self.path.iterdir()) if self.path.exists() else ():
            if path.name.startswith(UNFINISHED):
                path.unlink(missing_ok=True)
            name = _NAME.fullmatch(path.name)
            if name is None:
                continue
            number = int(name[1])
            self._next = max(self._next, number + 1)
            self._sizes[number] = path.stat().st_size
            for key, record in _decoded(path, run).items():
                found.setdefault(key, []).append(record)
                self._note(number, key, record)
        self._prune()
        return found

    def write(self, run: str, records: Mapping[int, Record], dropped: Iterable[int] = ()) -> None:
        """Write a segment with ``records``.

        Args:
            run: the run.
            records: by key.
            dropped: keys whose records count no more once it is there; or where the version before
                counts, too, once there are two versions of all others.

        Raises:
            ArtifactError: it cannot be written.
        """
        self.put(records, encoded(run, records), dropped)

    def put(self, records: Mapping[int, Record], data: bytes, dropped: Iterable[int] = ()) -> None:
        """Do the same with ``data`` from :func:`encoded`.

        Raises:
            ArtifactError: it cannot be written.
        """
        number = self._next
        path = self.path / f"segment-{number:012d}"
        write_output(path, data + _CHECK.pack(zlib.crc32(data)))
        sync_folder(self.path)
        self._next += 1
        self._sizes[number] = len(data)
        self._dropped |= set(dropped).intersection(self._written)
        for key, record in records.items():
            self._note(number, key, record)
        self._prune()

    def replace(self, records: Mapping[int, Record], data: bytes) -> None:
        """Write a segment with ``records``, each whole; nothing else counts once it is there.

        Raises:
            ArtifactError: it cannot be written.
        """
        if records:
            self.put(records, data)
        number = self._next - 1
        for key, written in list(self._written.items()):
            self._written[key] = [each for each in written if key in records][-1:]
            if not self._written[key]:
                del self._written[key]
        assert all(written[0].number == number for written in self._written.values())
        self._dropped.clear()
        self._prune()

    def _note(self, number: int, key: int, record: Record) -> None:
        """Count a record, and those before it that it does not replace."""
        self._dropped.discard(key)
        before = self._written.get(key, [])
        written = _Written(number, record.position.version, record.nbytes, record.adds)
        self._written[key] = _counting([*before, written], earlier=self.keeps_earlier)

    def _prune(self) -> None:
        kept = [all_of for key, all_of in self._written.items() if key not in self._dropped]
        if not self.keeps_earlier or all(each[0].version < each[-1].version for each in kept):
            for key in self._dropped:
                del self._written[key]
            self._dropped.clear()
        counts = {each.number for all_of in self._written.values() for each in all_of}
        for number in [number for number in self._sizes if number not in counts]:
            del self._sizes[number]
            (self.path / f"segment-{number:012d}").unlink(missing_ok=True)


def _counting(written: list[_Written], *, earlier: bool) -> list[_Written]:
    """Return the records that the newest needs; with ``earlier`` also the version before it."""
    first = len(written) - 1
    if earlier:
        newest = written[-1].version
        first = next((at for at in range(first, -1, -1) if written[at].version < newest), first)
    while first and written[first].adds:
        first -= 1
    return written[first:]


def _counted(written: list[_Written]) -> int:
    """Return the bytes of the versions that count; records that add have those before in them."""
    last = written[-1]
    apart = not last.adds and written[0].version < last.version
    return last.nbytes + (max(each.nbytes for each in written[:-1]) if apart else 0)


class _Work(NamedTuple):
    """A commit: where slices are once it is written, and the steps that write it, in order."""

    positions: dict[int, Position]
    steps: deque[Callable[[], None]]


class Committer:
    """A thread that writes one commit at a time; where the disk is full, again and again."""

    def __init__(self, folder: StateFolder, run: str, wake: Callable[[], None]) -> None:
        """Write to ``folder``; call ``wake`` when a commit is written, or could not be."""
        self._folder = folder
        self._run = run
        self._wake = wake
        self._work: _Work | None = None
        self._done: dict[int, Position] | None = None
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._write, name="syncopate-state", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a commit is being written, or its end was not taken note of."""
        with self._changed:
            return self._work is not None or self._done is not None

    @property
    def wants_all(self) -> bool:
        """Whether the next commit should hold all slices."""
        return self._folder.wants_all

    def begin(
        self,
        records: Mapping[int, Record],
        dropped: tuple[int, ...] = (),
        *,
        identity: Identity | None = None,
        anew: bool = False,
    ) -> None:
        """Write a segment with ``records``; only while not busy.

        Args:
            records: by key; none: no segment.
            dropped: keys of which nothing counts after it.
            identity: the server's, where it changed.
            anew: let nothing else count once it is written.
        """
        assert not self.busy
        bare = {
            key: msgspec.structs.replace(record, tensors={}, whole_nbytes=record.nbytes)
            for key, record in records.items()
        }
        data, steps = encoded(self._run, records), deque[Callable[[], None]]()
        if anew:
            steps.append(partial(self._folder.replace, bare, data))
        elif records:
            steps.append(partial(self._folder.put, bare, data, dropped))
        if identity is not None:
            # A segment has what the identity says. One that is written anew has so with the
            # identity before, too, by which a server that is killed meanwhile goes back once more.
            save = partial(self._folder.save_identity, identity)
            steps.append(save) if anew else steps.appendleft(save)
        with self._changed:
            self._work = _Work({key: at.position for key, at in records.items()}, steps)
            self._changed.notify()

    def finished(self) -> dict[int, Position] | None:
        """Return the positions that are on disk by a commit since the last call; None: no commit.

        Raises:
            ArtifactError: it could not be written. What else ended the thread.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            done, self._done = self._done, None
        return done

    def close(self) -> None:
        """Finish what is being written, and end."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _write(self) -> None:
        while True:
            with self._changed:
                while self._work is None and not self._over:
                    self._changed.wait()
                if self._work is None:
                    return
                work = self._work
            failure = self._keep_writing(work)
            with self._changed:
                self._work, self._done = None, None if failure else work.positions
                self._error = self._error or failure
            self._wake()

    def _keep_writing(self, work: _Work) -> Exception | None:
        """Write a commit; while the disk is full wait, and write it then."""
        waited = False
        while work.steps:
            try:
                work.steps[0]()
            except Exception as error:  # without memory, too: a server that waits has to hear of it
                with self._changed:
                    if not is_full(error) or self._over:
                        return error
                    if not waited:
                        _log.warning("%s; no push is acknowledged until there is room", error)
                    waited = True
                    self._changed.wait(AGAIN_S)
            else:
                work.steps.popleft()
        if waited:
            _log.warning("%s: there is room again", self._folder.path)
        return None


def encoded(run: str, records: Mapping[int, Record]) -> bytes:
    """Return a segment, but for its checksum."""
    entries = tuple(
        _Entry(
            key,
            record.position,
            tuple(_Field(n, dtype_name(t.dtype), t.numel()) for n, t in record.tensors.items()),
            record.adds,
            record.whole_nbytes,
        )
        for key, record in records.items()
    )
    head = msgspec.msgpack.encode(_Head(1, run, entries))
    payloads = [
        flat_bytes(tensor).numpy().data
        for record in records.values()
        for tensor in record.tensors.values()
        if tensor.numel()
    ]
    return b"".join([_MAGIC, _LENGTH.pack(len(head)), head, *payloads])


def _decoded(path: Path, run: str) -> dict[int, Record]:
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise ArtifactError(path, f"cannot read: {error.strerror or error}") from None
    body = len(data) - _CHECK.size
    start = len(_MAGIC) + _LENGTH.size
    if body < start or data[: len(_MAGIC)] != _MAGIC:
        raise ArtifactError(path, "not a segment of a parameter server's state")
    if _CHECK.unpack_from(data, body)[0] != zlib.crc32(memoryview(data)[:body]):
        raise ArtifactError(path, "damaged: its checksum is another; restore it or start anew")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    try:
        head = msgspec.msgpack.decode(memoryview(data)[start : start + length], type=_Head)
    except msgspec.DecodeError as error:
        raise ArtifactError(path, f"not a segment that this Syncopate reads: {error}") from None
    if head.schema_version != 1 or head.run != run:
        found = f"version {head.schema_version} of run {head.run}"
        raise ArtifactError(path, f"{found}; expected version 1 of run {run}")
    return _records(path, data, start + length, head)


def _records(path: Path, data: bytearray, offset: int, head: _Head) -> dict[int, Record]:
    found = {}
    for entry in head.entries:
        tensors = {}
        for field in entry.fields:
            dtype = dtype_of(field.dtype)
            nbytes = field.numel * dtype.itemsize
            if offset + nbytes > len(data) - _CHECK.size:
                raise ArtifactError(path, "truncated", f"slice {entry.key}, {field.name}")
            part = torch.empty(0, dtype=torch.uint8)
            if nbytes:
                part = torch.frombuffer(data, dtype=torch.uint8, count=nbytes, offset=offset)
            tensors[field.name] = part.clone().view(dtype)  # aligned, and writable
            offset += nbytes
        found[entry.key] = Record(entry.position, tensors, entry.adds, entry.whole_nbytes)
    return found
