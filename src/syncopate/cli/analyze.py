"""``syncopate analyze``: what a run, a timeline, or the traces of a parameter server say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import err, out
from syncopate.cli.common.timelines import read_timeline
from syncopate.errors import InvalidValueError

if TYPE_CHECKING:
    from syncopate.analysis import Message
    from syncopate.timeline import Timeline
    from syncopate.tracing.dlc import Record


def analyze(
    *,
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
    `syncopate record`, of torch's flight recorder or of torch.profiler. A DLC trace is what one
    node of a parameter server sent and received, as SketchDLC defines it. Needs no ranks.

    For example:

      syncopate analyze runs/a

      syncopate analyze timeline.json

      syncopate analyze traces/rank-*.json

      syncopate analyze worker-0.txt worker-1.txt server-0.txt

      syncopate analyze trace_record.txt --repair --json
    """
    from syncopate.tracing.foreign import is_document

    documents = [path for path in files if path.is_dir() or is_document(path)]
    if len(documents) == len(files):
        _timeline(read_timeline(*files, last=last), json)
    elif documents:
        rule = "left out: DLC traces are analysed by themselves"
        raise InvalidValueError("FILE", str(documents[0]), rule)
    else:
        _traces(files, synchronous=not asynchronous, repair=repair, json=json)


def _timeline(timeline: Timeline, json: bool) -> None:
    import msgspec

    from syncopate.reports.attribution import timeline_json, timeline_report

    if json:
        found = timeline_json(timeline)
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    out().print(timeline_report(timeline))


def _traces(files: list[Path], *, synchronous: bool, repair: bool, json: bool) -> None:
    import msgspec

    from syncopate.reports.serving import serving_json, serving_report
    from syncopate.tracing import dlc

    messages: list[Message] = []
    origin_us: int | None = None
    for path in files:
        trace = dlc.read(path)
        for damage in trace.damage:
            _note(str(damage))
        for odd in dlc.findings(trace.records):
            _note(f"{path}: {odd}{'; mended' if repair else ''}")
        kept = dlc.repaired(trace.records) if repair else trace.records
        records = [record for record in kept if isinstance(record, dlc.Record)]
        # Seconds since 1970 as floats would lose tenths of a microsecond.
        if origin_us is None and records:
            origin_us = records[0].time_us
        messages += _messages(records, trace.header.workers, origin_us or 0)
    if json:
        found = serving_json(messages, synchronous=synchronous)
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    out().print(serving_report(messages, synchronous=synchronous))


def _messages(records: Iterable[Record], workers: int, origin_us: int) -> list[Message]:
    """Return the messages of one node, timed from ``origin_us``."""
    from syncopate.analysis import Message

    return [
        Message(
            f"w{r.node}" if r.operation.by_worker else f"s{r.node - workers}",
            r.operation.push,
            r.operation.sends,
            r.key,
            r.iteration,
            r.peer,
            (r.time_us - origin_us) * 1e-6,
            r.length,
        )
        for r in records
    ]


def _note(text: str) -> None:
    err().print(f"note: {text}", style="yellow", soft_wrap=True, markup=False)
