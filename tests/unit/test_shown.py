"""Results that are looked at: one line, a short table, a notebook's table, a frame."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from msgspec import structs

from syncopate.errors import SyncopateError
from syncopate.planning.planner import make_plan
from syncopate.shown import PRINTED, Shown, markdown_table
from syncopate.simulation import simulate
from tests.unit import examples


class _Result(Shown):
    def __init__(self, count: int) -> None:
        self._count = count

    def summary(self):
        return "a <result>", "and a sentence"

    def rows(self):
        return [
            {
                "name": f"row {number}",
                "lasts_s": 0.5 * number,
                "nbytes": 2048,
                "link_bytes_per_s": 1.25e9,
                "share": 0.25,
                "ranks": (0, 1),
                "missing": None,
                "ratio": 1.0,
            }
            for number in range(self._count)
        ]


def test_values_are_written_by_the_units_in_their_names():
    title, sentence, heads, first, *_ = str(_Result(2)).splitlines()
    assert (title, sentence) == ("a <result>", "and a sentence")
    assert heads.split() == ["name", "lasts", "size", "link", "share", "ranks", "missing", "ratio"]
    cells = ("row 0", "0.0 us", "2.0 KiB", "10.00 Gbit/s", "25.0%", "0, 1", "-", "1")
    assert first.split() == " ".join(cells).split()
    assert repr(_Result(2)) == "<_Result: a <result>>"


def test_a_long_result_prints_its_first_rows_and_how_many_follow():
    lines = str(_Result(PRINTED + 3)).splitlines()
    assert len(lines) == 2 + 1 + PRINTED + 1
    assert lines[-1] == "and 3 more rows; to_pandas() has all"
    assert str(_Result(0)).splitlines() == ["a <result>", "and a sentence"]


def test_a_notebook_shows_a_table_and_no_markup_of_names():
    shown = _Result(1)._repr_html_()
    assert "<b>a &lt;result&gt;</b>" in shown
    assert "<td>row 0</td>" in shown
    assert shown.count("<tr>") == 2


def test_pandas_gets_plain_values_and_is_asked_for_where_it_is_missing(monkeypatch):
    result = _Result(3)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: rows))
    assert result.to_pandas() == result.rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SyncopateError, match="pip install 'pandas>=2', or from"):
        result.to_pandas()


def test_artefacts_are_a_line_and_a_table(monkeypatch):
    """A plan was 1,510 characters."""
    workload, cluster = examples.workload(), examples.steady_cluster()
    plan = make_plan(workload, cluster, "wfbp")
    timeline = simulate(workload, plan, cluster, iterations=2)
    for artefact in (workload, cluster, plan, timeline):
        assert len(repr(artefact)) < 200
        assert "\n" not in repr(artefact)
        assert len(str(artefact).splitlines()) > 1
        assert "<table>" in artefact._repr_html_()
    assert len(plan.rows()) == len(plan.buckets)
    assert [row["nbytes"] for row in workload.rows()] == [t.nbytes for t in workload.tensors]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: rows))
    spans = timeline.to_pandas()
    assert len(spans) == len(timeline.spans)
    assert spans[0]["end_s"] == timeline.spans[0].end_s
    (forward,) = [row for row in timeline.rows() if row["lane"] == "forward"]
    assert forward["mean_s"] == pytest.approx(2 * workload.forward_s)


def test_a_table_in_markdown_has_a_line_for_each_row_and_no_bars_in_its_cells():
    text = markdown_table(("a", "b"), [("x\ny", "1|2"), ("", "-")])
    assert text == "| a | b |\n| --- | --- |\n| x y | 1\\|2 |\n|  | - |\n"


def test_a_name_makes_no_line_of_its_own():
    work = structs.replace(examples.workload(), model="a\nerror: forged\x1b")
    assert repr(work).startswith(r"<Workload: a\nerror: forged\x1b")
    assert str(work).startswith(r"a\nerror: forged\x1b")
    assert r"a\nerror: forged\x1b" in work._repr_html_()
