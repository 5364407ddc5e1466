"""Large traces: how fast a long training is read and analysed, and what memory that takes.

A training of 8 ranks is written as its ranks would, into the files of a run; the same as the JSON
of a timeline; and a quarter as many messages of a parameter server's worker as a DLC trace. Each is
read in a process of its own, and its memory is what this process grows by. Then every figure of
`syncopate analyze` is taken, and commands are timed from start to end: analyze of the whole run, as
tables and as JSON, and explain of its last iterations. So are two large ones: report of a long
training of 4 ranks, and explain of one of 1,024 ranks, with the memory that each takes.

    python benchmarks/large_traces.py
    python benchmarks/large_traces.py --spans 100000 --json large_traces.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from syncopate.analysis.collectives import bandwidths, collectives
from syncopate.analysis.exposure import exposures
from syncopate.analysis.path import critical_path
from syncopate.analysis.phases import phases
from syncopate.analysis.ranks.arrivals import arrivals
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.work import works
from syncopate.artifacts.timeline import LANES, Timeline
from syncopate.output import write_output
from syncopate.tracing import dlc
from syncopate.tracing.dlc import Node, Operation
from syncopate.tracing.foreign import read_timeline
from syncopate.tracing.recorder import RECORD
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import Header, TraceWriter
from syncopate.units import format_bytes, format_seconds

RANKS, BUCKETS, CHANNELS = 8, 40, 2
LONG, WIDE = (4, 10_000), (1024, 50)
"""Ranks and iterations of a long training, and of one of many ranks."""
EVENTS = BUCKETS + 4
"""Of a rank in an iteration: forward, backward, a push of each bucket, a wait and an update."""
COMPUTES_S, TRANSFERS_S = 0.1, 0.08
"""Of an iteration: forward and backward, and all messages one after another."""
BLOCK = 512
"""Iterations that ranks write at once, all of them together."""

COMMAND = """
import sys
from pathlib import Path
from syncopate.cli import main
try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")), file=sys.stderr)
"""
"""A command of Syncopate, which writes the most memory that it took behind all else, in KiB."""


def write_run(directory: Path, iterations: int, ranks: int = RANKS) -> None:
    """Write what every rank of a training saw: all-reduces of one model, a third of it exposed."""
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    writers = []
    for rank in range(ranks):
        header = Header(
            run="large", rank=rank, world_size=ranks, host="h", clock="c", began_s=0.0, offset_s=0.0
        )
        writers.append(TraceWriter(directory, header))
        plan = {"plan": "f", "number": 0, "model": "made", "exchange": "allreduce"}
        writers[rank].write(np.empty(0, RECORD), [plan, {"texts": ["", "ring"]}])
    now_s = np.zeros(ranks)
    pending = []
    for iteration in range(iterations):
        rows = np.zeros((ranks, EVENTS), RECORD)
        now_s = _step(rows, iteration, now_s, rng)
        pending.append(rows)
        if len(pending) * ranks >= BLOCK or iteration == iterations - 1:
            block = np.concatenate(pending, axis=1)
            for rank, writer in enumerate(writers):
                writer.write(block[rank], [])
            pending = []
    for writer in writers:
        writer.close()


def _step(
    rows: np.ndarray[Any, Any],
    iteration: int,
    now_s: np.ndarray[Any, Any],
    rng: np.random.Generator,
) -> np.ndarray[Any, Any]:
    """Fill in one iteration's events of all ranks; return when each of them ends."""
    ranks = len(now_s)
    computes_s = COMPUTES_S * rng.normal(1.0, 0.02, ranks)
    computes_s[3] *= 1.1  # the slow one
    forward_s, backward_s = now_s + computes_s / 3, now_s + computes_s
    rows["iteration"], rows["bucket"] = iteration, -1
    rows["launched_s"] = rows["ready_s"] = np.nan
    free_s = np.zeros((CHANNELS, ranks))
    for bucket in range(BUCKETS):
        row, channel = rows[:, bucket + 2], bucket % CHANNELS
        ready_s = forward_s + (backward_s - forward_s) * (bucket + 1) / BUCKETS
        start_s = np.maximum(ready_s, free_s[channel])
        end_s = start_s.max() + TRANSFERS_S * CHANNELS / BUCKETS * rng.uniform(0.9, 1.1, ranks)
        row["lane"], row["bucket"], row["channel"] = LANES.index("push"), bucket, channel
        row["detail"], row["nbytes"] = 1, 1 << 20
        row["start_s"], row["end_s"] = start_s, end_s
        row["launched_s"] = row["ready_s"] = ready_s
        free_s[channel] = end_s
    done_s = np.maximum(free_s.max(axis=0), backward_s)
    stretches = {
        0: ("forward", now_s, forward_s),
        1: ("backward", forward_s, backward_s),
        EVENTS - 2: ("wait", backward_s, done_s),
        EVENTS - 1: ("update", done_s, done_s + 0.002),
    }
    for place, (lane, start_s, end_s) in stretches.items():
        rows["lane"][:, place] = LANES.index(lane)
        rows["start_s"][:, place], rows["end_s"][:, place] = start_s, end_s
    ended_s: np.ndarray[Any, Any] = done_s + 0.0021
    return ended_s


def write_dlc(path: Path, count: int) -> None:
    """Write at least so many messages of a worker, as it sent and received them."""
    node = Node(0, worker=True, workers=RANKS, servers=CHANNELS)
    operations = [operation for operation in Operation if operation.by_worker]
    of_an_iteration = len(operations) * BUCKETS
    for number in range(0, count, of_an_iteration):
        for place, (operation, key) in enumerate(product(operations, range(BUCKETS))):
            node.add(
                operation,
                key,
                key % CHANNELS,
                length=4131,
                num_pp=number,
                time_us=10**15 + 37 * (number + place),
                iteration=number // of_an_iteration - 1,
            )
    header = dlc.Header(RANKS, CHANNELS, "h")
    write_output(path, "".join(dlc.to_dlc(header, node.records)).encode())


def _read_run(path: str) -> Timeline:
    return read_run(path, last=1 << 40).timeline


def _read_timeline(path: str) -> Timeline:
    return read_timeline([path])


READERS: dict[str, Callable[[str], Any]] = {
    "captured run": _read_run,
    "timeline JSON": _read_timeline,
    "DLC trace": dlc.read,
}


def read(kind: str, path: str) -> dict[str, float]:
    """Return how long reading takes, and the memory of this process for it."""
    before = _memory_bytes("VmRSS")
    start_s = time.perf_counter()
    found = READERS[kind](path)
    lasts_s = time.perf_counter() - start_s
    count = len(found.records if kind == "DLC trace" else found.spans)
    most = _memory_bytes("VmHWM")
    return {
        "count": count,
        "seconds": lasts_s,
        "per_s": count / lasts_s,
        "bytes_each": (_memory_bytes("VmRSS") - before) / count,
        "peak_bytes_each": (most - before) / count,
    }


def analyse(path: str) -> dict[str, float]:
    """Return the seconds of each part of an analysis, in the order in which they build up."""
    timeline = _read_run(path)
    last = int(timeline.columns.iteration.max())
    parts: dict[str, Callable[[], Any]] = {
        "phases": lambda: phases(timeline),
        "collectives": lambda: collectives(timeline),
        "exposure": lambda: exposures(timeline),
        "bandwidth": lambda: bandwidths(timeline),
        "work": lambda: works(timeline),
        "stragglers": lambda: stragglers(timeline),
        "critical path": lambda: critical_path(timeline, last),
        "arrivals": lambda: arrivals(timeline),
    }
    taken_s = {}
    for name, part in parts.items():
        start_s = time.perf_counter()
        part()
        taken_s[name] = time.perf_counter() - start_s
    return taken_s


def command(*arguments: str) -> float:
    """Return how long a command takes from its start to its end."""
    start_s = time.perf_counter()
    line = [sys.executable, "-m", "syncopate", *arguments]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def large(*arguments: str) -> dict[str, float]:
    """Return how long a command takes from its start to its end, and the memory that it takes.

    Also its time on processors, which says whether it had one to itself.
    """
    start_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, "-c", COMMAND, *arguments]
    ended = subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    lasts_s, after = time.perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": lasts_s,
        "processor_s": busy_s,
        "peak_bytes": int(ended.stderr.split()[-1]) * 1024,
    }


def _memory_bytes(what: str) -> int:
    """Return what Linux says of this process: ``VmRSS``, or ``VmHWM``, the most it ever was.

    ``ru_maxrss`` would count the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def _alone(function: Callable[..., dict[str, float]], *arguments: str) -> dict[str, float]:
    """Call a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_large(directory: Path, part: float) -> dict[str, Any]:
    """Write a long training and one of many ranks, and return what commands of each take."""
    found = {}
    for name, whole in {"report": LONG, "explain": WIDE}.items():
        ranks, iterations = max(int(whole[0] * part), 4), max(int(whole[1] * part), 10)
        write_run(directory / name, iterations, ranks)
        last = ["--last", str(iterations)]
        output = ["-o", str(directory / "page.html")] if name == "report" else []
        taken = large(name, str(directory / name), *last, *output)
        found[name] = {"ranks": ranks, "iterations": iterations, **taken}
        found[name]["spans"] = ranks * iterations * EVENTS
    return found


def measure(directory: Path, spans: int) -> dict[str, Any]:
    """Write the traces, read and analyse them, and return every figure."""
    run, whole, messages = directory / "run", directory / "timeline.json", directory / "worker.txt"
    write_run(run, max(spans // (RANKS * EVENTS), 4))
    _read_run(str(run)).save(whole)
    write_dlc(messages, spans // 4)
    paths = {"captured run": run, "timeline JSON": whole, "DLC trace": messages}
    return {
        "reading": {kind: _alone(read, kind, str(path)) for kind, path in paths.items()},
        "analysis_s": _alone(analyse, str(run)),
        "commands_s": {
            "analyze": command("analyze", str(run), "--last", str(1 << 40)),
            "analyze --json": command("analyze", str(run), "--last", str(1 << 40), "--json"),
            "explain": command("explain", str(whole)),
        },
        "ranks": RANKS,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--spans", type=int, default=1_000_000, help="of the training")
    parser.add_argument("--large", action="store_true", help="the two large trainings alone")
    parser.add_argument("--quick", action="store_true", help="few spans, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.spans = 20_000
    with tempfile.TemporaryDirectory() as directory:
        found = {} if arguments.large else measure(Path(directory), arguments.spans)
        part = 0.01 if arguments.quick else 1.0
        found["large"] = measure_large(Path(directory), part)
    _print(found)
    if arguments.json:
        found["cpu"] = _cpu()
        write_output(arguments.json, json.dumps(found, indent=1).encode() + b"\n")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} x {model}"


def _print(found: dict[str, Any]) -> None:
    for kind, one in found.get("reading", {}).items():
        print(
            f"{kind}: {one['count']} in {format_seconds(one['seconds'])}, "
            f"{one['per_s']:,.0f} a second; {one['bytes_each']:.0f} bytes each, "
            f"{one['peak_bytes_each']:.0f} at most while reading"
        )
    for name, lasts_s in found.get("analysis_s", {}).items():
        print(f"{name}: {format_seconds(lasts_s)}")
    for name, lasts_s in found.get("commands_s", {}).items():
        print(f"syncopate {name}, from start to end: {format_seconds(lasts_s)}")
    for name, one in found["large"].items():
        print(
            f"syncopate {name} of {one['ranks']} ranks x {one['iterations']} iterations, "
            f"{one['spans']:,} spans: {format_seconds(one['seconds'])}, "
            f"{format_seconds(one['processor_s'])} of them on a processor; "
            f"{format_bytes(one['peak_bytes'])} at most"
        )


if __name__ == "__main__":
    main()
