"""``syncopate replay``: a recorded run on another network, or with other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from syncopate.artifacts.cluster import NETWORKS
from syncopate.cli.common.console import note, progress_bar, require_outputs, say_written, show
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import table_options
from syncopate.runs.defaults import LAST_REPLAYED, Table


class There(NamedTuple):
    """The options that say where a run is played."""

    on: Annotated[
        Path | None,
        typer.Option("--on", help="Play it on this cluster, from `syncopate calibrate`."),
    ] = None
    network: Annotated[
        str | None,
        typer.Option(help=f"Play it on a typical network: {', '.join(NETWORKS)}."),
    ] = None
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Play it with links so many times as fast, as x2; or of a rate, as 10g."),
    ] = None
    latency: Annotated[
        str | None,
        typer.Option(help="Play it with start-ups so many times as long, as x0.5; or of a time."),
    ] = None
    servers: Annotated[int | None, typer.Option(help="Play it with so many parameter servers.")] = (
        None
    )


@grouped(there=There, table=table_options)
def replay(
    *,
    there: There,
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
    last: Annotated[int, typer.Option(help="How many iterations to play, the last ones.")] = (
        LAST_REPLAYED
    ),
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

    on = None if there.on is None else load_cluster(there.on)
    require_outputs(json, ("--output", output))
    with progress_bar("replaying") as advance:
        found = syncopate.replay(
            *files,
            **there._asdict() | {"on": on},
            cluster=None if cluster is None else load_cluster(cluster),
            recorded_servers=recorded_servers,
            last=last,
            table=table,
            progress=advance,
        )
    for text in found.remarks:
        note(text)
    if output is not None:
        found.timeline.save(output)
    show(found, json, beside=output)
    say_written(output)
