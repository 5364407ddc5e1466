"""Reading: what a call may be given, and which iterations are kept."""

from __future__ import annotations

import pytest

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError
from syncopate.runs.reading import latest, read
from tests.unit.tracing.foreign.made import profile, write
from tests.unit.tracing.foreign.test_profiler import _iteration


def _timeline(numbers: list[int]) -> Timeline:
    spans = tuple(
        Span(name="forward", lane="forward", rank=0, start_s=n, end_s=n + 0.5, iteration=n)
        for n in numbers
    )
    return Timeline(name="t", source="measured", world_size=1, spans=spans)


def test_iterations_that_are_there_count() -> None:
    """Of a long run every hundredth iteration was kept, and the last five."""
    found = read(_timeline([0, 100, 200, *range(250, 255)]))
    assert latest(found, 8) is found
    last = latest(found, 6)
    assert {span.iteration for span in last.timeline.spans} == {200, *range(250, 255)}
    assert last.remarks == ("the last 6 iterations are looked at, from iteration 200 on",)
    with pytest.raises(InvalidValueError, match="at least 1"):
        latest(found, 0)


def test_files_and_timelines_are_read_alike(tmp_path) -> None:
    timeline = _timeline([0, 1])
    path = timeline.save(tmp_path / "t.json")
    from_file, given = read(path), read(timeline)
    assert from_file.timeline == given.timeline == timeline
    assert (from_file.name, given.name) == (str(path), "t")
    assert read(str(path)).trips == []
    assert read(given) is given


def test_what_does_not_go_together_is_refused(tmp_path) -> None:
    timeline = _timeline([0])
    with pytest.raises(InvalidValueError, match="a run, a timeline, or one file of each rank"):
        read()
    with pytest.raises(InvalidValueError, match="a directory, a file, or a Timeline"):
        read(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="one timeline, or paths alone"):
        read(timeline, timeline)
    with pytest.raises(InvalidValueError, match="the directory of a run has all ranks"):
        read(tmp_path, tmp_path)


@pytest.mark.parametrize("prefix", ["host_17.", "rank-"])
def test_a_directory_of_traces_is_read_as_its_files(tmp_path, prefix) -> None:
    ranks = [profile(rank, [*_iteration(0), *_iteration(100)]) for rank in (0, 1)]
    paths = write(tmp_path, prefix, ranks)
    (tmp_path / "workload.json").write_text('{"kind": "workload"}')
    assert [*read(tmp_path).timeline.spans] == [*read(*paths).timeline.spans]
