"""Capture and the directory of a run: what is written, what can be read, and what is said of it."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.evidence.links import recorded
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing import capture
from syncopate.tracing.capture import Capture, Member, trace
from syncopate.tracing.merge import ClockOffset
from syncopate.tracing.recorder import RECORD, Event, Recorder
from syncopate.tracing.retention import Retention
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import Header, TraceWriter, read_trace
from tests.children import HANGS_S
from tests.clock import set_clock
from tests.unit.analysis.troubled import cost_s, slow_backward, trained
from tests.unit.analysis.written import write


class Subject:
    """A training of this test: the rank ``rank`` of ``world_size``."""

    def __init__(
        self, rank: int = 0, world_size: int = 1, offset_s: float | None = 0.0, run: str = "r"
    ) -> None:
        offset = None if offset_s is None else ClockOffset(offset_s, 1e-6)
        self.member = Member(run, rank, world_size, offset)
        self.capture: Capture | None = None
        self.last: list[Event] = []

    def begin_trace(self, capture: Capture, model: int) -> None:
        self.capture = capture
        plan = {"plan": "f", "number": model, "model": "mlp", "exchange": "allreduce"}
        capture.note(plan | {"policy": "wfbp", "iteration": 0})

    def end_trace(self) -> None:
        if self.capture is not None:
            self.capture.recorder.add(self.last)
        self.capture = None

    def sample(self) -> None:
        pass

    def step(self, iteration: int, start_s: float, end_s: float) -> None:
        if self.capture is not None:
            push = Event("push", start_s, end_s, iteration, bucket=0, nbytes=8, detail="ring")
            self.capture.recorder.add([Event("backward", start_s, end_s, iteration), push])


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(capture, "_current", [])
    monkeypatch.setattr(capture, "_subjects", set())
    monkeypatch.delenv(capture.VARIABLE, raising=False)
    yield
    for one in capture._current:
        one.stop()


def written(directory: Path, *ranks: list[tuple[float, float]], **member: Any) -> list[Path]:
    """Let ranks write ``(start_s, end_s)`` of each iteration, on their own clocks."""
    offsets = member.pop("offsets", [0.0] * len(ranks))
    paths = []
    for rank, times in enumerate(ranks):
        one = Capture(directory)
        subject = Subject(rank, len(ranks), offsets[rank], **member)
        one._attach(subject)
        for iteration, (start_s, end_s) in enumerate(times):
            subject.step(iteration, start_s, end_s)
        one.active = True
        one.stop()
        assert one.path is not None
        paths.append(Path(one.path))
    return paths


def test_a_capture_begins_before_or_after_a_training_and_can_be_switched(tmp_path: Path) -> None:
    subject = Subject()
    capture.enrol(subject)
    with trace(tmp_path / "runs" / "a") as one:
        assert one is trace(tmp_path / "runs" / "a")
        subject.step(0, 1.0, 2.0)
        one.stop()
        subject.step(1, 2.0, 3.0)  # nobody captures
        one.start()
        subject.step(2, 3.0, 4.0)
        later = Subject()
        capture.enrol(later)
        subject.last = [Event("update", 4.0, 5.0, 2)]
    assert subject.capture is later.capture is None
    file = read_trace(tmp_path / "runs" / "a" / "rank-0.trace")
    assert [int(row["iteration"]) for row in file.records] == [0, 0, 2, 2, 2]
    assert [note["number"] for note in file.notes if "plan" in note] == [0, 0, 1]
    assert (file.blocks.missing_bytes, one.dropped) == (0, 0)


def test_the_environment_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not capture.wanted()
    monkeypatch.setenv(capture.VARIABLE, str(tmp_path / "b"))
    assert capture.wanted()
    subject = Subject()
    capture.enrol(subject)
    assert subject.capture is not None
    assert Path(subject.capture.path or "").name == "rank-0.trace"
    with pytest.raises(InvalidValueError, match="captures already; or stop"):
        trace(tmp_path / "c")


def test_a_directory_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot make this directory"):
        trace(tmp_path / "file" / "run")
    monkeypatch.setenv(capture.VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ArtifactError, match=rf"{capture.VARIABLE}: .*file: cannot make"):
        capture.current()


def test_events_are_written_while_the_training_goes_on(tmp_path: Path) -> None:
    one = Capture(tmp_path, flush_s=0.01)
    subject = Subject()
    one._attach(subject)
    subject.step(0, 1.0, 2.0)
    until_s = time.monotonic() + HANGS_S
    while len(read_trace(tmp_path / "rank-0.trace").records) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    one.active = True
    one.stop()


def test_what_there_is_no_room_for_is_counted_and_said(tmp_path: Path) -> None:
    one = Capture(tmp_path, capacity=3, flush_s=60.0)
    subject = Subject()
    one._attach(subject)
    for iteration in range(3):
        subject.step(iteration, 1.0, 2.0)
    one.active = True
    one.stop()
    assert one.dropped == 4
    (remark,) = read_run(tmp_path).remarks
    assert "4 events were dropped" in remark


def test_a_full_disk_drops_events_until_it_has_room_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Capture(tmp_path, flush_s=60.0)
    subject = Subject()
    one._attach(subject)
    subject.step(0, 1.0, 2.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    writer = one._own.writer
    assert writer is not None
    write = writer.write
    writer.write = full  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, logger="syncopate"):
        one.flush()
        subject.step(1, 2.0, 3.0)
        one.flush()
    assert one.dropped == 4
    assert [record.message for record in caplog.records] == [
        f"{one.path}: cannot write: No space left on device; what comes until it can be is dropped"
    ]
    writer.write = write  # type: ignore[method-assign]
    subject.step(2, 3.0, 4.0)
    one.active = True
    one.stop()
    run = read_run(tmp_path)
    assert {span.iteration for span in run.timeline.spans} == {2}
    assert {span.detail for span in run.timeline.spans} == {"", "ring"}
    assert run.timeline.metadata["exchange"] == "allreduce"
    assert "4 events were dropped" in run.remarks[0]


def test_a_disk_that_hangs_holds_up_neither_notes_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capture, "_PATIENCE_S", 0.1)
    one = Capture(tmp_path, flush_s=0.01, capacity=4)
    subject = Subject()
    one._attach(subject)
    answers, asked = threading.Event(), threading.Event()
    writer = one._own.writer
    assert writer is not None

    def hang(*_: object) -> None:
        asked.set()
        answers.wait(HANGS_S)

    writer.write = hang  # type: ignore[method-assign]
    subject.step(0, 1.0, 2.0)
    assert asked.wait(HANGS_S)
    for iteration in range(1, 9):
        subject.step(iteration, 1.0, 2.0)
    one.note({"plan": "g"})
    assert len(one.recorder.records()) <= 4
    one.active = True
    with caplog.at_level(logging.WARNING, logger="syncopate"):
        one.stop()
    assert "the disk does not answer" in caplog.records[0].message
    answers.set()


def test_a_file_that_was_removed_ends_the_capture_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Capture(tmp_path / "run", flush_s=60.0)
    subject = Subject()
    one._attach(subject)
    one.flush()
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.WARNING, logger="syncopate"):
        for iteration in range(3):
            subject.step(iteration, 1.0, 2.0)
            one.flush()
        one.active = True
        one.stop()
    assert [record.message for record in caplog.records] == [
        f"{one.path}: it was removed; nothing more is captured"
    ]
    assert not (tmp_path / "run").exists()


def test_ranks_are_on_one_clock(tmp_path: Path) -> None:
    written(tmp_path, [(1.0, 2.0)], [(51.5, 52.0)], offsets=[0.0, 50.0])
    run = read_run(tmp_path)
    assert run.remarks == ()
    pushes = [span for span in run.timeline.spans if span.lane == "push"]
    assert [(s.rank, s.start_s, s.end_s) for s in pushes] == [(0, 0.0, 1.0), (1, 0.5, 1.0)]
    assert run.timeline.name == f"{tmp_path.name}: mlp"
    assert run.timeline.metadata["clock_error_s"] == "0.000001000"
    assert {(s.name, s.nbytes, s.detail) for s in pushes} == {("bucket 0", 8, "ring")}


def test_a_clock_that_nobody_compared_is_bounded_by_what_ranks_did_together(tmp_path: Path) -> None:
    """Rank 1 comes to all of them later than rank 0, and both are done at about the same time."""
    times = [(1.0, 1.2), (2.0, 2.3), (3.0, 3.6)], [(51.1, 51.2), (52.1, 52.3), (53.5, 53.602)]
    written(tmp_path, *times, offsets=[0.0, None])
    run = read_run(tmp_path)
    assert "rank 1: its clock was not compared" in run.remarks[0]
    assert "it differs by 50.000000 s; single ones 0 us off as a rule" in run.remarks[0]
    late = min(span.start_s for span in run.timeline.spans if span.rank == 1)
    assert late == pytest.approx(0.1)


@pytest.mark.parametrize("ahead_s", [0.0, 50.0, -3.0])
def test_a_slow_rank_costs_what_it_costs_by_clocks_that_nobody_compared(
    tmp_path: Path, ahead_s: float
) -> None:
    """Others wait for rank 1 in each collective, by which nothing is said of its clock."""
    fault = slow_backward(1, 60.0)
    for rank in range(4):
        by_s = ahead_s * (rank == 1)
        mine = [
            replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s)
            for span in trained([fault]).spans
            if span.rank == rank
        ]
        write(tmp_path, 4, mine, offset_s=None if rank else 0.0)
    found = explanation(read_run(tmp_path).timeline)
    first, second = found.causes
    assert (first.kind, first.ranks) == ("compute", (1,))
    assert first.gain_s == pytest.approx(cost_s([fault]), rel=0.05)
    healthy = explanation(trained())
    assert second.gain_s == pytest.approx(healthy.causes[0].gain_s, rel=0.1)


def test_a_clock_that_drifted_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, [(1.0, 1.2)], [(51.0, 51.2)], offsets=[0.0, 40.0])
    run = read_run(tmp_path)
    assert "has drifted" in run.remarks[0]
    assert {round(span.start_s, 6) for span in run.timeline.spans} == {0.0}


def test_what_is_missing_or_damaged_is_said_and_the_rest_shown(tmp_path: Path) -> None:
    paths = written(tmp_path, [(1.0, 2.0)], [(1.0, 2.0)], [(1.0, 2.0)])
    paths[1].unlink()
    with paths[2].open("ab") as file:
        file.write(b"R\xff\0\0\0 and then power was gone")
    (tmp_path / "rank-7.trace").write_bytes(b"something else\n")
    run = read_run(tmp_path)
    assert {span.rank for span in run.timeline.spans} == {0, 2}
    assert run.timeline.world_size == 3
    said = "\n".join(run.remarks)
    assert "rank-7.trace: not valid JSON" in said
    assert "no file of rank 1: 2 of 3 ranks are shown" in said
    assert "rank-2.trace: ends in the midst of a block; its last 29 bytes are left out" in said


def test_every_cut_of_a_file_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [(1.0, 2.0), (2.0, 3.0)])
    data = path.read_bytes()
    head = data.index(b"\n") + 1
    for length in range(head, len(data), 7):
        path.write_bytes(data[:length])
        file = read_trace(path)
        assert len(file.records) == 0
        # One block of notes stands before the only one of records.
        assert file.blocks.missing_bytes < len(data) - head
    path.write_bytes(data)
    assert len(read_trace(path).records) == 4
    path.write_bytes(data[: head - 1])
    with pytest.raises(ArtifactError, match="not a trace: its first line"):
        read_trace(path)
    damaged = bytearray(data)
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    assert len(read_trace(path).records) == 0


def test_of_several_runs_the_last_is_shown_and_none_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [(1.0, 2.0)], run="first")
    set_clock(monkeypatch, capture.__name__, time=lambda: 2e9)
    (second,) = written(tmp_path, [(1.0, 4.0)], run="second")
    assert second.name == "rank-0-2.trace"
    run = read_run(tmp_path)
    assert run.timeline.duration_s == 3.0
    assert run.remarks == (
        "there are files of 2 runs; this is the one that began last, 2033-05-18 03:33:20 UTC",
    )


def test_of_several_captures_of_a_run_the_last_is_shown_that_holds_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment_s, iterations in ((1e9, [(1.0, 2.0)]), (2e9, [(11.0, 15.0)]), (3e9, [])):
        set_clock(monkeypatch, capture.__name__, time=lambda at=moment_s: at)
        written(tmp_path, iterations)
    assert len([*tmp_path.iterdir()]) == 3
    run = read_run(tmp_path)
    assert run.timeline.duration_s == 4.0
    said = "this run was captured 3 times; this is the capture that began last"
    assert run.remarks == (said,)


def test_only_the_last_iterations_are_shown(tmp_path: Path) -> None:
    written(tmp_path, [(float(n), n + 0.5) for n in range(10)])
    run = read_run(tmp_path, last=3)
    assert {span.iteration for span in run.timeline.spans} == {7, 8, 9}
    assert run.remarks == ("the last 3 iterations are shown, from iteration 7 on",)
    with pytest.raises(InvalidValueError, match="last is 0"):
        read_run(tmp_path, last=0)


def test_of_fewer_iterations_than_asked_for_nothing_is_left_out(tmp_path: Path) -> None:
    """A capture that began late has high numbers, and no more iterations for that."""
    one = Capture(tmp_path)
    subject = Subject()
    one._attach(subject)
    for iteration in range(174, 214):
        subject.step(iteration, float(iteration), iteration + 0.5)
    one.active = True
    one.stop()
    run = read_run(tmp_path, last=200)
    assert {span.iteration for span in run.timeline.spans} == set(range(174, 214))
    assert run.remarks == ()
    run = read_run(tmp_path, last=30)
    assert {span.iteration for span in run.timeline.spans} == set(range(184, 214))
    assert run.remarks == ("the last 30 iterations are shown, from iteration 184 on",)


def test_what_is_kept_can_be_said_in_the_script_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCOPATE_TRACE_LAST", "7")
    monkeypatch.setenv("SYNCOPATE_TRACE_EVERY", "0")
    with trace(tmp_path / "a") as one:
        assert one._keep == Retention(last=7, every=0)
    with trace(tmp_path / "b", last=9, every=5, limit_bytes=1 << 20) as one:
        assert one._keep == Retention(9, 5, 1 << 20)
    with pytest.raises(InvalidValueError, match="last is 0; it must be an integer >= 1"):
        trace(tmp_path / "c", last=0)
    monkeypatch.setenv("SYNCOPATE_TRACE_LIMIT_BYTES", "1GB")
    with pytest.raises(InvalidValueError, match="SYNCOPATE_TRACE_LIMIT_BYTES is '1GB'"):
        trace(tmp_path / "c")


def test_a_capture_of_many_iterations_keeps_what_was_asked_for(tmp_path: Path) -> None:
    one = Capture(tmp_path, keep=Retention(last=20, every=50), flush_s=60.0)
    subject = Subject()
    one._attach(subject)
    for iteration in range(500):
        subject.step(iteration, float(iteration), iteration + 0.5)
        if iteration % 10 == 0:
            one.flush()
    one.active = True
    one.stop()
    run = read_run(tmp_path, last=500)
    assert {span.iteration for span in run.timeline.spans} == {
        *range(0, 500, 50),
        *range(480, 500),
    }
    assert run.remarks == (
        "of iterations 0 to 479 there are 10: every 50th one and those that took unusually long",
    )


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no file of a rank"):
        read_run(tmp_path)
    (tmp_path / "rank-0.trace").write_bytes(b"{}")
    with pytest.raises(ArtifactError, match="none of its files can be read"):
        read_run(tmp_path)
    (tmp_path / "rank-0.trace").unlink()
    written(tmp_path, [])
    with pytest.raises(ArtifactError, match="no iteration was captured"):
        read_run(tmp_path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    header = Header(run="r", rank=0, world_size=1, host="h", clock="c", began_s=1.0)
    writer = TraceWriter(tmp_path, header)
    writer.close()
    writer.path.write_bytes(writer.path.read_bytes().replace(b'on":2,', b'on":9,'))
    with pytest.raises(ArtifactError, match="version 9 is newer"):
        read_trace(writer.path)


def test_a_record_is_as_large_as_files_say() -> None:
    assert RECORD.itemsize == 56


def test_another_process_writes_nothing(tmp_path: Path) -> None:
    """A fork that ends as a script does must not write its parent's events again."""
    one = Capture(tmp_path, flush_s=60.0)
    subject = Subject()
    one._attach(subject)
    subject.step(0, 1.0, 2.0)
    one.active, one._process = True, os.getpid() + 1
    one.stop()
    assert len(one.recorder.records()) == 2
    one._process = os.getpid()
    one.stop()
    assert len(read_trace(tmp_path / "rank-0.trace").records) == 2


def test_what_connections_carried_is_that_of_the_iterations_shown(tmp_path: Path) -> None:
    """Two ranks of two hosts note it before iterations 0, 4 and 8 of ten, and at the end."""
    for rank in (0, 1):
        header = Header(
            run="r", rank=rank, world_size=2, host=f"host{rank}", clock="c", began_s=1.0
        )
        writer, recorder = TraceWriter(tmp_path, header), Recorder()
        notes: list[dict[str, Any]] = [{"texts": [""], "dropped": 0}]
        for iteration in range(10):
            recorder.add([Event("backward", float(iteration), iteration + 0.5, iteration)])
        for iteration, nbytes in ((0, 0), (4, 400), (8, 800), (10, 1000)):
            carried = [[0, 1 - rank, nbytes, nbytes / 100]] if nbytes else []
            entry = {"host": f"host{rank}", "entered": {"0": iteration}, "carried": carried}
            notes.append({"links": entry | {"blocks": 0}, "iteration": iteration})
        closed = {"host": f"host{rank}", "entered": {"0": 10}, "carried": [], "blocks": 0}
        notes.append({"links": closed, "iteration": 10})
        writer.write(recorder.take(), notes)
        writer.close()
    for last, nbytes in ((10, 1000), (5, 600), (2, 200)):
        links, hosts = recorded(read_run(tmp_path, last=last).timeline)
        assert [(one.src, one.dst, one.nbytes) for one in links] == [(0, 1, nbytes), (1, 0, nbytes)]
        assert hosts == {0: "host0", 1: "host1"}


def test_whoever_waits_is_told_how_far_reading_is(tmp_path: Path) -> None:
    written(tmp_path, [(0.0, 1.0)], [(0.0, 1.0)], [(0.0, 1.0)], [(0.0, 1.0)])
    told: list[tuple[str, float]] = []
    read_run(tmp_path, progress=lambda what, fraction: told.append((what, fraction)))
    assert told == [(f"rank-{rank}.trace", rank / 4) for rank in range(4)]


@pytest.mark.parametrize(("beyond_s", "drifted"), [(0.5e-6, False), (2e-6, True)])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_clock_that_is_off_by_less_than_its_error_has_not_drifted(
    tmp_path: Path, beyond_s: float, drifted: bool, side: int
) -> None:
    """What they did together bounds the offset to 49.8 to 50.2 s; the comparison errs by 1 us."""
    offset_s = 50.0 + side * (0.2 + beyond_s)
    written(tmp_path, [(1.0, 1.2)], [(51.0, 51.2)], offsets=[0.0, offset_s])
    assert ["has drifted" in remark for remark in read_run(tmp_path).remarks] == [True] * drifted
