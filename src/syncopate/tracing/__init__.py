"""Tracing: from what ranks recorded to one timeline, and from a timeline to other tools' files."""

from syncopate.tracing.merge import ClockOffset, clock_offset, merge
from syncopate.tracing.perfetto import save_perfetto, to_perfetto
from syncopate.tracing.recorder import Event, Recorder, spans_of

__all__ = [
    "ClockOffset",
    "Event",
    "Recorder",
    "clock_offset",
    "merge",
    "save_perfetto",
    "spans_of",
    "to_perfetto",
]
