"""Point: one prediction beside its measurement; and a validation, which is many of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import ClassVar

from msgspec import structs

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import require_time
from syncopate.artifacts.plan import Prediction
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError, UnknownNameError

GPU, LAB = "gpu", "lab"
KINDS = (GPU, LAB)


class Phase(Record, frozen=True, kw_only=True):
    """One phase of an iteration, predicted and measured.

    Attributes:
        name: such as ``"backward"`` or ``"exposed communication"``.
        predicted_s: seconds of an iteration.
        measured_s: likewise.
    """

    name: str
    predicted_s: float
    measured_s: float

    def __post_init__(self) -> None:
        for what in ("predicted_s", "measured_s"):
            require_time(f"{what} of {self.name}", getattr(self, what))


class Point(Record, frozen=True, kw_only=True):
    """One training, predicted and measured.

    Attributes:
        kind: ``"gpu"`` for published measurements, ``"lab"`` for those of emulated hosts.
        name: its own among those of a kind.
        work: the model.
        network: links and topology, for tables.
        ranks: how many.
        hosts: how many.
        exchange: the exchange of the plan.
        way: what it is called where it was measured, such as ``"WFBP"``; a policy in the lab.
        calibrated: what the prediction was made from: other measurements than this one.
        prediction: as the planner made it.
        samples_s: measured seconds of an iteration; one each turn, or a published mean.
        phases: where the measurement tells them.
    """

    kind: str
    name: str
    work: str
    network: str
    ranks: int
    hosts: int
    exchange: str
    way: str
    calibrated: str
    prediction: Prediction
    samples_s: tuple[float, ...]
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError("kind of a point", self.kind, KINDS)
        if not self.samples_s or not all(sample > 0 for sample in self.samples_s):
            raise InvalidValueError("samples_s", self.samples_s, "at least one duration > 0")
        for sample in self.samples_s:
            require_time("samples_s", sample)

    @property
    def measured_s(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples_s)

    @property
    def error(self) -> float:
        """Predicted over measured iteration, minus one; below 0 the prediction is too short."""
        return self.prediction.iteration_s / self.measured_s - 1

    @property
    def ratio(self) -> float:
        """Measured over predicted iteration: what an interval is about."""
        return self.measured_s / self.prediction.iteration_s


class Home(Record, frozen=True, kw_only=True):
    """What is known of some hosts, from where no point is measured.

    Attributes:
        hosts: how many.
        cluster: as calibrated there, without its curves.
        workloads: by name, as profiled there, side by side on all hosts.
    """

    hosts: int
    cluster: Cluster
    workloads: dict[str, Workload]


class Validation(Artifact, frozen=True, kw_only=True):
    """Predictions beside measurements.

    Attributes:
        points: in the order in which they were found.
        homes: what the lab's points are predicted from.
        missing: name of a point of the lab that could not be measured -> why.
        metadata: versions, hardware, date.
    """

    KIND: ClassVar[str] = "validation"

    points: tuple[Point, ...] = ()
    homes: tuple[Home, ...] = ()
    missing: dict[str, str] = {}
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        names = [(point.kind, point.name) for point in self.points]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidValueError("points", twice, "each kind and name once")

    def of(self, kind: str) -> tuple[Point, ...]:
        """Return the points of a kind."""
        return tuple(point for point in self.points if point.kind == kind)

    def with_points(self, points: Iterable[Point]) -> Validation:
        """Return it with more points; those of the same kind and name are replaced."""
        known = {(point.kind, point.name): point for point in (*self.points, *points)}
        found: Validation = structs.replace(self, points=tuple(known.values()))
        return found
