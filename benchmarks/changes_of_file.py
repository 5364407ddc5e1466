"""How often execution changes the source file in a step, a start, a push, and an explanation.

A way that a gradient goes is easy to follow where it changes files seldom. Two processes train a
small model. In each of several steps every thread's calls and returns are watched: one that comes
to a file of this package (or of ``torch.nn.parallel``, for DDP) from any other file is a change.
Reported is the median step: in the thread that trains, and in all threads together, some of which
go round while they wait. A start is one call of ``distribute`` with a plan. A push is
one of a tensor to a server, waited for. An explanation is of ten recorded iterations of both
ranks. No times matter, so that any machine will do.

    python benchmarks/changes_of_file.py
    python benchmarks/changes_of_file.py --json changes_of_file.json
    python benchmarks/changes_of_file.py --quick             # DDP and two exchanges
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.delay import Delay, LocalSGD
from syncopate.engine.distribute import distribute
from syncopate.engine.selfplan.ddp_buckets import carried_by, safe_plan
from syncopate.output import write_output
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.worker import KVStore
from syncopate.protocol.rules import Rules
from syncopate.tracing.capture import trace

RANKS = 2
LAYERS, WIDTH = 6, 64
BUCKET_BYTES = 40_000
WARMUP, PERIOD = 6, 4
COUNTED = 5
DELAY = Delay(k=PERIOD, warm_up=PERIOD - 1)

KINDS: dict[str, tuple[str, Delay | LocalSGD | None]] = {
    "DDP": ("", None),
    "allreduce": ("allreduce", None),
    "decoupled": ("decoupled", None),
    "sharded": ("sharded", None),
    "rooted": ("rooted", None),
    "served": ("served", None),
    "sharded, delayed": ("sharded", DELAY),
    "served, delayed": ("served", DELAY),
    "averaged": ("allreduce", LocalSGD(period=PERIOD, warm_up=2)),
}
"""Name -> exchange and delay."""

OTHERS = {"start": "allreduce", "push": "served", "explain": "allreduce"}
"""What else is counted -> the exchange that it is counted with."""

RECORDED = 10
"""Iterations that an explanation is of."""

QUICK = ("DDP", "allreduce", "decoupled")
"""Names that show that it runs."""

_FOLDERS = (str(Path(syncopate.__file__).parent), str(Path(nn.parallel.__file__).parent))


Found = list[tuple[int, int]]
"""Changes in the calling thread and in all, each time."""


class Changes:
    """Counts the changes of file of every thread, while it is on."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self.found: Counter[int] = Counter()
        self.on = False

    def __call__(self, frame: FrameType | None, event: str, _: Any) -> None:
        """Watch what the interpreter reports."""
        if event == "return" and frame is not None:
            frame = frame.f_back
        if not self.on or frame is None or event not in ("call", "return"):
            return
        file, thread = frame.f_code.co_filename, threading.get_ident()
        if self._last.get(thread) != file and file.startswith(_FOLDERS):
            self.found[thread] += 1
        self._last[thread] = file

    def begin(self) -> None:
        """Begin to count a step."""
        self._last.clear()
        self.found.clear()
        self.on = True

    def end(self) -> tuple[int, int]:
        """Return the changes in the calling thread, and in all."""
        self.on = False
        return self.found[threading.get_ident()], sum(self.found.values())


def model_of() -> nn.Module:
    """Return a chain of linear layers."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def wrapped(
    kind: str, job: Job | None, changes: Changes | None = None
) -> tuple[Any, Any, KVStore | None]:
    """Return a model that trains by ``kind``, its optimizer, and the store if it has one.

    ``changes``, where given, are counted while ``distribute`` is under way.
    """
    exchange, delay = KINDS.get(kind) or (OTHERS[kind], None)
    model: Any = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if not exchange:
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_BYTES / 2**20), optimizer, None
    tensors = [(name, p.numel(), "float32") for name, p in model.named_parameters()]
    plan = safe_plan("small", tensors[::-1], RANKS, BUCKET_BYTES)
    store, told = None, {}
    if job is not None:
        store = told["exchange"] = KVStore(Rules(), job=job)
    if exchange != "allreduce":
        plan = carried_by(exchange, plan, 1)
    if delay is not None:
        plan = plan.delayed(delay)
    if changes is not None:
        changes.begin()
    return *distribute(model, optimizer, plan=plan, **told), store


def count(rank: int, kind: str, file: str, job: Job | None, told: Any) -> None:
    """Be one rank; tell the changes of each step, push or start that was counted."""
    torch.set_num_threads(1)
    changes = Changes()
    threading.setprofile(changes)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    counter = {"start": starts, "push": pushes, "explain": recorded}.get(kind, steps)
    found = counter(changes, kind, None if job is None else replace(job, rank=rank), file)
    sys.setprofile(None)
    if not rank:
        told.send(found)
    dist.barrier()
    dist.destroy_process_group()


def steps(changes: Changes, kind: str, job: Job | None, _: str) -> Found:
    """Count the changes of each step behind the warm-up."""
    model, optimizer, store = wrapped(kind, job)
    found = []
    sys.setprofile(changes)
    for step in range(WARMUP + COUNTED * PERIOD):
        if step >= WARMUP:
            changes.begin()
        train(model, optimizer)
        if step >= WARMUP:
            found.append(changes.end())
    sys.setprofile(None)
    dist.barrier()
    if store is not None:
        store.close()
    return found


def starts(changes: Changes, kind: str, job: Job | None, _: str) -> Found:
    """Count the changes of one call of ``distribute``."""
    sys.setprofile(changes)
    wrapped(kind, job, changes)
    return [changes.end()]


def pushes(changes: Changes, _: str, job: Job | None, __: str) -> Found:
    """Count the changes of each push of a tensor."""
    found = []
    with KVStore(Rules(), job=job) as store:
        store.init({"weight": torch.zeros(WIDTH)})
        sys.setprofile(changes)
        for _step in range(WARMUP + COUNTED):
            changes.begin()
            store.push("weight", torch.ones(WIDTH)).wait()
            found.append(changes.end())
    return found[WARMUP:]


def recorded(_: Changes, kind: str, job: Job | None, file: str) -> Found:
    """Record some iterations beside ``file``, which :func:`explained` reads."""
    model, optimizer, _store = wrapped(kind, job)
    train(model, optimizer)
    with trace(f"{file}.run"):
        for _step in range(RECORDED + 1):
            train(model, optimizer)
    return []


def explained(folder: str) -> Found:
    """Count the changes of an explanation of what was recorded."""
    changes = Changes()
    sys.setprofile(changes)
    changes.begin()
    syncopate.explain(folder)
    sys.setprofile(None)
    return [changes.end()]


def train(model: Any, optimizer: Any) -> None:
    """Train one step."""
    model(torch.ones(8, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def serve(job: Job) -> None:
    """Be the server of a job."""
    ParameterServer(job).run()


def measured(kind: str) -> dict[str, float]:
    """Return the median changes in the thread that trains, or asks, and in all."""
    context = multiprocessing.get_context("spawn")
    job = None
    processes: list[Any] = []
    exchange, _ = KINDS.get(kind) or (OTHERS[kind], None)
    if exchange == "served":
        job = Job(port=free_port(), servers=1, workers=RANKS)
        threading.Thread(target=Scheduler(job).run, daemon=True).start()
        processes.append(context.Process(target=serve, args=(replace(job, rank=0),)))
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "store")
        for rank in range(RANKS):
            processes.append(context.Process(target=count, args=(rank, kind, file, job, theirs)))
        for process in processes:
            process.start()
        while not ours.poll(1.0):
            if any(process.exitcode for process in processes):
                raise SystemExit(f"a process of {kind!r} has failed")
        found = ours.recv()
        for process in processes:
            process.join()
        if kind == "explain":
            found = explained(f"{file}.run")
    period = PERIOD if kind in KINDS else 1
    # A step with a pull or an average counts as a share of its period.
    periods = [found[start : start + period] for start in range(0, len(found), period)]
    main, every = (
        statistics.median(sum(step[place] for step in steps) / period for steps in periods)
        for place in (0, 1)
    )
    return {"training_thread": main, "all_threads": every}


def main() -> None:
    """Count and print."""
    everything = [*KINDS, *OTHERS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", nargs="+", default=everything, choices=everything)
    parser.add_argument("--json", type=Path, help="where to write the counts")
    parser.add_argument("--quick", action="store_true", help="DDP and two exchanges")
    arguments = parser.parse_args()
    found = {}
    for kind in QUICK if arguments.quick else arguments.kinds:
        found[kind] = measured(kind)
        here, every = found[kind].values()
        print(f"{kind:<18} {here:>8.0f} in the training thread {every:>8.0f} in all", flush=True)
    if arguments.json:
        told = {"torch": str(torch.__version__), "python": platform.python_version()}
        told |= {"layers": LAYERS, "ranks": RANKS, "bucket_bytes": BUCKET_BYTES}
        write_output(arguments.json, (json.dumps(told | {"changes": found}) + "\n").encode())


if __name__ == "__main__":
    main()
