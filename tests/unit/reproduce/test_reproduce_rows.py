"""Rows of the papers' figures: differences, tables, and the page that they are written to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import papers
from figures.rows import Drawn, Figure, Given, Paper, markdown, show
from syncopate.errors import ArtifactError


class TestFigure:
    def test_both_differences_are_to_the_paper(self) -> None:
        one = Figure("Fig. 1", "what", 2.0, simulated=1.9, measured=3.0, form="{:.1f} ms")
        assert one.cells == ("Fig. 1", "what", "2.0 ms", "1.9 ms", "3.0 ms", "-5.0%, +50.0%", "")
        assert one.as_json()["measured_difference"] == pytest.approx(0.5)

    def test_points_are_subtracted(self) -> None:
        one = Figure("T", "w", -0.5, measured=-1.25, form="{:+.2f}", points=True)
        assert one.cells[2:6] == ("-0.50", "-", "-1.25", "-0.75 points")

    @pytest.mark.parametrize(("printed", "shown"), [(None, "-"), ("a jump", "a jump")])
    def test_without_a_number_there_is_no_difference(self, printed: str | None, shown: str) -> None:
        one = Figure("T", "w", printed, simulated=2.0)
        assert one.cells[2:6] == (shown, "2.00x", "-", "-")
        assert one.as_json()["simulated_difference"] is None

    def test_nothing_has_no_sign(self) -> None:
        assert Figure("T", "w", 1.0, simulated=1 - 1e-9).cells[5] == "+0.0%"
        assert Figure("T", "w", 0.0, simulated=1.0).cells[5] == "-"
        assert Figure("T", "w", 1.0, simulated=1 - 1e-9, points=True).cells[5] == "+0.00 points"


PAPER = Paper(
    "one",
    "One",
    (Given("α", "5 us", "assumed"),),
    (Figure("Fig. 1", "a | b", 1.0, simulated=2.0),),
    (Drawn("A curve", ("p", "ms"), (("2", "3.0"),)),),
)


def test_a_paper_in_markdown() -> None:
    text = markdown(PAPER)
    assert "| α | 5 us | assumed |\n" in text
    assert "| Fig. 1 | a \\| b | 1.00x | 2.00x | - | +100.0% |  |\n" in text
    assert text.endswith("A curve:\n\n| p | ms |\n| --- | --- |\n| 2 | 3.0 |\n")


def test_a_paper_on_a_terminal() -> None:
    out = io.StringIO()
    show([PAPER], Console(file=out, width=150))
    for said in ("One: what goes in", "One: its figures", "+100.0%", "A curve"):
        assert said in out.getvalue()


MARKED = (
    "before\n<!-- figures of one: written by make reproduce -->\nold\n<!-- end of figures -->\n"
)


class TestPage:
    def test_only_what_is_between_the_marks_is_new(self) -> None:
        found = papers.renewed(MARKED + "after\n", {"one": "a \\1 table\n"})
        assert found == MARKED.replace("old\n", "\na \\1 table\n\n") + "after\n"
        assert papers.renewed(found, {"one": "a \\1 table\n"}) == found

    @pytest.mark.parametrize(("page", "times"), [("no marks\n", 0), (MARKED * 2, 2)])
    def test_marks_that_are_not_there_once_are_an_error(self, page: str, times: int) -> None:
        with pytest.raises(ArtifactError, match=f"'<!-- figures of one.* {times} times, not once"):
            papers.renewed(page, {"one": "text"})

    def test_every_paper_has_its_marks_in_the_page(self) -> None:
        page = papers.PAGE.read_text()
        regions = dict.fromkeys([*papers.PAPERS, papers.BEYOND], "new")
        assert papers.renewed(page, regions).count("\nnew\n") == len(regions)

    @pytest.mark.parametrize("name", papers.PAPERS)
    def test_the_page_is_current(self, name: str) -> None:
        page = papers.PAGE.read_text()
        text = markdown(papers.PAPERS[name]())
        assert papers.renewed(page, {name: text}) == page, "run `make reproduce`, commit the page"


class TestCommand:
    @pytest.fixture
    def page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A page of its own, with one paper and nothing past it."""
        path = tmp_path / "page.md"
        beyond = MARKED.replace("of one:", "of beyond:")
        path.write_text(MARKED + beyond)
        monkeypatch.setattr(papers, "PAGE", path)
        monkeypatch.setattr(papers, "PAPERS", {"one": lambda *, quick: PAPER})
        past = Drawn("Past", ("paper",), (("One",),))
        monkeypatch.setattr(papers.beyond, "beyond", lambda *, quick: past)
        return path

    def test_writes_the_page(self, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert papers.main([]) == 0
        assert "+100.0%" in page.read_text()
        assert "Past:\n\n| paper |" in page.read_text()
        assert "wrote the tables" in " ".join(capsys.readouterr().out.split())

    @pytest.mark.parametrize("words", [["--quick"], ["--paper", "one"], ["--paper", "beyond"]])
    def test_a_part_leaves_the_page(
        self, page: Path, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = page.read_text()
        assert papers.main(words) == 0
        assert page.read_text() == before
        assert ("One" in capsys.readouterr().out) or words[-1] == "beyond"

    def test_json(self, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert papers.main(["--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        (paper,) = report["papers"]
        assert paper["figures"][0]["simulated_difference"] == pytest.approx(1.0)
        assert paper["given"] == [{"what": "α", "value": "5 us", "source": "assumed"}]
        assert report["beyond"]["title"] == "Past"
        assert "old" in page.read_text()

    def test_a_page_without_marks_is_one_error(
        self, page: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page.write_text("nothing\n")
        assert papers.main([]) == 1
        assert "0 times, not once" in capsys.readouterr().err
        assert page.read_text() == "nothing\n"
