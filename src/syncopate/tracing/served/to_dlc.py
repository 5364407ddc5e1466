"""To DLC: what the nodes of a parameter server captured, as the trace format of SketchDLC has it.

A key is a slice, which is pushed, updated and pulled as one; each record is one message. What has a
place in the format:

=====================================  ===========================================================
record                                 message
=====================================  ===========================================================
``SendCom_To_Servers``                 Hello, Welcome, HelloWanted and Declare, in both directions
``Push_Send_*`` of a worker            a slice's push, the first time that it was sent
``Push_Recv_*`` of a worker            the acknowledgement that says first that the push is over
``Pull_Send_*`` of a worker            the first request of an iteration for the slice
``Pull_Recv_*`` of a worker            the weights that answer it
=====================================  ===========================================================

and the same the other way around on servers. The iteration is how many pushes came before. What was
sent again, an acknowledgement that says only that a push came, queries, and a second pull in an
iteration have no place; they are counted.

[Note: a pull before its push is answered]
A worker asks for weights without waiting for the answer to its push, which the server does for it.
Its request then depends on the push: ``dep_type`` 2 with the push in ``id_dep``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from syncopate.tracing.dlc import Header, Node, Record, SetUp, to_dlc
from syncopate.tracing.dlc.records import INITIAL, OF_SERVERS, OF_WORKERS
from syncopate.tracing.served.places import places
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.rows import SCHEDULER, SERVER, WORKER, Wired

KEYS = "keys.tsv"
"""The file that says which slice a key is; the format has no place for it."""

_SET_UP = ("Hello", "Welcome", "HelloWanted", "Declare")
_FOUR = ("Push", "Ack", "Pull", "Weights")
"""The messages of the four operations, in order."""


class NodeTrace(NamedTuple):
    """The trace of one node.

    Attributes:
        header: what stands above the records.
        records: of its messages, by time.
        left_out: how many messages have no place in the format, by kind.
    """

    header: Header
    records: tuple[Record | SetUp, ...]
    left_out: Counter[str]


def dlc_files(served: Served) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files by their names, and what they leave out, a sentence for each node."""
    traces = dlc_traces(served)
    files = {
        f"{name}.txt": "".join(to_dlc(one.header, one.records)).encode()
        for name, one in traces.items()
    }
    why = "left out: the format has no place for them"
    said = tuple(
        f"{name}.txt: {', '.join(_counted(one.left_out))} {why}"
        for name, one in traces.items()
        if one.left_out
    )
    if not served.synchronous:
        said = (*said, "servers answered each push by itself: analyze these with --asynchronous")
    return files | {KEYS: keys_table(served).encode()}, said


def _counted(left_out: Mapping[str, int]) -> Iterator[str]:
    for kind, count in sorted(left_out.items()):
        yield f"{count} {kind}"


def dlc_traces(served: Served) -> dict[str, NodeTrace]:
    """Return the trace of every node that wrote a file, by the name of its file."""
    placed = {node: places(mine) for node, mine in served.messages.items() if node != SCHEDULER}
    numbers = _numbered(served, placed)
    found = {}
    for node, mine in served.messages.items():
        if node == SCHEDULER:
            found[SCHEDULER] = _of_scheduler(served, mine)
            continue
        role = WORKER if node[0] == "w" else SERVER
        found[f"{role}-{node[1:]}"] = _of_node(served, node, placed[node], numbers)
    return found


def keys_table(served: Served) -> str:
    """Return which slice a key is, as a table whose columns are separated by tabs."""
    lines = ["key\tserver\ttensor\tdtype\tfirst_element\telements\n"]
    for key, one in served.keys.items():
        row = (key, one.server, one.tensor, one.dtype, one.begin, one.numel)
        lines.append("\t".join(map(str, row)) + "\n")
    return "".join(lines)


def _of_node(
    served: Served,
    name: str,
    placed: Mapping[int, int],
    numbers: Mapping[tuple[str, int, int, bool], int],
) -> NodeTrace:
    worker = name[0] == "w"
    node = Node(
        int(name[1:]),
        worker=worker,
        workers=served.workers,
        servers=served.servers,
        synchronous=served.synchronous,
    )
    operations = dict(zip(_FOUR, OF_WORKERS if worker else OF_SERVERS, strict=True))
    left_out: Counter[str] = Counter()
    for index, m in enumerate(served.messages[name]):
        iteration = placed.get(index)
        if m.kind in _SET_UP and m.peer:
            node.set_up(int(m.peer[1:]), sends=m.sends, length=m.nbytes)
        elif iteration is not None:
            push = m.kind in ("Push", "Ack")
            initial = push and iteration < 0
            by = name if worker else m.peer
            node.add(
                operations[m.kind],
                m.key,
                int(m.peer[1:]),
                length=m.nbytes,
                num_pp=INITIAL if initial else numbers[by, m.key, iteration, push],
                time_us=round((served.epoch_s + m.time_s) * 1e6),
                iteration=iteration,
            )
        elif m.peer != SCHEDULER:
            left_out[m.kind] += 1
    header = Header(
        served.workers, served.servers, served.hosts[name], WORKER if worker else SERVER
    )
    return NodeTrace(header, tuple(node.records), left_out)


def _of_scheduler(served: Served, messages: Iterable[Wired]) -> NodeTrace:
    """Return what the scheduler sent and received, each record under the name of its message."""
    own = served.workers + served.servers
    records: list[Record | SetUp] = []
    left_out: Counter[str] = Counter()
    for m in messages:
        if not m.peer:
            left_out[m.kind] += 1
            continue
        other = int(m.peer[1:]) + (0 if m.peer[0] == "w" else served.workers)
        src, dst = (own, other) if m.sends else (other, own)
        records.append(SetUp(len(records), src, dst, m.nbytes, 0, m.kind))
    header = Header(served.workers, served.servers, served.hosts[SCHEDULER], SCHEDULER)
    return NodeTrace(header, tuple(records), left_out)


def _numbered(
    served: Served, placed: Mapping[str, Mapping[int, int]]
) -> dict[tuple[str, int, int, bool], int]:
    """Return the numbers of pushes and pulls, by worker, key, iteration, and whether it pushes.

    Pushes are numbered in the order in which they were sent, and each is followed by the pull of
    its weights. What the worker's own file does not have is numbered as the servers saw it.
    """
    found: dict[tuple[str, int, int, bool], int] = {}
    count: Counter[str] = Counter()
    mine = (_with_places(node, served, placed) for node in placed if node[0] == "w")
    by_servers = chain(*(_with_places(node, served, placed) for node in placed if node[0] == "s"))
    for m, iteration in (*chain(*mine), *sorted(by_servers, key=lambda one: one[0].time_s)):
        push = m.kind in ("Push", "Ack")
        worker = m.node if m.node[0] == "w" else m.peer
        if (push and iteration < 0) or (worker, m.key, iteration, push) in found:
            continue
        for each in (True, False) if push else (False,):
            count[worker] += 1
            found[worker, m.key, iteration, each] = count[worker]
    return found


def _with_places(
    node: str, served: Served, placed: Mapping[str, Mapping[int, int]]
) -> Iterator[tuple[Wired, int]]:
    messages = served.messages[node]
    return ((messages[index], iteration) for index, iteration in placed[node].items())
