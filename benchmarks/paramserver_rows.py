"""Tables of rows: how many a parameter server takes and gives a second, against ZeroMQ alone.

    python benchmarks/paramserver_rows.py --json rows.json       # a minute
    python benchmarks/paramserver_rows.py --width 64 --ids 20000
    python benchmarks/paramserver_rows.py --quick                # to see that it runs

One worker pushes gradients of rows to one server on this machine, and pulls rows from it; the aim
is a million ids a second, or half of what plain ZeroMQ does. All that is pushed and pulled is some
ids at a time, of a table of a million rows:

- ``ascending``: each id once, in order, as a gradient that was coalesced.
- ``drawn``: in any order and by a power law, as a batch of clicks has them; rates count all ids,
  though a row that is there several times travels once.

Contenders, which take turns:

- ``sgd``, ``adagrad``, ``adam``: a KVStore and a server that updates by it.
- ``pyzmq``: a DEALER and a ROUTER that move the same bytes over TCP: numbers and gradients to the
  server, which acknowledges them; numbers to the server and rows back. Nothing is looked at.
- ``unix``: the same over a Unix socket, which the others take on one machine; on Linux alone.

A ``push`` is over when it is in the weights, or acknowledged by plain ZeroMQ; a ``pull`` when the
rows have come; a ``step`` is both at once. Rates are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import zmq
from torch import Tensor

from emulated.options import explained
from serving.loopback import CONTEXT, WAIT_S, process
from serving.work import facts
from syncopate import KVStore
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.tensors import keep_freed_memory
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import SGD, Adagrad, Adam
from syncopate.protocol.table import ID_BYTES, Normal, Table

RULES = {"sgd": SGD(lr=0.01), "adagrad": Adagrad(lr=0.01), "adam": Adam(lr=0.01)}
ROUNDS, ROWS, WIDTH, IDS = 9, 1_000_000, 16, 100_000
OPERATIONS = ("push", "pull", "step")
_LIMITS = Limits(silence_s=60.0)
_TCP, _UNIX = "tcp://127.0.0.1:*", "ipc://*"
_PUSH, _PULL, _END = b"push", b"pull", b"end"

Operations = dict[tuple[str, str], Callable[[], None]]
"""What is pushed and pulled, and the operation -> what does it."""


class Cell(Record, frozen=True, kw_only=True):
    """One operation of one contender; seconds of every round."""

    contender: str
    what: str
    operation: str
    samples_s: tuple[float, ...] = ()


class Results(Artifact, frozen=True, kw_only=True):
    """Every sample, and what was pushed and pulled: so many ids at a time of rows so wide."""

    KIND: ClassVar[str] = "paramserver-rows"

    rows: int
    width: int
    ids: int
    cells: tuple[Cell, ...] = ()
    metadata: dict[str, str] = {}


def drawn(rows: int, count: int) -> dict[str, Tensor]:
    """Return the ids of each kind, shape (count,)."""
    generator = np.random.default_rng(1)
    ascending = np.sort(generator.choice(rows, count, replace=False))
    by_law = (float(rows) ** generator.random(count)).astype(np.int64) - 1
    mixed = generator.permutation(rows)[by_law]  # frequent rows lie anywhere
    return {"ascending": torch.from_numpy(ascending), "drawn": torch.from_numpy(mixed)}


def _serve(job: Job) -> None:
    torch.set_num_threads(1)
    ParameterServer(job, limits=_LIMITS).run()


@contextmanager
def stores(sets: dict[str, Tensor], rows: int, width: int) -> Iterator[dict[str, Operations]]:
    """Give the operations on one server with a table for each of :data:`RULES`."""
    job = Job(port=free_port())
    scheduler = threading.Thread(target=Scheduler(job, _LIMITS).run, daemon=True)
    scheduler.start()
    with process(_serve, job), KVStore(job=job, limits=_LIMITS) as store:
        found: dict[str, Operations] = {}
        for name, rule in RULES.items():
            store.init_rows(name, Table(rows=rows, width=width, initial=Normal(std=0.01)), rule)
            found[name] = {
                (what, operation): _operation(store, name, ids, width, operation)
                for what, ids in sets.items()
                for operation in OPERATIONS
            }
        yield found
    scheduler.join(WAIT_S)


def _operation(
    store: KVStore, key: str, ids: Tensor, width: int, operation: str
) -> Callable[[], None]:
    gradients, out = torch.full((len(ids), width), 0.01), torch.zeros(len(ids), width)

    def run() -> None:
        handles = []
        if operation != "pull":
            handles.append(store.push_rows(key, ids, gradients))
        asked = ids[:0] if operation == "push" else ids
        handles.append(store.pull_rows(key, asked, out[: len(asked)]))
        for handle in handles:
            handle.wait()

    return run


def _zmq_serve(told: Connection, address: str, row_bytes: int) -> None:
    """Acknowledge what is pushed; answer numbers with as many rows."""
    keep_freed_memory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    told.send(bytes(socket.last_endpoint).decode())
    rows = np.zeros(0, np.uint8)
    while True:
        peer, kind, *payload = socket.recv_multipart(copy=False)
        if kind.bytes == _END:
            break
        if kind.bytes == _PUSH:
            socket.send_multipart([peer, kind], copy=False)
            continue
        nbytes = len(payload[0]) // ID_BYTES * row_bytes
        if len(rows) != nbytes:
            rows = np.zeros(nbytes, np.uint8)
        socket.send_multipart([peer, kind, zmq.Frame(rows)], copy=False)
    context.destroy(linger=0)


@contextmanager
def _pyzmq(sets: dict[str, Tensor], width: int, address: str) -> Iterator[Operations]:
    ours, theirs = CONTEXT.Pipe()
    with process(_zmq_serve, theirs, address, 4 * width), zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.connect(ours.recv())
        yield {
            (what, operation): _zmq_operation(socket, len(ids.unique()), width, operation)
            for what, ids in sets.items()
            for operation in OPERATIONS
        }
        socket.send(_END)
        socket.close(linger=1000)


def _zmq_operation(
    socket: zmq.Socket[bytes], count: int, width: int, operation: str
) -> Callable[[], None]:
    pushed = np.zeros(count * (ID_BYTES + 4 * width), np.uint8)
    asked = np.zeros(count * ID_BYTES, np.uint8)

    def run() -> None:
        answers = 0
        if operation != "pull":
            socket.send_multipart([_PUSH, zmq.Frame(pushed)], copy=False)
            answers += 1
        if operation != "push":
            socket.send_multipart([_PULL, zmq.Frame(asked)], copy=False)
            answers += 1
        for _ in range(answers):
            socket.recv_multipart(copy=False)

    return run


def measured(options: argparse.Namespace) -> Results:
    """Let the contenders take turns."""
    torch.set_num_threads(1)
    sets = drawn(options.rows, options.ids)
    samples: dict[tuple[str, str, str], list[float]] = {}
    with ExitStack() as stack:
        contenders = stack.enter_context(stores(sets, options.rows, options.width))
        contenders["pyzmq"] = stack.enter_context(_pyzmq(sets, options.width, _TCP))
        if sys.platform == "linux":
            contenders["unix"] = stack.enter_context(_pyzmq(sets, options.width, _UNIX))
        for round_ in range(-1, options.rounds):  # the first warms up
            for what in sets:
                for operation in OPERATIONS:
                    for name, operations in contenders.items():
                        began_s = time.perf_counter()
                        operations[what, operation]()
                        took_s = time.perf_counter() - began_s
                        if round_ >= 0:
                            samples.setdefault((name, what, operation), []).append(took_s)
    cells = tuple(
        Cell(contender=name, what=what, operation=operation, samples_s=tuple(some))
        for (name, what, operation), some in samples.items()
    )
    sizes = {name: getattr(options, name) for name in ("rows", "width", "ids")}
    return Results(**sizes, cells=cells, metadata={**facts(), "numpy": np.__version__})


def tell(results: Results) -> None:
    """Print rates, and how they compare with plain ZeroMQ's over the same kind of socket."""
    took_s = {
        (c.contender, c.what, c.operation): statistics.median(c.samples_s) for c in results.cells
    }
    plain = "unix" if any(name == "unix" for name, _, _ in took_s) else "pyzmq"
    print(f"{'':20s}{'contender':12s}{'median ms':>10s}{'ids a second':>14s}{f'of {plain}':>10s}")
    for (name, what, operation), median_s in took_s.items():
        share = took_s[plain, what, operation] / median_s
        print(
            f"{what:12s}{operation:8s}{name:12s}{median_s * 1e3:10.2f}"
            f"{results.ids / median_s:14,.0f}{share:10.2f}",
            flush=True,
        )


def main() -> int:
    """Measure, print and write."""
    parser = explained(argparse.ArgumentParser(), __doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each operation ({ROUNDS})")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the table ({ROWS})")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"float32 of a row ({WIDTH})")
    parser.add_argument("--ids", type=int, default=IDS, help=f"at a time ({IDS})")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.rows, options.ids = 2, 10_000, 1000
    results = measured(options)
    tell(results)
    if options.json:
        results.save(Path(options.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
