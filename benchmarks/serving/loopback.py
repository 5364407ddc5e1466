"""Loopback: a worker and a server on this machine, against ZeroMQ alone and torch's RPC.

- ``syncopate``: one worker, one server.
- ``encrypted``: the same job with a key, so with CURVE, which several hosts have by default.
- ``pyzmq``: a DEALER and a ROUTER that move the same frames, a header and a payload in each
  message; a push is over when the last message is acknowledged, and nothing is added or copied.
- ``unix``: the same over a Unix socket, which ``syncopate`` takes on one machine; on Linux alone.
- ``written``: the same, and both ends do with the bytes what ``syncopate``'s do: the server adds
  what is pushed to its weights, the worker copies what is pulled into its tensors.
- ``threaded``: ``pyzmq`` through a thread of its own: the caller hands an operation over to the
  thread that has the socket, and is woken by it. It tells what two changes of thread cost.
- ``memory``: the bound: one thread copies the bytes from memory to memory, twice for a push (into
  the kernel and out of it), and once more for a pull, into the tensor.
- ``rpc``: ``torch.distributed.rpc``, a tensor in a call (push) or an answer (pull), all of them
  under way at once; it moves memory that both processes share, and adds nothing either. It has no
  call for many tensors, and takes no part with them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import zmq
from torch import Tensor

from serving import work
from syncopate import KVStore
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.tensors import keep_freed_memory, tensor_of
from syncopate.paramserver.wire.security import make_key

try:
    from torch.distributed import rpc
except ImportError:  # torch was built without it
    rpc = None  # type: ignore[assignment]

PLACE = "loopback"
CALLS = 50
"""Calls in a row that make one sample of a small operation."""

_TCP = "tcp://127.0.0.1:*"
_UNIX = "ipc://*" if sys.platform == "linux" else _TCP
_PUSH, _PULL, _END = b"push", b"pull", b"end"
_HEADER_BYTES = 16
CONTEXT = multiprocessing.get_context("spawn")
WAIT_S = 60.0

Operations = dict[str, Callable[[], None]]
"""Operation -> what does it, for one set of tensors."""


@contextmanager
def contest(quick: bool) -> Iterator[Callable[[], list[work.Cell]]]:
    """Start all contenders; give what runs one round, and returns one sample of every cell."""
    torch.set_num_threads(1)
    sets = work.all_tensors(quick) | {work.MANY: work.many_tensors(quick)}
    with ExitStack() as stack:
        contenders: dict[str, dict[str, Operations]] = {
            "syncopate": stack.enter_context(_syncopate(sets, encrypted=False)),
            "encrypted": stack.enter_context(_syncopate(sets, encrypted=True)),
            "pyzmq": stack.enter_context(_pyzmq(sets)),
            "unix": stack.enter_context(_pyzmq(sets, _UNIX)),
            "written": stack.enter_context(_pyzmq(sets, _UNIX, written=True)),
            "threaded": stack.enter_context(_threaded(sets)),
            "memory": {
                what: {name: _copies(tensors, name) for name in work.OPERATIONS}
                for what, tensors in sets.items()
            },
        }
        if rpc is not None and rpc.is_available():
            fewer = {what: tensors for what, tensors in sets.items() if what != work.MANY}
            contenders["rpc"] = stack.enter_context(_rpc(fewer))
        for by_set in contenders.values():
            for operations in by_set.values():
                for function in operations.values():
                    function()

        def one_round() -> list[work.Cell]:
            return [
                _sample(contender, what, name, contenders[contender][what][name])
                for what in sets
                for name in work.OPERATIONS
                for contender in contenders
                if what in contenders[contender]
            ]

        yield one_round


def _sample(contender: str, what: str, name: str, function: Callable[[], None]) -> work.Cell:
    calls = CALLS if what == work.SMALL else 1

    def run() -> None:
        for _ in range(calls):
            function()

    began_s, ended_s = work.timed(run)
    return work.Cell(
        place=PLACE,
        contender=contender,
        workers=1,
        servers=1,
        what=what,
        operation=name,
        samples_s=((ended_s - began_s) / calls,),
    )


@contextmanager
def process(function: Callable[..., None], *args: Any) -> Iterator[BaseProcess]:
    """Run a function in a process of its own, and wait for its end when the block ends well."""
    child = CONTEXT.Process(target=function, args=args, daemon=True)
    child.start()
    try:
        yield child
        child.join(WAIT_S)
    finally:
        if child.is_alive():
            child.kill()


def _serve(job: Job) -> None:
    torch.set_num_threads(1)
    ParameterServer(job, limits=work.LIMITS).run()


@contextmanager
def _syncopate(
    sets: Mapping[str, dict[str, Tensor]], *, encrypted: bool
) -> Iterator[dict[str, Operations]]:
    with TemporaryDirectory() as folder:
        key = Path(folder) / "job.key"
        make_key(key)
        job = Job(port=free_port(), key=key if encrypted else None)
        scheduler = threading.Thread(target=Scheduler(job, work.LIMITS).run, daemon=True)
        scheduler.start()
        with process(_serve, job):
            with KVStore(work.RULES, job=job, limits=work.LIMITS) as store:
                store.init(work.flattened(sets))
                yield {
                    what: {name: work.operation(store, tensors, name) for name in work.OPERATIONS}
                    for what, tensors in sets.items()
                }
            scheduler.join(WAIT_S)


def _zmq_serve(told: Connection, address: str, written: bool) -> None:
    """Acknowledge what is pushed; answer a pull with as many bytes as its header says."""
    torch.set_num_threads(1)
    keep_freed_memory()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    told.send(socket.last_endpoint.decode())
    kept: dict[int, Tensor] = {}
    while True:
        peer, header, *payload = socket.recv_multipart(copy=False)
        kind, size = header.bytes[:4].rstrip(b"\0"), int.from_bytes(header.bytes[4:], "big")
        if kind == _END[:4]:
            break
        data = kept.setdefault(size, torch.zeros(size // 4))
        if kind == _PUSH:
            assert len(payload[0]) == size
            if written:
                data.add_(tensor_of(payload[0], torch.float32), alpha=-0.1)
            socket.send_multipart([peer, header], copy=False)
        else:
            socket.send_multipart([peer, header, zmq.Frame(data.numpy())], copy=False)
    context.destroy(linger=0)


@contextmanager
def _pyzmq(
    sets: Mapping[str, dict[str, Tensor]], address: str = _TCP, *, written: bool = False
) -> Iterator[dict[str, Operations]]:
    ours, theirs = CONTEXT.Pipe()
    layout = work.layout_of(sets, 1)
    with process(_zmq_serve, theirs, address, written), zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.connect(ours.recv())
        by_set = {}
        for what, tensors in sets.items():
            sizes = work.slices_bytes(layout, tensors)
            by_set[what] = {
                name: _zmq_operation(socket, sizes, name, written) for name in work.OPERATIONS
            }
        yield by_set
        socket.send(_header(_END, 0))
        socket.close(linger=1000)


@contextmanager
def _threaded(sets: Mapping[str, dict[str, Tensor]]) -> Iterator[dict[str, Operations]]:
    with _pyzmq(sets) as by_set, ThreadPoolExecutor(max_workers=1) as thread:

        def handed(function: Callable[[], None]) -> Callable[[], None]:
            return lambda: thread.submit(function).result()

        yield {
            what: {name: handed(function) for name, function in operations.items()}
            for what, operations in by_set.items()
        }


def _header(kind: bytes, size: int) -> bytes:
    return kind.ljust(4, b"\0") + size.to_bytes(_HEADER_BYTES - 4, "big")


def _zmq_operation(
    socket: zmq.Socket[bytes], sizes: list[int], name: str, written: bool
) -> Callable[[], None]:
    data = {size: torch.zeros(size, dtype=torch.uint8) for size in sizes}

    def run() -> None:
        answers = 0
        if name != "pull":
            for size in sizes:
                socket.send_multipart(
                    [_header(_PUSH, size), zmq.Frame(data[size].numpy())], copy=False
                )
            answers += len(sizes)
        if name != "push":
            for size in sizes:
                socket.send(_header(_PULL, size))
            answers += len(sizes)
        for _ in range(answers):
            _, *payload = socket.recv_multipart(copy=False)
            if payload and written:
                data[len(payload[0])].copy_(tensor_of(payload[0], torch.uint8))

    return run


def _copies(tensors: Mapping[str, Tensor], name: str) -> Callable[[], None]:
    """Return what copies all tensors as often as an operation has to."""
    times = {"push": 2, "pull": 3, "step": 5}[name]
    pairs = [(torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in tensors.values()]

    def run() -> None:
        for target, source in pairs * times:
            target.copy_(source)

    return run


_held: dict[str, Tensor] = {}


def _put(name: str, tensor: Tensor) -> None:
    _held[name] = tensor


def _get(name: str) -> Tensor:
    return _held[name]


def _rpc_join(rank: int, port: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    with warnings.catch_warnings():  # torch warns of how its own RPC uses its own groups
        warnings.simplefilter("ignore", UserWarning)
        name = ("worker", "server")[rank]
        rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def _rpc_serve(port: int) -> None:
    _rpc_join(1, port)
    rpc.shutdown()


@contextmanager
def _rpc(sets: Mapping[str, dict[str, Tensor]]) -> Iterator[dict[str, Operations]]:
    port = free_port()
    with process(_rpc_serve, port):
        _rpc_join(0, port)
        by_set = {}
        for what, tensors in sets.items():
            by_set[what] = {name: _rpc_operation(tensors, name) for name in work.OPERATIONS}
            by_set[what]["push"]()
        yield by_set
        rpc.shutdown()


def _rpc_operation(tensors: Mapping[str, Tensor], name: str) -> Callable[[], None]:
    def run() -> None:
        futures = []
        if name != "pull":
            for key, tensor in tensors.items():
                futures.append(rpc.rpc_async("server", _put, (key, tensor)))
        if name != "push":
            for key in tensors:
                futures.append(rpc.rpc_async("server", _get, (key,)))
        for future in futures:
            future.wait()

    return run
