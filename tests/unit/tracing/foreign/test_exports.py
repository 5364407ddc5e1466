"""Files for other tools: HTA's fields, Chakra's messages."""

from __future__ import annotations

import itertools
import json

from msgspec import structs

from syncopate.analysis.collectives import collectives
from syncopate.artifacts.timeline import SERVERS, SYNCHRONOUS, Group, Span, Timeline
from syncopate.tracing.foreign import read_timeline
from syncopate.tracing.foreign.exports.chakra import to_chakra
from syncopate.tracing.foreign.exports.hta import to_hta
from syncopate.tracing.foreign.exports.protobuf import number, numbers, varint


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
    return {span: kind for kind, spans in collectives(timeline) for span in spans}


def test_hta_has_a_file_of_each_rank_with_the_fields_it_looks_for():
    timeline = _timeline()
    files = to_hta(timeline, _kinds(timeline))
    assert list(files) == ["rank-0.json", "rank-1.json"]
    assert b'"rank": 1' in files["rank-1.json"]
    document = json.loads(files["rank-1.json"])
    events = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    assert len({event["args"]["correlation"] for event in events}) == len(events) == 5
    assert all(event["args"]["stream"] >= 0 for event in events)
    assert all(type(event["ts"]) is int and event["ts"] >= 0 for event in document["traceEvents"])
    (bucket,) = [event for event in events if event["args"].get("message") == "push bucket 0"]
    assert (bucket["ts"], bucket["dur"], bucket["args"]["bytes"]) == (30_001, 5_000, 1000)
    assert bucket["name"].startswith("ncclKernel_AllReduce")
    words = ("Collective name", "In msg nelems", "Process Group Ranks")
    assert [bucket["args"][word] for word in words] == ["allreduce", 1000, "[0, 1]"]


def _trained(iterations=4):
    """Two channels whose messages overlap within the first, and layers within forward."""
    spans = []
    for rank, iteration in itertools.product((0, 1), range(iterations)):
        begin = 70 * iteration
        rows = [
            ("forward", "forward", 5, 15, {}),
            ("layer", "forward", 6, 9, {}),
            ("backward", "backward", 15, 45, {}),
            ("bucket 0", "push", 25 + 10 * rank, 40, {"nbytes": 1000}),
            ("bucket 1", "push", 38, 55, {"nbytes": 200}),
            ("bucket 2", "push", 45, 56, {"nbytes": 300, "channel": 1}),
            ("SGD", "update", 55, 65, {}),
        ]
        for name, lane, start, end, other in rows:
            start_s, end_s = (begin + start) * 1e-3, (begin + end) * 1e-3
            given = {"rank": rank, "iteration": iteration, "start_s": start_s, "end_s": end_s}
            spans.append(Span(name=name, lane=lane, **given, **other))
    return Timeline(name="a", source="measured", world_size=2, spans=tuple(spans))


def test_hta_has_steps_launches_and_streams_that_do_not_overlap():
    timeline = _trained()
    files = to_hta(timeline, _kinds(timeline))
    streams = {}
    for content in files.values():
        events = json.loads(content)["traceEvents"]
        steps = {e["name"]: e for e in events if e["name"].startswith("ProfilerStep#")}
        # HTA leaves out the last one, which is empty.
        assert list(steps) == [f"ProfilerStep#{number}" for number in range(1, 6)]
        launched = {
            e["args"]["correlation"]: e["ts"] for e in events if e["name"] == "cudaLaunchKernel"
        }
        ends = {}
        for kernel in sorted(
            (e for e in events if e["cat"] == "kernel"), key=lambda e: (e["ts"], -e["dur"])
        ):
            args = kernel["args"]
            step = steps[f"ProfilerStep#{args['iteration'] + 1}"]
            at = launched.pop(args["correlation"])
            assert step["ts"] <= at < step["ts"] + step["dur"]
            assert at < kernel["ts"]
            assert kernel["ts"] >= ends.get(args["stream"], 0)
            ends[args["stream"]] = kernel["ts"] + kernel["dur"]
            if "message" in args:
                streams.setdefault(args["message"], set()).add(args["stream"])
        assert not launched
    assert streams == {"push bucket 0": {20}, "push bucket 1": {21}, "push bucket 2": {22}}


def test_what_hta_is_given_is_read_as_it_was(tmp_path):
    timeline = _trained()
    for name, content in to_hta(timeline, _kinds(timeline)).items():
        (tmp_path / name).write_bytes(content)
    found = read_timeline(sorted(tmp_path.iterdir()))

    def facts(told):
        return sorted(
            (s.rank, s.iteration, s.lane, round(s.start_s * 1e6), round(s.end_s * 1e6), s.nbytes)
            for s in told.spans
        )

    moved = [
        structs.replace(span, start_s=span.start_s - 5e-3, end_s=span.end_s - 5e-3)
        for span in timeline.spans
    ]
    assert facts(found) == facts(structs.replace(timeline, spans=moved))
    assert {span.name for span in found.spans if span.lane == "push"} == {
        "bucket 0",
        "bucket 1",
        "bucket 2",
    }


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
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert [event["name"].split("_")[1] for event in kernels] == [
        "Broadcast",
        "AllGather",
        "SendRecv",
    ]


def _served(synchronous=True):
    """Two ranks push a tensor to server 1 and pull it, in two iterations."""

    def span(lane, rank, iteration, start, end):
        at = 10 * iteration
        return Span(
            name="w",
            lane=lane,
            rank=rank,
            start_s=(at + start) * 1e-3,
            end_s=(at + end) * 1e-3,
            iteration=iteration,
            nbytes=100,
            detail="s1",
        )

    spans = [
        one
        for iteration, rank in itertools.product((0, 1), (0, 1))
        for one in (
            span("backward", rank, iteration, 0, 2),
            span("push", rank, iteration, 2 + rank, 4 + rank),
            span("pull", rank, iteration, 5 + rank, 7 + rank),
        )
    ]
    metadata = {"exchange": "served"} | ({SERVERS: SYNCHRONOUS} if synchronous else {})
    return Timeline(
        name="ps", source="measured", world_size=2, spans=tuple(spans), metadata=metadata
    )


def test_chakra_has_the_messages_of_a_parameter_server_at_both_ends():
    timeline = _served()
    files = to_chakra(timeline, _kinds(timeline))
    # Two ranks, server 0, which got no message, and server 1.
    assert list(files) == ["ps.0.et", "ps.1.et", "ps.2.et", "ps.3.et"]
    ends = {5: {}, 6: {}}  # sends and receives
    for rank, content in enumerate(files.values()):
        for message in _messages(content)[1:]:
            node = _node(message)
            if node[3] in ends:
                about = node["attributes"]
                assert about["is_cpu_op"] == 0
                assert about["comm_size"] == 100
                source, target = about.get("comm_src", 0), about.get("comm_dst", 0)
                assert rank == (source if node[3] == 5 else target)
                ends[node[3]][source, target, about.get("comm_tag", 0)] = node
    assert ends[5].keys() == ends[6].keys()
    assert len(ends[5]) == 8
    assert {(source, target) for source, target, _ in ends[5]} == {(0, 3), (1, 3), (3, 0), (3, 1)}


def test_a_server_of_chakra_sends_weights_once_it_has_what_they_are_made_of():
    for synchronous, needed in ((True, 2), (False, 1)):
        timeline = _served(synchronous)
        content = to_chakra(timeline, _kinds(timeline))["ps.3.et"]
        nodes = [_node(message) for message in _messages(content)[1:]]
        sends = [node for node in nodes if node[3] == 5]
        assert [len(node[5]) for node in sends] == [needed] * 4
        known = {node.get(1, 0): node for node in nodes}
        assert all(known[place][3] == 6 for node in sends for place in node[5])


def test_chakra_names_groups_that_are_not_of_all_ranks():
    groups = (Group(name="0", ranks=(0, 1, 2, 3)), Group(name="7", ranks=(0, 1)))
    spans = tuple(
        Span(name="all_reduce 0", lane="push", rank=r, start_s=0, end_s=1, channel=c, nbytes=4)
        for r, c in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0))
    )
    timeline = Timeline(name="g", source="measured", world_size=4, spans=spans, groups=groups)
    files = to_chakra(timeline, _kinds(timeline))
    assert json.loads(files["comm_group.json"]) == {"1": [0, 1, 2, 3], "2": [0, 1]}
    nodes = [_node(message) for message in _messages(files["g.0.et"])[1:]]
    assert [node["attributes"].get("pg_name") for node in nodes] == [None, b"2"]
