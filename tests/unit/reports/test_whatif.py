"""The reports of a sweep: the terminal's and the page's figures are the sweep's."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from rich.console import Console

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.whatif import WhatIf
from syncopate.reports.pages.whatif import whatif_page
from syncopate.reports.whatif import rate, whatif_report
from tests import browser
from tests.unit import examples

WIDE, PHONE = (1400, 900), (390, 844)


@pytest.fixture(scope="module")
def swept() -> WhatIf:
    """Return a sweep of eight points with prices, whose model's name holds markup."""
    work = replace(examples.workload(), metadata={"batch": "32"}, model="three <b>layers</b>")
    prices = syncopate.Prices(epoch_samples=10**6, gpu_hour=2.0)
    return syncopate.whatif(
        work, Cluster.preset("10gbe", 8), nodes="2..16", bandwidth="1g,25g", prices=prices
    )


def _printed(found: WhatIf, width: int = 220) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(whatif_report(found))
    return console.export_text()


def test_every_point_change_and_answer_is_printed(swept):
    text = _printed(swept)
    for point in swept.points:
        link, share = point.setting.said("bandwidth"), f"{point.best.efficiency:.0%}"
        assert re.search(rf"{point.setting.nodes} +{link} .* {share} ", text)
        assert rate(point.epoch_cost) in text
    for change in swept.changes:
        assert change.words in text
        assert f"{1 + change.gain:.2f}x" in text
    flowing = " ".join(text.split())
    for said in (*swept.sentences, *swept.assumptions, swept.interval):
        assert said in flowing


def test_an_interrupted_sweep_says_so(swept):
    assert "interrupted" not in _printed(swept)
    assert "The sweep was interrupted" in _printed(replace(swept, complete=False))


def test_a_narrow_terminal_lists_the_points(swept):
    assert max(map(len, _printed(swept, 60).splitlines())) <= 60


class _Page(HTMLParser):
    """Collects tags, texts, and the polylines and polygons with their class."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.shapes: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if tag in ("polyline", "polygon"):
            self.shapes.append((str(found["class"]), str(found["points"])))

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def _points(shape: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, pair.split(","))) for pair in shape.split()]


@pytest.fixture(scope="module")
def page(swept) -> _Page:
    pytest.importorskip("jinja2", reason="the extra html is not installed")
    return _Page(whatif_page(swept))


def test_the_page_has_all_answers_and_no_markup_of_others(swept, page):
    assert all(said in page.texts for said in (*swept.sentences, *swept.assumptions))
    assert "layers" not in page.texts
    assert "script" not in page.tags


def test_curves_have_the_bound_above_and_the_interval_around(page):
    assert [kind for kind, _ in page.shapes] == ["band", "bound", "ddp", "best"] * 4
    for first in range(0, len(page.shapes), 4):
        band, bound, ddp, best = (_points(shape) for _, shape in page.shapes[first : first + 4])
        assert len(best) == len(ddp) == len(bound) == 4
        assert [x for x, _ in best] == pytest.approx([0, 100 / 3, 200 / 3, 100], abs=1e-3)
        for high, low, at, most in zip(band[:4], band[4:][::-1], best, bound, strict=True):
            assert high[0] == low[0] == at[0] == most[0]
            # y goes down the page.
            assert high[1] - 1e-3 <= at[1] <= low[1] + 1e-3
            assert most[1] <= at[1] + 1e-3


def test_efficiency_is_drawn_from_nothing_to_all(swept, page):
    shares = [point.best.efficiency for point in swept.points[::2]]
    drawn = [_points(shape) for kind, shape in page.shapes if kind == "best"][1]
    assert [100 - y for _, y in drawn] == pytest.approx([100 * one for one in shares], abs=0.01)


def test_a_notebook_shows_answers_and_points(swept):
    shown = _Page(swept._repr_html_())
    assert all(said in shown.texts for said in swept.sentences)
    assert shown.tags.count("tr") == 1 + len(swept.points)
    assert "layers" not in shown.texts


def test_a_single_point_has_a_page_without_curves():
    pytest.importorskip("jinja2", reason="the extra html is not installed")
    found = syncopate.whatif(examples.workload(), Cluster.preset("10gbe", 4))
    assert "polyline" not in _Page(whatif_page(found)).tags


@pytest.mark.parametrize(
    ("axis", "values", "shapes"),
    [("latency", "1us,1ms", 8), ("batch", [16, 64], 8), ("exchange", "allreduce,sharded", 0)],
)
def test_other_axes_are_drawn_where_they_are_numbers(axis, values, shapes):
    pytest.importorskip("jinja2", reason="the extra html is not installed")
    work = replace(examples.workload(), metadata={"batch": "32"})
    found = syncopate.whatif(work, Cluster.preset("10gbe", 4), **{axis: values})
    assert len(_Page(whatif_page(found)).shapes) == shapes


@pytest.mark.skipif(bool(browser.missing()), reason=f"no {browser.missing()} on this machine")
def test_it_fits_a_phone_and_a_desk_without_a_complaint(swept, tmp_path):
    pytest.importorskip("jinja2", reason="the extra html is not installed")
    path = tmp_path / "whatif.html"
    path.write_text(whatif_page(swept))
    with browser.browser(tmp_path / "profile") as window:
        for width, height in (WIDE, PHONE):
            for dark in (False, True):
                window.open(path, width, height, dark=dark)
                assert window.run("return document.documentElement.scrollWidth") <= width
                assert window.run(
                    "return [...document.querySelectorAll('polyline.best')]"
                    ".every(line => line.getBoundingClientRect().width > 100)"
                )
        assert window.complaints() == []
