"""Timelines that commands read: whole, or put together from what ranks recorded."""

from __future__ import annotations

from pathlib import Path

from syncopate.cli.common.console import err
from syncopate.timeline import Timeline


def read_timeline(*files: Path) -> Timeline:
    """Return the timeline of files, one or one of each rank, and remark what cannot be known of it.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: files that do not fit together.
    """
    from syncopate.tracing import foreign

    timeline = foreign.read_timeline(files)
    for key, text in timeline.metadata.items():
        if key.startswith(foreign.NOTE):
            err().print(f"note: {text}", style="yellow", soft_wrap=True, markup=False)
    return timeline
