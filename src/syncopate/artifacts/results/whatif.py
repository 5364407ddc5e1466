"""What-if: a training on other clusters and with other settings, predicted, and what follows.

``syncopate whatif`` writes it. A *setting* says what a point of the sweep is; its *outcomes* are
the best plan and DDP's buckets there; *changes* are single steps from today's setting.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from syncopate.artifacts.artifact import TOO_DEEP, Artifact, Record
from syncopate.artifacts.plan import Prediction
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.reading import read_whole
from syncopate.shown import Row, Shown
from syncopate.units import format_count, format_link, format_seconds

DDP, BEST = "ddp", "best"
"""How a training may exchange gradients today: by DDP's buckets, or by the best plan."""

PLANS = {DDP: "DDP's buckets", BEST: "the best plan"}
"""Their words."""

AXES: dict[str, str] = {
    "nodes": "nodes",
    "gpus_per_node": "gpus_per_node",
    "bandwidth": "bandwidth_bytes_per_s",
    "latency": "latency_s",
    "oversubscription": "oversubscription",
    "levels": "levels",
    "gpu_speed": "gpu_speed",
    "batch": "batch",
    "exchange": "exchange",
    "policy": "policy",
    "algorithm": "algorithm",
    "wire_dtype": "wire_dtype",
    "pull_period": "pull_period",
    "servers": "servers",
    "local_sgd": "local_sgd",
}
"""What users vary -> the field of a setting. Machines come first: points that share them are near
each other in a sweep."""


class Setting(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One point of a sweep: the machines, the work, and how gradients travel.

    Attributes:
        nodes: hosts.
        gpus_per_node: ranks on each, in the mean.
        bandwidth_bytes_per_s: of the link between a host and the network, each direction.
        latency_s: of a message between hosts.
        oversubscription: of the outermost level: what its units' hosts could send together, over
            what their uplink carries; 1 where there is one level of hosts.
        levels: other rates and latencies by level, such as ``("rack.bandwidth", 5e9)``, in bytes
            per second and seconds.
        gpu_speed: how many times as fast as profiled ranks compute.
        profile: what the profile is called that ranks compute by; empty for the workload's own.
        batch: samples of a rank in an iteration; None: not known.
        exchange: one of ``EXCHANGES``; empty for the best of those whose programs are DDP's.
        policy: of buckets; empty for a search.
        algorithm: of every bucket; empty for the cheapest of each.
        wire_dtype: what gradients travel as; empty for their own type.
        pull_period: weights are pulled every so many steps (SSD-SGD); 0: no delay.
        servers: parameter servers of the ``served`` exchange; 0 for as many as hosts.
        local_sgd: weights are averaged every so many steps; 0: gradients are, in every one.
    """

    nodes: int
    gpus_per_node: int | float
    bandwidth_bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    levels: tuple[tuple[str, float], ...] = ()
    gpu_speed: float = 1.0
    profile: str = ""
    batch: int | None = None
    exchange: str = ""
    policy: str = ""
    algorithm: str = ""
    wire_dtype: str = ""
    pull_period: int = 0
    servers: int = 0
    local_sgd: int = 0

    @property
    def ranks(self) -> int:
        """World size."""
        return round(self.nodes * self.gpus_per_node)

    def said(self, axis: str) -> str:
        """Return the value of an axis in words, such as ``"8 nodes"`` or ``"k = 4"``.

        Args:
            axis: one of ``AXES``, or a level's, such as ``"rack.bandwidth"``.
        """
        if axis not in AXES:
            value = dict(self.levels)[axis]
            name, _, what = axis.rpartition(".")
            return f"{name} {format_link(value) if what == 'bandwidth' else format_seconds(value)}"
        if axis == "gpu_speed" and self.profile:
            return self.profile
        value = getattr(self, AXES[axis])
        words = _WORDS[axis]
        if isinstance(words, str):
            return words.format(value)
        return words(value)


_WORDS: dict[str, str | Callable[[Any], str]] = {
    "nodes": lambda value: format_count(value, "node"),
    "gpus_per_node": "{:g} GPUs a node",
    "bandwidth": format_link,
    "latency": lambda value: f"{format_seconds(value)} latency",
    "oversubscription": "{:g}:1 oversubscribed",
    "gpu_speed": "{:g}x the compute speed",
    "batch": "batch {}",
    "exchange": lambda value: value or "best exchange",
    "policy": lambda value: value or "best buckets",
    "algorithm": lambda value: value or "cheapest algorithm",
    "wire_dtype": lambda value: value or "own type",
    "pull_period": lambda value: f"k = {value}" if value else "synchronous",
    "servers": lambda value: format_count(value, "server") if value else "servers as hosts",
    "local_sgd": lambda value: f"average every {value}" if value else "no local SGD",
}


class Outcome(Record, frozen=True, kw_only=True):
    """The prediction of a plan at a setting.

    Attributes:
        policy: of its buckets.
        exchange: of the plan.
        buckets: how many.
        prediction: of an iteration, with its interval.
        throughput: samples per second of all ranks; where the batch is not known, iterations per
            second times ranks.
        low_throughput: of an iteration as long as the interval allows.
        high_throughput: of one as short.
        efficiency: throughput over what as many ranks would reach that never wait.
    """

    policy: str
    exchange: str
    buckets: int
    prediction: Prediction
    throughput: float
    low_throughput: float
    high_throughput: float
    efficiency: float


class Point(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A setting and what it gives.

    Attributes:
        setting: of the point.
        best: the best plan found.
        ddp: DDP's buckets of 25 MiB, each an all-reduce of the backend's.
        epoch_cost: of the best plan, in the currency of the prices; None without prices.
        ddp_epoch_cost: of DDP's buckets.
    """

    setting: Setting
    best: Outcome
    ddp: Outcome
    epoch_cost: float | None = None
    ddp_epoch_cost: float | None = None

    def by(self, today: str) -> Outcome:
        """Return the outcome of DDP's buckets or of the best plan, as ``today`` names them."""
        return self.ddp if today == DDP else self.best


class Change(Record, frozen=True, kw_only=True):
    """One thing different from today.

    Attributes:
        kind: such as ``"plan"`` or ``"links"``.
        words: what is done.
        asks: ``"nothing"``; ``"program"``: one that is not quite DDP's; ``"hardware"``; or
            ``"training"``: one that computes something else.
        gain: of throughput, as a share of today's: 0.25 means a quarter more.
        efficiency: with it.
        iteration_s: with it.
    """

    kind: str
    words: str
    asks: str
    gain: float
    efficiency: float
    iteration_s: float


class LinkNeeded(Record, frozen=True, kw_only=True):
    """The slowest link as sold that keeps an efficiency.

    Attributes:
        nodes: of how many nodes.
        today: by which plan, ``"ddp"`` or ``"best"``.
        link: such as ``"25g"``; empty: no link does, however fast.
        bandwidth_bytes_per_s: of that link.
        least_bytes_per_s: the least rate that would do; 0 where none does.
        epoch_cost: with that link; None without prices.
    """

    nodes: int
    today: str
    link: str
    bandwidth_bytes_per_s: float
    least_bytes_per_s: float
    epoch_cost: float | None = None


class Doubt(Record, frozen=True, kw_only=True):
    """One input at an end of its interval, and the best advice then.

    Attributes:
        what: ``"bandwidth"``, ``"latency"`` or ``"compute"``.
        factor: what it is multiplied by.
        advice: kind of the change that then gains most.
        gain: of it.
        changes: whether that is another advice.
    """

    what: str
    factor: float
    advice: str
    gain: float
    changes: bool


class WhatIf(Shown, Artifact, frozen=True, kw_only=True, omit_defaults=True):
    """A sweep and its answers; see the module.

    Attributes:
        model: the workload's name.
        cluster: the base cluster's name.
        unit: of throughputs.
        varied: the fields of settings that the sweep varies, the outermost first.
        today: how gradients travel today, ``"ddp"`` or ``"best"``.
        keep: the efficiency below which the network is said to limit.
        base: today's point.
        points: of the sweep, in its order.
        changes: single changes from today, the greatest gain first.
        links: what links keep the efficiency.
        doubts: inputs at the ends of their intervals.
        sentences: the answers.
        assumptions: in the place of measurements, a sentence each.
        interval: where the intervals come from.
        currency: of costs; empty without prices.
        complete: whether the sweep was finished.
    """

    KIND: ClassVar[str] = "whatif"

    model: str
    cluster: str
    unit: str
    varied: tuple[str, ...]
    today: str
    keep: float
    base: Point
    points: tuple[Point, ...]
    changes: tuple[Change, ...] = ()
    links: tuple[LinkNeeded, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    sentences: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    interval: str = ""
    currency: str = ""
    complete: bool = True

    def summary(self) -> tuple[str, ...]:
        """Return the question, and the answers."""
        return (f"{self.model} on {self.cluster}", *self.sentences)

    def rows(self) -> list[Row]:
        """Return each point's setting, its best plan and DDP's buckets."""
        varied = self.varied or ("nodes", "bandwidth")
        return [
            {axis: point.setting.said(axis) for axis in varied}
            | {
                "iteration_s": point.best.prediction.iteration_s,
                "low_s": point.best.prediction.low_s,
                "high_s": point.best.prediction.high_s,
                "bound_s": point.best.prediction.bound_s,
                "efficiency_share": point.best.efficiency,
                "throughput": point.best.throughput,
                "ddp_throughput": point.ddp.throughput,
            }
            for point in self.points
        ]


class Prices(Record, frozen=True, kw_only=True):
    """The prices of an hour of a cluster; ``prices.toml``.

    Attributes:
        epoch_samples: samples of an epoch.
        gpu_hour: of one GPU as profiled.
        node_hour: of a node without its GPUs and its link.
        link_hour: of a node's link, by its rate as sold, such as ``{"25g": 0.05}``; where it is
            empty links cost nothing.
        gpu_speed_hour: of a GPU of another speed, by the factor, such as ``{"2": 2.4}``; other
            GPUs cost what the profiled one does.
        currency: of all of them.
    """

    epoch_samples: int
    gpu_hour: float = 0.0
    node_hour: float = 0.0
    link_hour: dict[str, float] = {}
    gpu_speed_hour: dict[str, float] = {}
    currency: str = "USD"

    def __post_init__(self) -> None:
        if self.epoch_samples < 1:
            raise InvalidValueError("epoch_samples", self.epoch_samples, "an integer >= 1")
        named = {"gpu_hour": self.gpu_hour, "node_hour": self.node_hour}
        named |= {f"link_hour {name}": price for name, price in self.link_hour.items()}
        named |= {f"gpu_speed_hour {name}": price for name, price in self.gpu_speed_hour.items()}
        for what, price in named.items():
            if not 0 <= price < float("inf"):
                raise InvalidValueError(what, price, "a finite number >= 0")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Prices:
        """Read a TOML file strictly.

        Raises:
            ArtifactError: it is missing, no TOML, or a field is unknown, missing or wrong.
        """
        try:
            raw = tomllib.loads(read_whole(path).decode("utf-8"))
        except OSError as error:
            reason = f"cannot read this file of prices: {error.strerror or error}"
            raise ArtifactError(path, reason) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ArtifactError(path, f"not valid TOML: {error}") from None
        except RecursionError:
            raise ArtifactError(path, TOO_DEEP) from None
        try:
            return msgspec.convert(raw, cls, strict=False)
        except msgspec.ValidationError as error:
            reason, _, field = str(error).partition(" - at ")
            raise ArtifactError(path, reason, field.strip("`") or "$") from None
