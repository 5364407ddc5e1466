"""Point: one prediction beside its measurement; and a validation, which is many of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from msgspec import structs

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import require_time
from syncopate.artifacts.plan import Prediction
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.shown import Row, Shown
from syncopate.units import format_count

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
        again_s: the same, of the training started again; empty: it was started once.
        unlimited: what an iteration by the same plan takes where links are no limit, measured on
            another network; None: hosts have processors of their own. See :attr:`expected_s`.
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
    again_s: tuple[float, ...] = ()
    phases: tuple[Phase, ...] = ()
    unlimited: Phase | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError("kind of a point", self.kind, KINDS)
        if not self.samples_s or not all(sample > 0 for sample in self.samples_s + self.again_s):
            samples_s = self.samples_s + self.again_s
            raise InvalidValueError("samples_s", samples_s, "at least one duration > 0")
        for sample in self.samples_s + self.again_s:
            require_time("samples_s", sample)

    @property
    def expected_s(self) -> float:
        """The predicted iteration; where hosts share processors, and what that adds.

        A prediction is of hosts with processors of their own. Emulated hosts share those of one
        machine. By how much an iteration is longer for it is measured where links are no limit.
        """
        alone_s = self.prediction.iteration_s
        if self.unlimited is None:
            return alone_s
        return alone_s + max(self.unlimited.measured_s - self.unlimited.predicted_s, 0.0)

    @property
    def measured_s(self) -> float:
        """Median of the samples of all starts."""
        return statistics.median(self.samples_s + self.again_s)

    @property
    def error(self) -> float:
        """Expected over measured iteration, minus one; below 0 the prediction is too short."""
        return self.expected_s / self.measured_s - 1

    @property
    def ratio(self) -> float:
        """Measured over expected iteration: what an interval is about."""
        return self.measured_s / self.expected_s


class Home(Record, frozen=True, kw_only=True):
    """The calibration of some hosts, at a rate where no point is measured.

    Attributes:
        hosts: how many.
        cluster: as calibrated there, without its curves.
        workloads: by name, as profiled there, side by side on all hosts.
    """

    hosts: int
    cluster: Cluster
    workloads: dict[str, Workload]


class Validation(Shown, Artifact, frozen=True, kw_only=True):
    """Predictions beside measurements.

    Attributes:
        points: in the order in which they were found.
        homes: what the lab's points are predicted from.
        missing: name of a point of the lab that could not be measured -> why.
        metadata: versions, hardware, date.
    """

    KIND: ClassVar[str] = "validation"
    SCHEMA_VERSION: ClassVar[int] = 2  # 1 knew no prediction where links are no limit

    points: tuple[Point, ...] = ()
    homes: tuple[Home, ...] = ()
    missing: dict[str, str] = {}
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        names = [(point.kind, point.name) for point in self.points]
        if len(set(names)) != len(names):
            twice = sorted(name for name, times in Counter(names).items() if times > 1)
            raise InvalidValueError("points", twice, "each kind and name once")

    def summary(self) -> tuple[str, ...]:
        """Return how many points there are."""
        return (f"{format_count(len(self.points), 'training')}, predicted and measured",)

    def rows(self) -> list[Row]:
        """Return the points; ``error_share`` is below 0 where the prediction was too short."""
        return [
            {
                "kind": point.kind,
                "training": point.name,
                "predicted_s": point.expected_s,
                "measured_s": point.measured_s,
                "error_share": point.error,
            }
            for point in self.points
        ]

    def of(self, kind: str) -> tuple[Point, ...]:
        """Return the points of a kind."""
        return tuple(point for point in self.points if point.kind == kind)

    def with_points(self, points: Iterable[Point]) -> Validation:
        """Return it with more points; those of the same kind and name are replaced."""
        known = {(point.kind, point.name): point for point in (*self.points, *points)}
        found: Validation = structs.replace(self, points=tuple(known.values()))
        return found
