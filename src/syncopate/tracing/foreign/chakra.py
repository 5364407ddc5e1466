"""Chakra: a timeline as execution traces of MLCommons, which ASTRA-sim replays, one of each rank.

Computation is cut where a message starts, so that a replay starts it there too: a message depends
on the piece of computation before it, and a piece of computation on the one before it and on the
messages that had ended by then. Times are whole microseconds, and no wait is written: a replay
waits for what a node depends on. Of a message a replay takes kind and bytes, not the duration.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from syncopate.timeline import Span, Timeline
from syncopate.tracing.foreign.protobuf import delimited, number, numbers, text

VERSION = "0.0.4"

_COMPUTATION = ("forward", "backward", "update")
_COMMUNICATION = ("push", "pull")
_COMP_NODE, _COMM_COLL_NODE = 4, 7
_COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}


class _Node(NamedTuple):
    """One node: its number, what it does, when, and the numbers of those it depends on."""

    id: int
    span: Span
    start_s: float
    end_s: float
    after: tuple[int, ...]


def to_chakra(timeline: Timeline, kinds: Mapping[Span, str]) -> dict[str, bytes]:
    """Return file name -> content, a file of each rank.

    Messages to and from parameter servers are no collectives, and are written as computation of
    their duration.

    Args:
        timeline: measured or simulated.
        kinds: spans of communication -> the collective each is part of.
    """
    origin_s = min((span.start_s for span in timeline.spans), default=0.0)
    by_rank: list[list[Span]] = [[] for _ in range(timeline.world_size)]
    for span in sorted(timeline.spans, key=lambda span: (span.start_s, span.end_s)):
        by_rank[span.rank].append(span)
    return {
        f"{_stem(timeline)}.{rank}.et": b"".join(_file(spans, origin_s, kinds))
        for rank, spans in enumerate(by_rank)
    }


def _stem(timeline: Timeline) -> str:
    kept = "".join(one if one.isalnum() or one in "-_" else "-" for one in timeline.name)
    return kept or "timeline"


def _file(spans: Sequence[Span], origin_s: float, kinds: Mapping[Span, str]) -> Iterator[bytes]:
    yield delimited(text(1, VERSION))
    for node in _nodes(spans):
        yield delimited(_encoded(node, origin_s, kinds))


def _nodes(spans: Sequence[Span]) -> list[_Node]:
    """Return the nodes of one rank in the order in which they start."""
    messages = [span for span in spans if span.lane in _COMMUNICATION]
    pieces = list(_pieces(spans, [span.start_s for span in messages]))
    rows = [*((start, 1, end, span) for start, end, span in pieces)]
    rows += [(span.start_s, 0, span.end_s, span) for span in messages]
    nodes: list[_Node] = []
    computed: _Node | None = None
    open_messages: list[_Node] = []
    for identifier, (start_s, computes, end_s, span) in enumerate(
        sorted(rows, key=lambda row: row[:3])
    ):
        after = [] if computed is None else [computed.id]
        if computes:
            done = [one for one in open_messages if one.end_s <= start_s]
            open_messages = [one for one in open_messages if one.end_s > start_s]
            after += [one.id for one in done]
        node = _Node(identifier, span, start_s, end_s, tuple(after))
        nodes.append(node)
        if computes:
            computed = node
        else:
            open_messages.append(node)
    return nodes


def _pieces(spans: Sequence[Span], cuts: Sequence[float]) -> Iterator[tuple[float, float, Span]]:
    """Yield computation, cut where messages start."""
    for span in spans:
        if span.lane in _COMPUTATION:
            inside = sorted({cut for cut in cuts if span.start_s < cut < span.end_s})
            edges = [span.start_s, *inside, span.end_s]
            yield from ((a, b, span) for a, b in pairwise(edges))


def _encoded(node: _Node, origin_s: float, kinds: Mapping[Span, str]) -> bytes:
    span = node.span
    start_us = round((node.start_s - origin_s) * 1e6)
    duration_us = max(round((node.end_s - origin_s) * 1e6) - start_us, 0)
    kind = kinds.get(span, "send") if span.lane in _COMMUNICATION else ""
    collective = _COLLECTIVES.get(kind)
    attributes = [_flag("is_cpu_op", False)]
    if collective is not None:
        attributes += [_integer("comm_type", collective), _integer("comm_size", span.nbytes)]
    return b"".join(
        (
            number(1, node.id) if node.id else b"",
            text(2, f"{span.lane} {span.name} ({span.iteration})"),
            number(3, _COMP_NODE if collective is None else _COMM_COLL_NODE),
            numbers(5, node.after),
            number(6, start_us) if start_us else b"",
            number(7, duration_us) if duration_us else b"",
            *(text(10, attribute) for attribute in attributes),
        )
    )


def _flag(name: str, value: bool) -> bytes:
    return text(1, name) + number(27, int(value))


def _integer(name: str, value: int) -> bytes:
    return text(1, name) + number(9, value)
