"""Replay: a recorded run on other links, on another cluster, or with other parameter servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.console import RenderableType

from syncopate.analysis.collectives import is_served
from syncopate.analysis.replay.elsewhere import Elsewhere, played_on
from syncopate.analysis.replay.fitted import fitted_network
from syncopate.artifacts.cluster import BESIDE_RUN, NETWORKS, Cluster
from syncopate.artifacts.disturbed import doubts
from syncopate.artifacts.timeline import OWN_CLUSTER, SERVER_COUNT, Timeline
from syncopate.artifacts.timelines.network import Network
from syncopate.costs.model.replayed import ClusterNetwork, comparable
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import Progress, say
from syncopate.planning.whatif.axes import seconds
from syncopate.reports.replay import remarks, replay_json, replay_report
from syncopate.runs.defaults import LAST_REPLAYED, NO_TABLE, Table
from syncopate.runs.reading import Recorded, Source, latest, opened, read
from syncopate.shown import Row, Shown
from syncopate.tracing import dlc
from syncopate.tracing.foreign import is_document, is_table
from syncopate.units import format_seconds, parse_link

_TIMES = "x"


@dataclass(frozen=True, repr=False)
class Replayed(Shown):
    """A recorded run, and the same run elsewhere.

    Attributes:
        found: iterations of both, and the timeline there.
        remarks: what limits it, a sentence each.
    """

    found: Elsewhere
    remarks: tuple[str, ...] = ()

    @property
    def timeline(self) -> Timeline:
        """The run on the other network."""
        return self.found.timeline

    @property
    def medians_s(self) -> tuple[float, float]:
        """The median iteration as recorded, and there."""
        return self.found.medians_s

    def summary(self) -> tuple[str, ...]:
        """Return what the median iteration took, and takes there."""
        took, takes = map(format_seconds, self.medians_s)
        where = f"{self.found.recorded.name} on {self.found.network}"
        return (
            f"{where}: the median iteration took {took}, and takes {takes} there",
            *self.remarks,
            *remarks(self.found),
        )

    def rows(self) -> list[Row]:
        """Return the iterations."""
        found = self.found
        both = zip(found.iterations, found.recorded_s, found.replayed_s, strict=True)
        return [
            {"iteration": number, "recorded_s": before_s, "replayed_s": after_s}
            for number, before_s, after_s in both
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate replay --json`` prints it."""
        return replay_json(self.found)

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        return replay_report(self.found)


class _There(NamedTuple):
    """Where a run is played; see :func:`replay`."""

    on: Cluster | None
    network: str | None
    bandwidth: str | None
    latency: str | None
    servers: int | None

    @property
    def links(self) -> dict[str, str]:
        """What is said of links, by name."""
        said = {"bandwidth": self.bandwidth, "latency": self.latency}
        return {name: text for name, text in said.items() if text is not None}


def replay(
    *sources: Source,
    on: Cluster | str | os.PathLike[str] | None = None,
    network: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    servers: int | None = None,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    recorded_servers: int | None = None,
    last: int = LAST_REPLAYED,
    table: Table = NO_TABLE,
    progress: Progress | None = None,
) -> Replayed:
    """Play a recorded run on another network: what ``explain`` does for causes, for hardware.

    What each rank computed in each iteration stays as it was recorded, stragglers included. What
    messages took is replaced by what they take there, and waits follow.

    Args:
        sources: the directory of a run, a timeline, one file of each rank, or DLC traces of all
            workers.
        on: another cluster, or its file.
        network: a typical network.
        bandwidth: of links between hosts, such as ``"10g"``, or a factor, such as ``"x2"``.
        latency: likewise, such as ``"20us"``.
        servers: how many parameter servers.
        cluster: what the run ran on; None: as ``cluster.json`` beside it or it itself says. Factors
            need none.
        recorded_servers: how many parameter servers it had, where it does not say it.
        last: how many iterations to play, the last ones.
        table: headings and kinds of tables, such as ``("rank=gpu,start=t0:us", "push=SYNC")``.
        progress: called with what is done and the fraction done.

    Raises:
        InvalidValueError: several places or none; a rate or a time where the run's own network is
            not known; a rank that is missing; times that contradict each other.
        UnknownNameError: no such network, or a collective that has no price.
        ArtifactError: a file that holds no run, or no cluster.

    Example:
        >>> print(syncopate.replay("runs/a", bandwidth="x2"))  # doctest: +SKIP
    """
    recorded = read_any(*sources, last=last, table=table, progress=progress)
    timeline, said = recorded.timeline, recorded.remarks
    own = _own(recorded, opened(Cluster, cluster))
    there = _There(opened(Cluster, on), network, bandwidth, latency, servers)
    place, here = _networks(timeline, there, own, _servers(timeline, recorded_servers))
    say(progress, place.name, 0.5)
    told = () if own is None else doubts(own)
    return Replayed(played_on(timeline, place, here), (*said, *told))


def read_any(
    *sources: Source,
    last: int = LAST_REPLAYED,
    table: Table = NO_TABLE,
    progress: Progress | None = None,
) -> Recorded:
    """Return the last iterations of what was recorded, of DLC traces too; alike ranks stay alike.

    Raises:
        ArtifactError: a file that holds no run.
        InvalidValueError: sources that do not fit together.
    """
    files = [Path(one) for one in sources if isinstance(one, str | os.PathLike)]
    other = any(table) or len(files) < len(sources)
    runs = [path for path in files if os.path.isdir(path) or is_document(path) or is_table(path)]
    if other or len(runs) == len(files):
        found = read(*sources, last=last, table=table, every=True, progress=progress).of_ranks()
    elif runs:
        rule = "left out: DLC traces are played by themselves"
        raise InvalidValueError("FILE", str(runs[0]), rule)
    else:
        found = _of_traces(files, progress)
    return latest(found, last)


def _of_traces(files: Sequence[Path], progress: Progress | None) -> Recorded:
    traces = {}
    damage: list[str] = []
    for place, path in enumerate(files):
        say(progress, path.name, place / len(files))
        trace = dlc.read(path)
        damage += map(str, trace.damage)
        traces[str(path)] = trace
    return Recorded(dlc.timeline_of(traces), None, tuple(damage), str(files[0]))


def _own(recorded: Recorded, cluster: Cluster | None) -> Cluster | None:
    """Return what a run ran on: as given, as it lies beside the run, or as the run says itself.

    None: nothing says it.

    Raises:
        ArtifactError: what says it is no cluster.
    """
    if cluster is not None:
        return cluster
    beside = Path(recorded.name) / BESIDE_RUN
    if os.path.exists(beside):
        return Cluster.load(beside)
    text = recorded.timeline.metadata.get(OWN_CLUSTER)
    return None if text is None else Cluster.from_json(text, source=recorded.timeline.name)


def _servers(timeline: Timeline, given: int | None) -> int:
    """Return how many parameter servers a run had; 0: none.

    Raises:
        InvalidValueError: nothing says it of a run with some, or it had none.
    """
    if not is_served(timeline):
        if given is not None:
            rule = "left out: the run had no parameter servers"
            raise InvalidValueError("--recorded-servers", given, rule)
        return 0
    text = timeline.metadata.get(SERVER_COUNT, "")
    count = given if given is not None else int(text) if text.isdecimal() else None
    if count is None or count < 1:
        rule = "an integer >= 1: the run does not say how many parameter servers it had"
        raise InvalidValueError("--recorded-servers", count, rule)
    return count


def _networks(
    timeline: Timeline, there: _There, own: Cluster | None, servers: int
) -> tuple[Network, Network | None]:
    """Return the network that a run is played on, and its own; None: not known.

    Args:
        timeline: the run.
        there: what options say.
        own: what it ran on; None: not known.
        servers: how many parameter servers it had; 0: none.

    Raises:
        InvalidValueError: several places or none; a rate or a time where its own is not known.
        UnknownNameError: no such network.
        ArtifactError: a file is no cluster.
    """
    _require_one_place(there, own, servers)
    count = servers if there.servers is None else there.servers
    if there.on is not None or there.network is not None:
        place = _place(timeline, there)
        if own is None:
            return ClusterNetwork(place, count), None
        here, place = comparable(own, place)
        return ClusterNetwork(place, count), ClusterNetwork(here, servers)
    if own is not None:
        here, place = _with_other_links(own, there)
        return ClusterNetwork(place, count), ClusterNetwork(here, servers)
    factors = (_factor("--bandwidth", there.bandwidth), _factor("--latency", there.latency))
    fitted = fitted_network(timeline, servers)
    return fitted.changed(*factors, there.servers), fitted


def _require_one_place(there: _There, own: Cluster | None, servers: int) -> None:
    links = [f"--{name}" for name in there.links]
    places = [
        name
        for name, value in (("--on", there.on), ("--network", there.network))
        if value is not None
    ]
    if len(places) > 1 or (places and links):
        one, other, *_ = [*places, *links]
        raise InvalidValueError(other, "given", f"left out beside {one}: one place to play it on")
    if there.servers is not None and (there.servers < 1 or not servers):
        rule = "an integer >= 1, for a run with parameter servers"
        raise InvalidValueError("--servers", there.servers, rule)
    if not places and not links and there.servers is None and own is None:
        rule = "given, or --on, --network, --latency or --servers: where to play it"
        raise InvalidValueError("--bandwidth", None, rule)


def _place(timeline: Timeline, there: _There) -> Cluster:
    if there.on is not None:
        return there.on
    assert there.network is not None
    if there.network not in NETWORKS:
        raise UnknownNameError("network", there.network, NETWORKS)
    return Cluster.preset(there.network, timeline.world_size)


def _with_other_links(own: Cluster, there: _There) -> tuple[Cluster, Cluster]:
    """Return a cluster, and the same with links between hosts of another rate or latency.

    Both are priced by their links alone where these differ: curves were measured on one of them.
    """
    if not there.links:
        return own, own
    first = own.first_outer
    outer = own.levels[first]
    rate, late = 1.0, 1.0
    if there.bandwidth is not None:
        rate = _times(there.bandwidth) or parse_link(there.bandwidth) / outer.bandwidth_bytes_per_s
    if there.latency is not None:
        factor = _times(there.latency)
        if factor is None:
            late = seconds(there.latency) / outer.latency_s if outer.latency_s else 1.0
        else:
            late = factor
    levels = tuple(
        level
        if place < first
        else replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * rate,
            latency_s=level.latency_s * late,
            burst_bytes=level.burst_bytes * rate,
        )
        for place, level in enumerate(own.levels)
    )
    said = [f"{name} {text}" for name, text in there.links.items()]
    bare: Cluster = replace(own, curves=(), probes=())
    return bare, replace(bare, name=", ".join([own.name, *said]), levels=levels)


def _times(text: str) -> float | None:
    """Return the factor of ``"x2"``; None: it is none.

    Raises:
        InvalidValueError: it is no number > 0.
    """
    if not text.startswith(_TIMES):
        return None
    try:
        factor = float(text.removeprefix(_TIMES))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise InvalidValueError("factor", text, "x and a finite number > 0, such as x2")
    return factor


def _factor(option: str, text: str | None) -> float:
    if text is None:
        return 1.0
    factor = _times(text)
    if factor is None:
        rule = "a factor such as x2, because the run's cluster is not known; --cluster names it"
        raise InvalidValueError(option, text, rule)
    return factor
