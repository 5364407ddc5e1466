"""Timelines that commands read: whole, or put together from what ranks recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from syncopate.cli.common.console import err
from syncopate.errors import InvalidValueError

if TYPE_CHECKING:
    from syncopate.timeline import Timeline

LAST = 200
"""Iterations of a run that are read, the last ones, unless others are asked for."""


def read_timeline(*files: Path, last: int = LAST) -> Timeline:
    """Return the timeline of files, one or one of each rank, and remark what cannot be known of it.

    Args:
        files: the directory of a run alone; a timeline; or files of ranks.
        last: how many iterations of a run to read, the last ones.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: files that do not fit together.
    """
    from syncopate.tracing import foreign
    from syncopate.tracing.run import read_run

    folders = [path for path in files if path.is_dir()]
    if folders and len(files) > 1:
        rule = "the only one, or left out: the directory of a run has all ranks"
        raise InvalidValueError("FILE", str(folders[0]), rule)
    if folders:
        run = read_run(folders[0], last)
        for remark in run.remarks:
            _note(remark)
        return run.timeline
    timeline = foreign.read_timeline(files)
    for key, text in timeline.metadata.items():
        if key.startswith(foreign.NOTE):
            _note(text)
    return timeline


def _note(text: str) -> None:
    err().print(f"note: {text}", style="yellow", soft_wrap=True, markup=False)
