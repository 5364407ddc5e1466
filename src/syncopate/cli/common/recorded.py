"""Recorded: a training to play again, whoever recorded it: DLC traces too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from syncopate.cli.common.timelines import Table, note, read_recorded
from syncopate.errors import InvalidValueError

if TYPE_CHECKING:
    from syncopate.runs.reading import Recorded


def read_any(files: Sequence[Path], last: int, table: Table) -> Recorded:
    """Return what was recorded: a run, of files of ranks, or of DLC traces of all workers.

    Raises:
        ArtifactError: a file that holds none of them.
        InvalidValueError: files that do not fit together.
    """
    from syncopate.tracing.foreign import is_document, is_table

    told = any(table)
    documents = [p for p in files if told or p.is_dir() or is_document(p) or is_table(p)]
    if len(documents) == len(files):
        return read_recorded(*files, last=last, table=table, every=True).of_ranks()
    if documents:
        rule = "left out: DLC traces are played by themselves"
        raise InvalidValueError("FILE", str(documents[0]), rule)
    return _of_traces(files)


def _of_traces(files: Sequence[Path]) -> Recorded:
    from syncopate.runs.reading import Recorded
    from syncopate.tracing import dlc

    traces = {}
    for path in files:
        trace = dlc.read(path)
        for damage in trace.damage:
            note(str(damage))
        traces[str(path)] = trace
    return Recorded(dlc.timeline_of(traces))
