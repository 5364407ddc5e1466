"""Timeline: what happened, or would happen, and when.

The engine records one, the simulator computes one; analysis and reports do not care which.
"""

from __future__ import annotations

import math
from typing import ClassVar

from syncopate.artifacts import Artifact, Record
from syncopate.errors import InvalidValueError, UnknownNameError

LANES: tuple[str, ...] = ("forward", "backward", "push", "update", "pull", "wait")
"""What a span can be: computation, communication, or waiting for it."""

PAUSES: tuple[str, ...] = ("input", "garbage collection", "evaluation", "checkpoint")
"""Names of spans in the wait lane that say why their rank stood still; others wait for ranks.

Such a span may lie within a span of computation, which then lasted longer by it.
"""

SOURCES: tuple[str, ...] = ("measured", "simulated")
"""Where a timeline can come from."""


class Span(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One stretch of one rank's time.

    Attributes:
        name: what it was: a layer, ``"bucket 3"``, ``"optimizer"``.
        lane: one of ``LANES``.
        rank: whose time.
        start_s: from the timeline's origin.
        end_s: from the timeline's origin; not before ``start_s``.
        iteration: the training iteration it belongs to.
        channel: which channel carried it, for communication.
        nbytes: bytes communicated; 0 for computation.
        detail: the algorithm, or anything else a reader wants.
        launched_s: when communication was handed to its channel; None: not known.
        ready_s: when all that a push carries was there; None: not known.
    """

    name: str
    lane: str
    rank: int
    start_s: float
    end_s: float
    iteration: int = 0
    channel: int = 0
    nbytes: int = 0
    detail: str = ""
    launched_s: float | None = None
    ready_s: float | None = None

    def __post_init__(self) -> None:
        if self.lane not in LANES:
            raise UnknownNameError("lane", self.lane, LANES)
        if not (math.isfinite(self.start_s) and math.isfinite(self.end_s)):
            raise InvalidValueError(f"span {self.name}", (self.start_s, self.end_s), "finite times")
        if self.end_s < self.start_s:
            raise InvalidValueError(
                f"end_s of span {self.name}", self.end_s, f"at least start_s, {self.start_s}"
            )

    @property
    def duration_s(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


class Timeline(Artifact, frozen=True, kw_only=True):
    """Spans of every rank on one clock.

    Attributes:
        name: what to call it in reports.
        source: one of ``SOURCES``.
        world_size: number of ranks.
        spans: in any order.
        metadata: plan, cluster, versions, date.
    """

    KIND: ClassVar[str] = "timeline"

    name: str
    source: str
    world_size: int
    spans: tuple[Span, ...]
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownNameError("source", self.source, SOURCES)
        for span in self.spans:
            if not 0 <= span.rank < self.world_size:
                raise InvalidValueError(
                    f"rank of span {span.name}", span.rank, f"in 0..{self.world_size - 1}"
                )

    @property
    def duration_s(self) -> float:
        """From the first start to the last end; 0 when empty."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)
