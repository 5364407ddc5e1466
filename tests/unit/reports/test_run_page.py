"""The page of a run: whole, offline, escaped, in its order, with the numbers of the analysis."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.path import Segment
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.reports.pages import parts
from syncopate.reports.pages.evidence import Evidence, alike
from syncopate.reports.pages.parts import division
from syncopate.reports.pages.run import run_page
from syncopate.reports.pages.spans import chosen, drawing
from tests.unit.analysis.made import made

pytest.importorskip("jinja2", reason="the extra html is not installed")

EVIL = "</script><script>alert(1)</script><b>\"'&{{ 7 * 7 }}<!--"


NO_LINKS = '{"before": {}, "after": {}}'


def slow_rank(iterations=6):
    """Return four ranks of which rank 1 computes 4 s longer."""
    return made(4, iterations, lambda r, i: {"forward_s": 6.0} if r == 1 else {})


def page_of(timeline, **told):
    return run_page(Evidence(timeline, explanation(timeline), **told))


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found.group(1))


def seen(page):
    """Return what a page says, without its style, scripts and tags."""
    bare = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]+>", " ", page)
    return " ".join(bare.split())


@pytest.fixture(scope="module")
def page():
    return page_of(slow_rank())


def test_the_page_needs_nothing_from_elsewhere(page):
    assert page.startswith("<!doctype html>")
    assert not re.search(r"\s(src|href)\s*=|@import|url\(|https?://|fetch\(|plotly", page, re.I)
    assert len(page) < 150_000


def test_the_sentence_comes_first_and_the_rest_in_its_order(page):
    assert seen(page).index("rank 1 computes longer than the others: 6.00 s of forward") < 100
    order = re.findall('<h2 id="h-([a-z]+)"', page)
    whole = ["causes", "timeline", "buckets", "ranks", "matrix", "path", "bandwidth", "facts"]
    assert order == whole


def test_causes_have_gain_fix_and_command(page):
    said = seen(page)
    assert "4.00 s 31% of an iteration without it 9.00 s" in said
    assert "look for other processes, a throttled clock or more data there" in said
    assert "syncopate plan -w workload.json -c cluster.json" in said


def test_nothing_worth_doing_is_said():
    alone = made(2, 6, lambda r, i: {"ready": (0.0, 0.1), "transfers_s": (0.0, 0.0)})
    assert "nothing worth doing: 100% of the bound" in seen(page_of(alone))


def test_thin_evidence_says_what_to_record():
    said = seen(page_of(made(2, 1)))
    assert "no explanation, because the evidence is thin" in said
    assert "record at least 4, of which the first does not count" in said


def test_a_timeline_without_computation_still_has_a_page():
    spans = [Span(name="bucket 0", lane="push", rank=r, start_s=r, end_s=3.0) for r in (0, 1)]
    timeline = Timeline(name="calls", source="measured", world_size=2, spans=tuple(spans))
    page = run_page(Evidence(timeline, None, "nothing was computed"))
    assert "no explanation: nothing was computed" in seen(page)
    assert len(data_of(page)["spans"]["start"]) == 2


def test_an_iteration_is_divided_into_what_it_spends():
    """Of 13 s rank 1 computes 11 and waits 2 for bucket 1; the others 7, 3 for it, 3 for both."""
    said = seen(page_of(slow_rank()))
    assert "computation 8.00 s 62%" in said
    assert "waiting for the slowest rank 2.25 s 17%" in said
    assert "transfers that nothing hides 2.75 s 21%" in said


def test_who_waits_for_whom(page):
    rows = re.findall(r"<tr><th scope=\"row\">rank (\d)</th>(.*?)</tr>", page, re.S)
    cells = {int(rank): re.findall(r"<td[^>]*>([^<]*)</td>", row) for rank, row in rows}
    assert cells[0] == ["–", "3", "0", "0"]
    assert cells[1] == ["0", "–", "0", "0"]


def test_a_path_over_many_ranks_says_how_many_are_left_out(monkeypatch):
    """Each of 20 ranks is on the path for a second; 16 have a row."""
    path = [Segment(rank, "backward", "b", float(rank), rank + 1.0) for rank in range(20)]
    monkeypatch.setattr(parts, "critical_path", lambda *_: path)
    said = seen(page_of(slow_rank()))
    assert "4 more ranks are on it, each for no longer than those below." in said
    monkeypatch.setattr(parts, "critical_path", lambda *_: path[:16])
    assert "more ranks are on it" not in seen(page_of(slow_rank()))


def test_names_hold_markup_and_stay_text():
    timeline = slow_rank()
    spans = tuple(replace(s, name=EVIL, detail=EVIL) if s.nbytes else s for s in timeline.spans)
    evil = replace(timeline, name=EVIL, spans=spans, metadata={EVIL: EVIL})
    page = page_of(evil, remarks=(EVIL,))
    assert page.count("<script") == page.count("</script>") == 2
    assert "<script>alert" not in page
    assert page.split("<main>")[1].count("<!--") == 0
    assert "{{ 7 * 7 }}" in page  # and not 49
    assert EVIL in data_of(page)["texts"]


def test_spans_say_until_when_they_wait():
    timeline = slow_rank(1)
    found = drawing(timeline, chosen(timeline, {}))
    spans, lane = found["spans"], found["lanes"].index("push")
    first = {
        found["rows"][row]["rank"]: (start, moves, end)
        for row, start, moves, end, of in zip(
            *(spans[name] for name in ("row", "start", "moves", "end", "lane")), strict=True
        )
        if of == lane and found["texts"][spans["name"][spans["start"].index(start)]] == "bucket 0"
    }
    second = 10_000_000
    assert first[0] == (4 * second, 8 * second, 9 * second)
    assert first[1] == (8 * second, 8 * second, 9 * second)


def test_rows_are_of_ranks_and_of_channels_where_there_are_several():
    spans = [
        Span(name="forward", lane="forward", rank=0, start_s=0.0, end_s=1.0),
        Span(name="a", lane="push", rank=0, start_s=0.0, end_s=2.0, channel=0, nbytes=1),
        Span(name="b", lane="push", rank=0, start_s=1.0, end_s=3.0, channel=1, nbytes=1),
        Span(name="c", lane="push", rank=0, start_s=1.5, end_s=2.5, channel=1, nbytes=1),
    ]
    timeline = Timeline(name="t", source="simulated", world_size=1, spans=tuple(spans))
    found = drawing(timeline, chosen(timeline, {}))
    rows = [(row["rank"], row["label"], row["depth"]) for row in found["rows"]]
    # What overlaps in one row stands above each other.
    assert rows == [(0, "compute", 1), (0, "push 0", 1), (0, "push 1", 2)]


def test_of_a_large_run_the_typical_and_the_slowest_iterations_are_shown():
    lasts = {3: 9.0, 7: 30.0, 8: 20.0}
    timeline = made(2, 10, lambda r, i: {"forward_s": lasts.get(i, 2.0 + i / 100)})
    in_one = sum(span.iteration == 5 for span in timeline.spans)
    found = chosen(timeline, {}, most=3 * in_one)
    assert (found.slowest, len(found.iterations)) == (7, 3)
    assert {7, 8, found.typical} == set(found.iterations)
    assert found.said.startswith(f"3 of 10 iterations are shown: iteration {found.typical} is typ")
    assert "7, 8 took longest" in found.said
    assert set(drawing(timeline, found)["spans"]["iteration"]) == set(found.iterations)


def test_of_many_ranks_those_that_are_waited_for_are_shown():
    timeline = made(12, 3)
    in_one = sum(span.iteration == 1 for span in timeline.spans)
    found = chosen(timeline, {11: 5.0, 4: 3.0}, most=in_one // 3)
    assert len(found.ranks) == 4
    assert {4, 11} <= set(found.ranks)
    assert "4 of its 12 ranks" in found.said
    rows = drawing(timeline, found)["rows"]
    assert {row["rank"] for row in rows} == set(found.ranks)


def test_only_iterations_with_the_last_ones_buckets_are_averaged():
    """A training that measures plans ends on one of them; a mean over all is of none."""
    timeline = made(2, 8)
    spans = tuple(
        replace(s, nbytes=999) if s.nbytes and s.iteration < 4 else s for s in timeline.spans
    )
    sent, count, of = alike(replace(timeline, spans=spans))
    assert ({one.iteration for one in sent}, count, of) == ({4, 5, 6}, 3, 6)
    page = page_of(replace(timeline, spans=spans))
    assert "the 3 of 6 iterations that exchanged the same buckets" in seen(page)


def test_iterations_that_pull_and_that_do_not_are_averaged_together():
    timeline = slow_rank(9)
    pushed = [s for s in timeline.spans if s.lane == "push" and s.name == "bucket 0"]
    pulls = tuple(replace(s, lane="pull") for s in pushed if s.iteration % 3 == 0)
    sent, count, of = alike(replace(timeline, spans=(*timeline.spans, *pulls)))
    assert (count, of) == (7, 7)
    assert {one.iteration for one in sent if one.lane == "pull"} == {3, 6}


def test_prices_stand_beside_what_was_recorded():
    timeline = slow_rank()
    prices = {("all_reduce", ""): {100: 0.5, 200: 2.0}}
    said = seen(page_of(timeline, prices=prices))
    assert "push bucket 0 100 B 500.00 ms 1.00 s 2.00x" in said
    assert "push bucket 1 200 B 2.00 s 2.00 s 1.00x" in said


def test_a_second_run_is_compared():
    page = page_of(slow_rank(), against=(made(4, 6),))
    said = seen(page)
    assert "What changed since made" in said
    assert "an iteration takes 1.44x as long (9.00 s, now 13.00 s)" in said


def test_several_runs_stand_beside_each_other_whatever_their_ranks():
    others = (replace(made(4, 6), name="plain"), replace(made(2, 6), name="<b>two</b>"))
    page = page_of(slow_rank(), against=others)
    said = seen(page)
    assert "3 runs beside each other" in said
    assert "plain : an iteration takes 1.44x as long (9.00 s, now 13.00 s)" in said
    assert "<b>two</b>" not in page
    assert (
        "before 1 plain, 4 ranks now over before 1 before 2 &lt;b&gt;two&lt;/b&gt;, 2 ranks" in said
    )
    assert "iteration 9.00 s ± 0.0 us 1.44 * 9.00 s ± 0.0 us 1.44 * 13.00 s ± 0.0 us" in said


def test_remarks_and_metadata_are_shown():
    metadata = {"torch": "2.13", "links": NO_LINKS, "clock_error_s": "0.000002000"}
    timeline = replace(slow_rank(), metadata=metadata)
    page = page_of(timeline, remarks=("rank 3: its file ends early",))
    assert "Missing, damaged or uncertain rank 3: its file ends early" in seen(page)
    assert "<dt>torch</dt><dd>2.13</dd>" in page
    assert "<dt>clocks</dt><dd>compared, at most 2.0 us off</dd>" in page
    assert "<dt>links" not in page, "JSON for programs"


def test_servers_have_their_stages():
    """A push takes 1 s to come, waits 3 s for the others, and so on."""
    moments = (0.0, 0.5, 1.0, 4.0, 5.0, 4.2, 4.5, 5.5, 5.6, 7.0)
    trips = tuple(RoundTrip(0, "t0", server, 0, 1, 100, *moments) for server in ("s0", "s1"))
    page = page_of(slow_rank(), trips=trips)
    said = seen(page)
    assert "43% of it goes to waiting for other workers; to mend it: workers that come" in said
    assert said.count("7.00 s 1.00 s 3.00 s 1.00 s 0 500.00 ms 1.50 s") == 2


def test_of_very_many_iterations_the_slowest_stand_for_their_neighbours():
    timeline = made(1, 1000, lambda r, i: {"forward_s": 9.0 if i == 777 else 2.0})
    page = run_page(Evidence(timeline))
    drawn = re.findall(r"<title>iteration (\d+): ", page)
    assert len(drawn) < 400
    assert "777" in drawn


def test_a_phone_has_every_other_size_of_a_long_axis():
    timeline = made(2, 6)
    spans = tuple(
        replace(s, nbytes=4 << (20 if s.name == "bucket 1" else 10)) if s.nbytes else s
        for s in timeline.spans
    )
    page = page_of(replace(timeline, spans=spans))
    labels = re.findall(
        r'<text( class="narrow-out")? x="[^"]*" y="100%" dy="20"[^>]*>([^<]*)<', page
    )
    assert len(labels) > 4
    assert [bool(hidden) for hidden, _ in labels] == [k % 2 == 1 for k in range(len(labels))]


def test_each_moment_of_an_iteration_is_in_one_part() -> None:
    """Rank 1 computes 4 s longer, and 2 s of input come before every iteration of 15 s.

    The others wait from 8 to 10 and from 11 to 12, and see transfers from 10 to 11 and 12 to 14.
    """
    found = division(made(4, 6, lambda r, i: {"input_s": 2.0, "forward_s": 6.0 if r == 1 else 2.0}))
    shares = {row["style"]: row["share"] for row in found}
    assert list(shares) == ["compute", "waiting", "moving", "rest"]
    assert sum(shares.values()) == pytest.approx(100)
    assert shares["compute"] == pytest.approx(100 * 8 / 15)
    assert shares["waiting"] == pytest.approx(100 * (3 * 3 / 4) / 15)
    assert shares["moving"] == pytest.approx(100 * (3 * 3 + 2) / 4 / 15)
    assert shares["rest"] == pytest.approx(100 * 2 / 15)
