"""All-reduces of CUDA tensors: every algorithm against torch's own call, in the same run.

    python benchmarks/gpu_collectives.py --ranks 4 --json gpu_collectives.json
    python benchmarks/gpu_collectives.py --backend nccl

Over Gloo any number of ranks may share a GPU; NCCL takes one GPU per rank. All contenders take
turns, so that whatever else the machine does meets all of them; a barrier separates the calls. The
time of one call is that from the call until the device has nothing left to do, the longest over the
ranks; what is printed is its median over the repetitions, in milliseconds, and in brackets the time
after which an asynchronous call gave the host back. Every result is verified.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.collectives.machine import synchronize
from syncopate.output import write_output
from syncopate.schedules.registry import NATIVE, algorithms
from syncopate.units import KIB, MIB, format_bytes

SIZES_BYTES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
TORCH = "torch"
WARMUP = 3
TIMEOUT_S = 120.0

Times = dict[int, dict[str, list[tuple[float, float]]]]
"""Size in bytes -> contender -> (seconds until over, seconds on the host) per repetition."""


def contenders(communicator: Communicator) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Return how to start each all-reduce; what it returns is to be waited for."""
    group = dist.new_group()

    def own(name: str) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: communicator.all_reduce(tensor, algorithm=name, async_op=True)

    found: dict[str, Callable[[torch.Tensor], Any]] = {
        TORCH: lambda tensor: dist.all_reduce(tensor, group=group, async_op=True)
    }
    return found | {name: own(name) for name in (NATIVE, *algorithms("all_reduce"))}


def once(
    communicator: Communicator, start: Callable[[torch.Tensor], Any], tensor: torch.Tensor
) -> tuple[float, float]:
    """Return the seconds of one verified call on this rank: until it was over, and on the host."""
    tensor.fill_(communicator.rank + 1)
    synchronize(tensor.device)
    communicator.barrier()
    began_s = time.perf_counter()
    work = start(tensor)
    host_s = time.perf_counter() - began_s
    work.wait()
    synchronize(tensor.device)
    over_s = time.perf_counter() - began_s
    expected = communicator.world_size * (communicator.world_size + 1) / 2
    if not bool((tensor == expected).all()):
        raise SystemExit(f"wrong sum of {tensor.nbytes} bytes")
    return over_s, host_s


def measure(communicator: Communicator, device: torch.device, repetitions: int) -> Times:
    """Return the times of every contender at every size, the longest over the ranks."""
    starts = contenders(communicator)
    times: Times = {}
    for nbytes in SIZES_BYTES:
        tensor = torch.empty(nbytes // 4, device=device)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
        for repetition in range(WARMUP + repetitions):
            for name, start in starts.items():
                seconds = once(communicator, start, tensor)
                if repetition >= WARMUP:
                    found[name].append(seconds)
        mine = torch.tensor(list(found.values()), dtype=torch.float64)
        slowest = torch.stack(communicator.all_gather_object(mine)).amax(0).tolist()
        times[nbytes] = {
            name: [(over_s, host_s) for over_s, host_s in rows]
            for name, rows in zip(found, slowest, strict=True)
        }
        if communicator.rank == 0:
            print_size(nbytes, times[nbytes])
    return times


def print_size(nbytes: int, times: dict[str, list[tuple[float, float]]]) -> None:
    """Print the medians of one size, the fastest first."""
    medians = {
        name: tuple(statistics.median(column) for column in zip(*rows, strict=True))
        for name, rows in times.items()
    }
    print(f"\n{format_bytes(nbytes)}")
    for name, (over_s, host_s) in sorted(medians.items(), key=lambda item: item[1]):
        gain = medians[TORCH][0] / over_s
        print(
            f"  {name:20}{over_s * 1e3:10.3f} ms  ({host_s * 1e3:.3f})  {gain:.2f}x torch",
            flush=True,
        )


def rank_main(rank: int, port: int, options: argparse.Namespace, out: Connection | None) -> None:
    """Measure as one rank; rank 0 sends the times into ``out``."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, None, is_master=False)
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=options.ranks)
    with Communicator(timeout_s=TIMEOUT_S) as communicator:
        times = measure(communicator, device, options.repetitions)
        communicator.barrier()
    dist.destroy_process_group()
    if out is not None:
        out.send(times)


def run(options: argparse.Namespace) -> Times:
    """Measure on as many processes of this machine as there are ranks."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(
            target=rank_main, args=(rank, store.port, options, None if rank else theirs)
        )
        for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    theirs.close()
    times: Times = {}
    with contextlib.suppress(EOFError):  # rank 0 failed
        times = ours.recv()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank failed; its message is above")
    return times


def report(options: argparse.Namespace, times: Times) -> dict[str, Any]:
    """Return everything measured, for a JSON file."""
    on_cuda = options.device == "cuda"
    return {
        "schema_version": 1,
        "benchmark": "gpu_collectives",
        "torch": torch.__version__,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if on_cuda else "cpu",
        "devices": torch.cuda.device_count() if on_cuda else 0,
        "backend": options.backend,
        "ranks": options.ranks,
        "unit": "seconds until over and on the host, per repetition, the longest over the ranks",
        "seconds": {str(nbytes): found for nbytes, found in times.items()},
    }


def main() -> None:
    """Parse the options, measure, print, and write the JSON file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="4 over Gloo, one per GPU over NCCL otherwise")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repetitions", type=int, default=20, help="calls per contender and size")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every time measured")
    options = parser.parse_args()
    devices = torch.cuda.device_count()
    if options.device == "cuda" and not devices:
        print("no CUDA device here, so nothing to measure; --device cpu shows how it runs")
        return
    options.ranks = options.ranks or (4 if options.backend == "gloo" else devices)
    if options.backend == "nccl" and not 2 <= options.ranks <= devices:
        raise SystemExit(f"NCCL takes a GPU per rank, and two ranks or more; GPUs here: {devices}")
    if options.quick:
        options.repetitions = 3
    times = run(options)
    if options.json:
        write_output(options.json, json.dumps(report(options, times), indent=1).encode() + b"\n")
        print(f"\nwrote {options.json}")


if __name__ == "__main__":
    main()
