"""``syncopate analyze``: what a run, a timeline, or the traces of a parameter server say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import out, progress_bar, say_json
from syncopate.cli.common.options import grouped
from syncopate.cli.common.served import computed_of, messages_in, messages_of, trips_of
from syncopate.cli.common.timelines import (
    Table,
    is_plain,
    note,
    read_directory,
    read_timeline,
    table_options,
)
from syncopate.errors import InvalidValueError

if TYPE_CHECKING:
    from syncopate.artifacts.timeline import Timeline


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
    ] = 200,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say what iterations spent their time on: computation, communication, and waiting.

    And which message kept ranks from computing, which rank was late and why, what the critical path
    is, and what bandwidth was reached. `syncopate explain` says what to do about it.

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
    from syncopate.tracing.foreign import is_document, is_table

    if len(files) == 1 and files[0].is_dir() and not is_plain(files[0]):
        _run(files[0], last, json)
        return
    told = any(table)
    documents = [p for p in files if told or p.is_dir() or is_document(p) or is_table(p)]
    if len(documents) == len(files):
        _timeline(read_timeline(*files, last=last, table=table), json)
    elif documents:
        rule = "left out: DLC traces are analysed by themselves"
        raise InvalidValueError("FILE", str(documents[0]), rule)
    else:
        _traces(files, synchronous=not asynchronous, repair=repair, json=json)


def _run(directory: Path, last: int, json: bool) -> None:
    run = read_directory(directory, last)
    if run.served is None:
        _timeline(run.timeline, json)
        return
    from syncopate.reports.attribution import timeline_json, timeline_report
    from syncopate.reports.journeys import journeys_json, journeys_report
    from syncopate.reports.serving import serving_json, serving_report

    served = run.served
    if run.first:  # versions are no iterations where servers wait for no worker
        shown = (work for work in served.work if work.start_s >= run.origin_s)
        served = served._replace(work=tuple(shown))
    messages, computed = messages_in(run), [*computed_of(served)]
    whole = bool(run.timeline.spans)
    _look(run.timeline)
    synchronous, trips = run.served.synchronous, trips_of(run)
    if json:
        found = timeline_json(run.timeline) if whole else {}
        said = serving_json(messages, computed, synchronous=synchronous)
        _print(found | {"served": said} | ({"journeys": journeys_json(trips)} if trips else {}))
        return
    if whole:
        out().print(timeline_report(run.timeline))
    out().print(serving_report(messages, computed, synchronous=synchronous))
    if trips:
        out().print(journeys_report(trips))


def _timeline(timeline: Timeline, json: bool) -> None:
    from syncopate.reports.attribution import timeline_json, timeline_report

    _look(timeline)
    if json:
        _print(timeline_json(timeline))
        return
    out().print(timeline_report(timeline))


def _traces(files: list[Path], *, synchronous: bool, repair: bool, json: bool) -> None:
    from syncopate.reports.serving import serving_json, serving_report
    from syncopate.tracing import dlc

    traces = {}
    for path in files:
        with progress_bar("reading") as advance:
            trace = dlc.read(path, partial(advance, path.name))
        for damage in trace.damage:
            note(str(damage))
        for odd in dlc.findings(trace.records):
            note(f"{path}: {odd}{'; mended' if repair else ''}")
        records = dlc.repaired(trace.records) if repair else trace.records
        traces[str(path)] = (trace.header, records)
    messages = messages_of(traces)
    del traces, trace, records  # the messages are all that is needed of them
    if json:
        _print(serving_json(messages, synchronous=synchronous))
        return
    out().print(serving_report(messages, synchronous=synchronous))


def _look(timeline: Timeline) -> None:
    """Take the figures of a timeline that take long: a report of it finds them done."""
    from syncopate.analysis.collectives import collectives
    from syncopate.analysis.exposure import exposures
    from syncopate.analysis.phases import phases
    from syncopate.analysis.work import works

    parts: tuple[Callable[[Timeline], object], ...] = (phases, collectives, exposures, works)
    with progress_bar("analysing") as advance:
        for place, part in enumerate(parts):
            advance(part.__name__, place / len(parts))
            part(timeline)


def _print(found: object) -> None:
    import msgspec

    say_json(msgspec.json.format(msgspec.json.encode(found), indent=1))
