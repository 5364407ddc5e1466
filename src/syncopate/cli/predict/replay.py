"""``syncopate replay``: a recorded run on another network, or with other servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.artifacts.cluster import NETWORKS, Cluster
from syncopate.cli.common.console import (
    out,
    progress_bar,
    require_one_writer,
    say_json,
    say_written,
)
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped
from syncopate.cli.common.sources import CLUSTER
from syncopate.cli.common.timelines import Table, note, table_options
from syncopate.errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    from syncopate.analysis.replay.elsewhere import Elsewhere
    from syncopate.artifacts.timeline import Timeline
    from syncopate.artifacts.timelines.network import Network
    from syncopate.runs.reading import Recorded

LAST = 50
"""Iterations that are played, the last ones, unless others are asked for."""

_TIMES = "x"


@dataclass(frozen=True)
class _There:
    """Where a run is played.

    Attributes:
        on: a cluster file; None: not given.
        network: a typical network; None: not given.
        bandwidth: a rate or a factor; None: as it is.
        latency: a duration or a factor; None: as it is.
        servers: how many; None: as many as there were.
    """

    on: Path | None
    network: str | None
    bandwidth: str | None
    latency: str | None
    servers: int | None


def there_options(
    *,
    on: Annotated[
        Path | None,
        typer.Option("--on", help="Play it on this cluster, from `syncopate calibrate`."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help=f"Play it on a typical network: {', '.join(NETWORKS)}."),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Play it with links so many times as fast, as x2; or of a rate, as 10g."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(help="Play it with start-ups so many times as long, as x0.5; or of a time."),
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="Play it with so many parameter servers.")
    ] = None,
) -> _There:
    """Return where the options say that a run is played."""
    return _There(on, network, bandwidth, latency, servers)


@grouped(there=there_options, table=table_options)
def replay(
    *,
    there: _There,
    table: Table,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="The directory of a run that was traced, a timeline, one file of each rank, or "
            "DLC traces of all workers.",
        ),
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", "-c", help="What it ran on; else as cluster.json beside it or it says."
        ),
    ] = None,
    recorded_servers: Annotated[
        int | None,
        typer.Option(help="How many parameter servers it had, where the run does not say it."),
    ] = None,
    last: Annotated[int, typer.Option(help="How many iterations to play, the last ones.")] = LAST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the timeline; - prints it."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Play a recorded run on another network: what `explain` does for causes, for hardware.

    What each rank computed in each iteration stays as it was recorded, stragglers included. What
    messages took is replaced by what they take there, and waits follow. Needs no ranks and no
    torch; a factor (x2) needs no cluster either (docs/simulation.md).

    For example:

      syncopate replay runs/a --bandwidth x2

      syncopate replay runs/a -c cluster.json --bandwidth 25g --latency 20us

      syncopate replay timeline.json -c cluster.json --on faster.json -o there.json

      syncopate replay runs/served --servers 4 --bandwidth x0.5

      syncopate replay worker-0.txt worker-1.txt --recorded-servers 1 --bandwidth x10
    """
    import syncopate
    from syncopate.cli.common.recorded import read_any

    require_one_writer(json, ("--output", output))
    timeline = _last_of(read_any(files, last, table), last)
    own = _own(timeline, files, cluster)
    servers = _servers(timeline, recorded_servers)
    elsewhere, here = networks(timeline, there, own, servers)
    with progress_bar("replaying") as advance:
        advance(elsewhere.name, 0.0)
        found = syncopate.replay(timeline, elsewhere, here)
    _tell(found, output, json=json)


def _tell(found: Elsewhere, output: Path | None, *, json: bool) -> None:
    import msgspec

    from syncopate.reports.replay import replay_json, replay_report

    if output is not None:
        found.timeline.save(output)
    if json:
        say_json(msgspec.json.format(msgspec.json.encode(replay_json(found)), indent=1))
    else:
        out(beside=output).print(replay_report(found))
    say_written(output)


def _last_of(found: Recorded, last: int) -> Timeline:
    """Return a timeline with its last iterations alone; alike ranks stay alike."""
    from msgspec.structs import replace

    from syncopate.artifacts.timelines.alike import shared
    from syncopate.runs.reading import latest

    timeline = found.timeline
    kept = latest(found._replace(timeline=replace(timeline, spans=timeline.kept)), last)
    for text in kept.remarks[len(found.remarks) :]:
        note(text)
    if not timeline.alike:
        return kept.timeline
    spans = shared(kept.timeline.columns, timeline.alike, timeline.world_size)
    both: Timeline = replace(timeline, spans=spans)
    return both


def _own(timeline: Timeline, files: list[Path], cluster: Path | None) -> Cluster | None:
    """Return what a run ran on: as given, as it lies beside the run, or as the run says itself.

    None: nothing says it.

    Raises:
        ArtifactError: what says it is no cluster.
    """
    from syncopate.artifacts.timeline import OWN_CLUSTER

    if cluster is None and len(files) == 1 and (files[0] / CLUSTER).exists():
        cluster = files[0] / CLUSTER
    if cluster is not None:
        return load_cluster(cluster)
    text = timeline.metadata.get(OWN_CLUSTER)
    return None if text is None else Cluster.from_json(text, source=timeline.name)


def _servers(timeline: Timeline, given: int | None) -> int:
    """Return how many parameter servers a run had; 0: none.

    Raises:
        InvalidValueError: nothing says it of a run with some, or it had none.
    """
    from syncopate.analysis.collectives import EXCHANGE
    from syncopate.artifacts.plan import SERVED
    from syncopate.artifacts.timeline import SERVER_COUNT

    if timeline.metadata.get(EXCHANGE) != SERVED:
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


def networks(
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
    from syncopate.analysis.replay.fitted import fitted_network
    from syncopate.costs.model.replayed import ClusterNetwork, comparable

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
    links = [
        name
        for name, value in (("--bandwidth", there.bandwidth), ("--latency", there.latency))
        if value is not None
    ]
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
        return load_cluster(there.on)
    assert there.network is not None
    if there.network not in NETWORKS:
        raise UnknownNameError("network", there.network, NETWORKS)
    return Cluster.preset(there.network, timeline.world_size)


def _with_other_links(own: Cluster, there: _There) -> tuple[Cluster, Cluster]:
    """Return a cluster, and the same with links between hosts of another rate or latency.

    Both are priced by their links alone where these differ: curves were measured on one of them.
    """
    from msgspec.structs import replace

    from syncopate.planning.whatif.axes import seconds
    from syncopate.units import parse_link

    if there.bandwidth is None and there.latency is None:
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
    said = [
        f"{name} {text}"
        for name, text in (("bandwidth", there.bandwidth), ("latency", there.latency))
        if text is not None
    ]
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
        rule = "a factor such as x2: what the run ran on is not known; --cluster says it"
        raise InvalidValueError(option, text, rule)
    return factor
