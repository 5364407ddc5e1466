"""Tables: names are no markup, and rows can be read on narrow terminals."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.decide.tabulate import decision_table
from syncopate.delay import Delay
from syncopate.planning.planner import make_plan
from syncopate.reports import decisions, terminal
from syncopate.reports.tables import titled_table
from syncopate.simulation.delay import with_delay
from tests.unit import examples


def _table():
    table = titled_table("tensors [of] x[/red]")
    table.add_column("tensor", overflow="fold")
    table.add_column("busbw\nGB/s", justify="right", no_wrap=True)
    table.add_column("communi-\ncation", justify="right", no_wrap=True)
    table.add_row("x[/red]", "1.234", "", end_section=True)
    table.add_row("[bold]layer.1.weight.of.a.long.name", "9.876", "3.0 ms", style="bold")
    return table


def test_names_are_no_markup_whatever_the_console_makes_of_markup():
    text = examples.text(_table())
    assert "x[/red]" in text
    assert "[bold]layer.1.weight.of.a.long.name" in text
    assert "tensors [of] x[/red]" in text


def test_a_table_folds_what_may_be_folded_and_becomes_a_list_below_that():
    wide = examples.text(_table(), 60).splitlines()
    assert [line.split() for line in wide[2:4]] == [
        ["busbw", "communi-"],
        ["tensor", "GB/s", "cation"],
    ]
    folded = examples.text(_table(), 40)
    assert "GB/s" in folded
    assert max(map(len, folded.splitlines())) <= 40
    assert "[bold]layer.1.weig" in folded
    narrow = [line.rstrip() for line in examples.text(_table(), 30).splitlines()]
    assert narrow == [
        " tensors [of] x[/red]",
        " x[/red]",
        "    busbw GB/s 1.234",
        "",
        " [bold]layer.1.weight.of.a.lon",
        "g.name",
        "    busbw GB/s 9.876,",
        "    communication 3.0 ms",
        "",
    ]


def test_delays_are_whole_words_at_40_columns():
    work, cluster = examples.workload(), examples.cluster()
    plan = make_plan(work, cluster, "optimal", exchange="sharded")
    plans = [plan, with_delay(plan, Delay(k=2), work, cluster)]
    text = examples.text(terminal.delays_report(plans, plans[1], ""), 40)
    assert "…" not in text
    assert "synchronous" in text
    assert max(map(len, text.splitlines())) <= 40


def _reports():
    yield decisions.decision_report(decision_table(Cluster.preset("10gbe", 8)))
    yield terminal.cluster_report(examples.cluster())
    yield terminal.workload_report(examples.workload())
    sharded = structs.replace(examples.plan(), exchange="allreduce", channels=2)
    yield terminal.plans_report([examples.plan(), sharded])
    yield terminal.plans_report([examples.plan()], measured_s={"optimal": 0.1})
    yield terminal.plan_report(examples.plan())


@pytest.mark.parametrize("report", list(_reports()), ids=range(6))
def test_headings_and_short_words_stay_whole_at_60_columns(report):
    text = examples.text(report, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    words = {word.strip(",") for word in text.split()}
    for table in examples.tables(report):
        for index, column in enumerate(table.columns):
            # A list needs no heading for what it is a list of.
            heading = str(column.header).replace("-\n", "").split() if index else []
            cells = [word for cell in column.cells for word in str(cell).split()]
            short = {word.strip(",") for word in (*heading, *cells) if len(word) <= 18}
            assert short <= words


def test_names_make_no_lines_of_their_own():
    table = titled_table("a\x07\nerror: forged")
    table.add_column("tensor")
    table.add_row("b\nerror: forged")
    for width in (60, 10):
        lines = [line.strip() for line in examples.text(table, width).splitlines()]
        assert not [line for line in lines if line.startswith("error:")]
    assert r"a\x07\nerror: " in examples.text(table)
    assert r"b\nerror: forged" in examples.text(table)
