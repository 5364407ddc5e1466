"""Timelines: what commands take that look at a run."""

from __future__ import annotations

from pathlib import Path

from syncopate.timeline import Timeline


def read_timeline(path: Path) -> Timeline:
    """Return the timeline of a file.

    Raises:
        ArtifactError: it cannot be read, or is no timeline.
    """
    return Timeline.load(path)
