"""Spans: stretches of ranks' time, one by one or many as columns.

A timeline of a long training has millions. As columns one takes 69 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.artifact import Record
from syncopate.artifacts.columns import Columns
from syncopate.errors import InvalidValueError, UnknownNameError

LANES: tuple[str, ...] = ("forward", "backward", "push", "update", "pull", "wait")
"""What a span can be: computation, communication, or waiting for it."""

PAUSES: tuple[str, ...] = (
    "input",
    "garbage collection",
    "evaluation",
    "checkpoint",
    "self-planning",
)
"""Names of spans in the wait lane that say why their rank stood still; others wait for ranks.

Such a span may lie within a span of computation, which then lasted longer by it.
"""

_LANE = {lane: place for place, lane in enumerate(LANES)}
FURTHEST_S = 1e18
"""Of a time from the origin of its clock: differences and sums of times stay numbers."""

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]
Mask = NDArray[np.bool_]


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
        if not (abs(self.start_s) <= FURTHEST_S and abs(self.end_s) <= FURTHEST_S):
            rule = f"finite times, none further from 0 than {FURTHEST_S:.0e}"
            raise InvalidValueError(f"span {self.name}", (self.start_s, self.end_s), rule)
        for field in ("launched_s", "ready_s"):
            at_s = getattr(self, field)
            if at_s is not None and abs(at_s) > FURTHEST_S:
                rule = f"a finite time, no further from 0 than {FURTHEST_S:.0e}"
                raise InvalidValueError(f"{field} of span {self.name}", at_s, rule)
        if self.end_s < self.start_s:
            raise InvalidValueError(
                f"end_s of span {self.name}", self.end_s, f"at least start_s, {self.start_s}"
            )

    @property
    def duration_s(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


class Spans(Columns[Span]):
    """Spans as columns.

    Args:
        texts: the table of texts.
        columns: field of a span -> its column; what is left out has the field's default.

    Attributes:
        texts: names and details, each once, the empty one among them.
        name: places in ``texts``.
        lane: places in :data:`LANES`.
        rank: as in a span, and so ``start_s``, ``end_s``, ``iteration``, ``channel``, ``nbytes``.
        detail: places in ``texts``.
        launched_s: NaN where it is not known, and so ``ready_s``.

    Raises:
        InvalidValueError: times that a span refuses, or places that are not there.
    """

    DTYPES: ClassVar[dict[str, str]] = {
        "name": "<i4",
        "lane": "u1",
        "rank": "<i4",
        "start_s": "<f8",
        "end_s": "<f8",
        "iteration": "<i8",
        "channel": "<i4",
        "nbytes": "<i8",
        "detail": "<i4",
        "launched_s": "<f8",
        "ready_s": "<f8",
    }
    """Field of a span -> the type of its column."""

    name: NDArray[np.int32]
    lane: NDArray[np.uint8]
    rank: NDArray[np.int32]
    start_s: Times
    end_s: Times
    iteration: Numbers
    channel: NDArray[np.int32]
    nbytes: Numbers
    detail: NDArray[np.int32]
    launched_s: Times
    ready_s: Times

    def __init__(self, texts: Sequence[str], columns: Mapping[str, Any]) -> None:
        given = (*texts, "")
        count = len(columns["lane"])
        self.texts = tuple(dict.fromkeys(given))
        places = {text: place for place, text in enumerate(self.texts)}
        once = np.array([places[text] for text in given], np.int32)
        defaults = {"detail": places[""], "launched_s": math.nan, "ready_s": math.nan}
        most = {"lane": len(LANES), "name": len(given), "detail": len(given)}
        for field, dtype in self.DTYPES.items():
            column = columns.get(field)
            if column is None:
                column = np.full(count, defaults.get(field, 0), dtype)
            elif field in most:
                if (worst := int(np.max(column, initial=0))) >= most[field]:
                    raise InvalidValueError(f"{field} of a span", worst, f"below {most[field]}")
                again = worst >= len(self.texts) or self.texts != given[: len(self.texts)]
                if field != "lane" and again:
                    column = once[column]
            column = np.ascontiguousarray(column, dtype).view()
            column.flags.writeable = False
            setattr(self, field, column)
        right = (self.start_s <= self.end_s) & (self.start_s >= -FURTHEST_S)
        right &= self.end_s <= FURTHEST_S
        for known_s in (self.launched_s, self.ready_s):
            right &= ~(np.abs(known_s) > FURTHEST_S)
        if not right.all():
            self[int(np.argmin(right))]  # which refuses it

    @classmethod
    def of(cls, spans: Iterable[Any]) -> Spans:
        """Return spans, or other objects with their fields, as columns.

        Raises:
            UnknownNameError: no such lane.
            InvalidValueError: times that a span refuses, or numbers that are too large.
        """
        if isinstance(spans, Spans):
            return spans
        rows = list(spans)
        column: dict[str, Any] = {f: list(map(attrgetter(f), rows)) for f in cls.DTYPES}
        places: dict[str, int] = {}
        for field in ("name", "detail"):
            for text in dict.fromkeys(column[field]):
                places.setdefault(text, len(places))
            column[field] = list(map(places.__getitem__, column[field]))
        for lane in dict.fromkeys(column["lane"]):
            if lane not in _LANE:
                raise UnknownNameError("lane", lane, LANES)
        column["lane"] = list(map(_LANE.__getitem__, column["lane"]))
        for field, dtype in cls.DTYPES.items():
            try:
                column[field] = np.array(column[field], dtype)
            except OverflowError:
                worst, bits = max(column[field], key=abs), 8 * np.dtype(dtype).itemsize
                rule = f"a whole number of {bits} bits"
                raise InvalidValueError(f"{field} of a span", worst, rule) from None
        return cls(tuple(places), column)

    @classmethod
    def joined(
        cls,
        parts: Sequence[Spans],
        change: Callable[[str, NDArray[Any]], NDArray[Any]] | None = None,
    ) -> Spans:
        """Return several, one behind the other.

        Args:
            parts: in their order.
            change: given a field and its column of all, returns another column; one at a time is
                in memory.
        """
        places: dict[str, int] = {}
        moved = [
            np.array([places.setdefault(text, len(places)) for text in part.texts], np.int32)
            for part in parts
        ]
        columns = {}
        for field in cls.DTYPES:
            column = cls.column(parts, field, moved)
            columns[field] = column if change is None else change(field, column)
        return cls(tuple(places), columns)

    @classmethod
    def column(
        cls, parts: Sequence[Spans], field: str, moved: Sequence[NDArray[Any]] = ()
    ) -> NDArray[Any]:
        """Return one column of several; ``moved`` says where their texts stand in another table."""
        columns = [getattr(part, field) for part in parts]
        if field in ("name", "detail"):
            columns = [to[own] for to, own in zip(moved, columns, strict=True)]
        return np.concatenate([np.empty(0, cls.DTYPES[field]), *columns])

    def take(self, rows: NDArray[Any]) -> Spans:
        """Return the spans of some rows: their numbers, or True where one is wanted."""
        if rows.dtype == bool:  # numbers are faster where columns are many
            rows = np.flatnonzero(rows)
        taken = Spans.__new__(Spans)  # what is right of all of them is right of some
        taken.texts = self.texts
        for field in self.DTYPES:
            column = getattr(self, field)[rows]
            column.flags.writeable = False
            setattr(taken, field, column)
        return taken

    def changed(self, **columns: NDArray[Any]) -> Spans:
        """Return the same spans with other columns."""
        return Spans(self.texts, {f: columns.get(f, getattr(self, f)) for f in self.DTYPES})

    # -- rows that are looked for ----------------------------------------------------------------

    def in_lanes(self, *lanes: str) -> Mask:
        """Return which are in one of some lanes."""
        wanted = np.zeros(len(LANES), bool)
        wanted[[_LANE[lane] for lane in lanes]] = True
        return wanted[self.lane]

    def named(self, names: Collection[str]) -> Mask:
        """Return which have one of some names."""
        wanted = np.array([text in names for text in self.texts], bool)
        return wanted[self.name]

    @cached_property
    def text_order(self) -> Numbers:
        """Where each of ``texts`` stands when they are sorted."""
        places = np.empty(len(self.texts), np.int64)
        places[sorted(range(len(self.texts)), key=self.texts.__getitem__)] = np.arange(len(places))
        return places

    def numbered(self, *fields: str) -> tuple[Numbers, Numbers]:
        """Return which spans agree in some fields, on all ranks, and their places there.

        Returns:
            For each span a number that those have which agree, and how many such of its own rank
            started before.
        """
        code = coded([getattr(self, field) for field in fields])
        mine = coded([code, self.rank])
        order = np.lexsort((self.start_s, mine))
        sorted_ = mine[order]
        first = np.flatnonzero(np.diff(sorted_, prepend=-1))
        nth = np.empty(len(self), np.int64)
        nth[order] = np.arange(len(self)) - np.repeat(first, np.diff(first, append=len(self)))
        return code, nth

    # -- as a sequence ---------------------------------------------------------------------------

    def made(self, rows: slice) -> Iterator[Span]:
        """Yield spans one by one."""
        for (
            name, lane, rank, start_s, end_s, iteration, channel, nbytes,
            detail, launched_s, ready_s,
        ) in zip(*self.values(rows).values(), strict=True):  # fmt: skip
            yield Span(
                name=self.texts[name],
                lane=LANES[lane],
                rank=rank,
                start_s=start_s,
                end_s=end_s,
                iteration=iteration,
                channel=channel,
                nbytes=nbytes,
                detail=self.texts[detail],
                launched_s=None if math.isnan(launched_s) else launched_s,
                ready_s=None if math.isnan(ready_s) else ready_s,
            )

    def __repr__(self) -> str:
        return f"Spans({len(self)} of ranks {sorted(set(self.rank.tolist()))})"

    def json_blocks(self) -> Iterator[bytes]:
        """Yield what a JSON array of the spans holds, a span in each line, many at a time."""
        encoder = msgspec.json.Encoder()
        for rows in self.slices():
            lines = encoder.encode_lines(list(self.made(rows))).removesuffix(b"\n")
            yield (b",\n  " if rows.start else b"\n  ") + lines.replace(b"\n", b",\n  ")


def coded(columns: Sequence[NDArray[Any]]) -> Numbers:
    """Return a number for each row, equal where the rows are, and rising with them."""
    code = np.zeros(len(columns[0]), np.int64)
    if not len(code):
        return code
    extent = 1
    for column in columns:
        least, most = int(column.min()), int(column.max())
        own = column.astype(np.int64)
        if extent * (most - least + 1) >= 1 << 62:
            code = np.unique(code, return_inverse=True)[1]
            own, least = np.unique(own, return_inverse=True)[1], 0
            extent, most = len(code), len(code)
        code = code * (most - least + 1) + (own - least)
        extent *= most - least + 1
    return np.unique(code, return_inverse=True)[1] if extent > 4 * len(code) else code


def span_record() -> type[Record]:
    """Return a record with the fields of a span that checks their types and not their values."""
    fields: list[Any] = [
        (f.name, f.type) if f.required else (f.name, f.type, f.default)
        for f in msgspec.structs.fields(Span)
    ]
    made = msgspec.defstruct("SpanRecord", fields, bases=(Record,), kw_only=True, gc=False)
    return cast("type[Record]", made)
