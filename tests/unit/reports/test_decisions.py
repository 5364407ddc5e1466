"""The decision report: ranges, times, runners-up, and where the times come from."""

from __future__ import annotations

from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.decide.tabulate import decision_table
from syncopate.reports.decisions import decision_report
from tests.unit import examples


def _rows(table):
    return list(zip(*([str(cell) for cell in c.cells] for c in table.columns), strict=True))


def test_measured_decisions_say_so_and_how_far_the_next_best_is():
    report = decision_report(decision_table(examples.steady_cluster(), ("all_reduce",)))
    text = examples.text(report)
    assert "two hosts: 4 ranks on 2 hosts" in text
    assert "measured from 1.0 KiB to 1.0 MiB" in text
    assert "priced" not in text
    (table,) = examples.tables(report)
    small, large = _rows(table)
    assert small[1:] == ("recursive_doubling", "100.0 us", "1.0 KiB", "ring", "3.0x")
    assert large[1:] == ("ring", "2.00 ms", "1.0 MiB", "recursive_doubling", "+50%")
    assert small[0].startswith("up to ")
    assert large[0].startswith("from ")


def test_prices_say_so_and_options_are_shown():
    report = decision_report(decision_table(Cluster.preset("10gbe", 8)))
    text = examples.text(report)
    assert text.count("priced on nominal links") == 5
    assert "has no price" in text
    assert "blocks 64" in text
    assert "all sizes" in text


def test_what_noise_alone_separates_is_tied_and_not_ahead():
    table = decision_table(examples.steady_cluster(), ("all_reduce",))
    (all_reduce,) = table.collectives
    small, large = all_reduce.ranges
    ahead = structs.replace(small.others[0], expected_s=77e-6, tied=True)
    ranges = (structs.replace(small, others=(ahead,)), large)
    changed = structs.replace(all_reduce, ranges=ranges)
    report = decision_report(structs.replace(table, collectives=(changed,)))
    (shown,) = examples.tables(report)
    assert [row[-1] for row in _rows(shown)] == ["tied", "+50%"]
    assert "tied: no more than noise lies between the two" in examples.text(report)
    assert "tied" not in examples.text(decision_report(table))


def test_one_rank_has_nothing_to_choose():
    assert "native" in examples.text(decision_report(decision_table(Cluster.preset("1gbe", 1))))
