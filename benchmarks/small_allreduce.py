"""Small all-reduces on local ranks: every schedule against Gloo's own, in the same run.

    python benchmarks/small_allreduce.py --ranks 4 8 --json small_allreduce.json

Each rank is a process on this machine. All algorithms take turns, so that whatever else the
machine does meets all of them; a barrier separates the calls. The time of one call is the longest
over the ranks, and what is printed is its median over the repetitions, in milliseconds. The last
columns are the best schedule, and how many times faster than Gloo it is: the aim is 2 times from
1 KiB to 64 KiB. Every result is verified.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.output import write_output
from syncopate.schedules.registry import NATIVE, algorithms
from syncopate.units import KIB, MIB, format_bytes

SIZES_BYTES = (4, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
AIMED_BYTES = range(KIB, 64 * KIB + 1)
AIM = 2.0
WARMUP = 5
TIMEOUT_S = 120.0

Times = dict[int, dict[str, list[float]]]
"""Size in bytes -> algorithm -> seconds per repetition."""


def verified(communicator: Communicator, tensor: torch.Tensor, algorithm: str) -> None:
    """Raise unless the sum is right."""
    tensor.fill_(communicator.rank + 1)
    communicator.all_reduce(tensor, algorithm=algorithm)
    expected = communicator.world_size * (communicator.world_size + 1) / 2
    if not bool((tensor == expected).all()):
        raise SystemExit(f"{algorithm} gives a wrong sum for {tensor.nbytes} bytes")


def once(communicator: Communicator, tensor: torch.Tensor, algorithm: str) -> float:
    """Return the seconds of one call on this rank, from a common start."""
    tensor.zero_()
    communicator.barrier()
    began_s = time.perf_counter()
    communicator.all_reduce(tensor, algorithm=algorithm)
    return time.perf_counter() - began_s


def measure(communicator: Communicator, repetitions: int, budget_s: float) -> Times:
    """Return the times of every algorithm at every size, the longest over the ranks.

    A size gets at most its share of ``budget_s``, and every algorithm as many repetitions as any.
    """
    names = (NATIVE, *algorithms("all_reduce"))
    times: Times = {}
    for nbytes in SIZES_BYTES:
        tensor = torch.empty(nbytes // 4)
        for name in names:
            for _ in range(WARMUP):
                verified(communicator, tensor, name)
        found: dict[str, list[float]] = {name: [] for name in names}
        deadline_s = time.monotonic() + budget_s / len(SIZES_BYTES)
        for repetition in range(repetitions):
            for name in names:
                found[name].append(once(communicator, tensor, name))
            enough = repetition >= 4 and time.monotonic() > deadline_s
            if communicator.broadcast_object(enough):
                break
        longest = torch.tensor([found[name] for name in names], dtype=torch.float64)
        gathered = communicator.all_gather_object(longest)
        slowest = torch.stack(gathered).amax(0)
        times[nbytes] = dict(zip(names, slowest.tolist(), strict=True))
        if communicator.rank == 0:
            print_row(nbytes, times[nbytes])
    return times


def print_head(world_size: int) -> None:
    """Print the head of one table."""
    names = (NATIVE, *algorithms("all_reduce"))
    print(f"\n{world_size} local ranks; median ms of the slowest rank")
    columns = "".join(f"{name:>20}" for name in names)
    print(f"{'size':>10}{columns}{'n':>6}  gloo/best", flush=True)


def summary(times: dict[str, list[float]]) -> tuple[dict[str, float], str, float]:
    """Return the medians, the best schedule, and Gloo's time over its."""
    medians = {name: statistics.median(found) for name, found in times.items()}
    best = min((name for name in medians if name != NATIVE), key=medians.__getitem__)
    return medians, best, medians[NATIVE] / medians[best]


def print_row(nbytes: int, times: dict[str, list[float]]) -> None:
    """Print one size of one table."""
    medians, best, ratio = summary(times)
    columns = "".join(f"{median_s * 1e3:20.3f}" for median_s in medians.values())
    aimed = "" if nbytes not in AIMED_BYTES else (" ok" if ratio >= AIM else " below 2x")
    count = len(times[NATIVE])
    print(f"{format_bytes(nbytes):>10}{columns}{count:6d}  {ratio:.2f}x {best}{aimed}", flush=True)


def rank_main(rank: int, world_size: int, port: int, options: argparse.Namespace, out: Any) -> None:
    """Measure as one rank; rank 0 puts the times into ``out``."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    with Communicator(timeout_s=TIMEOUT_S) as communicator:
        if rank == 0:
            print_head(world_size)
        times = measure(communicator, options.repetitions, options.budget)
        communicator.barrier()
    dist.destroy_process_group()
    if rank == 0:
        out.put(times)


def run(world_size: int, options: argparse.Namespace) -> Times:
    """Run one table on ``world_size`` processes of this machine."""
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(target=rank_main, args=(rank, world_size, store.port, options, out))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank failed; its message is above")
    return out.get()


def report(tables: dict[int, Times]) -> dict[str, Any]:
    """Return everything measured, for a JSON file."""
    return {
        "schema_version": 1,
        "benchmark": "small_allreduce",
        "torch": torch.__version__,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "unit": "seconds; one number per repetition, the longest over the ranks",
        "ranks": {
            str(world_size): {
                str(nbytes): {
                    "seconds": found,
                    "median_s": summary(found)[0],
                    "best": summary(found)[1],
                    "gloo_over_best": summary(found)[2],
                }
                for nbytes, found in times.items()
            }
            for world_size, times in tables.items()
        },
    }


def main() -> None:
    """Parse the options, measure, print, and write the JSON file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8], help="world sizes")
    parser.add_argument("--repetitions", type=int, default=60, help="calls per algorithm and size")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds per world size, about")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every time measured")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.repetitions, options.budget = [4], 5, 5.0
    tables = {world_size: run(world_size, options) for world_size in options.ranks}
    if options.json:
        write_output(options.json, json.dumps(report(tables), indent=1).encode() + b"\n")
        print(f"\nwrote {options.json}")
    ratios = [
        (summary(found)[2], world_size, nbytes)
        for world_size, times in tables.items()
        for nbytes, found in times.items()
        if nbytes in AIMED_BYTES
    ]
    ratio, world_size, nbytes = min(ratios)
    print(
        f"\nleast gain from 1 KiB to 64 KiB: {ratio:.2f}x, at {format_bytes(nbytes)} on "
        f"{world_size} ranks (aim: {AIM:g}x)"
    )


if __name__ == "__main__":
    main()
