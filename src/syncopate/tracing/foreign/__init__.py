"""Other tools: what they recorded of a training as a timeline, and a timeline as their files."""

from syncopate.tracing.foreign.assemble import NOTE
from syncopate.tracing.foreign.read import (
    READABLE,
    is_document,
    profile_paths,
    read_directory,
    read_timeline,
    recorded_paths,
)
from syncopate.tracing.foreign.tables.columns import Mapped, mapped
from syncopate.tracing.foreign.tables.read import is_table

__all__ = [
    "NOTE",
    "READABLE",
    "Mapped",
    "is_document",
    "is_table",
    "mapped",
    "profile_paths",
    "read_directory",
    "read_timeline",
    "recorded_paths",
]
