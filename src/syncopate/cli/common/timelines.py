"""Timelines that commands read: whole, or put together from what ranks recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from syncopate.cli.common.console import err, progress_bar
from syncopate.errors import ArtifactError, InvalidValueError

if TYPE_CHECKING:
    from syncopate.artifacts.timeline import Timeline
    from syncopate.tracing.run import Run

LAST = 200
"""Iterations of a run that are read, the last ones, unless others are asked for."""


class Table(NamedTuple):
    """What options say of a table: what it calls our columns, and our kinds."""

    columns: str = ""
    kinds: str = ""


NO_TABLE = Table()

_MANY = 1 << 18
"""Spans of ranks that do the same, above which some of these ranks are looked at alone."""


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
    return Table(columns or "", kinds or "")


def read_timeline(*files: Path, last: int = LAST, table: Table = NO_TABLE) -> Timeline:
    """Return the timeline of files, one or one of each rank, and remark what cannot be known of it.

    Args:
        files: the directory of a run alone; a timeline; or files of ranks.
        last: how many iterations of a run to read, the last ones.
        table: what tables call their columns and kinds.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: files that do not fit together.
    """
    return read_recorded(*files, last=last, table=table)[0]


def read_recorded(
    *files: Path, last: int = LAST, table: Table = NO_TABLE, every: bool = False
) -> tuple[Timeline, Run | None]:
    """Return the same, and the run of a directory; None: what was given is none.

    Of many ranks that do the same some are looked at, unless ``every`` rank is asked for.

    Raises:
        ArtifactError, InvalidValueError: as :func:`read_timeline`.
    """
    from syncopate.tracing import foreign

    folders = [path for path in files if path.is_dir()]
    if folders and len(files) > 1:
        rule = "the only one, or left out: the directory of a run has all ranks"
        raise InvalidValueError("FILE", str(folders[0]), rule)
    if folders and not is_plain(folders[0]):
        run = read_directory(folders[0], last)
        if not run.timeline.spans:
            reason = "only servers were captured here; a timeline is of ranks or workers"
            raise ArtifactError(folders[0], reason)
        return run.timeline, run
    with progress_bar("reading") as advance:
        advance(files[0].name, 0.0)
        if folders:
            timeline = foreign.read_directory(folders[0], last)
        else:
            told = foreign.mapped(*table) if any(table) else None
            timeline = foreign.read_timeline(files, told)
    for text in remarks_of(timeline):
        note(text)
    return timeline if every else _few(timeline), None


def _few(timeline: Timeline) -> Timeline:
    found = timeline.few(_MANY)
    if left_out := found.world_size - found.ranks_in_columns:
        note(
            f"{left_out:,} of the {found.world_size:,} ranks do what others do, and are not looked "
            "at one by one"
        )
    return found


def read_directory(directory: Path, last: int) -> Run:
    """Return the run of a directory, and remark what cannot be known of it.

    Args:
        directory: where ranks and nodes wrote.
        last: how many iterations to read, the last ones.

    Raises:
        ArtifactError, InvalidValueError: as :func:`syncopate.tracing.run.read_run`.
    """
    from syncopate.tracing.run import read_run

    with progress_bar("reading") as advance:
        run = read_run(directory, last, advance)
    for remark in run.remarks:
        note(remark)
    return run


def last_of(timeline: Timeline, last: int) -> Timeline:
    """Return a timeline with its last iterations alone, and remark where there were others.

    Raises:
        InvalidValueError: less than one iteration is asked for.
    """
    import msgspec
    import numpy as np

    if last < 1:
        raise InvalidValueError("last", last, "at least 1")
    spans = timeline.columns
    numbers = np.unique(spans.iteration)
    if len(numbers) <= last:
        return timeline
    first = int(numbers[-last])
    kept = spans.iteration >= first
    note(f"the last {last} iterations are looked at, from iteration {first} on")
    return msgspec.structs.replace(timeline, spans=spans.take(kept))


def of_those_there(timeline: Timeline) -> tuple[Timeline, tuple[int, ...]]:
    """Return a timeline of the ranks that have spans alone, numbered from 0, and these ranks.

    A few ranks of a large job say something of themselves and of each other, and nothing of the
    others.
    """
    import numpy as np
    from msgspec.structs import replace

    spans = timeline.columns
    there = np.unique(spans.rank)
    if len(there) in (0, timeline.world_size):
        return timeline, tuple(range(timeline.world_size))
    own = spans.changed(rank=np.searchsorted(there, spans.rank).astype(spans.rank.dtype))
    return replace(timeline, world_size=len(there), spans=own), tuple(there.tolist())


def remarks_of(timeline: Timeline) -> tuple[str, ...]:
    """Return what cannot be known of a timeline that another tool's files were made into."""
    from syncopate.tracing import foreign

    said = timeline.metadata.items()
    return tuple(text for key, text in said if key.startswith(foreign.NOTE))


def read_nodes(*files: Path) -> Run:
    """Return the run of a directory, in which nodes of a parameter server wrote files.

    Raises:
        ArtifactError: none did.
        InvalidValueError: not one directory.
    """
    if len(files) != 1 or not files[0].is_dir():
        rule = "the directory of one run that was traced: it has what each node sent and received"
        raise InvalidValueError("FILE", ", ".join(map(str, files)), rule)
    run = read_directory(files[0], sys.maxsize)
    if run.served is None:
        reason = "no worker or server of a parameter server wrote a file (worker-0.trace and so on)"
        raise ArtifactError(files[0], reason)
    return run


def is_plain(folder: Path) -> bool:
    """Say whether the ranks that wrote last to the directory of a run trained plain torch."""
    from syncopate.tracing import foreign
    from syncopate.tracing.run import PATTERN

    plain, captured = foreign.recorded_paths(folder), list(folder.glob(PATTERN))
    return bool(plain) and max(_written_ns(plain)) >= max(_written_ns(captured), default=0)


def _written_ns(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        yield path.stat().st_mtime_ns


def note(text: str) -> None:
    """Remark something on standard error."""
    err().print(f"note: {text}", style="yellow", soft_wrap=True, markup=False)
