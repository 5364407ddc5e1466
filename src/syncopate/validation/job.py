"""Job: what the ranks of a lab are to do, and what each of them tells."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.validation.grid import COMPUTING

PORT = 9097
"""Of the scheduler of parameter servers."""

COMPUTING_STEPS = 4
"""So many steps of the computing work take about as long as one of the replayed work."""


class Effort(Record, frozen=True, kw_only=True):
    """How long each measurement takes.

    Attributes:
        calibration_s: seconds of calibration, once for each number of hosts.
        turns: of each training; each gives a sample.
        steps: of a turn of replayed work, and before the first turn; of computing work
            ``COMPUTING_STEPS`` times as many.
        recorded: iterations that are recorded behind the turns, up to the begin of one more.
        limit_s: after so long a rank gives up.
    """

    calibration_s: float = 20.0
    turns: int = 5
    steps: int = 4
    recorded: int = 4
    limit_s: float = 300.0

    def steps_of(self, work: str) -> int:
        """Return the steps of a turn of some work."""
        return self.steps * (COMPUTING_STEPS if work == COMPUTING else 1)


QUICK = Effort(calibration_s=5.0, turns=2)
"""To see that everything works; not to say how good predictions are."""


class Job(Artifact, frozen=True, kw_only=True):
    """The job of the ranks.

    Attributes:
        folder: where every rank writes what it has to tell.
        effort: how long to take.
        workers: ranks that train; those behind them are servers, and the last one the scheduler.
        work: what is trained; empty: calibrate, and profile both works.
        plan: what it trains by.
        workload: of the replayed work.
        servers: how many parameter servers.
        addresses: of all hosts.
    """

    KIND: ClassVar[str] = "validation-job"

    folder: str
    effort: Effort
    workers: int
    work: str = ""
    plan: Plan | None = None
    workload: Workload
    servers: int = 0
    addresses: tuple[str, ...] = ()

    def told(self, rank: int) -> Path:
        """Return where a rank writes what it tells."""
        return Path(self.folder) / f"rank{rank}.json"

    @property
    def traces(self) -> Path:
        """Where ranks write what they did in some more steps."""
        return Path(self.folder) / "traces"

    @property
    def place(self) -> list[str]:
        """The options that tell a node of the parameter server where it belongs."""
        counts = ["--servers", str(self.servers), "--workers", str(self.workers)]
        return ["--host", self.addresses[-1], "--port", str(PORT), *counts, "--insecure"]


class Told(Artifact, frozen=True, kw_only=True):
    """The results of one rank, as far as they were asked for.

    Attributes:
        error: why it could not; empty where it could.
        cluster: as calibrated.
        workloads: as profiled, by work.
        samples_s: seconds of an iteration, one each turn.
    """

    KIND: ClassVar[str] = "validation-told"

    error: str = ""
    cluster: Cluster | None = None
    workloads: dict[str, Workload] = {}
    samples_s: tuple[float, ...] = ()
