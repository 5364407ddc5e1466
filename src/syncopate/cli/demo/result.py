"""What a demo found, as an artefact: ``demo.json``, the numbers behind everything it printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.costs.decide.noise import longer_beyond_noise


class Gain(NamedTuple):
    """How much faster one way of training is than another, by turns that they took one by one.

    Attributes:
        ratio: the other's iteration over this one's, the median over turns.
        low: a quarter of the turns are below it.
        high: a quarter of them are above it.
        is_real: whether ratios of turns differ from 1 by more than noise.
    """

    ratio: float
    low: float
    high: float
    is_real: bool


class PolicyResult(Record, frozen=True, kw_only=True):
    """One way of training, predicted and measured.

    Attributes:
        name: the policy, or ``"ddp"``.
        buckets: collectives per iteration; 0 when not ours to know.
        algorithms: the all-reduce algorithms it used.
        predicted_s: iteration time as planned, from the profile taken before; None for what we do
            not plan.
        paced_s: the same where computation takes what it took in its turns, so that it can be held
            against ``samples_s``; None for what we do not plan, and in older files.
        samples_s: seconds per iteration of each turn, the maximum over ranks.
    """

    name: str
    buckets: int
    algorithms: tuple[str, ...]
    predicted_s: float | None
    paced_s: float | None = None
    samples_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median measured iteration."""
        return statistics.median(self.samples_s)

    def gain_over(self, other: PolicyResult) -> Gain:
        """Return how much faster it is than ``other``."""
        pairs = zip(self.samples_s, other.samples_s, strict=False)
        ratios = [theirs_s / mine_s for mine_s, theirs_s in pairs]
        low = high = ratios[0]
        if len(ratios) > 1:
            low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        # Turn by turn: when the machine is slow for a while, both are.
        alike = [1.0] * len(ratios)
        faster = longer_beyond_noise(ratios, alike)
        slower = longer_beyond_noise([1.0 / ratio for ratio in ratios], alike)
        return Gain(statistics.median(ratios), low, high, faster or slower)

    @property
    def error(self) -> float | None:
        """``paced_s`` over measurement, minus one; None without it."""
        return self._over_measured(self.paced_s)

    @property
    def planned_error(self) -> float | None:
        """``predicted_s`` over measurement, minus one; None without it."""
        return self._over_measured(self.predicted_s)

    def _over_measured(self, seconds: float | None) -> float | None:
        return None if seconds is None else seconds / self.measured_s - 1.0


class Pace(Record, frozen=True, kw_only=True):
    """How fast the machine computed, when profiled and beside the plans.

    Attributes:
        profiled_s: computation of one iteration in the workload.
        samples_s: computation of one iteration in each of its turns, profiled like the workload.
    """

    profiled_s: float
    samples_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median computation of one iteration in its turns."""
        return statistics.median(self.samples_s)

    @property
    def change(self) -> float:
        """Computation in its turns over that profiled, minus one; below 0 it became faster."""
        return self.measured_s / self.profiled_s - 1.0


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
        pace: of the machine, when profiled and in the comparison; None in older files.
        accuracies: test accuracy after each epoch.
        scale: predictions for other clusters.
        wall_s: how long the demo took.
        metadata: versions and hardware.
    """

    KIND: ClassVar[str] = "demo"

    world_size: int
    policies: tuple[PolicyResult, ...]
    pace: Pace | None = None
    accuracies: tuple[float, ...]
    scale: tuple[ScalePrediction, ...]
    wall_s: float
    metadata: dict[str, str] = {}

    @property
    def median_error(self) -> float:
        """Median over policies of the size of ``error``; NaN in older files, which have none."""
        return _median_size(policy.error for policy in self.policies)

    @property
    def median_planned_error(self) -> float:
        """Median over policies of the size of ``planned_error``."""
        return _median_size(policy.planned_error for policy in self.policies)


def _median_size(errors: Iterable[float | None]) -> float:
    known = [abs(error) for error in errors if error is not None]
    return statistics.median(known) if known else math.nan
