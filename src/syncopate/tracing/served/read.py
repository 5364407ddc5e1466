"""Read: the files of a parameter server's nodes, as messages and work on one clock.

What is whole is shown; what is missing or damaged is said.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from syncopate.tracing.merge import ClockOffset
from syncopate.tracing.served.node_offsets import node_offsets
from syncopate.tracing.served.rows import (
    ASKED,
    NOBODY,
    ROLES,
    SCHEDULER,
    SENDS,
    SERVER,
    WORK,
    NodeHeader,
    Wired,
    Work,
)
from syncopate.tracing.trace_file import NodeFile, read_traces

PATTERNS = tuple(f"{role}*.trace" for role in ROLES)
"""The files of nodes in the directory of a run."""


class Key(NamedTuple):
    """A slice, which is what messages call a key.

    Attributes:
        server: rank of the server that keeps it.
        tensor: name of the tensor that it is a part of.
        dtype: of its elements.
        begin: its first element in the flat tensor.
        numel: its elements.
    """

    server: int
    tensor: str
    dtype: str
    begin: int
    numel: int


class Served(NamedTuple):
    """The messages and work of a parameter server's nodes, on one clock.

    Attributes:
        run: the job's random name.
        workers: number of workers.
        servers: number of servers.
        hosts: node -> host, of the nodes that wrote a file.
        messages: node -> its messages, by time.
        work: what servers computed, by server and time.
        keys: the slices.
        synchronous: whether an update waits for the pushes of all workers.
        epoch_s: seconds since 1970 where the clock is 0.
        clocks: node -> its clock minus the common one, as far as that is known.
    """

    run: str
    workers: int
    servers: int
    hosts: dict[str, str]
    messages: dict[str, tuple[Wired, ...]]
    work: tuple[Work, ...]
    keys: dict[int, Key]
    synchronous: bool
    epoch_s: float
    clocks: dict[str, ClockOffset]


def node_files(directory: str | os.PathLike[str], remarks: list[str]) -> list[NodeFile]:
    """Read the files of nodes in a directory; say in ``remarks`` which cannot be read."""
    paths = sorted(path for each in PATTERNS for path in Path(directory).glob(each))
    return read_traces(paths, NodeHeader, remarks)


def served_of(
    files: Sequence[NodeFile],
    remarks: list[str],
    reference: str = "",
    known: Mapping[str, ClockOffset] | None = None,
) -> Served:
    """Return what the files of one job say.

    Args:
        files: of the nodes; a node that was started again has several.
        remarks: what is missing or uncertain is added, a sentence each.
        reference: the node whose clock counts; worker 0's, or else the first's, where it is none.
        known: clocks of nodes minus that, as they were measured.
    """
    files = sorted(files, key=lambda f: (ROLES.index(f.header.role), f.header.rank))
    first = files[0].header
    remarks += _shortcomings(files)
    seen = [_seen(file) for file in files]
    names = [file.header.node for file in files]
    place = next((names.index(n) for n in (reference, "w0") if n in names), 0)
    machines = [file.header.machine for file in files]
    offsets = node_offsets(
        [(machine, mine) for machine, (mine, _) in zip(machines, seen, strict=True)],
        machines[place],
        {machines[names.index(n)]: offset for n, offset in (known or {}).items() if n in names},
    )
    for machine, offset in offsets.items():
        nodes = ", ".join(n for n, m in zip(names, machines, strict=True) if m == machine)
        if said := _of_clock(nodes, names[place], offset):
            remarks.append(said)
    messages: dict[str, list[Wired]] = defaultdict(list)
    work: list[Work] = []
    for node, (mine, done), machine in zip(names, seen, machines, strict=True):
        by_s = offsets[machine].seconds
        messages[node] += [
            m._replace(queued_s=m.queued_s - by_s, time_s=m.time_s - by_s) for m in mine
        ]
        work += [w._replace(start_s=w.start_s - by_s, end_s=w.end_s - by_s) for w in done]
    keys, modes = _keys(files)
    began = files[place].header
    return Served(
        run=first.run,
        workers=first.workers,
        servers=first.servers,
        hosts={file.header.node: file.header.host for file in files},
        messages={
            node: tuple(sorted(mine, key=lambda m: m.time_s)) for node, mine in messages.items()
        },
        work=tuple(sorted(work, key=lambda w: (w.node, w.start_s))),
        keys=keys,
        synchronous=modes <= {"ssgd"},
        epoch_s=began.began_s - began.began_clock_s,
        clocks={n: offsets[machine] for n, machine in zip(names, machines, strict=True)},
    )


def _shortcomings(files: Sequence[NodeFile]) -> Iterable[str]:
    header = files[0].header
    here = {file.header.node for file in files}
    expected = [f"w{rank}" for rank in range(header.workers)]
    expected += [f"s{rank}" for rank in range(header.servers)] + [SCHEDULER]
    if missing := [node for node in expected if node not in here]:
        yield f"no file of {', '.join(missing)}: {len(here)} of {len(expected)} nodes are shown"
    for file in files:
        yield from file.shortcomings("messages")


def _of_clock(nodes: str, reference: str, offset: ClockOffset) -> str:
    """Say by how much clocks of another machine differ, and how sure that is."""
    if offset == ClockOffset(0.0, 0.0):
        return ""
    said = f"{nodes}: clock differs from that of {reference} by {offset.seconds:.6f} s"
    if offset.error_s == float("inf"):
        return f"{nodes}: nothing says by how much the clock differs from that of {reference}"
    if offset.error_s < 0:
        return (
            f"{said} in the middle; it drifted: messages both ways contradict each other by "
            f"{-2e6 * offset.error_s:.0f} us"
        )
    return f"{said}, by messages both ways, {offset.error_s * 1e6:.0f} us at most off"


def _seen(file: NodeFile) -> tuple[list[Wired], list[Work]]:
    """Return the messages and the work of a node."""
    kinds, node = file.header.kinds, file.header.node
    peers = {int(n): name for note in file.notes for n, name in note.get("peers", {}).items()}
    peers.pop(NOBODY, None)
    messages: list[Wired] = []
    work: list[Work] = []
    for code, flags, place, *row in file.records.tolist():
        key, number, other, priority, nbytes, since_s, time_s = row
        kind, peer = kinds[code], peers.get(place, "")
        if kind in WORK:
            work.append(Work(node, kind, peer, key, number, since_s, time_s))
        else:
            sends, asked = bool(flags & SENDS), bool(flags & ASKED)
            about = (key, number, other, asked, priority, nbytes, since_s, time_s)
            messages.append(Wired(node, kind, sends, peer, *about))
    return messages, work


def _keys(files: Iterable[NodeFile]) -> tuple[dict[int, Key], set[str]]:
    """Return the slices, and the modes that were declared."""
    keys: dict[int, Key] = {}
    modes: set[str] = set()
    for file in files:
        for note in file.notes:
            if "slices" in note:
                modes.add(note["mode"])
                keys |= {key: Key(note[SERVER], *rest) for key, *rest in note["slices"]}
    return dict(sorted(keys.items())), modes
