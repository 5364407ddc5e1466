"""``syncopate analyze``: timelines and DLC traces, in tables and as JSON."""

from __future__ import annotations

import json

import pytest

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.cli import main
from tests.unit.tracing.foreign.made import entry, recorded, write
from tests.unit.tracing.test_dlc import figure_8, written


@pytest.fixture
def trace(tmp_path):
    return written(tmp_path, figure_8())


@pytest.fixture
def analyze(monkeypatch, capfd):
    """Run the command; return exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["syncopate", "analyze", *map(str, arguments)])
        code = main()
        told = capfd.readouterr()
        return code, told.out, told.err

    return run


def test_the_papers_trace_has_its_bytes_and_phases(trace, analyze):
    code, out, err = analyze(trace, "--json")
    assert code == 0
    found = json.loads(out)
    # SketchDLC, Table 5, LeNet-5: 1.72 MB of gradients and weights, 0.00015 and 0.00022 MB beside.
    assert found["bytes_per_iteration"]["w0"] == {
        "push_sent": 1724584,
        "push_received": 152,
        "pull_sent": 224,
        "pull_received": 1724608,
    }
    (phase,) = found["phases"]
    # From its records: 745385 to 812819, to 819475, and to 836906 microseconds.
    assert phase["computation_s"] == pytest.approx((819475 - 745385) * 1e-6, abs=1e-9)
    assert phase["communication_s"] == pytest.approx((836906 - 812819) * 1e-6, abs=1e-9)
    assert phase["overlapped_s"] == pytest.approx((819475 - 812819) * 1e-6, abs=1e-9)
    waits = [one for one in found["overheads"] if one["kind"] == "wait"]
    assert waits[0]["mean"] == pytest.approx((836906 - 824158) * 1e-6, abs=1e-9)
    assert "id 16 stands twice" in err


def test_tables_are_printed_and_repairs_said(trace, analyze):
    code, out, err = analyze(trace, "--repair")
    assert code == 0
    assert "7.3%" in out
    assert "1.6 MiB" in out
    assert err.count("; mended") == 4


def test_a_damaged_line_is_a_note(trace, analyze):
    trace.write_text(trace.read_text().replace("\t1600033\t", "\tmany\t", 1))
    code, _, err = analyze(trace)
    assert code == 0
    assert f"{trace}:51:8: length is 'many', not an integer" in err


def test_a_timeline_is_analysed(tmp_path, analyze):
    spans = (
        Span(name="f", lane="forward", rank=0, start_s=0.0, end_s=2.0),
        Span(name="p", lane="push", rank=0, start_s=1.0, end_s=4.0),
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    path = timeline.save(tmp_path / "t.json")
    found = json.loads(analyze(path, "--json")[1])
    (phase,) = found["phases"]
    assert phase["overlapped_s"] == 1.0
    (exposure,) = found["exposures"]
    assert (exposure["waiting_s"], exposure["transferring_s"]) == (0.0, 2.0)
    assert found["critical_path"][-1]["kind"] == "forward"
    assert "33% hidden" in analyze(path)[1]


def test_files_of_ranks_are_known_by_their_content(tmp_path, analyze):
    ranks = [recorded(rank, [entry(1, 1 + 4 * rank, 5)], [(9, 10)]) for rank in (0, 1)]
    paths = [path.rename(path.with_suffix("")) for path in write(tmp_path, "rank-", ranks)]
    code, out, err = analyze(*paths, "--json")
    assert code == 0
    # Rank 0 comes 4 ms before rank 1, and both step 4 ms after that.
    assert [round(phase["communication_s"], 9) for phase in json.loads(out)["phases"]] == [
        0.008,
        0.004,
    ]
    assert err.count("note: ") == 2


def test_what_cannot_be_analysed_is_refused(tmp_path, trace, analyze):
    timeline = Timeline(name="t", source="measured", world_size=1, spans=())
    code, _, err = analyze(timeline.save(tmp_path / "t.json"), trace)
    assert code == 2
    assert "DLC traces are analysed by themselves" in err
    other = tmp_path / "other.txt"
    other.write_text("nothing\n")
    code, _, err = analyze(other)
    assert code == 2
    assert "not a DLC trace" in err
