"""The file of a recorded rank: appended to, damaged, thinned, and always one JSON object."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from syncopate.cli.app import app
from syncopate.errors import ArtifactError
from syncopate.tracing.foreign import read_directory, read_timeline
from syncopate.tracing.foreign.recording import recorded_file
from syncopate.tracing.foreign.recording.recorded import (
    Block,
    Call,
    RecordedRank,
    Step,
)
from syncopate.tracing.foreign.recording.recorded_file import RecordedWriter
from syncopate.tracing.retention import Retention
from tests.unit.tracing.foreign.made import EPOCH_NS, MS, notes

ABOUT = RecordedRank(rank=0, world_size=1, host="h", torch="2", began_ns=EPOCH_NS)
CALL = Call(
    name="gloo:all_reduce",
    group=("0", "default_pg"),
    p2p=False,
    sizes=((1000,),),
    dtypes=("Float",),
)
BUCKETS = 3
SLOW = 133
EACH = 5
"""Iterations of a block."""


def block(first):
    """Return a block of iterations of 100 ms; one takes 400 ms longer."""
    steps, forwards, backwards, launches = [], [], [], []
    for iteration in range(first, first + EACH):
        late_ms = 400 * (iteration > SLOW)
        begin_ns = EPOCH_NS + (100 * iteration + late_ms) * MS
        forwards.append((begin_ns, begin_ns + 10 * MS))
        backwards.append(begin_ns + 12 * MS)
        for bucket in range(BUCKETS):
            number = iteration * BUCKETS + bucket
            launches.append((number, number + 1, 0, begin_ns + (20 + bucket) * MS, 0, 0))
        end_ns = begin_ns + (90 + 400 * (iteration == SLOW)) * MS
        step = {"start_ns": end_ns, "end_ns": end_ns + MS}
        steps.append(Step(optimizer=0, name="SGD", number=iteration, **step))
    return Block(
        written_ns=EPOCH_NS + 100 * (first + EACH) * MS,
        steps=tuple(steps),
        forwards=tuple(forwards),
        backwards=tuple(backwards),
        calls=(CALL,),
        launches=tuple(launches),
        groups={"0": "[0]"},
    )


def written(directory, iterations, retention=None):
    writer = RecordedWriter(directory, ABOUT, retention)
    for first in range(0, iterations, EACH):
        writer.write(block(first))
        writer.thin()
    return writer


def shown(directory):
    """Return the iterations with collectives."""
    timeline = read_directory(directory, 1_000_000)
    pushes = [span for span in timeline.spans if span.lane == "push"]
    assert {span.name for span in pushes} == {f"bucket {n}" for n in range(BUCKETS)}
    assert not any("forgotten" in note for note in notes(timeline))
    return {span.iteration for span in pushes}


def test_a_file_is_one_json_object_at_any_time(tmp_path):
    writer = RecordedWriter(tmp_path, ABOUT)
    for first in range(0, 20, EACH):
        whole = json.loads(writer.path.read_bytes())
        assert (whole["kind"], whole["schema_version"]) == ("recorded rank", 3)
        assert len(whole["blocks"]) == first // EACH
        writer.write(block(first))
    assert shown(tmp_path) == set(range(20))
    timeline = read_timeline([writer.path])
    assert len({span.iteration for span in timeline.spans}) == 20


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_damage_costs_the_block_and_is_said_once(tmp_path, part):
    writer = written(tmp_path, 50)
    data = bytearray(writer.path.read_bytes())
    lines = data.split(b"\n")
    at = sum(len(line) + 1 for line in lines[:5]) + int(part * len(lines[5]))
    data[at] ^= 4
    writer.path.write_bytes(data)
    # The iterations beside the block may have had a part in it.
    assert shown(tmp_path) == set(range(50)) - set(range(19, 26))
    said = [
        f"{writer.path}: damaged: 1 block is left out",
        f"{writer.path}: left out, because collectives of them are missing: iterations 19 to 25",
    ]
    for timeline in (read_directory(tmp_path, 1000), read_timeline([writer.path])):
        assert [note for note in notes(timeline) if str(writer.path) in note] == said


def test_commands_say_what_is_damaged(tmp_path):
    (tmp_path / "run").mkdir()
    writer = written(tmp_path / "run", 50)
    data = bytearray(writer.path.read_bytes())
    data[len(data) // 2] ^= 4
    writer.path.write_bytes(data)
    for command in (["explain"], ["analyze"], ["report", "-o", str(tmp_path / "page.html")]):
        told = CliRunner().invoke(app, [command[0], str(tmp_path / "run"), *command[1:]])
        assert (told.exit_code, "damaged: 1 block is left out" in told.stderr) == (0, True)
    assert "damaged: 1 block is left out" in (tmp_path / "page.html").read_text()


def test_a_file_that_cannot_be_read_costs_the_others_nothing(tmp_path):
    written(tmp_path, 20)
    (tmp_path / "rank-1.json").write_bytes(b"\0" * 100)
    said = notes(read_directory(tmp_path, 1000))
    assert any(note.startswith(f"left out: {tmp_path / 'rank-1.json'}") for note in said)
    assert shown(tmp_path) == set(range(20))
    (tmp_path / "rank-0.json").write_bytes(b"\0" * 100)
    with pytest.raises(ArtifactError, match="not valid JSON"):
        read_directory(tmp_path, 1000)


def test_the_first_line_may_be_damaged(tmp_path):
    writer = written(tmp_path, 10)
    data = writer.path.read_bytes()
    for at in range(0, data.index(b"\n") + 1, 5):
        writer.path.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        assert shown(tmp_path) == set(range(10))
        assert RecordedRank.load(writer.path).rank == 0


def set_by(one, by_ms, *, told):
    """Return a block after the wall clock was set; ``told``: it says how far that is ahead."""
    by_ns = by_ms * MS
    steps = (replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns) for s in one.steps)
    return replace(
        one,
        written_ns=one.written_ns + by_ns,
        ahead_ns=EPOCH_NS + by_ns if told else 0,
        steps=tuple(steps),
        forwards=tuple((begin + by_ns, end + by_ns) for begin, end in one.forwards),
        backwards=tuple(begin + by_ns for begin in one.backwards),
        launches=tuple((*o[:3], o[3] + by_ns, *o[4:]) for o in one.launches),
    )


@pytest.mark.parametrize(
    ("by_ms", "told"), [(-3_600_000, True), (-800, True), (3_600_000, True), (-3_600_000, False)]
)
@pytest.mark.parametrize("at", [15, 35])
def test_a_clock_that_is_set_costs_the_shorter_side(tmp_path, by_ms, told, at):
    writer = RecordedWriter(tmp_path, ABOUT)
    for first in range(0, 50, EACH):
        writer.write(set_by(block(first), by_ms if first >= at else 0, told=told))
    # Behind it one block more is in doubt, and the iteration that began in it.
    assert shown(tmp_path) == set(range(at) if at > 25 else range(at + EACH + 1, 50))
    said = " ".join(notes(read_directory(tmp_path, 1000)))
    by_s = float(said.split("the clock of its host was set, by up to ")[1].split(" s")[0])
    assert by_s == pytest.approx(by_ms / 1000, abs=0.001 if told else 1.0)
    assert read_directory(tmp_path, 1000).duration_s < 10


def test_a_clock_that_is_set_is_told_in_a_file_that_was_thinned(tmp_path):
    writer = RecordedWriter(tmp_path, ABOUT, Retention(last=30, every=20))
    for first in range(0, 400, EACH):
        writer.write(set_by(block(first), -3_600_000 if first >= 395 else 0, told=True))
    writer.thin(last=True)
    assert any("clock of its host was set" in one for one in notes(read_directory(tmp_path, 1000)))
    assert max(shown(tmp_path)) == 394


def test_a_pause_is_no_clock_that_is_set(tmp_path):
    writer = RecordedWriter(tmp_path, ABOUT)
    for first in range(0, 50, EACH):
        paused = set_by(block(first), 60_000 if first >= 25 else 0, told=True)
        writer.write(replace(paused, ahead_ns=EPOCH_NS))
    assert shown(tmp_path) == set(range(50))


@pytest.mark.parametrize("bytes_less", [1, 5, 300])
def test_a_cut_costs_the_last_block_at_most(tmp_path, bytes_less):
    writer = written(tmp_path, 20)
    writer.path.write_bytes(writer.path.read_bytes()[:-bytes_less])
    assert shown(tmp_path) == set(range(20 if bytes_less < 5 else 15))


def test_a_block_that_could_not_be_written_is_missing_and_no_other(tmp_path, monkeypatch):
    """Iterations are left out of which anything is missing."""
    writer = written(tmp_path, 20)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", _full)
        with pytest.raises(OSError, match="No space"):
            writer.write(block(20))
    json.loads(writer.path.read_bytes())
    writer.write(block(25))
    writer.write(block(30))
    assert shown(tmp_path) == {*range(19), *range(26, 35)}
    assert any("iterations 19 to 25" in note for note in notes(read_directory(tmp_path, 1000)))


def _full(*_):
    raise OSError(28, "No space left on device")


def test_a_file_that_was_removed_is_not_made_again(tmp_path):
    writer = RecordedWriter(tmp_path, ABOUT)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError, match="it was removed"):
        writer.write(block(0))


def test_a_second_run_gets_a_file_of_its_own(tmp_path):
    assert written(tmp_path, 10).path.name == "rank-0.json"
    assert RecordedWriter(tmp_path, ABOUT).path.name == "rank-0-2.json"


def test_the_last_every_kth_and_unusual_iterations_are_kept(tmp_path):
    writer = written(tmp_path, 400, Retention(last=30, every=20))
    writer.thin(last=True)
    assert shown(tmp_path) == {*range(0, 400, 20), *range(370, 400), SLOW, SLOW + 1}
    writer.write(block(400))
    assert shown(tmp_path) >= {*range(370, 405)}
    assert not any(str(tmp_path) in note for note in notes(read_directory(tmp_path, 1000)))
    json.loads(writer.path.read_bytes())


def test_a_bound_on_the_disk_holds(tmp_path):
    retention = Retention(limit_bytes=1 << 20)
    writer = RecordedWriter(tmp_path, ABOUT, retention)
    for first in range(0, 6000, EACH):
        writer.write(block(first))
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 1 << 20
        writer.thin()
    assert writer.path.stat().st_size <= 1 << 19
    iterations = shown(tmp_path)
    assert {SLOW, *range(0, 6000, 100), *range(5700, 6000)} <= iterations


def test_a_file_that_cannot_be_written_anew_is_read_again_when_it_has_grown(tmp_path, monkeypatch):
    writer, read = RecordedWriter(tmp_path, ABOUT, Retention(last=1, every=0)), []
    walk = writer._walk
    monkeypatch.setattr(writer, "_walk", lambda **kw: read.append(1) or walk(**kw))
    with monkeypatch.context() as patch:
        patch.setattr(recorded_file, "new_successor", _full)
        for first in range(0, 200, EACH):
            writer.write(block(first))
            with contextlib.suppress(OSError):
                writer.thin()
    assert 2 < len(read) < 8  # as often as it has doubled
    writer.thin(last=True)
    assert shown(tmp_path) == {SLOW, SLOW + 1, 199}


def test_a_file_that_reached_its_limit_is_thinned_when_the_disk_has_room(tmp_path, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    writer = RecordedWriter(tmp_path, ABOUT, Retention(last=1, limit_bytes=60_000))
    with monkeypatch.context() as patch:
        patch.setattr(recorded_file, "new_successor", _full)
        for first in range(0, 400, EACH):
            with contextlib.suppress(OSError):
                writer.write(block(first))
            with contextlib.suppress(OSError):
                writer.thin()
    with pytest.raises(OSError, match="its limit is reached"):
        writer.write(block(400))
    writer.thin()
    assert writer.path.stat().st_size > 45_000
    now_s[0] += 60
    writer.thin()
    assert writer.path.stat().st_size < 15_000
    writer.write(block(400))


def test_a_file_that_cannot_be_begun_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setattr("os.pwrite", _full)
    with pytest.raises(ArtifactError, match="cannot write: No space"):
        RecordedWriter(tmp_path, ABOUT)
    assert [*tmp_path.iterdir()] == []


def test_what_was_under_way_is_known_when_it_is_over(tmp_path):
    """A device was busy with two collectives when they were written first."""
    writer = RecordedWriter(tmp_path, ABOUT)
    first = block(0)
    writer.write(first)
    done = [(*one[:4], one[3] + 5 * MS, 4 * MS) for one in first.launches[-2:]]
    writer.write(Block(written_ns=first.written_ns, calls=(CALL,), launches=tuple(done)))
    entries = RecordedRank.load(writer.path).flight_recorder["entries"]
    assert len(entries) == EACH * BUCKETS
    assert [one["duration_ms"] for one in entries[-3:]] == [None, 4.0, 4.0]
