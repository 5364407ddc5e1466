"""Plan: what to communicate when, with which collective.

A plan says which gradients are merged into which bucket, the algorithm of each bucket, the exchange
and its pull period, and over how many channels. The engine executes it, the costs price it and the
simulator plays it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from syncopate.artifacts import Artifact, Record
from syncopate.cluster import AlgorithmOptions, require_time
from syncopate.errors import InvalidValueError, PlanError, UnknownNameError
from syncopate.units import dtype_bytes
from syncopate.workload import fingerprint

NATIVE = "native"
"""The backend's own algorithm: a name plans may use, but no schedule."""

EXCHANGES: tuple[str, ...] = ("allreduce",)
"""The ways of training a plan can ask for."""


class Bucket(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Gradients that travel together.

    Attributes:
        tensors: parameter names in ready order; at least one. Tensors of several dtypes travel
            as one collective per dtype, back to back.
        nbytes: bytes of all of them.
        algorithm: all-reduce algorithm, a name from the registry or ``"native"``.
        channel: which channel carries it, in 0..channels-1.
        options: what the algorithm is told, such as ``{"blocks": 8}``; empty for its defaults.
    """

    tensors: tuple[str, ...]
    nbytes: int
    algorithm: str
    channel: int = 0
    options: AlgorithmOptions = {}

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InvalidValueError("tensors of a bucket", self.tensors, "at least one name")
        if self.nbytes < 0:
            raise InvalidValueError("nbytes of a bucket", self.nbytes, "an integer >= 0")
        if self.options and self.algorithm == NATIVE:
            rule = f"none for {NATIVE!r}, which takes none"
            raise InvalidValueError("options of a bucket", self.options, rule)

    def all_options(self, order: tuple[int, ...] = ()) -> AlgorithmOptions:
        """Return the options to run with, ``order`` (of the plan) among them.

        The backend's own algorithm follows no order, and a bucket may name one of its own.
        """
        if not order or self.algorithm == NATIVE:
            return self.options
        return {"order": order} | self.options


class Prediction(Record, frozen=True, kw_only=True):
    """What a plan is expected to cost in one iteration.

    Attributes:
        iteration_s: the whole iteration, start of forward to start of the next.
        compute_s: forward, backward and update alone.
        communication_s: sum over the buckets' collectives.
        exposed_s: ``iteration_s - compute_s``, what overlap did not hide.
        bound_s: the physical bound, ``max(compute, bytes on the wire / line rate)``.
    """

    iteration_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    bound_s: float

    def __post_init__(self) -> None:
        for what in ("iteration_s", "compute_s", "communication_s", "exposed_s", "bound_s"):
            require_time(what, getattr(self, what))

    @property
    def above_bound(self) -> float:
        """Distance to the physical bound: 0.05 means 5% above it."""
        return self.iteration_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


class Plan(Artifact, frozen=True, kw_only=True):
    """What to communicate when; see the module.

    Attributes:
        model: the workload's name, for reports.
        fingerprint: the workload's fingerprint; a plan fits no other model.
        world_size: the rank count it was made for; it fits no other.
        policy: who made it, such as ``"optimal"``.
        buckets: in launch order; together they hold every gradient exactly once.
        exchange: one of ``EXCHANGES``.
        channels: concurrent collectives.
        pull_period: pull weights every so many iterations; 1 for synchronous training.
        prediction: what it is expected to cost, when the planner knew the cluster.
        cluster: the cluster's name, for reports.
        order: the ranks in the order that all schedules follow, so that neighbours are near; empty
            for that of their numbers.
    """

    KIND: ClassVar[str] = "plan"

    model: str
    fingerprint: str
    world_size: int
    policy: str
    buckets: tuple[Bucket, ...]
    exchange: str = "allreduce"
    channels: int = 1
    pull_period: int = 1
    prediction: Prediction | None = None
    cluster: str = ""
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise InvalidValueError("world_size", self.world_size, "an integer >= 1")
        if self.order and sorted(self.order) != list(range(self.world_size)):
            raise InvalidValueError(
                "order", self.order, f"a permutation of the ranks 0..{self.world_size - 1}"
            )
        if self.exchange not in EXCHANGES:
            raise UnknownNameError("exchange", self.exchange, EXCHANGES)
        if self.channels < 1:
            raise InvalidValueError("channels", self.channels, "an integer >= 1")
        if self.pull_period != 1:
            raise InvalidValueError(
                "pull_period",
                self.pull_period,
                "1 with the allreduce exchange, which pulls nothing",
            )
        if not self.buckets:
            raise InvalidValueError("buckets", self.buckets, "at least one bucket")
        seen: set[str] = set()
        for index, bucket in enumerate(self.buckets):
            if not 0 <= bucket.channel < self.channels:
                raise InvalidValueError(
                    f"channel of bucket {index}", bucket.channel, f"in 0..{self.channels - 1}"
                )
            for name in bucket.tensors:
                if name in seen:
                    raise InvalidValueError(
                        "buckets", name, "disjoint; this tensor is in two places"
                    )
                seen.add(name)

    def require_fit(self, tensors: Iterable[tuple[str, int, str]], world_size: int) -> None:
        """Refuse to run on another model or another number of ranks.

        Args:
            tensors: ``(name, numel, dtype)`` of every gradient of the model at hand.
            world_size: the ranks at hand.

        Raises:
            PlanError: names what differs.
        """
        if world_size != self.world_size:
            raise PlanError(
                f"this plan is for {self.world_size} ranks; {world_size} are running. "
                "Plan again for this rank count, or start the ranks it was made for"
            )
        here = list(tensors)
        sizes = {name: numel * dtype_bytes(dtype) for name, numel, dtype in here}
        differences = self._differences(sizes)
        if fingerprint(here) == self.fingerprint:
            # Whoever edits a plan leaves the fingerprint as it was, so that it proves nothing.
            if differences:
                raise PlanError(f"this plan is damaged: {differences}. Plan again")
            self._require_bytes(sizes)
            return
        raise PlanError(
            f"this plan is for another model ({self.model}): "
            + (differences or "the same names with other sizes or dtypes")
            + ". Profile this model and plan again"
        )

    def _differences(self, names: Iterable[str]) -> str:
        """Return which tensors the model and the plan do not share; empty where they are equal."""
        here = set(names)
        planned = {name for bucket in self.buckets for name in bucket.tensors}
        found = []
        for whose, missing in (("model", sorted(planned - here)), ("plan", sorted(here - planned))):
            if missing:
                found.append(f"the {whose} lacks {missing[0]!r} (+{len(missing) - 1} more)")
        return "; ".join(found)

    def _require_bytes(self, sizes: Mapping[str, int]) -> None:
        """Refuse a bucket whose bytes are not those of its tensors: it was planned as another."""
        for index, bucket in enumerate(self.buckets):
            held = sum(sizes[name] for name in bucket.tensors)
            if held != bucket.nbytes:
                raise PlanError(
                    f"this plan is damaged: bucket {index} says {bucket.nbytes} bytes, its "
                    f"{len(bucket.tensors)} tensors have {held}. Plan again"
                )
