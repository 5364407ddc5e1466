"""Timeline: what happened, or would happen, and when.

The engine records one, the simulator computes one; analysis and reports do not care which.

[Note: a file in pieces]
A file of a million spans is read in pieces, which become columns one after the other: only one of
them is in memory as text and objects. A piece ends between two spans, where the file has ``},``. So
may a name or the metadata; but what ends there cannot be decoded, and is read on with what follows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import IO, Any, ClassVar

import msgspec
import numpy as np

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.artifacts.timelines.alike import Alike, SharedSpans, require_ranks, shared
from syncopate.artifacts.timelines.spans import LANES, PAUSES, Span, Spans, span_record
from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.reading import as_utf8, opened
from syncopate.shown import Row, Shown
from syncopate.units import format_count, format_seconds

__all__ = [
    "AFTER_PUSHES",
    "ANSWERS",
    "ASYNCHRONOUS",
    "HOSTS",
    "LANES",
    "OWN_CLUSTER",
    "PAUSES",
    "PULLS",
    "SERVERS",
    "SERVER_COUNT",
    "SOURCES",
    "SYNCHRONOUS",
    "TOGETHER",
    "Alike",
    "Group",
    "Span",
    "Spans",
    "Timeline",
    "about_servers",
]

SOURCES: tuple[str, ...] = ("measured", "simulated")
"""Where a timeline can come from."""

SERVERS, SYNCHRONOUS, ASYNCHRONOUS = "servers", "synchronous", "asynchronous"
"""What metadata call how parameter servers update, and its values where they wait for all ranks and
where they do not."""

HOSTS = "hosts"
"""What metadata call the number of hosts, where it is known."""

SERVER_COUNT = "server_count"
"""What metadata call the number of parameter servers."""

OWN_CLUSTER = "own_cluster"
"""What metadata call the cluster that a run ran on: the JSON of its file, without curves."""

PULLS, AFTER_PUSHES = "pulls", "after pushes"
"""What metadata call when weights are asked for, and its value where that is when the push of the
same name was answered, if it was answered before."""

ANSWERS, TOGETHER = "answers", "together"
"""What metadata call when a push is answered, and its value where servers have all ranks' then."""


def about_servers(count: int, *, synchronous: bool) -> dict[str, str]:
    """Return what metadata say of parameter servers."""
    return {SERVERS: SYNCHRONOUS if synchronous else ASYNCHRONOUS, SERVER_COUNT: str(count)}


class Group(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that communicate with each other: all, or those of one tensor or pipeline group.

    Attributes:
        name: what the training calls it; empty: it has no name.
        ranks: which; empty: not known.
        description: what else the training says, such as ``"default_pg"`` or ``"mesh_tp"``.
    """

    name: str
    ranks: tuple[int, ...] = ()
    description: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        """The key of a group: its name, its first rank, its size."""
        return self.name, self.ranks[0] if self.ranks else -1, len(self.ranks)


class Timeline(Shown, Artifact, frozen=True, kw_only=True, dict=True):
    """Spans of every rank on one clock.

    Attributes:
        name: what to call it in reports.
        source: one of ``SOURCES``.
        world_size: number of ranks, 1 to ``MAX_RANKS``.
        spans: of every rank, in any order; of files they are columns, as
            :class:`~syncopate.artifacts.timelines.spans.Spans`, and where some ranks do the same
            :class:`~syncopate.artifacts.timelines.alike.SharedSpans`.
        metadata: plan, cluster, versions, date.
        groups: in which group a push or pull was, by its channel; empty: of all ranks, and channels
            are channels.
    """

    KIND: ClassVar[str] = "timeline"
    SCHEMA_VERSION: ClassVar[int] = 2
    OLDEST_VERSION: ClassVar[int | None] = 1

    name: str
    source: str
    world_size: int
    spans: Sequence[Span]
    metadata: dict[str, str] = {}
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownNameError("source", self.source, SOURCES)
        if not 1 <= self.world_size <= MAX_RANKS:
            raise InvalidValueError("world_size", self.world_size, f"in 1..{MAX_RANKS}")
        if isinstance(self.spans, Spans):
            kept = self.kept
            wrong = (kept.rank < 0) | (kept.rank >= self.world_size)
            suspects: Sequence[Span] = kept.take(np.flatnonzero(wrong)[:1])
        else:
            suspects = self.spans
        if isinstance(self.spans, SharedSpans):
            require_ranks(self.spans.alike, self.world_size)
        for span in suspects:
            if not 0 <= span.rank < self.world_size:
                raise InvalidValueError(
                    f"rank of span {span.name}", span.rank, f"in 0..{self.world_size - 1}"
                )

    @cached_property
    def columns(self) -> Spans:
        """The spans as columns, for code that reads all of them."""
        return Spans.of(self.spans)

    @cached_property
    def kept(self) -> Spans:
        """The spans, those of alike ranks once, of the rank that stands for them."""
        return self.columns.kept if isinstance(self.columns, SharedSpans) else self.columns

    @property
    def alike(self) -> tuple[Alike, ...]:
        """Which ranks do what another one does; empty where each rank has spans of its own."""
        return self.columns.alike if isinstance(self.columns, SharedSpans) else ()

    def ranks_like(self, rank: int) -> tuple[int, ...]:
        """Return the ranks in the columns that do what a kept one does, itself the first."""
        if not isinstance(self.columns, SharedSpans):
            return (rank,)
        return tuple(self.columns.shown(rank).tolist())

    def few(self, spans: int) -> Timeline:
        """Return the same; of alike ranks its columns have as many as come to about ``spans``."""
        if not isinstance(self.columns, SharedSpans) or len(self.columns) <= spans:
            return self
        return msgspec.structs.replace(self, spans=self.columns.few(spans))

    @property
    def ranks_in_columns(self) -> int:
        """The number of ranks, without those alike to others that :meth:`few` left out."""
        columns = self.columns
        return self.world_size - (columns.left_out if isinstance(columns, SharedSpans) else 0)

    def summary(self) -> tuple[str, ...]:
        """Return the timeline's name, its ranks and its length."""
        iterations = format_count(len(np.unique(self.kept.iteration)), "iteration")
        ranks = format_count(self.world_size, "rank")
        lasts = format_seconds(self.duration_s)
        return (f"{self.name}, {self.source}: {ranks}, {iterations}, {lasts}",)

    def rows(self) -> list[Row]:
        """Return how much time the spans of each lane take, the mean over ranks; they may overlap.

        In :meth:`to_pandas` each span has a row of its own.
        """
        spans = self.columns
        lasts_s = spans.end_s - spans.start_s
        ranks = max(self.ranks_in_columns, 1)
        return [
            {"lane": lane, "spans": int(there.sum()), "mean_s": float(lasts_s[there].sum()) / ranks}
            for lane in LANES
            if (there := spans.in_lanes(lane)).any()
        ]

    def frame(self) -> list[Row]:
        """Return every span."""
        return [msgspec.structs.asdict(span) for span in self.columns]

    @property
    def duration_s(self) -> float:
        """From the first start to the last end; 0 when empty."""
        kept = self.kept
        return float(kept.end_s.max() - kept.start_s.min()) if len(kept) else 0.0

    def to_json(self) -> bytes:
        """Encode as UTF-8 JSON, ``kind`` and ``schema_version`` first, a span in each line."""
        # What most trainings have none of is left out.
        beside = {"groups": self.groups, "alike": self.alike}
        head = self._encoded(
            {
                "name": self.name,
                "source": self.source,
                "world_size": self.world_size,
                "metadata": self.metadata,
            }
            | {name: value for name, value in beside.items() if value}
        )
        opened = head.removesuffix(b"\n}\n") + b',\n "spans": ['
        return b"".join((opened, *self.kept.json_blocks(), b"\n ]\n}\n"))

    @classmethod
    def from_json(cls, data: bytes | str, source: object = "<memory>") -> Timeline:
        """Decode strictly.

        Args:
            data: the JSON text.
            source: what to call the text in errors, usually its path.

        Raises:
            ArtifactError: not valid JSON, another kind, another version, or a field at fault.
        """
        text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
        return cls.from_file(BytesIO(as_utf8(text)), source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Timeline:
        """Read and decode strictly, in pieces.

        Raises:
            ArtifactError: the file is missing, unreadable, damaged, newer, or of another kind.
        """
        try:
            with opened(path) as file:
                return cls.from_file(file, path)
        except OSError as error:
            reason = error.strerror or error
            raise ArtifactError(path, f"cannot read this {cls.KIND} file: {reason}") from None

    @classmethod
    def from_file(cls, file: IO[bytes], source: object) -> Timeline:
        """Decode strictly what a file holds, which can be read from its beginning twice.

        Raises:
            ArtifactError: as :meth:`from_json` does.
            OSError: it cannot be read.
        """
        refused = ""
        try:
            read, spans = _in_pieces(file)
            versions = range(cls.OLDEST_VERSION or 0, cls.SCHEMA_VERSION + 1)
            if read.kind == cls.KIND and read.schema_version in versions:
                return cls(
                    name=read.name,
                    source=read.source,
                    world_size=read.world_size,
                    spans=shared(spans, read.alike, read.world_size),
                    metadata=read.metadata,
                    groups=read.groups,
                )
        except (ValueError, RecursionError, SyncopateError) as error:
            refused = str(error)
        # What is wrong is found field by field.
        file.seek(0)
        _Checked.from_json(file.read(), source)
        raise ArtifactError(source, refused, "$.spans")


_Row: Any = span_record()


class _Document(Record, frozen=True, kw_only=True):
    """A timeline as it stands in its file."""

    kind: str
    schema_version: int
    name: str
    source: str
    world_size: int
    spans: list[_Row]
    metadata: dict[str, str] = {}
    groups: tuple[Group, ...] = ()
    alike: tuple[Alike, ...] = ()


class _Checked(Artifact, frozen=True, kw_only=True):
    """The same, which says of each field whether it is right."""

    KIND: ClassVar[str] = Timeline.KIND
    SCHEMA_VERSION: ClassVar[int] = Timeline.SCHEMA_VERSION
    OLDEST_VERSION: ClassVar[int | None] = Timeline.OLDEST_VERSION

    name: str
    source: str
    world_size: int
    spans: tuple[Span, ...]
    metadata: dict[str, str] = {}
    groups: tuple[Group, ...] = ()
    alike: tuple[Alike, ...] = ()

    def __post_init__(self) -> None:
        Timeline(name=self.name, source=self.source, world_size=self.world_size, spans=self.spans)
        if self.alike:
            shared(Spans.of(self.spans), self.alike, self.world_size)


_DOCUMENT = msgspec.json.Decoder(_Document)
_ROWS = msgspec.json.Decoder(list[_Row])
_PIECE_BYTES = 1 << 21
_OPENS = re.compile(rb'"spans"\s*:\s*\[')


def _in_pieces(file: IO[bytes]) -> tuple[_Document, Spans]:
    """Return the fields of a file without most of its spans, and all spans.

    [Note: a file in pieces]

    Raises:
        ValueError: it is not a timeline.
        SyncopateError: nor can these be spans.
    """
    text = file.read(_PIECE_BYTES)
    opens = _OPENS.search(text)
    if opens is None:
        read = _DOCUMENT.decode(text + file.read())
        return read, Spans.of(read.spans)
    head, text = text[: opens.end()], text[opens.end() :]
    parts = []
    while more := file.read(max(_PIECE_BYTES, len(text))):
        text += more
        piece, comma, rest = text.rpartition(b"},")
        try:
            rows = _ROWS.decode(b"[" + piece + b"}]") if comma else []
        except ValueError:
            continue  # it ends within a name or behind the spans
        if rows:
            parts.append(Spans.of(rows))
            text = rest
    if parts and not text.lstrip().startswith(b"{"):
        raise ValueError("a span is missing behind a comma")
    read = _DOCUMENT.decode(head + text)  # what is left are the last spans and what is behind them
    return read, Spans.joined([*parts, Spans.of(read.spans)])
