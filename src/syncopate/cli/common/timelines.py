"""Timelines that commands read: their options, and what is remarked of what was read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import note, progress_bar
from syncopate.runs.defaults import LAST, NO_TABLE, Table

if TYPE_CHECKING:
    from syncopate.runs.reading import Recorded


def table_options(
    *,
    columns: Annotated[
        str | None,
        typer.Option(
            help="A table: what it calls our columns, and units of its times, as "
            "rank=gpu,start=t0:us,end=t1:us."
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(help="A table: what it calls our kinds, as forward=FP,all_reduce=SYNC."),
    ] = None,
) -> Table:
    """Return what the options say of a table."""
    return columns or "", kinds or ""


def read_recorded(
    *files: Path,
    last: int = LAST,
    table: Table = NO_TABLE,
    every: bool = False,
    of_timelines: bool = False,
) -> Recorded:
    """Return what files hold, as :func:`syncopate.runs.reading.read` does, and print its remarks.

    Args:
        files: of a run, a timeline, or one of each rank.
        last: how many iterations of a run to read, the last ones.
        table: headings and kinds of tables, such as ``("rank=gpu,start=t0:us", "push=SYNC")``.
        every: of many ranks that do the same, whether to look at every one.
        of_timelines: whether ``last`` counts of timelines too.

    Raises:
        ArtifactError, InvalidValueError: as there.
    """
    from syncopate.runs.reading import latest, read

    with progress_bar("reading") as advance:
        found = read(*files, last=last, table=table, every=every, progress=advance)
    found = latest(found, last) if of_timelines else found
    for text in found.remarks:
        note(text)
    return found
