"""Chakra: a timeline as execution traces of MLCommons, which ASTRA-sim replays, one of each rank.

Computation is cut where a message starts, so that a replay starts it there too: a message depends
on the piece of computation before it, and a piece of computation on the one before it and on the
messages that had ended by then. Times are whole microseconds, and no wait is written: a replay
waits for what a node depends on. Of a message a replay takes kind and bytes, not the duration.

A parameter server's messages are sends and receives. Servers are ranks behind those of the
training, with a file each: a server receives every push, and sends weights once it has what they
depend on, the pushes of the same tensor by all ranks, or by the rank itself where servers update at
every push.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra, version 0.0.4.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.timeline import SERVERS, SYNCHRONOUS, Span, Timeline
from syncopate.tracing.foreign.exports.protobuf import delimited, number, numbers, text

VERSION = "0.0.4"

_COMPUTATION = ("forward", "backward", "update")
_COMMUNICATION = ("push", "pull")
_COMP_NODE, _SEND_NODE, _RECV_NODE, _COMM_COLL_NODE = 4, 5, 6, 7
_SERVER = re.compile(r"s(\d+)")

GROUPS = "comm_group.json"
"""The file that says which ranks a group has, by what nodes call it (``pg_name``)."""

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


class _Message(NamedTuple):
    """One message between a rank and a server, which is a rank too, and its number."""

    source: int
    target: int
    tag: int


class _Told(NamedTuple):
    """The facts that are the same for all files.

    Attributes:
        timeline: it.
        origin_s: when it begins.
        kinds: spans of communication -> the collective each is part of.
        messages: spans of communication -> the message to or from a server each is.
    """

    timeline: Timeline
    origin_s: float
    kinds: Mapping[Span, str]
    messages: Mapping[Span, _Message]


def to_chakra(timeline: Timeline, kinds: Mapping[Span, str]) -> dict[str, bytes]:
    """Return file name -> content: a file of each rank and server, and one of the groups, if any.

    Args:
        timeline: measured or simulated.
        kinds: spans of communication -> the collective each is part of.
    """
    served = timeline.metadata.get("exchange") == SERVED
    # A message to a server says whose it is; else files of alike ranks are the same.
    spans = timeline.columns if served else timeline.kept
    origin_s = min((span.start_s for span in spans), default=0.0)
    by_rank: list[list[Span]] = [[] for _ in range(timeline.world_size)]
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        by_rank[span.rank].append(span)
    messages = _messages(chain(*by_rank), timeline.world_size) if served else {}
    told = _Told(timeline, origin_s, kinds, messages)
    files = [_nodes(spans) for spans in by_rank]
    if messages:
        files += _servers(told)
    contents = [b"".join(_file(nodes, rank, told)) for rank, nodes in enumerate(files)]
    if not served:
        for rank in np.unique(spans.rank).tolist():
            for other in timeline.ranks_like(rank):
                contents[other] = contents[rank]
    stem = _stem(timeline)
    made = {f"{stem}.{rank}.et": content for rank, content in enumerate(contents)}
    if any(len(group.ranks) not in (0, timeline.world_size) for group in timeline.groups):
        groups = {str(at): list(group.ranks) for at, group in enumerate(timeline.groups, start=1)}
        made[GROUPS] = json.dumps(groups, indent=1).encode() + b"\n"
    return made


def _messages(spans: Iterable[Span], world_size: int) -> dict[Span, _Message]:
    """Return the messages to and from servers. A span's detail is its server, as ``"s1"``."""
    found = {}
    for tag, span in enumerate(one for one in spans if one.lane in _COMMUNICATION):
        told = _SERVER.fullmatch(span.detail)
        server = world_size + (int(told[1]) if told else 0)
        ends = (span.rank, server) if span.lane == "push" else (server, span.rank)
        found[span] = _Message(*ends, tag)
    return found


def _servers(told: _Told) -> list[list[_Node]]:
    """Return the nodes of each server: pushes as they came, weights as they left."""
    first = told.timeline.world_size
    count = max(max(m.source, m.target) for m in told.messages.values()) - first + 1
    together = told.timeline.metadata.get(SERVERS) == SYNCHRONOUS
    nodes: list[list[_Node]] = [[] for _ in range(count)]
    pushed: list[dict[str, dict[int, tuple[int, int]]]] = [defaultdict(dict) for _ in range(count)]
    # Of a push the end counts, by when a server has it.
    for span in sorted(told.messages, key=lambda span: (span.end_s, span.lane != "push")):
        message = told.messages[span]
        push = span.lane == "push"
        server = (message.target if push else message.source) - first
        own = nodes[server]
        had = pushed[server][span.name]
        after: tuple[int, ...] = ()
        if push:
            had[span.rank] = (span.iteration, len(own))
        else:
            after = tuple(
                sorted(
                    number
                    for rank, (iteration, number) in had.items()
                    if (together and iteration <= span.iteration) or rank == span.rank
                )
            )
        at_s = span.end_s if push else span.start_s
        own.append(_Node(len(own), span, at_s, span.end_s, after))
    return nodes


def _stem(timeline: Timeline) -> str:
    kept = "".join(one if one.isalnum() or one in "-_" else "-" for one in timeline.name)
    return kept or "timeline"


def _file(nodes: Iterable[_Node], rank: int, told: _Told) -> Iterator[bytes]:
    yield delimited(text(1, VERSION))
    for node in nodes:
        yield delimited(_encoded(node, rank, told))


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


def _encoded(node: _Node, rank: int, told: _Told) -> bytes:
    span = node.span
    start_us = round((node.start_s - told.origin_s) * 1e6)
    duration_us = max(round((node.end_s - told.origin_s) * 1e6) - start_us, 0)
    kind, attributes = _said(span, rank, told)
    return b"".join(
        (
            number(1, node.id) if node.id else b"",
            text(2, f"{span.lane} {span.name} ({span.iteration})"),
            number(3, kind),
            numbers(5, node.after),
            number(6, start_us) if start_us else b"",
            number(7, duration_us) if duration_us else b"",
            *(text(10, one) for one in (_flag("is_cpu_op", False), *attributes)),
        )
    )


def _said(span: Span, rank: int, told: _Told) -> tuple[int, list[bytes]]:
    """Return the type of a node on a rank, and what its attributes say."""
    if span.lane not in _COMMUNICATION:
        return _COMP_NODE, []
    size = _integer("comm_size", span.nbytes)
    if message := told.messages.get(span):
        ends = [_short("comm_src", message.source), _short("comm_dst", message.target)]
        sends = rank == message.source
        return _SEND_NODE if sends else _RECV_NODE, [size, *ends, _short("comm_tag", message.tag)]
    collective = _COLLECTIVES.get(told.kinds.get(span, "send"))
    if collective is None:
        return _COMP_NODE, []
    attributes = [_integer("comm_type", collective), size]
    groups = told.timeline.groups
    known = 0 <= span.channel < len(groups)
    if known and len(groups[span.channel].ranks) != told.timeline.world_size:
        attributes.append(text(1, "pg_name") + text(29, str(span.channel + 1)))
    return _COMM_COLL_NODE, attributes


def _flag(name: str, value: bool) -> bytes:
    return text(1, name) + number(27, int(value))


def _integer(name: str, value: int) -> bytes:
    return text(1, name) + number(9, value)


def _short(name: str, value: int) -> bytes:
    return text(1, name) + number(7, value)
