"""Tracing: from what ranks recorded to one timeline, and from a timeline to other tools' files."""

from syncopate.tracing.merge import clock_offset, merge
from syncopate.tracing.perfetto import save_perfetto, to_perfetto
from syncopate.tracing.recorder import Recorder

__all__ = ["Recorder", "clock_offset", "merge", "save_perfetto", "to_perfetto"]
