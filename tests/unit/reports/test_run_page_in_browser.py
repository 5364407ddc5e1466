"""The page of a run in Chromium: drawn without a complaint, zoomed, and fit for a phone."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.reports.pages.evidence import Evidence
from syncopate.reports.pages.run import run_page
from tests import browser
from tests.unit.analysis.made import made

pytest.importorskip("jinja2", reason="the extra html is not installed")
pytestmark = pytest.mark.skipif(
    bool(browser.missing()), reason=f"no {browser.missing()} on this machine"
)

PATIENCE_S = 30.0
WIDE, PHONE = (1400, 900), (390, 844)

COLOURS = """
const canvas = document.querySelector("#timeline canvas");
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
const found = new Set();
for (let i = 0; i < pixels.length; i += 4) {
  found.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
}
return [...found];
"""
CENTRE = """
const box = document.getElementById("timeline");
box.scrollIntoView({ block: "center" });
const at = box.getBoundingClientRect();
return [Math.round(at.left + at.width / 2), Math.round(at.top + at.height / 2)];
"""
WINDOW = "const d = document.getElementById('timeline').dataset; return [+d.from, +d.to];"
DRAWN = "return +document.getElementById('timeline').dataset.drawn"
TOLD = "const t = document.getElementById('tip'); return t.hidden ? '' : t.innerText"
SETTLED = """
const done = arguments[0];
setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))), 300);
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the path of a page of four ranks, whose tensors have names that hold markup."""
    timeline = made(4, 6, lambda r, i: {"forward_s": 6.0} if r == 1 else {})
    evil = "<img src=x onerror=alert(1)></script>"
    spans = tuple(replace(s, name=evil + s.name) if s.nbytes else s for s in timeline.spans)
    return _written(replace(timeline, spans=spans), tmp_path_factory.mktemp("page") / "run.html")


def _written(timeline, path, *, explained=True):
    found = explanation(timeline) if explained else None
    path.write_text(run_page(Evidence(timeline, found)))
    return path


def _becomes(window, script, expected):
    """Wait until a script returns this: a page on a busy machine draws when it can."""
    until_s = time.monotonic() + PATIENCE_S
    while (found := window.run(script)) != expected and time.monotonic() < until_s:
        time.sleep(0.05)
    assert found == expected


def _press(window, name):
    window.run(f"document.querySelector('[data-act={name}]').click()")
    window.later(SETTLED)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_it_is_drawn_without_a_complaint(window, page, size, dark):
    window.open(page, *size, dark=dark)
    window.later(SETTLED)
    assert window.complaints() == []
    # Four ranks have five spans in an iteration; neighbours reach into the view.
    assert window.run(DRAWN) >= 20
    wanted = {"forward": 0x69BDF2 if dark else 0x4AA3DF, "push": 0xF0AD3C if dark else 0xE08E0B}
    assert set(wanted.values()) <= set(window.run(COLOURS))
    # Nothing is wider than the window.
    _becomes(window, "return document.documentElement.scrollWidth", size[0])


def test_everything_shows_every_span(window, page):
    window.open(page, *WIDE)
    _press(window, "all")
    _becomes(window, DRAWN, 4 * 6 * 5)
    _press(window, "typical")
    assert window.run(DRAWN) < 4 * 6 * 5


def test_the_wheel_zooms_where_the_pointer_is(window, page):
    window.open(page, *WIDE)
    x, y = window.run(CENTRE)
    window.later(SETTLED)
    before = window.run(WINDOW)
    window.wheel(x, y, -240)
    window.later(SETTLED)
    nearer = window.run(WINDOW)
    assert nearer[1] - nearer[0] < 0.7 * (before[1] - before[0])
    assert before[0] < nearer[0] < nearer[1] < before[1]
    window.wheel(x, y, 240)
    window.later(SETTLED)
    farther = window.run(WINDOW)
    assert farther[1] - farther[0] == pytest.approx(before[1] - before[0], rel=1e-6)


def test_a_drag_pans(window, page):
    window.open(page, *WIDE)
    x, y = window.run(CENTRE)
    before = window.run(WINDOW)
    window.drag(x, y, x - 200, y)
    window.later(SETTLED)
    after = window.run(WINDOW)
    assert after[0] > before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0], rel=1e-6)


def test_the_keyboard_pans_and_zooms_and_goes_from_span_to_span(window, page):
    window.open(page, *WIDE)
    window.run("document.getElementById('timeline').focus()")
    begin = window.run(WINDOW)
    window.press("+")
    window.later(SETTLED)
    nearer = window.run(WINDOW)
    assert nearer[1] - nearer[0] == pytest.approx(0.7 * (begin[1] - begin[0]), rel=1e-6)
    window.press("\ue014")  # right
    window.later(SETTLED)
    assert window.run(WINDOW)[0] > nearer[0]
    step = "document.getElementById('timeline').dispatchEvent(new KeyboardEvent('keydown', "
    window.run(step + "{ key: 'ArrowRight', shiftKey: true }))")
    told = window.run(
        "const t = document.getElementById('tip'); return t.hidden ? '' : t.innerText"
    )
    assert "rank 0, iteration" in told


SET = """
const box = document.querySelector(`#find [name=${arguments[0]}]`);
box.value = arguments[1];
box.dispatchEvent(new Event("input"));
"""
STATE = "return { ...document.getElementById('timeline').dataset }"
FOUND = "return document.getElementById('found').textContent"


def test_a_text_is_found_and_gone_to_from_hit_to_hit(window, page):
    window.open(page, *WIDE)
    window.run("document.getElementById('timeline').focus()")
    window.press("/")
    _becomes(window, "return document.activeElement.name", "text")
    for letter in "BUCKET 1":
        window.press(letter)
    # Four ranks and six iterations have the second of two buckets.
    _becomes(window, FOUND, "24 found")
    assert window.run(STATE)["hits"] == "24"
    window.press("\ue007")  # Enter
    _becomes(window, FOUND, "1 of 24")
    assert "bucket 1" in window.run(TOLD)
    first = window.run(STATE)["chosen"]
    window.press("\ue007")
    second = window.run(STATE)["chosen"]
    window.run(SHIFTED_ENTER)
    _becomes(window, FOUND, "1 of 24")
    assert window.run(STATE)["chosen"] == first
    window.run(SHIFTED_ENTER)
    _becomes(window, FOUND, "24 of 24")
    window.run("document.getElementById('timeline').focus()")
    window.press("n")
    window.press("n")
    assert window.run(STATE)["chosen"] == second != first
    assert window.complaints() == []


SHIFTED_ENTER = """
document.querySelector("#find [name=text]").dispatchEvent(
  new KeyboardEvent("keydown", { key: "Enter", shiftKey: true }));
"""


def test_ranks_kinds_and_names_are_shown_alone(window, page):
    window.open(page, *WIDE)
    _press(window, "all")
    window.run(SET, "ranks", "1, 3-9")
    window.later(SETTLED)
    _becomes(window, DRAWN, 2 * 6 * 5)
    window.run("document.querySelector('[data-kind=forward]').click()")
    window.later(SETTLED)
    _becomes(window, DRAWN, 2 * 6 * 4)
    window.run(SET, "text", "bucket 0")
    window.run("document.querySelector('[data-find=alone]').click()")
    window.later(SETTLED)
    _becomes(window, DRAWN, 2 * 6)
    assert window.run(STATE)["rows"] == "2"
    window.run(SET, "ranks", "7")
    window.later(SETTLED)
    _becomes(window, DRAWN, 0)
    _becomes(window, FOUND, "nothing found")
    window.run(SET, "ranks", "one")
    assert window.run(FOUND) == "ranks are written as 0-3, 7"
    for name in ("ranks", "text"):
        window.run(SET, name, "")
    window.run("document.querySelector('[data-kind=forward]').click()")
    window.later(SETTLED)
    _becomes(window, DRAWN, 4 * 6 * 5)
    assert window.complaints() == []


def test_a_span_says_what_it_is_and_its_name_stays_text(window, page):
    window.open(page, *WIDE)
    x, y = window.run(CENTRE)
    told = set()
    for by in range(-150, 151, 12):
        window.move(x, y + by)
        told.add(
            window.run(
                "const t = document.getElementById('tip'); return t.hidden ? '' : t.innerText"
            )
        )
    assert any("takes" in one for one in told)
    assert any("onerror" in one and "for the slowest rank" in one for one in told)
    _becomes(window, "return document.querySelectorAll('img').length", 0)
    assert window.complaints() == []


def test_thousands_of_spans_cost_a_frame_what_the_canvas_is_wide(window, tmp_path):
    """Of 20,000 spans those that share a pixel are drawn once."""
    timeline = made(20, 200)
    window.open(_written(timeline, tmp_path / "large.html", explained=False), *WIDE)
    _press(window, "all")
    assert 0 < window.run(DRAWN) < 10_000
    assert window.complaints() == []
