"""``syncopate calibrate``: measures links and collectives between ranks, writes a cluster."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.cli.common import ranks
from syncopate.cli.common.console import (
    is_leader,
    note,
    progress_bar,
    remark,
    require_outputs,
    save_and_show,
    warn,
)
from syncopate.cli.common.ending import code_of, ended_once
from syncopate.cli.common.options import grouped, items
from syncopate.errors import InvalidValueError
from syncopate.output import is_standard_output
from syncopate.units import parse_bytes

if TYPE_CHECKING:
    from syncopate.calibration.partial import Partial, Taken


@grouped(where=ranks.where_option)
def calibrate(
    *,
    where: ranks.Where,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where rank 0 writes the cluster; - prints it.")
    ] = Path("cluster.json"),
    budget: Annotated[float, typer.Option(help="Seconds to spend on measuring.")] = 10.0,
    sizes: Annotated[
        str | None,
        typer.Option(help="Message sizes, such as 4KiB,256KiB,16MiB; chosen by itself otherwise."),
    ] = None,
    collectives: Annotated[
        str, typer.Option(help="Whose algorithms to measure, such as all_reduce,broadcast; or all.")
    ] = "all_reduce",
    algorithms: Annotated[
        str | None,
        typer.Option(help="Their names, such as native,ring; those that suit the ranks otherwise."),
    ] = None,
    racks: Annotated[
        Path | None, typer.Option(help="File of `host rack` lines; racks are found out otherwise.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the cluster as JSON instead of tables.")
    ] = False,
) -> None:
    """Measure links and collectives between the ranks and write the cluster.

    For example:

      syncopate calibrate --local 4

      torchrun --nproc-per-node 8 --no-python syncopate calibrate --device cuda --budget 30

      syncopate calibrate --local 4 --collectives all --budget 40

      mpirun -n 16 --hostfile hosts.txt syncopate calibrate --racks racks.txt
    """
    if not 0 < budget < math.inf:
        raise InvalidValueError("--budget", budget, "a finite number of seconds > 0")
    require_outputs(json, ("--output", output))
    told: dict[str, Any] = {
        "collectives": _collectives(collectives),
        "sizes": [parse_bytes(size) for size in items(sizes)] or None,
        "algorithms": items(algorithms) or None,
        "racks": racks,
        "budget_s": budget,
    }
    ranks.start_if_asked(where.local)
    ranks.require_ranks("calibrate")
    kept = _Kept(output, _asked(told, where.device)) if is_leader() else None
    cluster = _measure(where.device, told, kept)
    if kept is not None:
        _show(cluster, output, json)
        kept.remove()


def _measure(device: str, told: dict[str, Any], kept: _Kept | None) -> Cluster:
    """Calibrate; what was measured when it is ended is kept."""
    from syncopate.calibration.partial import Taken, taken_into

    taken = Taken(None if kept is None else kept.partial)
    if kept is not None:
        kept.say_found()
    with ended_once():
        bar = progress_bar("calibrating")
        try:
            with ranks.joined(device=device) as communicator, bar as progress, taken_into(taken):
                cluster = syncopate.calibrate(communicator, **told, progress=progress)
        except KeyboardInterrupt as interrupt:
            if kept is not None:
                kept.keep(taken)
            raise typer.Exit(code_of(interrupt)) from None
    if kept is not None and kept.partial is not None and not taken.resumed:
        note(f"{kept.path} was of other hosts: everything was measured anew")
    return cluster


class _Kept:
    """What is kept of a calibration that is ended: a file beside the output, of rank 0.

    Attributes:
        path: the file; None where the output is no regular file.
        partial: what to go on from; None where there is nothing.
    """

    def __init__(self, output: Path, asked: dict[str, str]) -> None:
        beside = not is_standard_output(output) and (output.is_file() or not output.exists())
        self.path = output.with_name(f"{output.name}.partial") if beside else None
        self.partial: Partial | None = None
        self._asked = asked
        self._other = ""
        if self.path is not None and self.path.exists():
            from syncopate.calibration.partial import Partial

            found = Partial.load(self.path)
            names = sorted({name for name, _ in found.asked.items() ^ asked.items()})
            self._other = ", ".join(names)
            self.partial = None if names else found

    def say_found(self) -> None:
        if self.partial is not None:
            remark(f"going on from {self.path}")
        elif self._other:
            note(f"{self.path} is of another call ({self._other}): everything is measured anew")

    def keep(self, taken: Taken) -> None:
        """Write what was measured, and say so."""
        partial = taken.partial(self._asked)
        if partial is None and self.partial is not None:
            note(f"ended before anything more was measured: {self.path} stays as it was")
            return
        if partial is None or self.path is None:
            note("ended before the calibration was complete: nothing was written")
            return
        partial.save(self.path)
        note(
            f"ended before the calibration was complete: {taken.summary()} are kept in {self.path},"
            " and the same command goes on from there"
        )

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _asked(told: dict[str, Any], device: str) -> dict[str, str]:
    """Return what a calibration must have in common with the one that it goes on from."""
    racks = told["racks"]
    with suppress(OSError):  # refused where it is read
        racks = racks and racks.read_bytes().hex()
    return {
        **{name: str(value) for name, value in told.items()},
        "racks": str(racks),
        "device": device,
        "ranks": os.environ.get("WORLD_SIZE", ""),
        "syncopate": syncopate.__version__,
        "torch": version("torch"),
    }


def _collectives(text: str) -> tuple[str, ...]:
    """Return the collectives that ``--collectives`` names; refused here, before any rank starts."""
    from syncopate.schedules import registry
    from syncopate.schedules.conditions import conditions

    if text == "all":
        return registry.collectives()
    names = tuple(items(text))
    if not names:
        rule = f"all, or some of {', '.join(registry.collectives())}"
        raise InvalidValueError("--collectives", text, rule)
    for name in names:
        conditions(name)
    return names


def _show(cluster: Cluster, output: Path, json: bool) -> None:
    from syncopate.reports.terminal import cluster_report

    save_and_show(cluster, output, json, lambda: cluster_report(cluster))
    for warning in cluster.warnings if json else ():  # the report has them
        warn(warning)
