"""Tables: names, units and kinds of others; what is wrong with a row."""

from __future__ import annotations

import gzip
import sys
from types import ModuleType

import pytest

from syncopate.analysis.causes.explanation import explanation
from syncopate.cli import main
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.tracing.foreign import is_table, mapped, read_timeline
from tests.unit.tracing.foreign.made import notes, times_ms

HEADER = "rank,iteration,kind,start,end,bytes,group"


def _rows(iterations=5):
    """Two ranks; rank 1 computes 20 ms longer, and rank 0 waits for it."""
    for number in range(iterations):
        at = 0.08 * number
        for rank, late in ((0, 0.0), (1, 0.02)):
            yield f"{rank},{number},forward,{at:.3f},{at + 0.01:.3f},,"
            yield f"{rank},{number},backward,{at + 0.01:.3f},{at + 0.04 + late:.3f},,"
            yield f"{rank},{number},all_reduce,{at + 0.04 + late:.3f},{at + 0.07:.3f},4096,"
            yield f"{rank},{number},update,{at + 0.07:.3f},{at + 0.08:.3f},,"


def _write(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_table_is_a_timeline_that_is_explained(tmp_path):
    path = _write(tmp_path / "t.csv", HEADER, _rows())
    timeline = read_timeline([path])
    assert times_ms(timeline, "bucket 0", 1) == {0: (120, 150), 1: (140, 150)}
    assert {span.nbytes for span in timeline.spans if span.lane == "push"} == {4096}
    cause = explanation(timeline).causes[0]
    assert (cause.kind, cause.ranks, round(cause.gain_s, 3)) == ("compute", (1,), 0.02)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_other_names_and_units_are_mapped(tmp_path, unit):
    per_s = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    rows = []
    for row in _rows():
        rank, number, kind, start, end, nbytes, _ = row.split(",")
        begun, lasts = float(start) * per_s, (float(end) - float(start)) * per_s
        theirs = {"forward": "FP", "backward": "BP", "all_reduce": "SYNC", "update": "opt"}[kind]
        rows.append(f"gpu{rank};{number};{theirs};{begun:.9f};{lasts:.9f};{nbytes}")
    path = _write(tmp_path / "t.csv", "where;n;what;t0;took;volume", rows)
    columns = f"rank=where,iteration=n,kind=what,start=t0:{unit},duration=took:{unit},bytes=volume"
    told = mapped(columns, "all_reduce=sync")
    same = read_timeline([_write(tmp_path / "o.csv", HEADER, _rows())])
    assert not is_table(path)
    assert times_ms(read_timeline([path], told), "bucket 0", 3) == times_ms(same, "bucket 0", 3)


def test_names_that_are_usual_need_no_mapping(tmp_path):
    header = "Worker\tstep\top\tstart_us\tdur_us\tsize\tpg"
    rows = [
        "0\t3\tfwd\t5\t10\t\t",
        "0\t3\tncclDevKernel_AllReduce_Sum_f32_RING_LL(x)\t20\t5\t8\tdp",
    ]
    rows += ["1\t3\tdataloader\t0\t5\t\t", "1\t3\tAllReduce\t22\t3\t8\tdp", "1\t3\tidle\t9\t1\t\t"]
    path = tmp_path / "t.tsv.gz"
    path.write_bytes(gzip.compress("\n".join([header, *rows]).encode("utf-8-sig")))
    timeline = read_timeline([path])
    assert times_ms(timeline, "forward", 3) == {0: (0.005, 0.015)}
    assert times_ms(timeline, "bucket 0", 3) == {0: (0.02, 0.025), 1: (0.022, 0.025)}
    assert {(s.lane, s.name) for s in timeline.spans if s.rank == 1 and s.lane == "wait"} == {
        ("wait", "input"),
        ("wait", "wait"),
    }
    assert [(group.name, group.ranks) for group in timeline.groups] == [("dp", (0, 1))]


def test_groups_are_those_that_have_rows_or_that_are_listed(tmp_path):
    rows = ['0,0,all_reduce,0,1,4,"[0, 1, 6]"', '1,0,all_reduce,0,1,4,"[0, 1, 6]"']
    rows += ["0,0,send,2,3,4,pipe", "1,0,recv,2,3,4,pipe"]
    timeline = read_timeline([_write(tmp_path / "t.csv", HEADER, rows)])
    assert {group.name: group.ranks for group in timeline.groups} == {
        "[0, 1, 6]": (0, 1, 6),
        "pipe": (0, 1),
    }
    assert timeline.world_size == 7
    assert notes(timeline)[-1].startswith("ranks 2 to 6 have no file")


def test_steps_tell_iterations_where_no_column_does(tmp_path):
    rows = [",".join(row.split(",")[:1] + row.split(",")[2:]) for row in _rows(3)]
    path = _write(tmp_path / "t.csv", "rank,kind,start,end,bytes,group", rows)
    timeline = read_timeline([path])
    assert {span.iteration for span in timeline.spans} == {0, 1, 2}
    assert times_ms(timeline, "forward", 2)[0] == (160, 170)


def test_rows_may_stand_in_several_files_and_end_before_they_begin(tmp_path):
    rows = list(_rows(3))
    halves = [[r for r in rows if r.startswith(rank)] for rank in "01"]
    halves[1].append("1,2,update,0.25,0.24,,")
    paths = [_write(tmp_path / f"r{n}.csv", HEADER, half) for n, half in enumerate(halves)]
    timeline = read_timeline(paths)
    assert {span.rank for span in timeline.spans} == {0, 1}
    assert "1 rows end before they begin, and count as 0" in notes(timeline)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("0,0,forward,zero,1,,", "row 3, column start: 'zero' is not a time"),
        ("0,0,forward,nan,1,,", "row 3, column start: 'nan' is not a time"),
        ("x,0,forward,0,1,,", "row 3, column rank: 'x' is not a rank"),
        ("-1,0,forward,0,1,,", "row 3, column rank: '-1' is not a rank"),
        ("0,one,forward,0,1,,", "row 3, column iteration: 'one' is not a number"),
        ("0,0,frobnicate,0,1,,", "'frobnicate' is no kind that is known; map it"),
        ("0,0,forward,0", "row 3.*: it has 4 columns, which are too few"),
        ("0,0,all_reduce,0,1,many,", "row 3, column bytes: 'many' is not a number"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(tmp_path, row, complaint):
    path = _write(tmp_path / "t.csv", HEADER, ["0,0,forward,0,1,,", row])
    with pytest.raises(ArtifactError, match=complaint):
        read_timeline([path])


def test_a_table_without_its_columns_is_refused(tmp_path):
    path = _write(tmp_path / "t.csv", "a,b,start", ["1,2,3"])
    with pytest.raises(ArtifactError, match="none is known to be rank, kind, end; say which with"):
        read_timeline([path])
    with pytest.raises(ArtifactError, match="it has no column 'c'; it has a, b, start"):
        read_timeline([path], mapped("rank=c"))
    with pytest.raises(ArtifactError, match="it has no rows"):
        read_timeline([_write(tmp_path / "e.csv", HEADER, [])])
    with pytest.raises(UnknownNameError, match="unknown column 'when'"):
        mapped("when=a")
    with pytest.raises(InvalidValueError, match="pairs such as rank=gpu"):
        mapped("rank")


def test_parquet_is_read_with_pyarrow_alone(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and so on")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ArtifactError, match=r"reading Parquet needs pyarrow, which is not installed: .*pyarrow>=15"
    ):
        read_timeline([path])

    class Table:
        def to_pydict(self):
            rows = [row.split(",") for row in _rows(2)]
            found = dict(zip(HEADER.split(","), map(list, zip(*rows, strict=True)), strict=True))
            return found | {"start": [float(one) for one in found["start"]]}

    arrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    arrow.parquet, parquet.read_table = parquet, lambda file: Table()
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    same = read_timeline([_write(tmp_path / "t.csv", HEADER, _rows(2))])
    assert times_ms(read_timeline([path]), "bucket 0", 1) == times_ms(same, "bucket 0", 1)


@pytest.mark.parametrize("command", ["analyze", "explain", "convert"])
def test_commands_read_tables_and_mappings(tmp_path, monkeypatch, capfd, command):
    rows = [row.replace("all_reduce", "SYNC") for row in _rows()]
    path = _write(tmp_path / "t.csv", HEADER.replace("rank", "where"), rows)
    given = [command, str(path), "--columns", "rank=where", "--kinds", "all_reduce=SYNC"]
    monkeypatch.setattr("sys.argv", ["syncopate", *given])
    assert main() == 0
    assert "bucket 0" in (told := capfd.readouterr()).out or "rank 1" in told.out


def test_a_log_with_a_progress_bar_is_no_table(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("epoch 0: 10%\repoch 0: 20%\r" * 9 + "\n")
    assert not is_table(path)


def test_lines_may_end_as_on_old_machines(tmp_path):
    path, old = tmp_path / "t.csv", tmp_path / "o.csv"
    _write(path, HEADER, _rows())
    old.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert is_table(old)
    assert read_timeline([old]).spans == read_timeline([path]).spans


def test_a_quote_that_never_ends_is_said_with_its_line(tmp_path):
    rows = [*_rows(), '0,9,"forward,0.9,0.91,,', *_rows(700)]
    path = _write(tmp_path / "t.csv", HEADER, rows)
    with pytest.raises(ArtifactError, match=r"at line \d+: damaged: field larger than"):
        read_timeline([path])


@pytest.mark.parametrize("number", ["1e999999", "-1e31", "inf", "nan"])
@pytest.mark.parametrize("column", ["iteration", "start", "bytes"])
def test_a_number_beyond_all_others_is_none(tmp_path, column, number):
    row = dict(zip(HEADER.split(","), ["0", "1", "push", "0.1", "0.2", "5", ""], strict=True))
    path = _write(
        tmp_path / "t.csv", HEADER, [*_rows(), ",".join((row | {column: number}).values())]
    )
    with pytest.raises(ArtifactError, match=rf"column {column}: '{number}' is not a"):
        read_timeline([path])
