"""The page of a benchmark: whole, offline, escaped, and with the numbers of the benchmark."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from syncopate.errors import SyncopateError
from syncopate.reports.bench import algorithm_text, topology_line
from syncopate.reports.pages import page
from syncopate.reports.pages.bench import bench_page
from tests import browser
from tests.unit import examples

pytest.importorskip("jinja2", reason="the extra html is not installed")


def _data(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found.group(1))


@pytest.fixture(scope="module")
def text():
    metadata = {"torch": "2.13", "command": "syncopate bench </script> & more"}
    benchmark = structs.replace(examples.benchmark(), metadata=metadata)
    return bench_page(benchmark)


def test_what_a_terminal_would_obey_is_shown_in_the_text_and_in_the_data(monkeypatch):
    benchmark = examples.benchmark()
    evil = structs.replace(benchmark, metadata={"command": "run\x1b[2J\x07\r\u202e"})
    text = bench_page(evil)
    assert not set(text) & set("\x1b\x00\x07\r\u202e")
    assert r"run\x1b[2J\x07\r\u202e" in text
    monkeypatch.setattr(page, "_read", lambda name: "{{ name }}<script>{{ data }}</script>")
    data = {"a\x1b": ["b\x07", ("c\u202e", 1), None]}
    shown = page.render_page("any.html", data, name="d\u202e<")
    told, _, script = shown.partition("<script>")
    assert told == r"d\u202e&lt;"
    shown_data = json.loads(script.removesuffix("</script>"))
    assert shown_data == {r"a\x1b": [r"b\x07", [r"c\u202e", 1], None]}


def test_the_page_needs_nothing_from_elsewhere(text):
    assert len(text) < 100_000
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://", text)


@pytest.mark.parametrize(
    "part",
    [
        "all_reduce",
        "4 ranks on 2 hosts, 2 on each",
        "4 calls after 5 to warm up",
        "separated by barriers",
        "3 wrong elements",
        "syncopate bench &lt;/script&gt; &amp; more",
        "<dt>torch</dt><dd>2.13</dd>",
        "2 of 2 sizes",
        "2.00x to 2.00x its speed",
    ],
)
def test_what_was_measured_and_how_is_said(text, part):
    assert part in text, part


def test_every_contender_has_its_line_and_its_band(text):
    data = _data(text)
    assert data["sizes"] == [1024, 1 << 20]
    assert data["labels"] == ["1.0 KiB", "1.0 MiB"]
    assert data["factor"] == pytest.approx(1.5)
    ring, gloo = data["series"]
    assert (ring["name"], ring["peer"], ring["dash"]) == ("ring", False, "solid")
    assert (gloo["name"], gloo["peer"]) == ("gloo", True)
    assert gloo["dash"] != "solid"
    assert ring["in"]["p50"] == pytest.approx([0.09e-3, 1.8e-3])
    assert ring["out"]["p50"] == pytest.approx([0.18e-3, 3.6e-3])
    assert ring["in"]["most low"] == pytest.approx([0.02e-3, 0.4e-3])
    assert ring["in"]["most high"] == pytest.approx([0.2e-3, 4e-3])


@pytest.mark.skipif(bool(browser.missing()), reason=f"no {browser.missing()} on this machine")
def test_its_plots_are_drawn_and_say_what_is_under_the_pointer(text, tmp_path):
    path = tmp_path / "bench.html"
    path.write_text(text)
    with browser.browser(tmp_path / "profile") as window:
        for width, height in ((1240, 900), (390, 800)):
            window.open(path, width, height)
            assert window.run("return document.documentElement.scrollWidth") <= width
            assert window.run("return document.querySelectorAll('#time svg > g').length") == 3
            said = window.run(
                "const canvas = document.getElementById('time');"
                "const {right} = canvas.getBoundingClientRect();"
                "canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: right}));"
                "return canvas.querySelector('.hover').textContent"
            )
            assert "1,048,576 B" in said
            assert "ring 1.8 ms" in said
        assert window.complaints() == []


def test_what_ran_is_named_as_far_as_the_contender_does_not():
    point = examples.series("lp").points[0]
    ran = structs.replace(point, algorithm="lp", options={"blocks": 8, "order": (1, 0)})
    assert algorithm_text("lp", ran) == "blocks=8"
    assert algorithm_text("lp:blocks=8", ran) == ""
    assert algorithm_text("auto", ran) == "lp:blocks=8"
    assert algorithm_text("gloo", point) == ""
    levels = structs.replace(point, algorithm="blueconnect", options={"factors": (2, 2)})
    assert algorithm_text("blueconnect", levels) == "factors=2x2"


def test_hosts_are_counted():
    assert topology_line(("a",)) == "1 rank on 1 host"
    assert topology_line(("a", "b", "a")) == "3 ranks on 2 hosts, [2, 1] on them"


def test_missing_packages_are_named_with_how_to_install_them(monkeypatch):
    monkeypatch.setattr(page, "_NEEDED", "no_such_package")
    with pytest.raises(
        SyncopateError, match=r"an HTML page needs jinja2, .* install 'jinja2>=3.1'"
    ):
        page.require_html()
