"""Results: what every variant's turns took, and what is still to be measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from msgspec import structs

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.engine.selfplan.cache import Settled

from .conduct import reopened, with_command


class Setting(Record, frozen=True, kw_only=True):
    """What one file of results was measured under; turns of another setting are not mixed in.

    Attributes:
        hosts: of the lab, one rank each.
        rate: of each host's link, such as ``"1gbit"``.
        ratio: computation of the replayed models over the wire's time; None for their own times.
        iterations: counted steps of a turn.
        warmup: steps before them.
        optimizer: of all models; empty for each one's own.
        quick: whether sizes were cut to see that it runs; then no figure counts.
        clip: whether gradients are clipped by their norm, and a scheduler steps, in every step.
    """

    hosts: int
    rate: str
    ratio: float | None
    iterations: int
    warmup: int
    optimizer: str
    quick: bool
    clip: bool = False


class Turn(Record, frozen=True, kw_only=True):
    """One turn of one variant, in processes of its own.

    Attributes:
        steps_s: rank -> seconds of every counted step, from call to call.
        peak_bytes: rank -> the most memory its process ever held (``VmHWM``).
        state_bytes: rank -> bytes of its optimizer's state.
        digests: rank -> hash of all weights after the last step.
        off: how far the weights are from the reference's, over how far training moved those; None
            where weights are not compared.
        busy: the share of all processors' time that was not idle in the counted steps, by
            all programs; None where the system does not tell.
    """

    steps_s: tuple[tuple[float, ...], ...]
    peak_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    digests: tuple[str, ...]
    off: float | None = None
    busy: float | None = None

    @property
    def step_s(self) -> float:
        """The slowest rank's mean: a rank that is late in one step is early in the next."""
        return max(statistics.fmean(steps) for steps in self.steps_s)


class Cell(Record, frozen=True, kw_only=True):
    """One variant on one model.

    Attributes:
        turns: in the order they were taken.
        plan: what it trained by, where it had a plan.
        missing: why there is no (further) turn; empty where nothing is wrong.
        planning_s: what each step took until self-planning had settled.
        settled: what self-planning kept for the next run.
    """

    turns: tuple[Turn, ...] = ()
    plan: Plan | None = None
    missing: str = ""
    planning_s: tuple[float, ...] = ()
    settled: Settled | None = None

    @property
    def step_s(self) -> float:
        """Median over turns; only where there are turns."""
        return statistics.median(turn.step_s for turn in self.turns)

    @property
    def spread(self) -> float:
        """Slowest less fastest turn, over the median."""
        steps_s = [turn.step_s for turn in self.turns]
        return (max(steps_s) - min(steps_s)) / self.step_s

    @property
    def predicted_s(self) -> float | None:
        """What its plan promised; None without a prediction."""
        prediction = self.plan.prediction if self.plan is not None else None
        return None if prediction is None else prediction.iteration_s

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None without a prediction."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1

    @property
    def busy(self) -> float | None:
        """Median over the turns that know it; None where none does."""
        known = [turn.busy for turn in self.turns if turn.busy is not None]
        return statistics.median(known) if known else None

    @property
    def peak_bytes(self) -> int:
        """The most that any rank held in any turn."""
        return max(max(turn.peak_bytes) for turn in self.turns)

    @property
    def state_bytes(self) -> int:
        """The most optimizer state that any rank had."""
        return max(max(turn.state_bytes) for turn in self.turns)

    @property
    def ranks_equal(self) -> bool:
        """Whether all ranks ended every turn with the same bits."""
        return all(len(set(turn.digests)) == 1 for turn in self.turns)

    @property
    def off(self) -> float | None:
        """The largest ``off`` of its turns; None where none was compared."""
        return max((turn.off for turn in self.turns if turn.off is not None), default=None)


class WorkResult(Record, frozen=True, kw_only=True):
    """All variants on one model.

    Attributes:
        workload: the model as profiled.
        bound_s: the physical bound of forward and backward; an update can only add to it.
        cells: variant -> what it took.
    """

    workload: Workload
    bound_s: float
    cells: dict[str, Cell] = {}

    def measured(self, names: Iterable[str]) -> dict[str, Cell]:
        """Return those of ``names`` that have turns."""
        return {n: self.cells[n] for n in names if n in self.cells and self.cells[n].turns}


class Results(Artifact, frozen=True, kw_only=True):
    """One run of the benchmark, or several that added to one another.

    Attributes:
        setting: what all turns have in common.
        cluster: the lab as calibrated; None before.
        works: model -> its results.
        metadata: hardware, versions and date of the first turn, and the commands.
    """

    KIND: ClassVar[str] = "training-benchmark"

    setting: Setting
    cluster: Cluster | None = None
    works: dict[str, WorkResult] = {}
    metadata: dict[str, str] = {}

    def cell(self, work: str, variant: str) -> Cell:
        """Return what is known of a variant on a model, be it nothing."""
        found = self.works.get(work)
        return found.cells.get(variant, Cell()) if found is not None else Cell()

    def with_cell(self, work: str, variant: str, cell: Cell) -> Results:
        """Return the results with one cell put in place of another; the model is profiled."""
        whole = self.works[work]
        changed = structs.replace(whole, cells=whole.cells | {variant: cell})
        return structs.replace(self, works=self.works | {work: changed})

    def without(self, works: Sequence[str], variants: Sequence[str]) -> Results:
        """Return the results without the turns of some variants on some models."""
        kept = dict(self.works)
        for name in set(works) & set(kept):
            cells = {v: c for v, c in kept[name].cells.items() if v not in variants}
            kept[name] = structs.replace(kept[name], cells=cells)
        return structs.replace(self, works=kept)


class Place(NamedTuple):
    """A turn that is to be taken."""

    round: int
    work: str
    variant: str


def still_to_do(
    results: Results, works: Sequence[str], variants: Sequence[str], rounds: int
) -> list[Place]:
    """Return the turns that are missing, one model after the other, its variants in turns.

    A variant that was not available is tried again: its package may have been installed since.
    """
    return [
        Place(index, work, variant)
        for work in works
        for index in range(rounds)
        for variant in variants
        if len(results.cell(work, variant).turns) <= index
    ]


def resumed(path: Path | None, setting: Setting, metadata: dict[str, str]) -> Results:
    """Return what ``path`` holds, or empty results where there is no such file yet.

    Args:
        path: where results are kept; None for nowhere.
        setting: of the turns to come.
        metadata: of them; of those that are there already it stays, and only the command is added.

    Raises:
        ArtifactError: it is no such file, or was measured under another setting.
    """
    fresh = Results(setting=setting, metadata=metadata)
    return with_command(reopened(path, fresh, "setting"), metadata)
