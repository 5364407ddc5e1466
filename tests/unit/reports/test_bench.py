"""The bench report: nccl-tests' columns with the numbers of their formulas."""

from __future__ import annotations

import io

from msgspec import structs
from rich.console import Console

from syncopate.artifacts.results.benchmark import Series
from syncopate.reports.bench import ENDED, WIDTH, bench_report, bench_summary, size_line
from tests.unit import examples


def _rows(table):
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_every_contender_has_its_bandwidths_and_percentiles():
    tables = list(examples.tables(bench_report(examples.benchmark())))
    _, ring, percentiles, _, _, times, ratios = tables
    heads = [str(column.header).split("\n")[-1] for column in ring.columns]
    half = ["time us", "GB/s", "GB/s", "#wrong"]
    assert heads == ["B", "count", "dtype", "redop", "root", *half, *half]
    # 1 MiB in 2 ms: 0.524 GB/s, times 3/2 on the bus of 4 ranks.
    assert _rows(ring)[1] == [
        "1048576", "262144", "float32", "sum", "-1",
        "4000.00", "0.262", "0.393", "3",
        "2000.00", "0.524", "0.786", "0",
    ]  # fmt: skip
    # 0.0051 and 0.0102 GB/s at 1 KiB, 0.262 and 0.524 at 1 MiB, all times 3/2, over four.
    assert ring.caption == "average busbw 0.301 GB/s"
    assert _rows(percentiles)[0] == ["1024", "180.00"] + ["400.00"] * 2 + ["90.00"] + [
        "200.00"
    ] * 2 + ["4"]
    assert _rows(times) == [["1024", "*90.0 us", "180.0 us"], ["1048576", "*1.80 ms", "3.60 ms"]]
    assert _rows(ratios) == [["1024", "2.00x"], ["1048576", "2.00x"]]


def test_the_summary_says_who_is_the_fastest_and_by_how_much():
    summary = bench_summary(examples.benchmark())
    (fastest,) = examples.tables(summary)
    assert _rows(fastest) == [
        ["1.0 KiB", "ring", "90.0 us", "0.017", "gloo", "2.00x"],
        ["1.0 MiB", "ring", "1.80 ms", "0.874", "gloo", "2.00x"],
    ]
    text = examples.text(summary, 80)
    told = "the best of ours is faster than gloo at 2 of 2 sizes: 2.00x to 2.00x its speed"
    assert told in " ".join(text.split())
    assert "3 wrong elements: ring 3" in text
    assert len(text.splitlines()) < 20
    assert examples.text(bench_report(examples.benchmark()), 130).startswith("all_reduce: 4 ranks")
    alone = structs.replace(examples.benchmark(), series=examples.benchmark().series[:1])
    (table,) = examples.tables(bench_summary(alone))
    assert [str(column.header) for column in table.columns][-1] == "busbw\nGB/s"


def test_the_backends_own_is_none_of_ours():
    whole = examples.benchmark()
    native = examples.series("native", slower=0.5)
    with_native = structs.replace(whole, series=(native, *whole.series))
    told = " ".join(examples.text(bench_summary(with_native), 80).split())
    assert "the best of ours is faster than gloo at 2 of 2 sizes: 2.00x to 2.00x" in told
    alone = structs.replace(whole, series=(native, whole.series[1]))
    told = examples.text(bench_summary(alone), 80)
    assert "nothing of ours to compare with gloo" in told
    assert "best of ours" not in told


def test_a_size_is_a_line_as_its_row_has_it():
    line = size_line(examples.benchmark())
    assert line == "all_reduce 1.0 MiB: ring 1.80 ms, 0.874 GB/s; next gloo, 2.00x"
    alone = structs.replace(examples.benchmark(), series=examples.benchmark().series[:1])
    assert size_line(alone) == "all_reduce 1.0 MiB: ring 1.80 ms, 0.874 GB/s"


def test_a_benchmark_that_was_ended_says_so():
    ended = structs.replace(examples.benchmark(), metadata={ENDED: "after 2 of 13 sizes"})
    assert "ended after 2 of 13 sizes\n3 wrong elements" in examples.text(bench_summary(ended))


def test_how_it_was_taken_is_said():
    text = examples.text(bench_report(examples.benchmark()))
    assert "4 ranks on 2 hosts, 2 on each" in text
    assert "4 calls after 5 to warm up, separated by barriers" in text
    assert "maximum over ranks" in text
    assert "3 wrong elements" in text
    assert "back to back" in examples.text(bench_report(examples.benchmark(mode="back-to-back")))


def test_what_ran_at_each_size_stands_beside_its_times():
    whole = examples.benchmark()
    points = whole.series[0].points
    ran = [
        structs.replace(points[0], algorithm="ring"),
        structs.replace(points[1], algorithm="lp", options={"blocks": 8, "order": (0, 2, 1, 3)}),
    ]
    auto = Series(contender="auto", points=tuple(ran))
    tables = list(examples.tables(bench_report(structs.replace(whole, series=(auto,)))))
    assert [row[1] for row in _rows(tables[2])] == ["ring", "lp:blocks=8"]


def test_the_widest_table_fits_its_width():
    console = Console(width=WIDTH, file=io.StringIO(), record=True)
    console.print(bench_report(examples.benchmark()))
    assert "…" not in console.export_text()
