"""Terminal reports: the numbers of their formulas, in any width."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.recipe import Recipe
from syncopate.reports import terminal
from tests.unit import examples


def _rows(table):
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_the_error_of_a_fit_is_shown_from_three_sizes_on():
    cluster = examples.cluster()
    ring = cluster.curves[0]
    between = msgspec.structs.replace(ring.points[0], nbytes=2048)
    ring = msgspec.structs.replace(ring, points=(ring.points[0], between, ring.points[1]))
    report = terminal.cluster_report(msgspec.structs.replace(cluster, curves=(ring,)))
    _, fits, _ = examples.tables(report)
    assert _rows(fits)[0] == ["ring", "300.0 us", "0.617 GB/s", f"{terminal.fit_error(ring):.1%}"]


def test_a_cluster_shows_levels_fits_and_curves():
    report = terminal.cluster_report(examples.cluster())
    levels, fits, curves = examples.tables(report)
    assert _rows(levels) == [
        ["device", "2", "5.0 us", "80.00 Gbit/s"],
        ["host", "2", "50.0 us", "10.00 Gbit/s"],
    ]
    # Of two sizes a line has no error to show.
    assert _rows(fits)[0] == ["ring", "300.0 us", "0.617 GB/s", "-"]
    assert _rows(curves) == [
        ["1.0 KiB", "300.0 us", "*100.0 us", "0.015"],
        ["1.0 MiB", "*2.00 ms", "3.00 ms", "0.786"],
    ]
    shown = examples.text(report)
    assert "two hosts: 4 ranks" in shown
    assert "reduction 4.00 GB/s per rank" in shown
    assert "computation runs at 80%" in shown
    assert "a collective takes 1.25x" in shown


def test_a_cluster_without_measurements_shows_its_levels_alone():
    report = terminal.cluster_report(Cluster.flat(8, latency_s=1e-5, bandwidth_bytes_per_s=1e9))
    assert len(list(examples.tables(report))) == 1
    assert "reduction free" in examples.text(report)


def test_warnings_of_a_cluster_come_before_its_levels():
    warned = msgspec.structs.replace(examples.cluster(), warnings=("host3 is slow", "so is b[1]"))
    shown = examples.text(terminal.cluster_report(warned))
    first, second = shown.index("warning: host3 is slow"), shown.index("warning: so is b[1]")
    assert first < second < shown.index("levels, innermost first")
    assert "warning" not in examples.text(terminal.cluster_report(examples.cluster()))


def test_a_size_that_one_algorithm_did_not_measure_is_left_open():
    cluster = examples.cluster()
    native = msgspec.structs.replace(
        cluster.curves[0], algorithm="native", points=cluster.curves[0].points[:1]
    )
    cluster = msgspec.structs.replace(cluster, curves=(native, cluster.curves[1]))
    *_, curves = examples.tables(terminal.cluster_report(cluster))
    assert _rows(curves)[1][1:3] == ["-", "*3.00 ms"]


def test_an_algorithm_that_is_nowhere_the_fastest_is_named_below():
    cluster = examples.cluster()
    slow = msgspec.structs.replace(cluster.curves[1], algorithm="slow")
    cluster = msgspec.structs.replace(cluster, curves=(*cluster.curves, slow))
    *_, curves = examples.tables(terminal.cluster_report(cluster))
    assert [column.header for column in curves.columns][1:3] == ["ring", "recursive\ndoubling"]
    assert curves.caption == "nowhere the fastest: slow"


def test_the_fit_error_is_the_median_of_relative_errors():
    curve = examples.cluster().curves[0]
    fitted = [0.3e-3 + 1.62e-9 * nbytes for nbytes in (1024, 1 << 20)]
    errors = [abs(fitted[0] - 0.3e-3) / 0.3e-3, abs(fitted[1] - 2e-3) / 2e-3]
    assert terminal.fit_error(curve) == pytest.approx(sum(errors) / 2)


def test_a_workload_shows_its_largest_tensors_first():
    report = terminal.workload_report(examples.workload(), top=2)
    (table,) = examples.tables(report)
    assert _rows(table) == [
        ["body.weight", "float32", "1", "1,000,000", "3.8 MiB", "90.8%", "21.00 ms"],
        ["stem.weight", "float32", "2", "100,000", "390.6 KiB", "9.1%", "26.00 ms"],
    ]
    assert "computation 27.00 ms = forward 9.00 ms + backward 17.00 ms + update 1.00 ms" in (
        examples.text(report)
    )


def test_plans_side_by_side():
    plans = [examples.plan("wfbp"), examples.plan()]
    (table,) = examples.tables(terminal.plans_report(plans, chosen=plans[1]))
    assert _rows(table)[1] == [
        "> optimal",
        "2",
        "30.00 ms",
        "3.00 ms",
        "11.1%",
        "ring, recursive_doubling",
    ]
    assert table.title == " plans; bound 27.00 ms"
    assert _rows(table)[0][0] == "  wfbp"


def test_plans_of_several_exchanges_say_which_within_a_terminal():
    sharded = msgspec.structs.replace(examples.plan(), channels=2, policy="auto", reason="why")
    plans = [examples.plan("wfbp"), sharded]
    report = terminal.plans_report(plans, chosen=sharded)
    (table,) = examples.tables(report)
    headers = [str(column.header) for column in table.columns]
    assert headers[:3] == ["policy", "exchange", "channels"]
    assert "algorithms" not in headers
    assert [row[:3] for row in _rows(table)] == [
        ["  wfbp", "allreduce", "1"],
        ["> auto", "allreduce", "2"],
    ]
    assert [row.end_section for row in table.rows] == [True, False]
    assert max(map(len, examples.text(report).splitlines())) <= 80
    assert "why" in examples.text(terminal.plan_report(sharded))
    (measured,) = examples.tables(terminal.plans_report(plans, measured_s={"ddp": 0.05}))
    assert _rows(measured)[-1] == ["  ddp", *["-"] * 6, "50.00 ms", "-"]


def test_measurements_add_the_error_of_the_prediction_and_rows_of_baselines():
    measured_s = {"optimal": 0.040, "ddp": 0.050}
    plans = [examples.plan("wfbp"), examples.plan()]
    (table,) = examples.tables(terminal.plans_report(plans, measured_s=measured_s))
    rows = _rows(table)
    assert [row[-2:] for row in rows] == [["-", "-"], ["40.00 ms", "-25.0%"], ["50.00 ms", "-"]]
    assert rows[2][0] == "  ddp"


def test_a_plan_without_prediction_is_shown_without_one():
    plan = msgspec.structs.replace(examples.plan(), prediction=None, cluster="")
    (table,) = examples.tables(terminal.plans_report([plan], measured_s={"optimal": 0.04}))
    assert _rows(table)[0][2:] == ["-", "-", "-", "40.00 ms", "-"]
    assert table.title == " plans"
    assert "on an unnamed cluster" in examples.text(terminal.plan_report(plan))


def test_a_plan_shows_options_where_there_are_some():
    assert "options" not in examples.text(terminal.plan_report(examples.plan()))
    told = msgspec.structs.replace(
        examples.plan().buckets[0],
        push=Recipe("all_reduce", "blueconnect", options={"factors": (2, 2)}),
    )
    plan = msgspec.structs.replace(examples.plan(), buckets=(told, examples.plan().buckets[1]))
    shown = examples.text(terminal.plan_report(plan))
    assert "options" in shown
    assert "factors 2x2" in shown


def test_one_plan_shows_its_first_buckets():
    report = terminal.plan_report(examples.plan(), most=1)
    (table,) = examples.tables(report)
    assert _rows(table) == [["ring", "head.weight ... body.weight (2)", "0", "3.8 MiB", "0"]]
    shown = " ".join(examples.text(report).split())
    assert "and 1 more" in shown
    assert "11.1% above the bound of 27.00 ms" in shown


def test_a_bucket_that_is_not_pulled_leaves_its_cell_empty():
    first, last = examples.plan().buckets[:2]
    pulled = msgspec.structs.replace(
        last, push=Recipe("reduce_scatter", "ring"), pull=Recipe("all_gather", "recursive")
    )
    plan = msgspec.structs.replace(examples.plan(), exchange="sharded", buckets=(first, pulled))
    (table,) = examples.tables(terminal.plan_report(plan))
    assert [column.header for column in table.columns][:3] == ["push", "pull", "tensors"]
    assert [row[:2] for row in _rows(table)] == [["ring", ""], ["ring", "recursive"]]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_reports_fit_any_terminal(width):
    for report in (
        terminal.cluster_report(examples.cluster()),
        terminal.workload_report(examples.workload()),
        terminal.plans_report([examples.plan()], measured_s={"ddp": 1.0}),
        terminal.plan_report(examples.plan()),
    ):
        lines = examples.text(report, width=width).splitlines()
        assert max(map(len, lines)) <= width
