"""The directory of a run of plain torch: phases, several runs, ranks that were killed."""

from __future__ import annotations

import json
import os

import pytest
import torch
from typer.testing import CliRunner

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.ranks.arrivals import lateness
from syncopate.analysis.work import works
from syncopate.cli.app import app
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing.foreign import read_directory
from syncopate.tracing.foreign.recording.automatic import AutomaticRecording
from syncopate.tracing.foreign.recording.record import Recording
from syncopate.tracing.foreign.recording.recorded import RecordedRank
from syncopate.tracing.foreign.recording.recorded_file import RecordedWriter
from tests.children import HANGS_S
from tests.unit.tracing.foreign.made import EPOCH_NS, MS, entry, notes, recorded, times_ms, write


def _ns(at_ms):
    return EPOCH_NS + round(at_ms * MS)


def _rank(rank, iterations=5, *, input_ms=5, backward_ms=30, others_ms=30, from_ms=0):
    """Two buckets in iterations of 60 ms and more; a slow rank comes to both as late as it is.

    A forward of 10 ms and a loss of 2 ms follow input, and a step follows when all have come.
    """
    rows, steps, forwards, backwards = [], [], [], []
    slow_ms = max(backward_ms + input_ms, others_ms + 5)
    for iteration in range(iterations):
        begin_ms = from_ms + iteration * (25 + slow_ms) + input_ms
        forwards.append((_ns(begin_ms), _ns(begin_ms + 10)))
        backwards.append(_ns(begin_ms + 12))
        for share in (0.5, 1.0):
            rows.append(entry(len(rows) + 1, begin_ms + 12 + share * backward_ms, 5))
        end_ms = begin_ms - input_ms + slow_ms + 22
        steps.append((end_ms, end_ms + 2))
    return recorded(rank, rows, steps) | {
        "forwards": forwards,
        "backwards": backwards,
        "began_ns": _ns(from_ms),
        "written_ns": _ns(from_ms + iterations * (25 + slow_ms)),
    }


def test_input_forward_and_backward_are_told_apart(tmp_path):
    write(tmp_path, "rank-", [_rank(0), _rank(1)])
    timeline = read_directory(tmp_path, 200)
    assert [times_ms(timeline, name, 0)[0] for name in ("forward", "backward", "SGD")] == [
        (0, 12),
        (12, 42),
        (52, 54),
    ]
    assert {round(work.input_s * 1e3) for work in works(timeline) if work.iteration} == {6}
    assert not any("told apart" in note for note in notes(timeline))


@pytest.mark.parametrize(
    ("slow", "kind", "late_ms"),
    [
        ({"backward_ms": 130}, "compute", {"bucket 0": 50, "bucket 1": 100}),
        ({"input_ms": 105}, "input", {"bucket 0": 100, "bucket 1": 100}),
    ],
)
def test_the_slow_rank_is_explained_and_how_late_it_is_to_each_bucket(
    tmp_path, slow, kind, late_ms
):
    write(tmp_path, "rank-", [_rank(0, others_ms=130), _rank(1, **slow)])
    timeline = read_directory(tmp_path, 200)
    cause = explanation(timeline).causes[0]
    assert (cause.kind, cause.ranks) == (kind, (1,))
    assert {name: round(s * 1e3) for name, s in lateness(timeline)[1].items()} == late_ms
    said = CliRunner().invoke(app, ["explain", str(tmp_path)]).stdout
    assert "later than the others to bucket 0 by" in said


def test_nobody_is_late_to_what_happened_once(tmp_path):
    """DDP broadcasts its buckets in the second iteration."""
    ranks = [_rank(0, others_ms=130), _rank(1, backward_ms=130)]
    for rank in ranks:
        rows = rank["flight_recorder"]["entries"]
        at_ms = (rank["steps"][1]["start_ns"] - EPOCH_NS) / MS
        rows.append(entry(99, at_ms - 1, 5, profiling_name="gloo:broadcast"))
    write(tmp_path, "rank-", ranks)
    timeline = read_directory(tmp_path, 200)
    assert "broadcast 0" in {span.name for span in timeline.spans}
    assert set(lateness(timeline)[1]) == {"bucket 0", "bucket 1"}


def test_of_several_runs_the_last_is_read_and_the_others_are_said(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(_rank(rank)))
        later = _rank(rank, 3, from_ms=9000)
        (tmp_path / f"rank-{rank}-2.json").write_text(json.dumps(later))
    (tmp_path / "rank-1-3.json").touch()  # begun, and killed before anything was written
    timeline = read_directory(tmp_path, 200)
    assert {span.iteration for span in timeline.spans} == {0, 1, 2}
    assert "there are files of 2 runs; this is the one that began last" in notes(timeline)[0]


def test_what_a_killed_rank_left_is_read_as_far_as_it_goes(tmp_path):
    write(tmp_path, "rank-", [_rank(0, 5), _rank(1, 3)])
    timeline = read_directory(tmp_path, 200)
    assert {(span.rank, span.iteration) for span in timeline.spans} == {
        (rank, iteration) for rank in (0, 1) for iteration in range(3)
    }
    assert any("of ranks 1 ends with iteration 2" in note for note in notes(timeline))


def test_the_last_iterations_alone_are_read(tmp_path):
    write(tmp_path, "rank-", [_rank(0), _rank(1)])
    assert {span.iteration for span in read_directory(tmp_path, 2).spans} == {3, 4}
    with pytest.raises(InvalidValueError, match="last"):
        read_directory(tmp_path, 0)


def test_what_is_no_recorded_rank_is_refused(tmp_path):
    (tmp_path / "rank-0.json").write_text('{"kind": "plan", "schema_version": 1}')
    with pytest.raises(ArtifactError, match="expected a 'recorded rank' artefact"):
        read_directory(tmp_path, 200)


def test_of_two_ways_of_training_what_was_written_last_is_shown(tmp_path):
    paths = write(tmp_path, "rank-", [_rank(0), _rank(1)])
    (tmp_path / "rank-0.trace").write_text("{}\n")
    os.utime(tmp_path / "rank-0.trace", (0, 0))
    done = CliRunner().invoke(app, ["analyze", str(tmp_path)])
    assert (done.exit_code, "2 ranks" in done.stdout) == (0, True)
    for path in paths:
        os.utime(path, (0, 0))
    os.utime(tmp_path / "rank-0.trace")
    assert CliRunner().invoke(app, ["analyze", str(tmp_path)]).exit_code != 0


def test_what_is_written_is_what_is_read(tmp_path):
    recording = Recording(10)
    try:
        writer = RecordedWriter(tmp_path, recording.about(1, 3))
        writer.write(recording.take())
        found = RecordedRank.load(writer.path)
    finally:
        recording.stop()
    assert (found.rank, found.world_size, found.steps, found.forwards) == (1, 3, (), ())
    assert 0 < found.began_ns <= found.written_ns
    assert found.flight_recorder["version"].startswith("2.")


class TestAutomatic:
    @pytest.fixture
    def recording(self, tmp_path, monkeypatch):
        monkeypatch.setattr("syncopate.tracing.foreign.recording.automatic.EVERY_S", 0.05)
        found = AutomaticRecording(str(tmp_path / "run"), 10)
        yield found
        found.leave()

    @pytest.fixture
    def rank(self, monkeypatch):
        monkeypatch.setattr("syncopate.tracing.foreign.recording.automatic._member", lambda: (1, 2))

    def _step(self):
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()

    def test_a_process_of_no_group_writes_nothing(self, recording, tmp_path):
        self._step()
        recording.finish()
        assert not (tmp_path / "run").exists()

    def test_a_rank_writes_while_it_runs_and_when_it_ends(self, recording, rank, tmp_path):
        self._step()
        path = tmp_path / "run" / "rank-1.json"
        looks = 20 * HANGS_S
        # What is written first may be empty: a writing can come while the first step begins.
        while looks > 0 and not (path.exists() and RecordedRank.load(path).steps):
            looks -= recording._ends.wait(0.05) + 1
        assert len(RecordedRank.load(path).steps) == 1
        self._step()
        recording.finish()
        assert [step.optimizer for step in RecordedRank.load(path).steps] == [0, 1]
        self._step()  # nothing is noted any more
        assert [one.name for one in (tmp_path / "run").iterdir()] == ["rank-1.json"]

    def test_a_training_that_is_captured_is_not_recorded_too(
        self, recording, rank, monkeypatch, tmp_path
    ):
        monkeypatch.setattr("syncopate.tracing.capture.writing", lambda: True)
        self._step()
        recording.finish()
        assert not (tmp_path / "run").exists()

    def test_a_copy_of_a_rank_that_calls_modules_is_no_rank(self, recording, rank, tmp_path):
        recording._forked()
        torch.nn.Linear(1, 1)(torch.ones(1, 1))
        recording.finish()
        assert not (tmp_path / "run").exists()

    def test_a_directory_that_cannot_be_made_is_said_once(self, recording, rank, tmp_path, capsys):
        (tmp_path / "run").write_text("a file")
        self._step()
        recording._ends.wait(HANGS_S)
        recording.finish()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"syncopate: SYNCOPATE_TRACE: {tmp_path / 'run'}: cannot make")
