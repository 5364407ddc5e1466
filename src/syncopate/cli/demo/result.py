"""What a demo found, as an artefact: ``demo.json``, the numbers behind everything it printed."""

from __future__ import annotations

import statistics
from typing import ClassVar

from syncopate.artifacts import Artifact, Record


class PolicyResult(Record, frozen=True, kw_only=True):
    """One way of training, predicted and measured.

    Attributes:
        name: the policy, or ``"ddp"``.
        buckets: collectives per iteration; 0 when not ours to know.
        algorithms: the all-reduce algorithms it used.
        predicted_s: iteration time by the cost model; None for what we do not plan.
        samples_s: seconds per iteration of each turn, the maximum over ranks.
    """

    name: str
    buckets: int
    algorithms: tuple[str, ...]
    predicted_s: float | None
    samples_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median measured iteration."""
        return statistics.median(self.samples_s)

    @property
    def error(self) -> float | None:
        """Prediction over measurement, minus one; None without a prediction."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0


class ScalePrediction(Record, frozen=True, kw_only=True):
    """The demo's model on a cluster that is not here.

    Attributes:
        cluster: its name.
        nodes: how many hosts, one rank each.
        iteration_s: predicted iteration by policy.
        compute_s: the iteration without any communication.
        bound_s: the physical bound.
    """

    cluster: str
    nodes: int
    iteration_s: dict[str, float]
    compute_s: float
    bound_s: float

    def efficiency(self, policy: str) -> float:
        """Scaling efficiency: computation over the whole iteration."""
        return self.compute_s / self.iteration_s[policy]


class DemoResult(Artifact, frozen=True, kw_only=True):
    """Everything the demo found.

    Attributes:
        world_size: local ranks.
        policies: predicted and measured, DDP last.
        accuracies: test accuracy after each epoch.
        scale: predictions for other clusters.
        wall_s: how long the demo took.
        metadata: versions and hardware.
    """

    KIND: ClassVar[str] = "demo"

    world_size: int
    policies: tuple[PolicyResult, ...]
    accuracies: tuple[float, ...]
    scale: tuple[ScalePrediction, ...]
    wall_s: float
    metadata: dict[str, str] = {}

    @property
    def median_error(self) -> float:
        """Median over policies of the absolute relative error of the prediction."""
        errors = [abs(p.error) for p in self.policies if p.error is not None]
        return statistics.median(errors)
