"""Runs made by hand: a timeline as the files that its ranks would have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from syncopate.artifacts.timeline import PAUSES, Span, Timeline
from syncopate.tracing.recorder import Event, Recorder
from syncopate.tracing.trace_file import Header, TraceWriter

_PLAN = {"plan": "0", "number": 0, "iteration": 0, "model": "made", "exchange": "allreduce"}


def written(directory: Path, timeline: Timeline, run: str = "a", began_s: float = 1.0) -> Path:
    """Write what each rank of a timeline did; return the directory."""
    directory.mkdir(exist_ok=True)
    for rank in range(timeline.world_size):
        write(directory, timeline.world_size, [s for s in timeline.spans if s.rank == rank],
              run=run, began_s=began_s)  # fmt: skip
    return directory


def write(
    directory: Path,
    world_size: int,
    spans: Sequence[Span],
    *,
    run: str = "a",
    began_s: float = 1.0,
    offset_s: float | None = 0.0,
) -> Path:
    """Write what one rank did, an iteration in each block; return its file.

    Args:
        directory: of the run.
        world_size: number of ranks.
        spans: on its own clock.
        run: which run it is of.
        began_s: when that began.
        offset_s: its clock minus rank 0's; None: not measured.
    """
    recorder = Recorder()
    header = Header(
        run=run,
        rank=spans[0].rank,
        world_size=world_size,
        host="host",
        clock="time.perf_counter",
        began_s=began_s,
        offset_s=offset_s,
    )
    writer = TraceWriter(directory, header)
    writer.write(recorder.take(), [_PLAN])
    known = 0
    for iteration in sorted({span.iteration for span in spans}):
        recorder.add([_event(span) for span in spans if span.iteration == iteration])
        texts, known = recorder.texts[known:], len(recorder.texts)
        writer.write(recorder.take(), [{"texts": texts, "dropped": 0}])
    writer.close()
    return writer.path


def _event(span: Span) -> Event:
    bucket = int(span.name.split()[1]) if span.name.startswith("bucket") else -1
    detail = span.name if span.name in PAUSES else span.detail
    return Event(
        span.lane,
        span.start_s,
        span.end_s,
        span.iteration,
        bucket,
        span.channel,
        span.nbytes,
        detail,
    )
