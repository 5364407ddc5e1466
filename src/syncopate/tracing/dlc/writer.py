"""Writer: a DLC trace as text, spelled as in Fig. 8 of SketchDLC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from syncopate.tracing.dlc.records import FIELDS, MARK, Header, Record, SetUp

_MICROSECONDS = 1_000_000
_GAP = " " * 5


def to_dlc(header: Header, records: Iterable[Record | SetUp]) -> Iterator[str]:
    """Yield the lines of a trace, each with its end.

    Args:
        header: what stands above the records.
        records: in the order they are written.
    """
    yield from _above(header)
    for record in records:
        yield "\t".join(_fields(record)) + "\n"


def _above(header: Header) -> Iterator[str]:
    workers = "".join(f"{rank}," for rank in range(header.workers))
    servers = "".join(f"{header.workers + rank}," for rank in range(header.servers))
    yield "=" * 132 + "\n"
    yield _line(
        "==",
        f"num_workers: = {header.workers}",
        f"num_servers: = {header.servers}",
        f"{header.role}_hostname:= {header.hostname}",
        f"Worker_ID: = {workers}",
        f"Server_ID: ={servers}",
    )
    setup = ("num_pp:", "-15: Initialize Server", "0: setup messages")
    yield _line("==", *setup, "odd (even): push_operation", "even (odd): pull_operation")
    for verb, title in (("push", "push operation:"), ("pull", "Pull  operation:")):
        worker = f"{verb}_send_worker → {verb}_recv_worker"
        yield _line("==", title, worker, f"{verb}_recv_server → {verb}_send_server")
    roles = "key: the index of parameters  role: (worker or server)"
    yield _line("==", "op_id: (key-operation_num-role)", roles)
    four = "(push_send, push_recv, pull_send, pull_recv)"
    number = "operation_num: the num of push or pull, every four num means an iteration"
    yield f"{_GAP}  {number} {four}\n"
    yield "=" * 133 + "\n"
    yield "\t".join(FIELDS) + "\n"


def _line(*parts: str) -> str:
    return _GAP.join(parts) + "\n"


def _fields(record: Record | SetUp) -> Iterator[str]:
    yield from map(str, record[:5])
    yield MARK + record.operation
    if isinstance(record, SetUp):
        return
    seconds, microseconds = divmod(record.time_us, _MICROSECONDS)
    yield record.op_id
    yield from map(str, (int(record.dependency), record.d_time_us, seconds, microseconds))
    if record.many:
        yield "(" + "".join(f"{one}," for one in record.depends_on) + ")"
    else:
        yield record.depends_on[0] if record.depends_on else "-1"
