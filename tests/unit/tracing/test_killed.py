"""Processes that are killed while they write, disks that are full, clocks that are set.

A child writes iterations of its own until a point in the code, and kills itself there: what it had
written before has to be there, and to be read without a word of damage to it.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from syncopate.tracing.foreign import read_directory
from syncopate.tracing.foreign.recording.recorded_file import RecordedWriter
from syncopate.tracing.recorder import Recorder
from syncopate.tracing.retention import Retention
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import TraceWriter, read_trace
from tests.children import run_script
from tests.unit.tracing.foreign.made import notes
from tests.unit.tracing.foreign.test_recorded_file import ABOUT, EACH, block
from tests.unit.tracing.test_trace_file import HEADER, PLAN, events

KEEP = Retention(last=40, every=10)
BLOCKS = 60
"""That a child would write; the files are thinned on the way."""


class Ring:
    """Appends to the file of a rank that `distribute` trains: a block of some iterations a time."""

    def __init__(self, folder: Path, keep: Retention | None = None) -> None:
        self.writer, self._recorder, self._told = TraceWriter(folder, HEADER, keep), Recorder(), 0

    def write(self, number: int) -> None:
        for iteration in range(number * EACH, (number + 1) * EACH):
            self._recorder.add(events(iteration))
        texts = {"texts": self._recorder.texts, "from": 0, "dropped": 0}
        told = [] if self._told else [PLAN, texts]
        self.writer.write(self._recorder.take(), told)
        self._told = 1
        self.writer.thin()


class Recorded:
    """The same of a rank of plain torch."""

    def __init__(self, folder: Path, keep: Retention | None = None) -> None:
        self.writer = RecordedWriter(folder, ABOUT, keep)

    def write(self, number: int) -> None:
        self.writer.write(block(number * EACH))
        self.writer.thin()


WRITERS = {"captured": Ring, "recorded": Recorded}


def iterations(kind: str, folder: Path) -> tuple[set[int], list[str]]:
    """Return the iterations of the file of a rank, and what is said of damage to it."""
    if kind == "captured":
        run = read_run(folder, last=1 << 30)
        return set(np.unique(run.timeline.columns.iteration).tolist()), list(run.remarks)
    timeline = read_directory(folder, 1 << 30)
    pushes = timeline.columns.take(timeline.columns.in_lanes("push"))
    return set(np.unique(pushes.iteration).tolist()), notes(timeline)


def child(kind: str, folder: str, point: str, at: int) -> None:
    """Write blocks, say each that is written, and be killed at a point.

    Args:
        kind: of writer.
        folder: where to write.
        point: ``"write"``, ``"thin"``: in the middle of a write, or of one in which the file is
            thinned; ``"before"``, ``"after"``: as the thinned file takes the other's place.
        at: which time.
    """
    seen, thinning = [0], [False]
    replace = Path.replace

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(here: bool) -> bool:
        seen[0] += here
        return here and seen[0] == at

    def replaced(self: Path, target: Path) -> Path:
        if point == "before" and counted(True):
            die()
        found = replace(self, target)
        if point == "after" and counted(True):
            die()
        return found

    def poured(pour):
        def half(*arguments):
            if counted(point == ("thin" if thinning[0] else "write")):
                data = arguments[1]
                pour(arguments[0], bytes(data[: len(data) // 2]), *arguments[2:])
                die()
            return pour(*arguments)

        return half

    Path.replace = replaced
    os.pwrite = poured(os.pwrite)
    written = WRITERS[kind](Path(folder), KEEP)
    mine = type(written.writer)

    def thinned(self, thin=mine.thin, **how):
        thinning[0] = True
        thin(self, **how)
        thinning[0] = False

    mine.thin = thinned
    if kind == "captured":

        def append(self, data):
            poured(lambda file, part: file.write(part))(self._file, data)
            self._nbytes += len(data)

        mine._append = append
    for number in range(BLOCKS):
        written.write(number)
        print(number, flush=True)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("point", "at"),
    [("write", 1), ("write", 17), ("thin", 1), ("thin", 2), ("thin", 4), ("before", 1),
     ("before", 2), ("after", 1), ("after", 2)],
)  # fmt: skip
def test_a_kill_costs_what_was_being_written_alone(tmp_path, kind, point, at):
    ended = run_script(
        f"from tests.unit.tracing.test_killed import child\n"
        f"child({kind!r}, {str(tmp_path)!r}, {point!r}, {at})"
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    acknowledged = [int(line) for line in ended.stdout.split()]
    newest = (acknowledged[-1] + 1) * EACH if acknowledged else 0
    if not newest:
        return
    found, said = iterations(kind, tmp_path)
    # What was written last is there, and of the rest what the retention says; the block that was
    # being written may count.
    assert set(range(max(newest + EACH - KEEP.last, 0), newest)) <= found
    assert set(range(0, newest, KEEP.every)) <= found
    assert max(found) < newest + EACH, "and no part of what was not"
    assert not [one for one in said if "block is left out" in one or "blocks are" in one]
    # The next one begins a file of its own, and is not kept from it by what lies about.
    again = WRITERS[kind](tmp_path, KEEP)
    for number in range(BLOCKS):
        again.write(number)
    assert again.writer.path.stem == "rank-0-2"


def full(kind: str, folder: str, nbytes: int) -> None:
    """Write until the file may grow no further, then with room again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written = WRITERS[kind](Path(folder))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    number = 0
    try:
        while number < BLOCKS:
            written.write(number)
            number += 1
    except OSError as error:
        print(number, error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    for later in range(number + 1, number + 6):
        written.write(later)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("nbytes", [9_000, 9_001, 9_500])
def test_a_full_disk_costs_what_came_while_it_was_full(tmp_path, kind, nbytes):
    ended = run_script(
        f"from tests.unit.tracing.test_killed import full\n"
        f"full({kind!r}, {str(tmp_path)!r}, {nbytes})"
    )
    assert ended.returncode == 0, ended.stderr
    number, _, reason = ended.stdout.strip().partition(" ")
    lost = int(number)
    assert (lost > 1, reason) == (True, "File too large")
    found, said = iterations(kind, tmp_path)
    wanted = set(range((lost + 6) * EACH)) - set(range(lost * EACH, (lost + 1) * EACH))
    # Of plain torch the iterations beside it may have had a part in it.
    beside = {lost * EACH - 1, (lost + 1) * EACH} if kind == "recorded" else set()
    assert found == wanted - beside
    assert not [one for one in said if "damaged" in one]


def test_the_wall_clock_may_be_set_where_a_monotonic_one_counts(tmp_path, monkeypatch):
    """What `distribute` captures is on the monotonic clock; the other says when it began."""
    monkeypatch.setattr("time.time", lambda: -1e6)
    writer = Ring(tmp_path)
    for number in range(4):
        monkeypatch.setattr("time.time", lambda number=number: 1e9 - 1e6 * number)
        writer.write(number)
    found = read_trace(writer.writer.path)
    assert np.all(np.diff(found.records["start_s"][found.records["lane"] == 0]) == 1.0)
    assert iterations("captured", tmp_path)[0] == set(range(4 * EACH))
