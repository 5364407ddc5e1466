"""Damaged and odd runs: each gets one clear sentence, and what can be shown is shown."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import sys
import zlib
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

from syncopate.artifacts.timeline import Timeline
from syncopate.cli import main
from syncopate.tracing.blocks import MARKER
from syncopate.tracing.trace_file import TraceWriter, read_trace
from tests.unit.analysis.made import made
from tests.unit.analysis.written import written
from tests.unit.tracing.foreign.made import profile, write
from tests.unit.tracing.foreign.test_profiler import _iteration

needs_html = pytest.mark.skipif(not find_spec("jinja2"), reason="the extra html is not installed")

REPLAYED = {"replay": ("--bandwidth", "x2")}

COMMANDS = ("analyze", "explain", "compare", pytest.param("report", marks=needs_html))


@pytest.fixture
def run(monkeypatch, capfd):
    """Run a command on a directory or file; return exit code, standard output and error.

    What ``report`` writes counts as its standard output, without tags.
    """

    def command(name, path, *options):
        files = (path, path) if name == "compare" else (path,)
        options += ("-o", "-") if name == "report" else ()
        monkeypatch.setattr("sys.argv", ["syncopate", name, *map(str, (*files, *options))])
        code = main()
        told = capfd.readouterr()
        out = unescape(re.sub("<[^>]*>", " ", told.out)) if name == "report" else told.out
        return code, " ".join(out.split()), " ".join(told.err.split())

    return command


def profiled(directory):
    directory.mkdir()
    rows = [*_iteration(0), *_iteration(100)]
    write(directory, "trace", [profile(rank, rows) for rank in (0, 1)])
    return directory


def ranks(directory):
    return sorted(directory.glob("*.trace"))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_directory(run, tmp_path, command):
    code, out, err = run(command, tmp_path)
    assert (code, out) == (2, "")
    assert "holds no file of a rank (rank-0.trace and so on)" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_rank_is_missing(run, tmp_path, command):
    ranks(written(tmp_path / "a", made(4, 6)))[2].unlink()
    code, out, err = run(command, tmp_path / "a")
    assert code == 0
    assert out
    assert "no file of rank 2: 3 of 4 ranks are shown" in err
    if command in ("explain", "report"):
        assert "no explanation, because the evidence is thin" in out
        assert "nothing is recorded of ranks 2: record all ranks" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_several_runs_in_one_directory(run, tmp_path, command):
    written(tmp_path / "a", made(2, 6))
    written(tmp_path / "a", made(2, 6, lambda r, i: {"input_s": 3.0}), run="b", began_s=2.0)
    code, out, err = run(command, tmp_path / "a")
    assert code == 0
    assert "files of 2 runs; this is the one that began last" in err
    if command == "explain":
        assert "1. every rank waits for input before forward, or does something else" in out
        assert "between steps without it: 9.00 s, 3.00 s" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_without_its_first_line(run, tmp_path, command):
    path = ranks(written(tmp_path / "a", made(2, 6)))[1]
    path.write_bytes(path.read_bytes()[:40])
    code, out, err = run(command, tmp_path / "a")
    assert code == 0
    assert out
    assert "rank-1.trace: not a trace: its first line, which names the rank, is missing" in err
    assert "no file of rank 1: 1 of 2 ranks are shown" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_was_cut(run, tmp_path, command):
    """Rank 1 was killed while it wrote iteration 7; what all ranks did before stands."""
    change = {"forward_s": 6.0}
    written(tmp_path / "a", made(4, 8, lambda r, i: change if r == 1 else {}))
    path = ranks(tmp_path / "a")[1]
    path.write_bytes(path.read_bytes()[:-100])
    code, out, err = run(command, tmp_path / "a")
    assert code == 0
    assert "rank-1.trace: ends in the midst of a block" in err
    if command == "explain":
        assert "1. rank 1 computes longer than the others: 6.00 s of forward" in out
        assert "without it: 9.00 s, 4.00 s (31%) less" in out
        assert "iterations 0 to 6 are explained: others are not whole on all ranks" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_compressed_file_was_cut(run, tmp_path, command):
    path = ranks(written(tmp_path / "a", made(2, 6)))[1]
    path.write_bytes(gzip.compress(path.read_bytes())[:-100])
    code, out, err = run(command, tmp_path / "a")
    assert code == 0
    assert out
    assert "rank-1.trace: cannot read this trace: Compressed file ended before" in err
    assert "no file of rank 1: 1 of 2 ranks are shown" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_leads_to_itself(run, tmp_path, command):
    folder = written(tmp_path / "a", made(2, 6))
    for name in ("rank-2.trace", "rank-2.json"):
        (folder / name).symlink_to(folder / name)
    code, _, err = run(command, folder)
    assert code == 0
    assert "rank-2.trace: cannot read this trace: Too many levels of symbolic links" in err


@pytest.mark.parametrize("command", [*COMMANDS, "convert"])
def test_the_folder_is_a_link_to_itself(run, tmp_path, command):
    (tmp_path / "a").symlink_to(tmp_path / "a")
    code, out, err = run(command, tmp_path / "a")
    assert (code, out) == (2, "")
    assert "cannot be read: Too many levels of symbolic links" in err


@pytest.mark.parametrize("command", [*COMMANDS, "convert", "replay", "watch", "record"])
def test_a_file_may_not_be_looked_at(run, tmp_path, command):
    """Root may look at all; a name that is too long is refused in the same way."""
    path = tmp_path / ("a" * 300)
    code, out, err = run(command, path, *REPLAYED.get(command, ()))
    assert (code, out) == (2, "")
    assert ("must be a Python file" if command == "record" else "cannot be read: File name") in err


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are texts here")
@pytest.mark.parametrize("made_by", [lambda path: written(path, made(2, 6)), profiled])
@pytest.mark.parametrize("command", [*COMMANDS, "convert", ("convert", "--to", "perfetto")])
def test_the_name_of_the_folder_is_no_text(run, tmp_path, command, made_by):
    folder = made_by(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    command, *options = (command,) if isinstance(command, str) else command
    code, out, err = run(command, folder, *options)
    assert (code, "error" in err) == (0, False)
    assert r"\udcff" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_one_file_of_a_run_is_given(run, tmp_path, command):
    path = ranks(written(tmp_path / "a", made(2, 6)))[1]
    code, out, err = run(command, path)
    assert (code, out) == (2, "")
    assert "rank-1.trace: a part of a run; give the directory in which the files of all" in err


@pytest.mark.parametrize("by_s", [-60.0, 5.0])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_clock_that_jumped(run, tmp_path, command, by_s):
    """In the midst of its forward of iteration 5 the clock of rank 1 of three jumped."""
    change = {"input_s": 3.0}
    folder = written(tmp_path / "a", made(3, 8, lambda r, i: change if r == 1 else {}))
    path = ranks(folder)[1]
    file = read_trace(path)
    records = file.records.copy()
    behind = records["iteration"] >= 5
    begins_s = records["start_s"][behind].min()
    records["start_s"] += by_s * (records["start_s"] > begins_s)
    records["end_s"] += by_s * (records["end_s"] > begins_s)
    rewritten(path, file, records)
    code, out, err = run(command, folder)
    assert code == 0
    assert f"rank 1: its clock jumped in iteration 5, by about {by_s:.3f} s" in err
    assert "iterations 0 to 4 are shown" in err
    if by_s < 0:
        assert "left out, because they end before they begin: 1 of its events" in err
    if command == "explain":
        assert "1. rank 1 waits for input before forward, or does something else" in out
        assert "between steps without it: 9.00 s, 3.00 s" in out
    if command == "report":
        assert "iterations 0 to 4 are shown" in out


def test_of_rank_0s_clock_that_jumped_it_is_said_so(run, tmp_path):
    folder = written(tmp_path / "a", made(3, 8))
    path = ranks(folder)[0]
    file = read_trace(path)
    records = file.records.copy()
    for field in ("start_s", "end_s"):
        records[field] += 5.0 * (records["iteration"] >= 2)
    rewritten(path, file, records)
    err = run("analyze", folder)[2]
    assert "rank 0: its clock jumped in iteration 2, by about 5.000 s" in err
    assert "rank 1: its clock jumped" not in err
    assert "iterations 3 to 7 are shown" in err


def rewritten(path, file, records):
    """Write a file anew with other records."""
    path.unlink()
    writer = TraceWriter(path.parent, file.header)
    writer.write(records, list(file.notes))
    writer.close()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            b'"world_size":2',
            b'"world_size":10000000000',
            "world_size is 10000000000; it must be in",
        ),
        (b'"rank":1', b'"rank":7', "rank is 7; it must be in 0..1"),
        (b'{"kind"', b"[" * 60_000, "deeper than any file of this kind needs"),
    ],
    ids=["world_size", "rank", "deep"],
)
def test_a_first_line_that_makes_no_sense(run, tmp_path, old, new, complaint):
    """The first block, which repeats it, is not there."""
    folder = written(tmp_path / "a", made(2, 6))
    path = ranks(folder)[1]
    line, _, blocks = path.read_bytes().partition(b"\n")
    behind = blocks[blocks.index(MARKER, 1) :]
    path.write_bytes(line.replace(old, new, 1) + b"\n" + behind)
    code, out, err = run("analyze", folder)
    assert code == 0
    assert out
    assert complaint in err
    assert "no file of rank 1: 1 of 2 ranks are shown" in err


@pytest.mark.parametrize(
    ("kind", "payload", "complaint"),
    [
        (b"N", b'{"a":' + b"[" * 100_000, "a note cannot be read: maximum recursion depth"),
        (b"N", b"[]", "a note cannot be read: Expected `object`, got `array`"),
        (b"R", b"short", "its records have"),
    ],
    ids=["deep", "list", "part of a record"],
)
def test_a_block_that_makes_no_sense(run, tmp_path, kind, payload, complaint):
    """Its checksum is right, so it was not written by this program, or by another version."""
    folder = written(tmp_path / "a", made(2, 6))
    frame = struct.pack(
        "<4scIIQiiI", MARKER, kind, 99, len(payload), 0, -1, -1, zlib.crc32(payload)
    )
    with ranks(folder)[1].open("ab") as file:
        file.write(frame + struct.pack("<I", zlib.crc32(frame)) + payload)
    code, _, err = run("analyze", folder)
    assert code == 0
    assert f"rank-1.trace: damaged: {complaint}" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_no_iterations(run, tmp_path, command):
    folder = written(tmp_path / "a", made(2, 6))
    for path in ranks(folder):
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
    code, out, err = run(command, folder)
    assert (code, out) == (2, "")
    assert "no iteration was captured: a training ends one with the next forward" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_timeline_without_spans(run, tmp_path, command):
    empty = Timeline(name="none", source="measured", world_size=2, spans=())
    code, out, err = run(command, empty.save(tmp_path / "t.json"))
    assert (code, out) == (2, "")
    assert "at least one" in err


@pytest.mark.parametrize("end_s", [0.0, 1.0])
@pytest.mark.parametrize("command", [*COMMANDS, "replay"])
def test_all_iterations_are_at_one_moment(run, tmp_path, command, end_s):
    """Its times count from the begin of each span, or were rounded to seconds."""
    fields = json.loads(made(3, 9).to_json())
    for span in fields["spans"]:
        span["start_s"], span["end_s"] = 0.0, end_s
    (tmp_path / "t.json").write_text(json.dumps(fields))
    code, out, err = run(command, tmp_path / "t.json", *REPLAYED.get(command, ()))
    assert "Warning" not in err
    if command == "replay" and not end_s:
        assert (code, "the time of messages is 0.0" in err) == (2, True)
        return
    assert (code, err.replace(f"wrote {tmp_path}", "")) == (0, "")
    if command == "explain":
        assert "no explanation, because the evidence is thin" in out
        assert "iterations last no time by what is recorded" in out


def test_of_a_run_the_last_iterations_are_explained(run, tmp_path):
    """Only iteration 2 was slow on rank 1; of the last 5 none was."""
    change = {"backward_s": 14.0}
    folder = written(tmp_path / "a", made(2, 9, lambda r, i: change if i == 2 and r else {}))
    found = json.loads(run("explain", folder, "--json")[1])
    assert [(one["kind"], one["ranks"]) for one in found["causes"]][1] == ("pause", [1])
    found = json.loads(run("explain", folder, "--last", "5", "--json")[1])
    assert [one["kind"] for one in found["causes"]] == ["transfers"]
    assert found["iterations"] == 4
