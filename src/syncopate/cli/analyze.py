"""``syncopate analyze``: what a run, a timeline, or the traces of a parameter server say."""

from __future__ import annotations

from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import note, progress_bar, show
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import read_recorded, table_options
from syncopate.errors import InvalidValueError
from syncopate.runs.defaults import LAST, Table

if TYPE_CHECKING:
    from syncopate.runs.analyze import Analyzed


@grouped(table=table_options)
def analyze(
    *,
    table: Table,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="The directory of a run that was traced, a timeline, or one file of each rank, or "
            "of each node.",
        ),
    ],
    asynchronous: Annotated[
        bool,
        typer.Option("--asynchronous", help="DLC: servers answer each push by itself."),
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="DLC: put records in the order of their times.")
    ] = False,
    last: Annotated[
        int, typer.Option(help="A run: how many iterations to look at, the last ones.")
    ] = LAST,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say what iterations spent their time on: computation, communication, and waiting.

    And which message kept ranks from computing, which rank was late and why, the critical path, and
    what bandwidth was reached. `syncopate explain` says what to do about it.

    A run is traced by `syncopate.trace` or `SYNCOPATE_TRACE` (docs/tracing.md). A timeline comes
    from `syncopate simulate` or from a recorded training. Files of ranks are those of
    `syncopate record`, of torch's flight recorder or of torch.profiler. A table has a
    row of each span, as CSV or Parquet (docs/other_tools.md). A DLC trace is what one
    node of a parameter server sent and received, as SketchDLC defines it. Needs no ranks.

    For example:

      syncopate analyze runs/a

      syncopate analyze timeline.json

      syncopate analyze traces/rank-*.json

      syncopate analyze worker-0.txt worker-1.txt server-0.txt

      syncopate analyze trace_record.txt --repair --json
    """
    import syncopate
    from syncopate.tracing.foreign import is_document, is_table

    documents = [p for p in files if any(table) or isdir(p) or is_document(p) or is_table(p)]
    if documents and len(documents) < len(files):
        rule = "left out: DLC traces are analysed by themselves"
        raise InvalidValueError("FILE", str(documents[0]), rule)
    if documents:
        read = read_recorded(*files, last=last, table=table)
        with progress_bar("analysing") as advance:
            found = syncopate.analyze(read, progress=advance)
    else:
        found = _traces(files, synchronous=not asynchronous, repair=repair)
    show(found, json)


def _traces(files: list[Path], *, synchronous: bool, repair: bool) -> Analyzed:
    """Return what DLC traces say, and print what is wrong with them."""
    from syncopate.runs.analyze import of_nodes

    with progress_bar("reading") as advance:
        found = of_nodes(*files, synchronous=synchronous, repair=repair, progress=advance)
    for text in found.remarks:
        note(text)
    return found
