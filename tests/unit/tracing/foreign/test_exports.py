"""Files for other tools: HTA's fields, Chakra's messages."""

from __future__ import annotations

import json

from syncopate.analysis.collectives import collectives
from syncopate.timeline import Span, Timeline
from syncopate.tracing.foreign.chakra import to_chakra
from syncopate.tracing.foreign.hta import to_hta
from syncopate.tracing.foreign.protobuf import number, numbers, varint


def _timeline():
    def span(name, lane, rank, start, end, **other):
        return Span(
            name=name, lane=lane, rank=rank, start_s=start * 1e-3, end_s=end * 1e-3, **other
        )

    spans = []
    for rank in (0, 1):
        late = 10 * rank
        spans += [
            span("forward", "forward", rank, 5, 15),
            span("backward", "backward", rank, 15, 45),
            span("bucket 0", "push", rank, 25 + late, 40, nbytes=1000),
            span("bucket 1", "push", rank, 45, 55, nbytes=200, channel=1),
            span("bucket 1", "wait", rank, 45, 55),
            span("SGD", "update", rank, 55, 65),
        ]
    return Timeline(name="a b", source="measured", world_size=2, spans=tuple(spans))


def _kinds(timeline):
    return {span: one.collective for one in collectives(timeline) for span in one.spans}


def test_hta_has_a_file_of_each_rank_with_the_fields_it_looks_for():
    timeline = _timeline()
    files = to_hta(timeline, _kinds(timeline))
    assert list(files) == ["rank-0.json", "rank-1.json"]
    assert b'"rank": 1' in files["rank-1.json"]
    document = json.loads(files["rank-1.json"])
    events = document["traceEvents"]
    assert len({event["args"]["correlation"] for event in events}) == len(events) == 5
    assert all(event["cat"] == "kernel" and event["args"]["stream"] >= 0 for event in events)
    assert all(type(event["ts"]) is int and event["ts"] >= 0 for event in events)
    (bucket,) = [event for event in events if event["args"].get("message") == "push bucket 0"]
    assert (bucket["ts"], bucket["dur"], bucket["args"]["bytes"]) == (30_000, 5_000, 1000)
    assert bucket["name"].startswith("ncclKernel_AllReduce")


def _fields(data):
    """Yield ``(field, value)`` of a message: integers, and bytes."""
    at = 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = read()
        if key & 7 == 0:
            yield key >> 3, read()
        else:
            length = read()
            yield key >> 3, data[at : at + length]
            at += length


def _messages(data):
    """Split a file into its messages."""
    found = []
    while data:
        length = shift = at = 0
        while True:
            byte = data[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        found.append(data[at : at + length])
        data = data[at + length :]
    return found


def _node(message):
    fields = list(_fields(message))
    node = {field: value for field, value in fields if field != 10}
    attributes = [dict(_fields(value)) for field, value in fields if field == 10]
    named = {one[1].decode(): next(v for k, v in one.items() if k != 1) for one in attributes}
    return node | {"attributes": named}


def test_numbers_are_encoded_as_protocol_buffers_are():
    """The examples of protobuf.dev/programming-guides/encoding, and a negative number."""
    assert varint(150) == bytes([0x96, 0x01])
    assert number(1, 150) == bytes([0x08, 0x96, 0x01])
    assert numbers(6, [3, 270, 86942]) == bytes.fromhex("3206038e029ea705")
    assert number(1, -1) == bytes.fromhex("08" + "ff" * 9 + "01")
    assert numbers(6, []) == b""


def test_chakra_has_the_graph_of_each_rank():
    timeline = _timeline()
    files = to_chakra(timeline, _kinds(timeline))
    assert list(files) == ["a-b.0.et", "a-b.1.et"]
    metadata, *messages = _messages(files["a-b.0.et"])
    assert dict(_fields(metadata)) == {1: b"0.0.4"}
    nodes = [_node(message) for message in messages]
    rows = [
        (node[2].decode(), node[3], list(node.get(5, b"")), node.get(6, 0), node.get(7, 0))
        for node in nodes
    ]
    assert rows == [
        ("forward forward (0)", 4, [], 0, 10_000),
        ("backward backward (0)", 4, [0], 10_000, 10_000),
        ("push bucket 0 (0)", 7, [1], 20_000, 15_000),
        ("backward backward (0)", 4, [1], 20_000, 20_000),
        ("push bucket 1 (0)", 7, [3], 40_000, 10_000),
        ("update SGD (0)", 4, [3, 2, 4], 50_000, 10_000),
    ]
    assert [node.get(1, 0) for node in nodes] == list(range(6))
    assert nodes[2]["attributes"] == {"is_cpu_op": 0, "comm_type": 0, "comm_size": 1000}
    assert nodes[0]["attributes"] == {"is_cpu_op": 0}


def test_what_a_span_is_called_says_its_collective():
    names = ("broadcast 0", "all_gather 1", "send 0")
    spans = tuple(
        Span(name=name, lane="pull", rank=0, start_s=at, end_s=at + 1.0)
        for at, name in enumerate(names)
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    (content,) = to_chakra(timeline, _kinds(timeline)).values()
    kinds = [_node(one)["attributes"].get("comm_type") for one in _messages(content)[1:]]
    assert kinds == [5, 2, None]
    events = json.loads(to_hta(timeline, _kinds(timeline))["rank-0.json"])["traceEvents"]
    assert [event["name"].split("_")[1] for event in events] == [
        "Broadcast",
        "AllGather",
        "SendRecv",
    ]
