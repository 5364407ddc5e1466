"""``syncopate watch``: a training that goes on, seen through what its ranks write."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import note, out, remark, say_json, show
from syncopate.errors import InvalidValueError, one_line
from syncopate.runs.defaults import LAST_WATCHED

if TYPE_CHECKING:
    from syncopate.reports.watch import Watched
    from syncopate.runs.watch import Watch

_SHARE = 0.2
"""Looking takes at most this part of the time of one processor."""


def watch(
    *,
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The directory to which the ranks of a run write."),
    ],
    last: Annotated[
        int, typer.Option(help="How many iterations to look at, the last ones.")
    ] = LAST_WATCHED,
    interval: Annotated[float, typer.Option(help="Seconds from one look to the next.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print all values as a line of JSON for each look.")
    ] = False,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Publish the figures for Prometheus: a port of this machine, host:port, or a "
            "directory.",
        ),
    ] = "",
) -> None:
    """Show a training while it runs: the pace of each rank, and what costs most time.

    It reads what was appended to the files of the run, on any machine that sees them, and
    touches no process of the training. On a terminal the table stays in its place; elsewhere
    there is a line for each look. Ctrl-C ends it.

    For example:

      syncopate watch runs/a

      syncopate watch runs/a --once

      syncopate watch runs/a --interval 10 --json >> watched.jsonl

      syncopate watch runs/a --metrics 9464
    """
    from syncopate.runs.watch import Watch

    if once and metrics:
        raise InvalidValueError("--metrics", metrics, "left out beside --once, which ends")
    if not 0 < interval < math.inf:
        raise InvalidValueError("--interval", interval, "a finite number of seconds > 0")
    if once:
        _once(run, last, json)
        return
    one = Watch(run, last)
    publish = _published(metrics) if metrics else None
    try:
        _follow(one, interval, json, publish)
    except KeyboardInterrupt:  # the way to end it
        return


def _once(run: Path, last: int, json: bool) -> None:
    import syncopate
    from syncopate.runs.watch import line_of

    found = syncopate.watch(run, last=last)
    for text in () if json else found.remarks:
        note(text)
    if json:
        say_json(line_of(found))
    else:
        show(found, json)


def _published(place: str) -> Callable[[Watched], None]:
    """Return what makes a look the one that is published at a place."""
    from syncopate.metrics.endpoint import endpoint
    from syncopate.metrics.place import place_of
    from syncopate.runs.watch import metrics_of

    where = endpoint(place_of(place, "--metrics"), "watch")
    note(f"metrics: {where.address}")
    latest: list[Watched] = []
    where.add(lambda: [metric for found in latest for metric in metrics_of(found)])

    def publish(found: Watched) -> None:
        latest[:] = [found]

    return publish


def _follow(
    one: Watch, interval_s: float, json: bool, publish: Callable[[Watched], None] | None
) -> None:
    from rich.live import Live

    from syncopate.runs.watch import line_of

    console = out()
    if why := one.waits_for:
        remark(f"waiting: {why}")
        while one.waits_for:
            time.sleep(min(interval_s, 1.0))
    moves = console.is_terminal and not json
    live = Live(console=console, auto_refresh=False, transient=False) if moves else None
    with live or nullcontext():
        while True:
            began_s = time.perf_counter()
            found = one.look()
            if publish is not None:
                publish(found)
            took_s = time.perf_counter() - began_s
            if live is not None:
                live.update(found.report(), refresh=True)
            elif json:
                say_json(line_of(found))
            else:
                console.print(one_line(found.summary()[0]), soft_wrap=True, markup=False)
            time.sleep(max(interval_s, took_s / _SHARE))
