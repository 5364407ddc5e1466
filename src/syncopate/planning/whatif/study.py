"""Study: one question of a user, from what varies to the answers.

The work is done point by point, so that an interruption keeps what was done: ``run`` fills the
study, and ``result`` says what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from syncopate.artifacts.artifact import require
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.whatif import (
    AXES,
    BEST,
    DDP,
    Change,
    Doubt,
    LinkNeeded,
    Point,
    Prices,
    WhatIf,
)
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import Progress, part, say
from syncopate.planning.margins import margins
from syncopate.planning.whatif import sentences
from syncopate.planning.whatif.assumptions import assumptions
from syncopate.planning.whatif.axes import Axes, values_of
from syncopate.planning.whatif.changes import change_of, options, ranked
from syncopate.planning.whatif.doubts import doubts
from syncopate.planning.whatif.machines import BANDWIDTH, LATENCY, setting_of, settled
from syncopate.planning.whatif.needed import link_needed
from syncopate.planning.whatif.predictor import Predictor
from syncopate.planning.whatif.work import Work, batch_of

KEEP = 0.9
"""The efficiency below which the network is said to limit, unless another is asked for."""

_SWEPT = 0.75
"""Which part of the work the sweep is taken for; the answers are the rest."""

_MOST_NODES = 8
"""For so many numbers of nodes the link is looked for that keeps the efficiency."""


@dataclass(frozen=True)
class Terms:
    """How a question is asked.

    Attributes:
        today: how gradients travel today, ``"ddp"`` or ``"best"``.
        keep: the efficiency to keep, in (0, 1).
        prices: of an hour; None: no costs.
        uncertain: shares by which inputs may be off, in place of the usual ones.
        remarks: what else is assumed, a sentence each.

    Raises:
        InvalidValueError, UnknownNameError: one of them is none.
    """

    today: str = DDP
    keep: float = KEEP
    prices: Prices | None = None
    uncertain: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.today not in (DDP, BEST):
            raise UnknownNameError("way of today", self.today, (DDP, BEST))
        if not 0 < self.keep < 1:
            raise InvalidValueError("keep", self.keep, "a share in (0, 1), such as 0.9")


class Study:
    """A sweep and its answers; see the module.

    Args:
        workload: what is trained.
        cluster: on what, today.
        vary: values by axis; see :func:`whatif`.
        terms: how the question is asked.

    Raises:
        InvalidValueError, UnknownNameError: an axis or a value that is none.
    """

    def __init__(
        self, workload: Workload, cluster: Cluster, vary: Mapping[str, Any], terms: Terms
    ) -> None:
        axes, profiles, other = _split(vary)
        self._terms = terms
        self._axes = axes
        self._cluster = cluster
        self._work = Work(workload, profiles, other)
        measured = bool(cluster.probes or cluster.curves)
        device = workload.metadata.get("device", "")
        self._margins = margins(device, measured, dict(terms.uncertain))
        self._predictor = Predictor(self._work, cluster, self._margins, terms.prices)
        known = setting_of(cluster, batch_of(workload))
        _require_apart(cluster, axes)
        start = axes.start(known)
        self._base = settled(cluster, start)
        self._settings = [settled(cluster, setting) for setting in axes.settings(start)]
        for setting in (self._base, *self._settings):
            self._predictor.require(setting)
        self._points: list[Point] = []
        self._changes: tuple[Change, ...] = ()
        self._links: tuple[LinkNeeded, ...] = ()
        self._doubts: tuple[Doubt, ...] = ()
        self._complete = False

    @property
    def base(self) -> Point:
        """Today's point."""
        return self._predictor.point(self._base)

    @property
    def today(self) -> str:
        """How gradients travel today."""
        return self._terms.today

    @property
    def done(self) -> int:
        """How many points of the sweep were predicted."""
        return len(self._points)

    @property
    def count(self) -> int:
        """How many points the sweep has."""
        return len(self._settings)

    def run(self, progress: Progress | None = None) -> None:
        """Predict every setting, and answer the questions.

        Args:
            progress: told what is predicted, and which part of all is done.
        """
        count = len(self._settings)
        self._predictor.point(self._base)
        swept = part(progress, 0.0, _SWEPT)
        for place, setting in enumerate(self._settings):
            say(swept, sentences.words_of(setting), place / count)
            self._points.append(self._predictor.point(setting))
        self._answer(part(progress, _SWEPT, 1.0))
        self._complete = True

    def _answer(self, progress: Progress) -> None:
        base, today, predictor = self._base, self._terms.today, self._predictor
        now = predictor.point(base).by(today).throughput
        asked = list(options(base, today, predictor.machines(base)))
        found = {}
        for place, option in enumerate(asked):
            say(progress, option.kind, 0.4 * place / len(asked))
            found[option.kind] = change_of(option, now, predictor)
        self._changes = ranked(found.values())
        say(progress, "links", 0.4)
        self._links = tuple(self._needed(part(progress, 0.4, 0.8)))
        say(progress, "uncertain inputs", 0.8)
        by_kind = {option.kind: option for option in asked}
        advised = [by_kind[change.kind] for change in self._changes]
        self._doubts = tuple(doubts(base, today, advised, predictor))

    def _needed(self, progress: Progress) -> Iterator[LinkNeeded]:
        if self._base.ranks == 1:
            return
        nodes = [n for n in self._axes.of("nodes") or [self._base.nodes] if n > 1]
        step = max(1, -(-len(nodes) // _MOST_NODES))
        asked = sorted({*nodes[::step], *([self._base.nodes] if self._base.nodes > 1 else [])})
        for place, count in enumerate(asked):
            setting = replace(self._base, nodes=count)
            for today in (DDP, BEST):
                say(progress, f"links for {count} nodes", place / len(asked))
                exactly = count == self._base.nodes
                yield link_needed(
                    setting, self._terms.keep, today, self._predictor, exactly=exactly
                )

    def result(self, remarks: Iterable[str] = ()) -> WhatIf:
        """Return what was found so far.

        Args:
            remarks: what else is to be said, behind what today's setting takes.
        """
        terms = self._terms
        base, points = self.base, tuple(self._points)
        unit = "samples/s" if self._base.batch else "iterations/s of a rank"
        currency = terms.prices.currency if terms.prices else ""
        varied = self._axes.varied
        said = [
            sentences.today_sentence(base, terms.today, unit),
            *remarks,
            *sentences.limits(points, varied, terms.keep),
            *sentences.best_change(self._changes, base, terms.today),
            *sentences.doubt_sentences(self._doubts, self._changes),
            *sentences.link_sentences(self._links, terms.keep, currency),
            *sentences.cost_sentence(points, varied, currency),
        ]
        settings = (self._base, *self._settings)
        assumed = (*terms.remarks, *assumptions(self._work, self._cluster, settings))
        return WhatIf(
            model=self._work.base.model,
            cluster=self._cluster.name,
            unit=unit,
            varied=varied,
            today=terms.today,
            keep=terms.keep,
            base=base,
            points=points,
            changes=self._changes,
            links=self._links,
            doubts=self._doubts,
            sentences=tuple(map(sentences.whole, said)),
            assumptions=tuple(map(sentences.whole, assumed)),
            interval=sentences.whole(self._margins.words),
            currency=currency,
            complete=self._complete,
        )


def whatif(
    workload: Workload,
    cluster: Cluster,
    *,
    today: str = DDP,
    keep: float = KEEP,
    prices: Prices | None = None,
    uncertain: Mapping[str, float] | None = None,
    progress: Progress | None = None,
    **vary: Any,
) -> WhatIf:
    r"""Predict a training on other clusters and with other settings, and say what follows.

    Every combination of the values is a point: the best plan there, DDP's buckets beside it,
    throughput, efficiency, the physical bound, an interval, and what an epoch costs.

    Args:
        workload: what is trained.
        cluster: on what, today.
        today: how gradients travel today: ``"ddp"``, or ``"best"`` for the best plan.
        keep: the efficiency below which the network is said to limit, and for which the cheapest
            link is looked for.
        prices: of an hour of GPUs, nodes and links.
        uncertain: by input (``bandwidth``, ``latency``, ``compute``) or ``method``, the share by
            which it may be off; what is left out is as :mod:`~syncopate.planning.margins`
            says.
        progress: told what is predicted, and which part of all is done.
        vary: values by axis. ``nodes``, ``gpus_per_node``, ``batch``, ``pull_period`` (k of
            SSD-SGD), ``servers``, ``local_sgd``: counts, or a range such as ``"4..64"``.
            ``bandwidth``: of the link between a host and the network, as sold (``"25g"``) or in
            bytes per second. ``latency``: ``"20us"`` or seconds. ``oversubscription``;
            ``gpu_speed``: factors. ``exchange``, ``policy``, ``algorithm``, ``wire_dtype``: names.
            Among values of ``gpu_speed`` and ``batch`` there may be a second workload.
            ``levels={"rack.bandwidth": ["40g"]}`` speaks of one level.

    Returns:
        The points and the answers; its ``sentences`` say them.

    Raises:
        UnknownNameError: no such axis, exchange, policy or algorithm.
        InvalidValueError: a value that is none, or settings that do not go together.

    Example:
        >>> found = whatif(workload, Cluster.preset("10gbe", 8), nodes="4..64")  # doctest: +SKIP
        >>> print(*found.sentences, sep="\n")  # doctest: +SKIP
    """
    require((Workload, workload), (Cluster, cluster))
    terms = Terms(today=today, keep=keep, prices=prices, uncertain=uncertain or {})
    study = Study(workload, cluster, vary, terms)
    study.run(progress)
    return study.result()


def _require_apart(cluster: Cluster, axes: Axes) -> None:
    """Refuse an axis and a level that say the same of links.

    Raises:
        InvalidValueError: there are such two.
    """
    link, top = cluster.levels[cluster.first_outer].name, cluster.levels[-1].name
    pairs = (
        (BANDWIDTH, f"{link}.{BANDWIDTH}"),
        (LATENCY, f"{link}.{LATENCY}"),
        ("oversubscription", f"{link}.{BANDWIDTH}"),
        ("oversubscription", f"{top}.{BANDWIDTH}"),
    )
    for axis, level in pairs:
        if axes.of(axis) and axes.of(level):
            rule = f"left out beside {axis}, which settles the same links of {cluster.name}"
            raise InvalidValueError("level", level, rule)


def _split(
    vary: Mapping[str, Any],
) -> tuple[Axes, dict[str, Workload], Workload | None]:
    """Return axes, the profiles among compute speeds, and the one among batches."""
    values: dict[str, Any] = {}
    profiles: dict[str, Workload] = {}
    other: Workload | None = None
    for axis, given in vary.items():
        if axis == "levels":
            values[axis] = {name: _level(name, found) for name, found in dict(given).items()}
            continue
        mixed = _items(given) if axis in ("gpu_speed", "batch") else given
        if axis == "batch":
            found = [one for one in mixed if isinstance(one, Workload)]
            if len(found) > 1:
                raise InvalidValueError(
                    axis, f"{len(found)} profiles", "one profile beside the base"
                )
            other = found[0] if found else None
            mixed = [batch_of(one) if isinstance(one, Workload) else one for one in mixed]
        if axis == "gpu_speed":
            values[axis] = tuple(_speeds(mixed, profiles))
        else:
            values[axis] = values_of(axis, mixed) if axis in AXES else ()
    return Axes(values), profiles, other


def _items(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [item.strip() for item in given.split(",") if item.strip()]
    return [given] if isinstance(given, Workload | int | float | tuple) else list(given)


def _speeds(given: Iterable[Any], profiles: dict[str, Workload]) -> Iterator[Any]:
    """Yield factors and names of profiles, which are collected; a profile may be (name, it)."""
    for one in given:
        if isinstance(one, Workload | tuple):
            fresh = f"profile {len(profiles) + 1}"
            name, profile = (fresh, one) if isinstance(one, Workload) else one
            profiles[name] = profile
            yield name
        else:
            yield from values_of("gpu_speed", one)


def _level(name: str, given: Any) -> tuple[float, ...]:
    _, _, what = name.rpartition(".")
    if what not in ("bandwidth", "latency"):
        rule = "a level and one of its figures, such as rack.bandwidth or device.latency"
        raise InvalidValueError("level", name, rule)
    return values_of(what, given)
