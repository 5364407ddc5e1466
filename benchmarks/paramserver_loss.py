"""Messages that are lost: how much longer a training with parameter servers takes by them.

    python benchmarks/paramserver_loss.py --json loss.json     # some minutes
    python benchmarks/paramserver_loss.py --drop 0.1 --model char_gpt
    python benchmarks/paramserver_loss.py --quick              # to see that it runs

Two workers train on two servers of this machine, with default limits. A share of all messages
between workers and servers is dropped, in both directions: by the program, for a TCP connection
loses none. Trainings with and without losses take turns. A turn takes the time of its steps, from
after ``init`` to the last pull. All turns must end with the same weights, to the bit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch
from msgspec import structs

from contest.conduct import reopened
from emulated.options import explained
from serving.processes import HERE, SYNCHRONOUS, Child, digest
from serving.work import facts
from syncopate import KVStore, zoo
from syncopate.artifacts.artifact import Artifact
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.scheduler import Scheduler
from syncopate.paramserver.server import ParameterServer
from syncopate.paramserver.wire import faults

WORKERS, SERVERS, STEPS, ROUNDS, DROP = 2, 2, 60, 5, 0.05
MODELS = ("resnet20", "char_gpt", "lenet5")
_LATEST_S = 1800.0


class Results(Artifact, frozen=True, kw_only=True):
    """Every sample, and what was trained.

    Attributes:
        model: a task of the zoo.
        steps: of a turn.
        drop: the share of messages that is lost.
        clean_s: seconds of each turn without losses, the longest worker's.
        lossy_s: seconds of each turn with losses.
        metadata: versions, and the machine.
    """

    KIND: ClassVar[str] = "paramserver-loss"

    model: str
    steps: int
    drop: float
    clean_s: tuple[float, ...] = ()
    lossy_s: tuple[float, ...] = ()
    metadata: dict[str, str] = {}


def _schedule(job: Job) -> None:
    Scheduler(job).run()


def _serve(job: Job, drop: float, seed: int) -> None:
    lost = faults.Faults(drop=drop, seed=seed) if drop else None
    ParameterServer(job, faults=lost).run()


def _train(job: Job, model: str, steps: int, drop: float, seed: int) -> tuple[float, str]:
    """Return the seconds of all steps, and the hash of the weights."""
    if drop:
        os.environ[faults.VARIABLE] = f"drop={drop},seed={seed}"
    task = getattr(zoo, model)(seed=job.rank)
    torch.manual_seed(0)
    weights = {name: p.detach() for name, p in task.model.named_parameters()}
    with KVStore(SYNCHRONOUS, job=job) as store:
        store.init(weights)
        began_s = time.perf_counter()
        for _ in range(steps):
            task.model.zero_grad()
            task.loss().backward()
            named = task.model.named_parameters()
            gradients = {name: p.grad for name, p in named}
            handles = [store.push_many(gradients), store.pull_many(weights)]
            for handle in handles:
                handle.wait()
        return time.perf_counter() - began_s, digest(weights)


def turn(model: str, steps: int, drop: float, seed: int) -> tuple[float, str]:
    """Train once; return the longest worker's seconds, and the hash of the weights.

    Raises:
        SystemExit: a worker did not end with a result.
    """
    job = Job(uri=HERE.address, port=free_port(), servers=SERVERS, workers=WORKERS)
    others = [Child(HERE, _schedule, job)]
    for rank in range(SERVERS):
        own = structs.replace(job, rank=rank)
        others.append(Child(HERE, _serve, own, drop, 100 * seed + rank))
    workers = [
        Child(HERE, _train, structs.replace(job, rank=rank), model, steps, drop, 100 * seed - rank)
        for rank in range(WORKERS)
    ]
    until_s = time.monotonic() + _LATEST_S
    try:
        outcomes = [child.outcome(until_s) for child in workers]
    finally:
        for child in (*others, *workers):
            child.kill()
    if any(outcome.kind != "result" for outcome in outcomes):
        sys.exit(f"error: workers ended with {outcomes}")
    hashes = {outcome.value[1] for outcome in outcomes}
    if len(hashes) > 1:
        sys.exit("error: the workers' weights differ")
    return max(outcome.value[0] for outcome in outcomes), hashes.pop()


def tell(results: Results) -> None:
    """Print the medians and their ratio."""
    clean_s, lossy_s = statistics.median(results.clean_s), statistics.median(results.lossy_s)
    print(
        f"{results.model}, {results.steps} steps: {clean_s:.2f} s without losses, {lossy_s:.2f} s "
        f"with {results.drop:.0%} of messages lost: {lossy_s / clean_s:.2f}x "
        f"({len(results.lossy_s)} turns)"
    )


def main() -> int:
    """Measure, print and write."""
    parser = explained(argparse.ArgumentParser(), __doc__)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help=f"({MODELS[0]})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a turn ({STEPS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"in all ({ROUNDS})")
    parser.add_argument("--drop", type=float, default=DROP, help=f"share lost ({DROP:g})")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.rounds = 5, 1
    fresh = Results(model=options.model, steps=options.steps, drop=options.drop, metadata=facts())
    results = reopened(options.json, fresh, "model", "steps", "drop")
    hashes = set()
    while len(results.lossy_s) < options.rounds:
        seed = len(results.lossy_s) + 1
        clean_s, clean = turn(options.model, options.steps, 0.0, seed)
        lossy_s, lossy = turn(options.model, options.steps, options.drop, seed)
        hashes |= {clean, lossy}
        if len(hashes) > 1:
            sys.exit("error: turns ended with different weights")
        results = structs.replace(
            results,
            clean_s=(*results.clean_s, clean_s),
            lossy_s=(*results.lossy_s, lossy_s),
        )
        print(f"turn {seed}: {clean_s:.2f} s, {lossy_s:.2f} s", flush=True)
        if options.json:
            results.save(Path(options.json))
    tell(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
