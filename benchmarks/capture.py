"""What capture costs: the same training with and without it, in turns of a few steps.

A step of many buckets and little computation is the worst case: by default forty layers of 256 x
256, one bucket each. Alone it is one rank; under torchrun all of them capture. Printed are the
median step with and without, and their ratio; the time that a step's events take to be noted does
not depend on how long the step is.

--computing S sleeps for S seconds before each forward, as long as an accelerator would compute.

With --servers the weights are kept by that many servers of this machine, and their capture and the
scheduler's are switched together with that of the ranks.

    python benchmarks/capture.py
    python benchmarks/capture.py --servers 1
    python benchmarks/capture.py --servers 1 --layers 161 --width 398 --computing 1 --rounds 4
    torchrun --nproc-per-node 2 benchmarks/capture.py --width 512 --json capture.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from serving.switched import Servers, served
from serving.work import LIMITS
from syncopate import KVStore, distribute, trace
from syncopate.artifacts.plan import ALLREDUCE, SERVED
from syncopate.engine.selfplan.ddp_buckets import carried_by, plan_of_groups
from syncopate.output import write_output
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.tracing.capture import Capture
from syncopate.units import format_seconds

WARMUP = 5


def build(options: argparse.Namespace, store: KVStore | None) -> Callable[[], None]:
    """Return one whole training step of a chain of layers, one bucket per tensor."""
    width = options.width
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(options.layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tensors = [(name, p.numel(), "float32") for name, p in reversed([*model.named_parameters()])]
    groups = [[tensor] for tensor in tensors]
    plan = plan_of_groups("layers", tensors[::-1], dist.get_world_size(), groups)
    exchange = options.exchange if store is None else SERVED
    if exchange != ALLREDUCE:
        plan = carried_by(exchange, plan)
    model, optimizer = distribute(model, optimizer, plan=plan, exchange=store)
    data = torch.randn(options.batch, width)

    def step() -> None:
        optimizer.zero_grad()
        time.sleep(options.computing)
        model(data).square().mean().backward()
        optimizer.step()

    return step


@contextmanager
def stored(count: int, directory: Path) -> Iterator[tuple[KVStore | None, Servers | None]]:
    """Give this rank's store, and rank 0 the servers that it started; nothing for 0 servers."""
    if not count:
        yield None, None
        return
    told = [free_port()]
    dist.broadcast_object_list(told)
    job = Job(port=told[0], servers=count, workers=dist.get_world_size())
    if dist.get_rank():
        with KVStore(job=job, limits=LIMITS) as store:
            yield store, None
        return
    with served(job, directory) as servers, KVStore(job=job, limits=LIMITS) as store:
        yield store, servers


def switch(capture: Capture, servers: Servers | None, captures: bool) -> int:
    """Capture or not, on all ranks and nodes; return how many events this rank knows as dropped."""
    (capture.start if captures else capture.stop)()
    dropped = 0 if servers is None else servers.switch(captures)
    dist.barrier()
    return capture.dropped + dropped


def measure(
    step: Callable[[], None],
    switched: Callable[[bool], int],
    rounds: int,
    steps: int,
) -> dict[str, list[float]]:
    """Return the seconds of every step with and without capture, taken in turns."""
    durations: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(2 * rounds):
        captures = (turn + turn // 2) % 2 == 1  # so that drift meets both alike
        switched(captures)
        for _ in range(WARMUP):
            step()
        for _ in range(steps):
            start_s = time.perf_counter()
            step()
            durations["with" if captures else "without"].append(time.perf_counter() - start_s)
    return durations


def summarize(
    durations: dict[str, list[float]], dropped: int, directory: Path, servers: int
) -> dict[str, object]:
    """Return medians, the ratio, and what the files took."""
    medians = {name: statistics.median(times_s) for name, times_s in durations.items()}
    return {
        "median_s": medians,
        "ratio": medians["with"] / medians["without"],
        "steps": len(durations["with"]),
        "dropped": dropped,
        "file_bytes": sum(path.stat().st_size for path in directory.glob("*.trace")),
        "files": len([*directory.glob("*.trace")]),
        "ranks": dist.get_world_size(),
        "servers": servers,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=40, help="layers, a bucket each")
    parser.add_argument("--width", type=int, default=256, help="width of a layer")
    parser.add_argument("--batch", type=int, default=64, help="samples in a step")
    parser.add_argument("--computing", type=float, default=0.0, help="seconds slept in a step")
    parser.add_argument("--exchange", default="allreduce", help="allreduce, sharded or rooted")
    parser.add_argument("--servers", type=int, default=0, help="parameter servers; 0: none")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    parser.add_argument("--steps", type=int, default=20, help="steps per turn")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 3
    torch.manual_seed(0)
    torch.set_num_threads(1)
    alone = "RANK" not in os.environ
    dist.init_process_group(
        "gloo", **({"store": HashStore(), "rank": 0, "world_size": 1} if alone else {})
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        capture = trace(directory)
        with stored(arguments.servers, directory) as (store, servers):
            step = build(arguments, store)
            switched = partial(switch, capture, servers)
            durations = measure(step, switched, arguments.rounds, arguments.steps)
            dropped = switched(False)
        summary = summarize(durations, dropped, directory, arguments.servers)
    if dist.get_rank() == 0:
        medians = {name: format_seconds(statistics.median(t)) for name, t in durations.items()}
        print(
            f"{arguments.layers} buckets, {summary['ranks']} ranks, {arguments.servers} servers, "
            f"{summary['steps']} steps each: "
            f"{medians['without']} without capture, {medians['with']} with, "
            f"{summary['ratio']:.4f} times; {summary['dropped']} events dropped"
        )
        if arguments.json:
            samples = summary | {"samples_s": durations}
            write_output(arguments.json, json.dumps(samples).encode() + b"\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
