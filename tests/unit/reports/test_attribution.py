"""The report of what kept ranks from computing."""

from __future__ import annotations

import msgspec

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.reports.attribution import timeline_json, timeline_report
from tests.unit import examples
from tests.unit.analysis.made import made


def cells(report, title):
    (table,) = [t for t in examples.tables(report) if title in str(t.title)]
    return list(zip(*(column._cells for column in table.columns), strict=True))


def test_a_slow_rank_is_named_with_what_it_costs():
    """As in the test of the analysis: rank 2 takes three times as long for everything."""
    slow = {"forward_s": 6.0, "backward_s": 12.0, "update_s": 3.0}
    report = timeline_report(made(change=lambda rank, _: slow if rank == 2 else {}))
    assert cells(report, "exposed") == [
        ("push bucket 1", "200 B", "5.75 s", "3.75 s", "2.00 s"),
        ("push bucket 0", "100 B", "5.25 s", "4.50 s", "750.00 ms"),
    ]
    assert cells(report, "others wait for") == [("2", "11.00 s", "100%", "compute 14.00 s")]
    assert cells(report, "critical path of iteration 0, 23.00 s") == [
        ("backward", "2", "12.00 s", "52%"),
        ("forward", "2", "6.00 s", "26%"),
        ("update", "2", "3.00 s", "13%"),
        ("transfer", "2", "2.00 s", "9%"),
    ]
    assert cells(report, "bandwidth") == [
        ("all_reduce", "300 B", "3.00 s", "800 bit/s", "1.20 kbit/s")
    ]
    assert max(map(len, examples.text(report).splitlines()[2:])) <= 80


def test_no_straggler_and_no_communication_are_said():
    assert "no rank waits for another" in examples.text(timeline_report(made()))
    lonely = Span(name="f", lane="forward", rank=0, start_s=0.0, end_s=1.0)
    for world_size, why in ((1, "one rank alone"), (2, "no push or pull was recorded")):
        timeline = Timeline(name="t", source="measured", world_size=world_size, spans=(lonely,))
        assert f"nothing was communicated: {why}" in examples.text(timeline_report(timeline))


def test_long_tables_say_what_is_left_out():
    spans = tuple(
        Span(name=f"bucket {k}", lane="push", rank=0, start_s=k, end_s=k + 1.0) for k in range(14)
    )
    timeline = Timeline(name="t", source="measured", world_size=1, spans=spans)
    assert "and 2 more, 2.00 s together" in examples.text(timeline_report(timeline))


def test_json_has_every_exposure():
    found = msgspec.json.decode(msgspec.json.encode(timeline_json(made(2, 2))))
    assert len(found["exposures"]) == 2 * 2 * 2
    assert found["critical_path"][-1]["kind"] == "update"
    assert {phase["rank"] for phase in found["phases"]} == {0, 1}
