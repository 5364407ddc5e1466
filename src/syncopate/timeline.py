"""Timeline: what happened, or would happen, and when.

The engine records one, the simulator computes one; analysis and reports do not care which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np

from syncopate.artifacts import Artifact, Record
from syncopate.cluster import MAX_RANKS
from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.spans import LANES, PAUSES, Span, Spans, span_record

__all__ = ["LANES", "PAUSES", "SOURCES", "Span", "Spans", "Timeline"]

SOURCES: tuple[str, ...] = ("measured", "simulated")
"""Where a timeline can come from."""


class Timeline(Artifact, frozen=True, kw_only=True, dict=True):
    """Spans of every rank on one clock.

    Attributes:
        name: what to call it in reports.
        source: one of ``SOURCES``.
        world_size: number of ranks, 1 to ``MAX_RANKS``.
        spans: in any order; of files :class:`~syncopate.spans.Spans`, which are columns.
        metadata: plan, cluster, versions, date.
    """

    KIND: ClassVar[str] = "timeline"

    name: str
    source: str
    world_size: int
    spans: Sequence[Span]
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownNameError("source", self.source, SOURCES)
        if not 1 <= self.world_size <= MAX_RANKS:
            raise InvalidValueError("world_size", self.world_size, f"in 1..{MAX_RANKS}")
        if isinstance(self.spans, Spans):
            wrong = (self.spans.rank < 0) | (self.spans.rank >= self.world_size)
            suspects: Sequence[Span] = self.spans.take(np.flatnonzero(wrong)[:1])
        else:
            suspects = self.spans
        for span in suspects:
            if not 0 <= span.rank < self.world_size:
                raise InvalidValueError(
                    f"rank of span {span.name}", span.rank, f"in 0..{self.world_size - 1}"
                )

    @cached_property
    def columns(self) -> Spans:
        """The spans as columns, for whoever looks at all of them."""
        return Spans.of(self.spans)

    @property
    def duration_s(self) -> float:
        """From the first start to the last end; 0 when empty."""
        columns = self.columns
        return float(columns.end_s.max() - columns.start_s.min()) if len(columns) else 0.0

    def to_json(self) -> bytes:
        """Encode as UTF-8 JSON, ``kind`` and ``schema_version`` first, a span in each line."""
        head = self._encoded(
            {
                "name": self.name,
                "source": self.source,
                "world_size": self.world_size,
                "metadata": self.metadata,
            }
        )
        opened = head.removesuffix(b"\n}\n") + b',\n "spans": ['
        return b"".join((opened, *self.columns.json_blocks(), b"\n ]\n}\n"))

    @classmethod
    def from_json(cls, data: bytes | str, source: object = "<memory>") -> Timeline:
        """Decode strictly.

        Args:
            data: the JSON text.
            source: what to call the text in errors, usually its path.

        Raises:
            ArtifactError: not valid JSON, another kind, another version, or a field at fault.
        """
        try:
            read: Any = _DOCUMENT.decode(data)
            if (read.kind, read.schema_version) == (cls.KIND, cls.SCHEMA_VERSION):
                return cls(
                    name=read.name,
                    source=read.source,
                    world_size=read.world_size,
                    spans=Spans.of(read.spans),
                    metadata=read.metadata,
                )
        except (ValueError, RecursionError, SyncopateError) as error:
            refused = str(error)
        # What is wrong is found field by field.
        super().from_json(data, source)
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


_DOCUMENT = msgspec.json.Decoder(_Document)
