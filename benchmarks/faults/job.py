"""Job: what all ranks of a training with a fault are to do, and what each of them tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload

_POLL_S = 0.01


class Job(Artifact, frozen=True, kw_only=True):
    """What the ranks are to do.

    Attributes:
        fault: a name in ``FAULTS``; empty: calibrate.
        workload: what is trained, as replayed.
        folder: where traces go, and what ranks tell.
        rounds: blocks with the fault, and as many without, that are to be undisturbed.
        tries: rounds at most.
        iterations: counted ones of a block.
        plan: of the healthy training.
        other: of that with the fault, where it has another plan.
        budget_s: of a calibration.
    """

    KIND = "explain-faults-job"

    fault: str
    workload: Workload
    folder: str
    rounds: int = 1
    tries: int = 1
    iterations: int = 12
    plan: Plan | None = None
    other: Plan | None = None
    budget_s: float = 5.0

    def told(self, rank: int) -> Path:
        """Return where a rank writes what it tells."""
        return Path(self.folder) / f"rank{rank}.json"

    def trace(self, round_: int, faulty: bool) -> Path:
        """Return where a block is captured."""
        return Path(self.folder) / f"{'with' if faulty else 'without'}-{round_}"

    def answer(self, block: int) -> Path:
        """Return the file that is there when the link has been changed for a block."""
        return Path(self.folder) / f"link-{block}"

    def blocks(self) -> Iterator[tuple[int, int, bool]]:
        """Yield number, round and whether it has the fault, of every block in order."""
        for number in range(2 * self.tries):
            yield number, number // 2, number % 4 in (1, 2)


class Told(Artifact, frozen=True, kw_only=True):
    """What one rank tells.

    Attributes:
        ends_s: block -> when each of its iterations ended, by ``time.perf_counter``, which all
            ranks of a lab share.
        others: block -> which part of the machine other processes took; rank 0 tells.
        cluster: as calibrated, where that was asked for.
    """

    KIND = "explain-faults-told"

    ends_s: tuple[tuple[float, ...], ...] = ()
    others: tuple[float, ...] = ()
    cluster: Cluster | None = None


def awaited(*paths: Path) -> Path:
    """Return the first of some files that is there, when one is."""
    while True:
        for path in paths:
            if path.exists():
                return path
        time.sleep(_POLL_S)
