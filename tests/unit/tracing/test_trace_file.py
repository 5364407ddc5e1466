"""Trace files: what damage costs, what the reader says of it, and files of version 1."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from syncopate.errors import ArtifactError
from syncopate.tracing import trace_file
from syncopate.tracing.blocks import MARKER
from syncopate.tracing.recorder import Event, Recorder
from syncopate.tracing.retention import Retention
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import Header, TraceWriter, read_trace

ITERATIONS = 30
PLAN = {"plan": "f", "number": 0, "model": "mlp", "exchange": "allreduce"}
HEADER = Header(run="r", rank=0, world_size=1, host="h", clock="c", began_s=1.0, offset_s=0.0)


def events(iteration: int, duration_s: float = 1.0) -> list[Event]:
    """Return what a rank does in an iteration that begins at its own number."""
    at_s, half_s = float(iteration), duration_s / 2
    return [
        Event("forward", at_s, at_s + 0.1, iteration),
        Event("backward", at_s + 0.1, at_s + half_s, iteration),
        Event("push", at_s + 0.2, at_s + half_s, iteration, bucket=0, detail="ring"),
        Event("update", at_s + half_s, at_s + 0.9 * duration_s, iteration),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with a block of each iteration."""
    writer, recorder = TraceWriter(tmp_path, HEADER), Recorder()
    for iteration in range(ITERATIONS):
        recorder.add(events(iteration))
        texts = {"texts": recorder.texts, "from": 0, "dropped": 0}
        writer.write(recorder.take(), [] if iteration else [PLAN, texts])
    writer.close()
    return writer.path


def blocks(data: bytes) -> list[int]:
    """Return where blocks begin."""
    places, at = [], data.find(MARKER)
    while at >= 0:
        places.append(at)
        at = data.find(MARKER, at + 1)
    return places


def flipped(data: bytes, at: int, bit: int = 3) -> bytes:
    """Return data with one bit turned."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def shown(directory: Path) -> tuple[set[int], str]:
    """Return the iterations of a run, and what is said of it."""
    run = read_run(directory)
    return {span.iteration for span in run.timeline.spans}, "\n".join(run.remarks)


@pytest.mark.parametrize("offset", [60, 100], ids=["payload", "payload further on"])
def test_a_damaged_payload_costs_its_iteration(path: Path, tmp_path: Path, offset: int) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, blocks(data)[13] + offset))
    iterations, said = shown(tmp_path)
    assert iterations == set(range(ITERATIONS)) - {10}
    assert said == (f"{path}: damaged: 1 block is left out; 1 iteration is not whole for that: 10")


@pytest.mark.parametrize("offset", range(37))
def test_a_damaged_frame_costs_its_iteration_and_those_beside_it(
    path: Path, tmp_path: Path, offset: int
) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, blocks(data)[13] + offset))
    iterations, said = shown(tmp_path)
    assert iterations == set(range(ITERATIONS)) - {9, 10, 11}
    assert "damaged: 1 block is left out; 3 iterations are not whole for that: 9 to 11" in said
    assert len(read_trace(path).records) == 4 * (ITERATIONS - 1)


def test_every_bit_of_the_first_line_may_be_damaged(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for at in range(data.index(MARKER)):
        path.write_bytes(flipped(data, at))
        assert shown(tmp_path) == (set(range(ITERATIONS)), "")
        assert read_trace(path).header == HEADER


def test_wherever_a_bit_is_damaged_little_is_lost_and_never_in_silence(
    path: Path, tmp_path: Path
) -> None:
    data = path.read_bytes()
    for at in range(data.index(MARKER), len(data), 41):
        path.write_bytes(flipped(data, at))
        iterations, said = shown(tmp_path)
        assert len(iterations) >= ITERATIONS - 3
        assert "damaged: 1 block is left out" in said or "in the midst of a block" in said


def test_a_stretch_of_zeros_costs_what_it_covers(path: Path, tmp_path: Path) -> None:
    data, places = path.read_bytes(), blocks(path.read_bytes())
    begin, end = places[8] + 10, places[12] + 10
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    iterations, said = shown(tmp_path)
    assert iterations == set(range(ITERATIONS)) - set(range(4, 11))
    assert "damaged: 5 blocks are left out; 7 iterations are not whole for that: 4 to 10" in said


def test_a_cut_costs_the_last_block(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    iterations, said = shown(tmp_path)
    assert iterations == set(range(ITERATIONS - 1))
    assert "ends in the midst of a block" in said


def test_an_empty_file_is_said_to_be_empty(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="not a trace: it is empty"):
        read_trace(path)


def test_texts_whose_note_is_lost_are_empty_and_no_others(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, blocks(data)[2] + 45))
    run = read_run(tmp_path)
    assert {span.detail for span in run.timeline.spans} == {""}
    assert {span.iteration for span in run.timeline.spans} == set(range(ITERATIONS))


def test_a_file_of_version_1_is_read(path: Path, tmp_path: Path) -> None:
    """As it was written before blocks had markers: kind, length and checksum."""
    new = read_trace(path)
    header = {"kind": "trace", "schema_version": 1} | msgspec.to_builtins(HEADER)
    data = msgspec.json.encode(header) + b"\n"
    for kind, payload in (
        (b"N", msgspec.json.encode(PLAN)),
        (b"N", b'{"texts":["","ring"],"dropped":0}'),
        (b"R", new.records.tobytes()),
    ):
        data += struct.pack("<cII", kind, len(payload), zlib.crc32(payload)) + payload
    path.write_bytes(data + b"R\1")
    old = read_trace(path)
    assert (old.header, old.records.tobytes()) == (new.header, new.records.tobytes())
    assert old.blocks.missing_bytes == 2
    run = read_run(tmp_path)
    assert {span.detail for span in run.timeline.spans} == {"", "ring"}


def test_what_could_not_be_written_whole_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, recorder = TraceWriter(tmp_path, HEADER), Recorder()
    real = writer._file

    class Full:
        """A disk that takes ten bytes more."""

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def write(self, data: memoryview) -> int:
            if len(data) <= 10:
                raise OSError(28, "No space left on device")
            return real.write(data[: max(10, len(data) - 10)]) or 0

    recorder.add(events(0))
    writer.write(recorder.take(), [PLAN])
    before = writer.path.read_bytes()
    monkeypatch.setattr(writer, "_file", Full())
    recorder.add(events(1))
    with pytest.raises(OSError, match="No space"):
        writer.write(recorder.take(), [])
    assert writer.path.read_bytes() == before
    monkeypatch.setattr(writer, "_file", real)
    recorder.add(events(2))
    writer.write(recorder.take(), [])
    writer.close()
    iterations, said = shown(tmp_path)
    assert (iterations, said) == ({0, 2}, "")


class TestThinning:
    SLOW = frozenset({333, 700})

    def _written(self, tmp_path: Path, count: int, retention: Retention) -> TraceWriter:
        """Write iterations, a block each, some of which take three times as long."""
        writer, recorder, at_s = TraceWriter(tmp_path, HEADER, retention), Recorder(), 0.0
        writer.write(recorder.take(), [PLAN])
        largest = 0
        for iteration in range(count):
            duration_s = 3.0 if iteration in self.SLOW else 1.0
            shift = at_s - iteration
            mine = [
                event._replace(start_s=event.start_s + shift, end_s=event.end_s + shift)
                for event in events(iteration, duration_s)
            ]
            pause = Event("wait", at_s + 0.3, at_s + 0.4, -1, detail="checkpoint")
            recorder.add([*mine, pause] if iteration == 334 else mine)
            at_s += duration_s
            texts = {"texts": recorder.texts, "from": 0, "dropped": 0}
            links = {"links": {"host": "h", "carried": [iteration]}, "iteration": iteration}
            writer.write(recorder.take(), [texts, links] if iteration % 100 == 0 else [])
            writer.thin()
            sizes = [one.stat().st_size for one in tmp_path.iterdir()]
            largest = max(largest, sum(sizes))
        assert largest <= retention.limit_bytes
        return writer

    def test_the_last_every_kth_and_the_unusual_are_kept(self, tmp_path: Path) -> None:
        writer = self._written(tmp_path, 1000, Retention(last=60, every=40))
        writer.thin(last=True)
        run = read_run(tmp_path, last=1000)
        iterations = {span.iteration for span in run.timeline.spans}
        assert iterations == {*range(0, 1000, 40), *range(940, 1000), 333, 334, 700, 701}
        paused = [span.iteration for span in run.timeline.spans if span.lane == "wait"]
        assert paused == [334]
        links = [note["iteration"] for note in read_trace(writer.path).notes if "links" in note]
        assert links[-2:] == [800, 900] or links[-1] == 900
        assert [one.name for one in tmp_path.iterdir()] == ["rank-0.trace"]

    def test_a_bound_on_the_disk_holds_however_long_it_goes_on(self, tmp_path: Path) -> None:
        self._written(tmp_path, 6000, Retention(limit_bytes=1 << 20))
        run = read_run(tmp_path, last=6000)
        iterations = sorted({span.iteration for span in run.timeline.spans})
        assert {333, 700} <= set(iterations)
        assert set(range(0, 6000, 100)) <= set(iterations)
        assert iterations[-500:] == list(range(5500, 6000))

    def test_a_file_that_cannot_be_written_anew_stays_as_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retention = Retention(last=10, every=0)
        writer = self._written(tmp_path, 15, retention)
        before = writer.path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", _full)
            with pytest.raises(OSError, match="No space"):
                writer.thin(last=True)
        assert writer.path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["rank-0.trace"]
        recorder = Recorder()
        recorder.add(events(15))
        writer.write(recorder.take(), [])
        assert shown(tmp_path)[0] == set(range(16))

    def test_a_file_that_cannot_be_written_anew_is_read_again_when_it_has_grown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = TraceWriter(tmp_path, HEADER, Retention(last=1, every=0))
        recorder, read = Recorder(), []

        def opened(path: Path, *args: object, **kwargs: object) -> object:
            read.append(path)
            return real(path, *args, **kwargs)  # type: ignore[arg-type]

        real = Path.open
        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(trace_file, "new_successor", _full)
        for iteration in range(40):
            recorder.add(events(iteration))
            writer.write(recorder.take(), [])
            with contextlib.suppress(OSError):
                writer.thin()
        assert 2 < len(read) < 8  # as often as it has doubled
        monkeypatch.undo()
        writer.thin(last=True)
        assert shown(tmp_path)[0] == {39}

    def test_what_was_damaged_on_the_disk_is_left_out_when_it_is_thinned(
        self, tmp_path: Path
    ) -> None:
        writer = self._written(tmp_path, 35, Retention(last=20, every=10))
        data = writer.path.read_bytes()
        place = blocks(data)[20]
        descriptor = os.open(writer.path, os.O_WRONLY)
        os.pwrite(descriptor, bytes(60), place)
        os.close(descriptor)
        writer.thin(last=True)
        iterations, _ = shown(tmp_path)
        assert iterations == {0, 10, *range(14, 35)} - {16}


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")
