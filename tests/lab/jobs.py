"""The ranks of one host of a lab, for tests of failure: ``python jobs.py FOLDER ROUND...``.

A round is ``NAME=VICTIM:JOB,JOB,...``: jobs that run at the same time, each in a process of its own
with a rendezvous of its own, and the rank that is about to be lost. It begins when ``FOLDER/NAME``
appears. Every job says ``ready NAME JOB`` once it is where the test wants it, and at its end prints
what became of it as JSON. ``FOLDER/NAME.cut`` appears when the host has been lost. One import of
torch serves all rounds and jobs of a host. A job that hangs is ended, and says where it hung.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.benchmarking.run import bench
from syncopate.benchmarking.sweep import Effort, Sweep
from syncopate.calibration.calibrate import calibrate
from syncopate.cli import main as command_line
from syncopate.collectives import Communicator
from syncopate.errors import SyncopateError
from syncopate.output import Progress

_FIRST_PORT = 30000
_MOST_JOBS = 50
_OUR_ERRORS = ("error: ", "Traceback")
_HANGS_S = 120.0
_SPARE_S = 30.0


class Stage(NamedTuple):
    """What a job is given.

    Attributes:
        communicator: over the ranks of all hosts.
        victim: the rank that will be lost.
        ready: to be called once the host may be lost; further calls change nothing.
        cut: the file that appears then.
    """

    communicator: Communicator
    victim: int
    ready: Callable[[], None]
    cut: Path


def ring(stage: Stage) -> None:
    """Be amid large all-reduces of this package."""
    _all_reduces(stage, "ring")


def native(stage: Stage) -> None:
    """Be amid large all-reduces of Gloo."""
    _all_reduces(stage, "native")


def _all_reduces(stage: Stage, algorithm: str) -> None:
    tensor = torch.ones(1 << 20)
    while True:
        stage.communicator.all_reduce(tensor.zero_(), algorithm=algorithm)
        stage.ready()


def barrier(stage: Stage) -> None:
    """Wait in a barrier for a rank that computes, until it is lost."""
    stage.ready()
    if stage.communicator.rank == stage.victim:
        wait_for(stage.cut)
        time.sleep(0.5)
    stage.communicator.barrier()
    stage.communicator.barrier()


def between(stage: Stage) -> None:
    """Compute while the host is lost; find out at the next call."""
    stage.ready()
    wait_for(stage.cut)
    time.sleep(float(os.environ["SYNCOPATE_HEARTBEAT_S"]) + 3)
    stage.communicator.all_reduce(torch.ones(8), algorithm="recursive_doubling")


def objects(stage: Stage) -> None:
    """Wait for an object of the rank that is lost."""
    stage.ready()
    if stage.communicator.rank == stage.victim:
        wait_for(stage.cut)
        time.sleep(0.5)
    stage.communicator.broadcast_object("found", src=stage.victim)
    stage.communicator.all_gather_object("found")


def calibrating(stage: Stage) -> None:
    """Be amid the measuring of links."""
    calibrate(stage.communicator, budget_s=300, progress=lambda what, done: stage.ready())


def benching(stage: Stage) -> None:
    """Be amid a benchmark of collectives, and of those of another group in turn."""
    sweep = Sweep("all_reduce", sizes=(1 << 22,), algorithms=("ring",), against=("gloo",))
    bench(stage.communicator, sweep, Effort(iterations=1000), lambda what, done: stage.ready())


def congested(stage: Stage) -> None:
    """Send more than a slow link carries for a while; nobody is lost."""
    tensor = torch.full((5_000_000,), float(stage.communicator.rank + 1))
    stage.ready()
    wait_for(stage.cut)
    stage.communicator.all_reduce(tensor, algorithm="ring")
    p = stage.communicator.world_size
    if not bool((tensor == p * (p + 1) / 2).all()):
        raise SyncopateError("wrong sum")


JOBS: dict[str, Callable[[Stage], None]] = {
    job.__name__: job
    for job in (ring, native, barrier, between, objects, calibrating, benching, congested)
}


def say(line: str) -> None:
    """Print a line in one piece: ``print`` writes its end apart, and other jobs print meanwhile."""
    os.write(1, f"{line}\n".encode())


def wait_for(path: Path) -> None:
    """Return once ``path`` exists; end the process where it does not appear."""
    deadline_s = time.monotonic() + _HANGS_S + _SPARE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            sys.exit(f"{path} did not appear")
        time.sleep(0.05)


def readiness(title: str, job: str) -> Callable[[], None]:
    """Return what a job calls when it is where the test wants it; the first call counts."""
    said: list[bool] = []

    def ready() -> None:
        if not said:
            said.append(True)
            say(f"ready {title} {job}")

    return ready


def run(title: str, job: str, victim: int, cut: Path) -> dict[str, Any]:
    """Run one job as this process's rank; return what it ended with."""
    ready = readiness(title, job)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    communicator = Communicator()
    error: SyncopateError | None = None
    try:
        JOBS[job](Stage(communicator, victim, ready, cut))
    except SyncopateError as caught:
        error = caught
    failed_s = time.time()
    communicator.close()
    closed_s = time.time()
    dist.destroy_process_group()
    wait_for(cut)  # a job may end before all of the host is gone
    return {
        "round": title,
        "job": job,
        "rank": int(os.environ["RANK"]),
        "error": type(error).__name__,
        "ranks": list(getattr(error, "ranks", ())),
        "text": str(error),
        "took_s": failed_s - cut.stat().st_mtime,
        "closing_s": closed_s - failed_s,
    }


def run_command(title: str, folder: Path) -> dict[str, Any]:
    """Run ``syncopate calibrate`` as this process's rank; return its exit code and errors."""
    ready = readiness(title, "command")

    def told(communicator: Communicator, *, progress: Progress, **further: Any) -> Cluster:
        def both(what: str, done: float) -> None:
            ready()
            progress(what, done)

        return calibrate(communicator, progress=both, **further)

    rank = int(os.environ["RANK"])
    errors = folder / f"{title}.{rank}.err"
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.argv = ["syncopate", "calibrate", "--budget", "300", "-o", os.devnull]
    with mock.patch.object(syncopate, "calibrate", told):
        code = command_line()
    sys.stderr.flush()
    return {
        "round": title,
        "job": "command",
        "rank": rank,
        "code": code,
        # Not all that torch says, which is more than is written in one piece.
        "errors": [
            line for line in errors.read_text().splitlines() if line.startswith(_OUR_ERRORS)
        ],
    }


def in_child(folder: Path, title: str, job: str, victim: int, port: int) -> int:
    """Run one job in a process of its own; return its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        faulthandler.dump_traceback_later(_HANGS_S, exit=True, file=os.dup(2))
        os.environ["MASTER_PORT"] = str(port)
        if job == "command":
            found = run_command(title, folder)
        else:
            found = run(title, job, victim, folder / f"{title}.cut")
        say(json.dumps(found))
    except BaseException as error:  # the test reads it
        say(f"crash {title} {job} {error!r}")
    finally:
        os._exit(0)


def main() -> None:
    """Run all rounds."""
    folder, rounds = Path(sys.argv[1]), sys.argv[2:]
    for index, text in enumerate(rounds):
        title, _, rest = text.partition("=")
        victim, _, jobs = rest.partition(":")
        wait_for(folder / title)
        first = _FIRST_PORT + index * _MOST_JOBS
        children = [
            in_child(folder, title, job, int(victim), first + number)
            for number, job in enumerate(jobs.split(","))
        ]
        for pid in children:
            os.waitpid(pid, 0)
        say(f"over {title}")


if __name__ == "__main__":
    main()
