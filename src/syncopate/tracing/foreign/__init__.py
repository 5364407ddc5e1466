"""Other tools: what they recorded of a training as a timeline, and a timeline as their files."""

from syncopate.tracing.foreign.assemble import NOTE
from syncopate.tracing.foreign.read import (
    READABLE,
    is_document,
    read_directory,
    read_timeline,
    recorded_paths,
)

__all__ = [
    "NOTE",
    "READABLE",
    "is_document",
    "read_directory",
    "read_timeline",
    "recorded_paths",
]
