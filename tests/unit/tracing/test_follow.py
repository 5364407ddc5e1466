"""Following a run: what was appended is read, the last iterations are kept, new files seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syncopate.artifacts.timeline import Timeline
from syncopate.errors import ArtifactError
from syncopate.tracing.follow import Follower, Growing
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import Header, read_trace
from tests.unit.analysis.troubled import checkpoints, trained
from tests.unit.analysis.written import written

LAST = 5


def spans(timeline: Timeline) -> list[object]:
    """Return spans as they compare, without the origin of their clock."""
    origin_s = min(span.start_s for span in timeline.spans)
    return sorted(
        (s.rank, s.iteration, s.lane, s.name, round(s.start_s - origin_s, 9), s.nbytes, s.detail)
        for s in timeline.spans
    )


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Return the directory of a run of 3 ranks and 24 iterations, with pauses."""
    return written(tmp_path / "whole", trained([checkpoints(1)], ranks=3))


def test_a_file_that_grows_byte_by_byte_is_read_as_a_whole_one(whole: Path, tmp_path: Path) -> None:
    path = whole / "rank-1.trace"
    data, target = path.read_bytes(), tmp_path / "rank-1.trace"
    one = Growing(target, Header, last=1000)
    for end in range(0, len(data), 997):
        target.write_bytes(data[:end])
        one.look()
    target.write_bytes(data)
    assert one.look()
    assert not one.look()
    found, expected = one.content(), read_trace(path)
    assert found.header == expected.header
    assert found.notes == expected.notes
    assert found.records.tobytes() == expected.records.tobytes()


def test_only_what_was_appended_is_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = whole / "rank-0.trace"
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:half])
    one = Growing(path, Header, last=1000)
    one.look()
    # What was read before may be gone: it is not read again.
    path.write_bytes(b"\0" * (half - 4000) + data[half - 4000 :])
    one._inode = path.stat().st_ino
    one.look()
    path.write_bytes(data)
    assert one.content().records.tobytes() == read_trace(path).records.tobytes()


def test_the_last_iterations_are_kept_with_their_pauses(whole: Path) -> None:
    follower = Follower(whole, LAST)
    run = follower.look()
    assert run is not None
    assert spans(run.timeline) == spans(read_run(whole, LAST).timeline)
    assert {span.name for span in run.timeline.spans} >= {"checkpoint", "bucket 0"}
    (growing, *_) = follower._files.values()
    numbers = growing.content().records["iteration"]
    assert set(numbers[numbers >= 0].tolist()) == set(range(24 - LAST - 1, 24))


def test_a_file_that_was_written_anew_is_read_from_its_begin(whole: Path, tmp_path: Path) -> None:
    follower = Follower(whole, LAST)
    follower.look()
    other = written(tmp_path / "other", trained(ranks=3, iterations=30))
    for path in other.iterdir():
        path.replace(whole / path.name)
    run = follower.look()
    assert run is not None
    assert spans(run.timeline) == spans(read_run(whole, LAST).timeline)


def test_of_several_runs_the_one_that_began_last_is_followed(tmp_path: Path) -> None:
    written(tmp_path, trained(ranks=2), run="a", began_s=1.0)
    follower = Follower(tmp_path, LAST)
    follower.look()
    written(tmp_path, trained(ranks=3, iterations=8), run="b", began_s=2.0)
    run = follower.look()
    assert run is not None
    assert (run.timeline.world_size, max(s.iteration for s in run.timeline.spans)) == (3, 7)
    assert any("2 runs" in remark for remark in run.remarks)


def test_nothing_is_known_before_an_iteration_is_there(whole: Path, tmp_path: Path) -> None:
    follower = Follower(tmp_path / "new", LAST)
    assert follower.look() is None
    (tmp_path / "new").mkdir()
    data = (whole / "rank-0.trace").read_bytes()
    (tmp_path / "new" / "rank-0.trace").write_bytes(data[:40])
    assert follower.look() is None


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-0.trace").mkdir()
    with pytest.raises(ArtifactError, match="none of its files can be read"):
        Follower(tmp_path, LAST).look()


def test_a_named_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.trace")
    with pytest.raises(ArtifactError, match=r"rank-0\.trace: this is a named pipe"):
        Growing(tmp_path / "rank-0.trace", Header, LAST).look()
