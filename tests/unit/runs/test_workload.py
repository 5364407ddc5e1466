"""A workload from a recording, by one call."""

from __future__ import annotations

import shutil

import pytest

from syncopate.analysis.workload import recorded_workload as of_timeline
from syncopate.errors import InvalidValueError
from syncopate.runs.workload import recorded_workload
from tests.unit.analysis.made import made


class Profiler:
    """Writes a file once, as torch.profiler does."""

    def __init__(self, path):
        self.path = path

    def export_chrome_trace(self, path):
        """Write it."""
        if self.path is None:
            raise RuntimeError("Trace is already saved.")
        shutil.copy(self.path, path)
        self.path = None


def test_every_source_gives_the_same(tmp_path):
    timeline = made(2, 4)
    path = timeline.save(tmp_path / "timeline.json")
    expected = of_timeline(timeline)
    for source in (timeline, path, str(path), [path], Profiler(path)):
        assert recorded_workload(source) == expected


def test_a_profilers_trace_is_kept_where_asked_for_and_written_once(tmp_path):
    path = made(2, 4).save(tmp_path / "timeline.json")
    profiler = Profiler(path)
    recorded_workload(profiler, trace=tmp_path / "kept.json")
    assert (tmp_path / "kept.json").read_bytes() == path.read_bytes()
    with pytest.raises(InvalidValueError, match=r"not written before .*already saved.*trace="):
        recorded_workload(profiler)


@pytest.mark.parametrize(
    ("source", "trace", "complaint"),
    [(5, None, "source is 5"), ("timeline.json", "t", "trace is 't'; it must be left out")],
)
def test_other_sources_are_refused(source, trace, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        recorded_workload(source, trace=trace)
