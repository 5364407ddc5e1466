"""``syncopate validate``: published points at once, a lab where there is one, and Ctrl-C."""

from __future__ import annotations

import pytest

from syncopate.cli.common.ending import INTERRUPTED
from syncopate.lab import support
from syncopate.validation import validate as function
from syncopate.validation.point import GPU, LAB, Validation
from tests.unit.validation.made import point


def test_published_trainings_are_shown_and_written(run, tmp_path):
    code, out, err = run("validate --points 0 --page page.md")
    assert code == 0
    (row,) = (line for line in out.splitlines() if line.startswith("  GPUs, published"))
    assert row.split()[2:6] == ["27", "1.8%", "9.2%", "-16.1%"]
    assert "wrote validation.json and page.md" in err
    assert len(Validation.load(tmp_path / "validation.json").of(GPU)) == 27
    assert (tmp_path / "page.md").read_text().startswith("# How far predictions are off")


def test_a_page_on_standard_output_has_it_for_itself(run):
    code, out, err = run("validate --points 0 --page -")
    assert code == 0
    assert out.startswith("# How far predictions are off")
    assert "GPUs, published" in err


def test_json_on_standard_output_has_it_for_itself(run):
    code, out, err = run("validate --points 0 -o -")
    assert code == 0
    assert len(Validation.from_json(out).of(GPU)) == 27
    assert "GPUs, published" in err


def test_where_no_lab_can_be_made_it_says_why_and_shows_the_rest(run, monkeypatch):
    monkeypatch.setattr(support, "why_not", lambda: "a lab needs Linux")
    code, out, err = run("validate")
    assert code == 0
    assert "published trainings alone: a lab needs Linux" in err
    assert "GPUs, published" in out
    assert "emulated hosts" not in out


def test_whoever_stops_is_shown_what_was_done(run, monkeypatch, tmp_path):
    monkeypatch.setattr(support, "why_not", lambda: None)
    monkeypatch.setattr(function.support, "require", lambda: None)

    def interrupted(self: object, cells: object, known: Validation, progress: object) -> None:
        known.with_points([point(1.25, name="first")]).save(tmp_path / "validation.json")
        raise KeyboardInterrupt

    monkeypatch.setattr("syncopate.validation.session.Session.measure", interrupted)
    code, out, err = run("validate --points 2")
    assert code == INTERRUPTED
    (row,) = (line for line in out.splitlines() if line.startswith("  emulated hosts"))
    assert row.split()[2:6] == ["1", "20.0%", "20.0%", "-20.0%"]
    assert "stopped; the same command goes on from here" in err
    assert len(Validation.load(tmp_path / "validation.json").of(LAB)) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("validate --points 281", "points is 281; it must be 0 to 280"),
        ("validate --points 0 -o - --page -", "--page is '-'"),
        ("validate --points 0 -o workload.json", "expected a 'validation' artefact"),
    ],
)
def test_what_cannot_be_is_refused(run, monkeypatch, line, said):
    monkeypatch.setattr(support, "why_not", lambda: None)
    code, _, err = run(line)
    assert code == 2
    assert said in err
