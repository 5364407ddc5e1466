"""Session: lets ranks train with and without each fault, and asks explain about it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from faults.job import Job, Told
from faults.links import missing, spoil
from faults.machine import QUIET
from faults.named import FAULTS, Fault
from faults.results import Results, Round, Said
from faults.trained import MENDED, SPOILT
from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.plan import SERVED, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.served import served_costs
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.lab import Lab, Topology
from syncopate.output import new_directory
from syncopate.planning import make_plan
from syncopate.units import parse_rate

LAYERS, MANY, BYTES = 48, 240, 4 << 20
FORWARD_S, BACKWARD_S, UPDATE_S = 0.03, 0.08, 0.005
"""What is trained: two tensors a layer, larger and larger ones, as in a network for images; of
many layers where each tensor has a bucket, which costs little with few."""


def workload(layers: int = LAYERS) -> Workload:
    """Return what is trained: small, with several buckets' worth of gradients."""
    weights = [1.08 ** (LAYERS * layer / layers) for layer in range(layers)]
    scale = (BYTES / 4 - 64 * layers) / sum(weights)
    tensors: list[GradientTensor] = []
    for layer, weight in enumerate(weights):
        for kind, numel in (("weight", round(weight * scale)), ("bias", 64)):
            part = 0.45 if kind == "weight" else 0.05
            tensors.append(
                GradientTensor(
                    name=f"layer{layer}.{kind}",
                    numel=numel,
                    forward_s=part * FORWARD_S / layers,
                    backward_s=2 * part * BACKWARD_S / layers,
                )
            )
    return Workload(
        model="convolutions",
        tensors=tuple(reversed(tensors)),
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S * (1 + 1e-9),
        update_s=UPDATE_S,
    )


class Session:
    """Goes through faults.

    Args:
        results: what is known already.
        keep: called with the results after every fault.
        rounds: of each fault.
        budget_s: of the calibration.
        traces: where all traces stay; None: nowhere.
    """

    def __init__(
        self,
        results: Results,
        keep: Callable[[Results], None],
        *,
        rounds: int,
        budget_s: float,
        traces: Path | None = None,
    ) -> None:
        self.results = results
        self._traces = traces
        self._keep, self._rounds, self._budget_s = keep, rounds, budget_s
        self._workload = workload()
        self._many = workload(MANY)

    def measure(self, fault: Fault) -> None:
        """Train with and without a fault, and keep what explain says.

        Raises:
            KeyboardInterrupt: somebody ended the ranks.
            SyncopateError: the ranks failed.
        """
        if why := missing(fault):
            skipped = self.results.skipped | {fault.name: why}
            self.results = msgspec.structs.replace(self.results, skipped=skipped)
            self._keep(self.results)
            return
        with (
            self._folder(fault) as folder,
            Lab(
                Topology(
                    hosts=fault.hosts,
                    ranks_per_host=fault.ranks_per_host,
                    rate_bytes_per_s=parse_rate(self.results.rate),
                )
            ) as lab,
        ):
            if self._calibrates(fault):
                self._calibrate(lab, folder)
            job = self._job(fault, folder, lab)
            told = self._told(lab, job, fault)
            chosen = undisturbed(told[0].others, job.rounds)
            rounds = tuple(self._round(fault, job, told, index) for index in chosen)
        self.results = self.results.with_rounds(fault.name, rounds)
        self._keep(self.results)

    @contextmanager
    def _folder(self, fault: Fault) -> Iterator[Path]:
        """Yield where a job's files go."""
        if self._traces is not None:
            folder = self._traces / fault.name
            if folder.exists():
                raise ArtifactError(folder, "there are traces already; give another --traces")
            yield new_directory(folder)
            return
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)

    def _calibrates(self, fault: Fault) -> bool:
        """Say whether to measure the lab now: once, and to see that all runs only for a plan."""
        if self.results.cluster is not None or fault.hosts != FAULTS["healthy"].hosts:
            return False
        return "plan" in fault.kinds or not self.results.quick

    def _calibrate(self, lab: Lab, folder: Path) -> None:
        there = folder / "calibration"
        there.mkdir()
        job = Job(fault="", workload=self._workload, folder=str(there), budget_s=self._budget_s)
        cluster = self._told(lab, job, FAULTS["healthy"])[0].cluster
        assert cluster is not None
        # Who sleeps is not slowed down by those who communicate.
        cluster = msgspec.structs.replace(cluster, interference=Interference())
        self.results = msgspec.structs.replace(self.results, cluster=cluster)
        self._keep(self.results)

    def _job(self, fault: Fault, folder: Path, lab: Lab) -> Job:
        cluster = self.results.cluster
        if cluster is None or cluster.world_size != fault.workers:
            cluster = lab.cluster()
        work = self._trained(fault)
        other = None
        if fault.plan != "best":
            other = self._plan(work, _POLICIES[fault.plan], cluster)
        quick = self.results.quick
        return Job(
            fault=fault.name,
            workload=work,
            folder=str(folder),
            rounds=1 if quick else self._rounds,
            tries=1 if quick else _TRIES * self._rounds,
            iterations=min(fault.iterations, 8) if quick else fault.iterations,
            plan=self._served(fault, work) or self._plan(work, "auto", cluster),
            other=other,
        )

    def _trained(self, fault: Fault) -> Workload:
        return self._many if fault.plan == "each" else self._workload

    @staticmethod
    def _plan(work: Workload, policy: str, cluster: Cluster) -> Plan:
        return make_plan(work, cluster, policy, exchange="allreduce", channels=1)

    def _served(self, fault: Fault, work: Workload) -> Plan | None:
        """Return the best plan for a training that has servers."""
        if not fault.servers:
            return None
        rate_bytes_per_s = parse_rate(self.results.rate)
        workers = Topology(hosts=fault.workers, rate_bytes_per_s=rate_bytes_per_s).cluster()
        costs = served_costs(workers, fault.servers)
        return make_plan(work, workers, "auto", exchange=SERVED, costs=costs)

    def _told(self, lab: Lab, job: Job, fault: Fault) -> list[Told]:
        """Let all ranks do a job, and return what those that train tell."""
        path = job.save(Path(job.folder) / "job.json")
        last: deque[str] = deque(maxlen=30)

        def hear(rank: int, _: str, line: str) -> None:
            last.append(f"rank {rank}: {line}")
            word, *rest = line.split() or [""]
            if word in (SPOILT, MENDED):
                spoil(lab, fault, parse_rate(self.results.rate), on=word == SPOILT)
                job.answer(int(rest[0])).touch()

        paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
        outcome = lab.run(
            [sys.executable, "-m", "faults.trained", str(path)],
            environment=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            sink=hear,
        )
        if outcome.received is not None:
            raise KeyboardInterrupt
        if outcome.exit_code:
            print("\n".join(last), file=sys.stderr)
            raise SyncopateError(outcome.summary())
        return [Told.load(job.told(rank)) for rank in range(fault.workers)]

    def _round(self, fault: Fault, job: Job, told: list[Told], index: int) -> Round:
        taken_s = {
            faulty: _iteration_s([one.ends_s[number] for one in told])
            for number, round_, faulty in job.blocks()
            if round_ == index
        }
        found = self._explained(fault, job, index)
        return Round(
            with_s=taken_s[True],
            without_s=taken_s[False],
            others=max(told[0].others[2 * index : 2 * index + 2]),
            causes=tuple(
                Said(
                    kind=one["kind"],
                    ranks=tuple(one["ranks"]),
                    gain_s=one["gain_s"],
                    what=one["what"],
                )
                for one in found["causes"]
            ),
            together_s=found["together_s"],
            abstains=tuple(found["abstains"]),
        )

    def _explained(self, fault: Fault, job: Job, index: int) -> dict[str, object]:
        """Ask as a user does."""
        traces = job.trace(index, True)
        files = sorted(traces.glob("rank*.json")) if fault.profiled else [traces]
        command = [sys.executable, "-m", "syncopate", "explain", *map(str, files)]
        if self.results.cluster is not None and "plan" in fault.kinds:
            folder = Path(job.folder)
            where = self.results.cluster.save(folder / "cluster.json")
            what = job.workload.save(folder / "workload.json")
            command += ["-w", str(what), "-c", str(where)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SyncopateError(f"explain: {done.stderr.strip()}")
        found: dict[str, object] = json.loads(done.stdout)
        return found


_TRIES = 3
"""Rounds at most, for each that is to be undisturbed."""

_POLICIES = {"single": "single", "each": "wfbp"}


def undisturbed(others: Sequence[float], count: int) -> list[int]:
    """Return the rounds that other processes disturbed least, in their order.

    Args:
        others: which part of the machine they took in each block.
        count: rounds at most.
    """
    worst = [max(both) for both in zip(others[::2], others[1::2], strict=True)]
    first = [index for index, share in enumerate(worst) if share <= QUIET][:count]
    rest = sorted((i for i in range(len(worst)) if i not in first), key=worst.__getitem__)
    return sorted([*first, *rest[: count - len(first)]])


def _iteration_s(ends_s: list[tuple[float, ...]]) -> float:
    """Return the mean of the counted iterations of a block; each ends when the last rank's does."""
    last_s = [max(row) for row in zip(*ends_s, strict=True)]
    return statistics.fmean(after - before for before, after in pairwise(last_s))
