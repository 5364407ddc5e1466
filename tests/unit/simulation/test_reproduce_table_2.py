"""The reproduction of LP's Table 2: the paper's cells, the simulated ones, and measurements."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from reproduce import linear_pipeline
from rich.console import Console

import bsp_sgd_table as table_2
from bsp_sgd import ALGORITHMS, bsp_sgd_plan
from bsp_sgd_networks import rows, shrunk
from bsp_sgd_table import ALONE, NETWORKS, PLACES, Cell, Lab, Place
from formulas.linear_pipeline import table_1
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, ROOTED
from syncopate.errors import ArtifactError

P, ALPHA_S = table_2.RANKS, table_2.ALPHA_S


def formula_s(collective: str, algorithm: str, nbytes: float, rate: float) -> float:
    """Table 1, bytes alone: LP's blocks are infinitely many, and reduction is free."""
    return table_1(collective, algorithm, P, 1e9).seconds(nbytes, 0.0, 1 / rate)


def test_the_paper_by_the_numbers_of_section_3() -> None:
    alexnet = table_2.printed("AlexNet")
    # What the table calls Alg.3 overlaps: Algorithm 1. Its Alg.1 is Caffe's reduce and broadcast.
    assert alexnet[Place("lp", 1)].comm_s == 0.011
    assert alexnet[Place("mst", 2)].comm_s == 0.77
    assert alexnet[Place("lp", 3)].comm_s == 0.057
    assert len(alexnet) == len(table_2.printed("GoogLeNet")) == 6
    assert sorted(row.printed for row in ALGORITHMS.values()) == ["Alg.1", "Alg.2", "Alg.3"]


def test_what_the_paper_prints_fits_its_percentages() -> None:
    by_method = {
        (name, f"{place.collective.upper()} {ALGORITHMS[place.number].printed}"): profile
        for name in NETWORKS
        for place, profile in table_2.printed(name).items()
    }
    for row in rows(table_2.DATA / "lp_table_2.csv"):
        share = by_method[row["network"], row["method"]].share
        assert share * 100 == pytest.approx(float(row["comm_percent_as_printed"]), abs=0.5)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_are_as_large_and_as_slow_as_printed(name: str) -> None:
    workload = table_2.paper_workload(name)
    assert workload.nbytes == pytest.approx(table_2.nbytes_of(name) * 1e6, rel=1e-6)
    assert workload.compute_s == pytest.approx(
        {"AlexNet": 0.93167, "GoogLeNet": 0.26367}[name], 1e-4
    )
    assert sum(t.backward_s for t in workload.tensors) == pytest.approx(2 / 3 * workload.compute_s)
    assert len(workload.tensors) == {"AlexNet": 8, "GoogLeNet": 64}[name]
    small = shrunk(workload, 0.5, 0.1)
    assert small.compute_s == pytest.approx(workload.compute_s / 2)
    assert small.nbytes == pytest.approx(workload.nbytes / 10, rel=1e-4)
    assert [tensor.name for tensor in small.tensors] == [tensor.name for tensor in workload.tensors]


def test_alexnet_computes_in_its_convolutions_and_sends_its_last_layers() -> None:
    workload = table_2.paper_workload("AlexNet")
    names = [tensor.name for tensor in workload.tensors]
    assert names[0] == "fc8.weight"
    assert names[-1] == "conv1.weight"
    last = workload.tensors[:3]
    assert sum(tensor.nbytes for tensor in last) / workload.nbytes == pytest.approx(0.96, abs=0.01)
    assert sum(tensor.backward_s for tensor in last) / workload.backward_s < 0.1


@pytest.mark.parametrize("name", NETWORKS)
def test_what_does_not_overlap_costs_its_collectives(name: str) -> None:
    nbytes, rate = table_2.nbytes_of(name) * 1e6, table_2.BYTES_PER_S
    simulated = table_2.simulated(name, rate)
    assert set(simulated) == set(PLACES)
    for algorithm in table_2.COLLECTIVES:
        cost_s = {
            collective: formula_s(collective, algorithm, nbytes, rate)
            for collective in ("reduce", "broadcast", "all_reduce")
        }
        # LP fills its pipeline, and every message has a start-up time.
        found = {number: simulated[Place(algorithm, number)].comm_s for number in ALGORITHMS}
        assert found[2] == pytest.approx(cost_s["reduce"] + cost_s["broadcast"], rel=0.02)
        assert found[3] == pytest.approx(cost_s["all_reduce"] + cost_s["broadcast"] / 5, rel=0.03)
        assert found[1] < 0.3 * found[2]
    assert simulated[Place("mst", 1)].comm_s > 0.01


def test_the_fitting_rate_fits_its_cell_alone() -> None:
    for block in table_2.blocks():
        rate = table_2.rate_of(block.name)
        assert 5e9 < rate < 6.2e9
        by_what = {item.what: item.difference for item in block.differences()}
        assert abs(by_what[f"{block.name}, LP Alg. 2"]) < 0.02
        assert len(by_what) == 6
        assert len(block.speedups()) == 3
    # GoogLeNet in Caffe, of whose rate nothing was taken.
    mst = {item.what: item.difference for item in table_2.blocks()[1].differences()}
    assert abs(mst["GoogLeNet, MST Alg. 2"]) < 0.15


def test_the_three_plans() -> None:
    workload, cluster = table_2.paper_workload("GoogLeNet"), table_2.machine(1e9)
    plans = {number: bsp_sgd_plan(workload, cluster, number, "lp") for number in ALGORITHMS}
    assert [plan.exchange for plan in plans.values()] == [ROOTED, ROOTED, ALLREDUCE]
    assert [len(plan.buckets) for plan in plans.values()] == [64, 1, 1]
    assert [plan.weight_sync_period for plan in plans.values()] == [0, 0, 5]
    assert all(b.pull and b.pull.algorithm == "lp" for b in plans[1].buckets)
    assert plans[2].buckets[0].push.options["blocks"] > 16
    native = bsp_sgd_plan(workload, cluster, 1, "native", root=3)
    assert native.prediction is None
    assert {recipe.root for b in native.buckets for _, recipe in b.recipes} == {3}


def lab(**changes: object) -> Lab:
    cells = [Cell(network="AlexNet", collective=c, number=n, predicted_s=1.0) for c, n in PLACES]
    cells = [replace(cell, samples_s=(1.1, 1.3, 0.9)) for cell in cells]
    alone = Cell(
        network="AlexNet",
        collective=ALONE.collective,
        number=0,
        predicted_s=0.5,
        samples_s=(0.6, 0.5, 0.4),
    )
    found = Lab(
        hosts=4,
        rate="1gbit",
        scale=0.5,
        bytes_scale=0.06,
        iterations=5,
        quick=False,
        cluster=Cluster.flat(4, latency_s=1e-4, bandwidth_bytes_per_s=1e8),
        cells=(*cells, alone),
    )
    return replace(found, **changes)


def test_a_measurement_is_shown_at_the_size_of_the_table(tmp_path: Path) -> None:
    path = lab().save(tmp_path / "lab.json")
    found = Lab.load(path)
    measured, predicted = found.profiles("AlexNet")
    assert measured[Place("lp", 1)].comm_s == pytest.approx((1.1 - 0.5) / 0.5)
    assert measured[Place("lp", 1)].compute_s == pytest.approx(1.0)
    assert predicted[Place("be", 3)].comm_s == pytest.approx(1.0)
    assert found.profiles("GoogLeNet") == ({}, {})
    assert replace(found, cells=found.cells[:-1]).profiles("AlexNet") == ({}, {})
    screen = Console(width=100, file=io.StringIO())
    table_2.show(screen, [found])
    text = screen.file.getvalue()
    assert "times x 0.5, bytes x 0.06" in " ".join(text.split())
    lines = [line.split() for line in text.splitlines()]
    at = lines.index(["measured"])
    assert lines[at + 1] == ["comm", "s", *["1.200"] * 9]
    assert lines[at + 4] == ["speed-up", *["1.00x"] * 9]
    # 2.0 s predicted, 2.2 s measured.
    assert "its iterations 9% off, at worst 9%" in " ".join(text.split())
    paper = lines.index(["paper"])
    assert lines[paper + 4] == ["speed-up", "1.18x", "1.73x", "1.00x", "2.11x", "1.96x", "2.00x"]


def test_a_quick_measurement_says_so() -> None:
    screen = Console(width=100, file=io.StringIO())
    table_2.show(screen, [lab(quick=True)])
    assert "no figure counts" in " ".join(screen.file.getvalue().split())


def test_every_cell_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lab().save(tmp_path / "lab.json")
    found = table_2.as_json([Lab.load(path)])
    # Six of the paper and two simulations for each network; one of them measured and predicted.
    assert len(found) == 2 * (6 + 2 * 9) + 2 * 9
    assert all(math.isfinite(cell["comm_s"]) for cell in found)
    linear_pipeline.main(["--json", "--training", str(path)])
    assert json.loads(capsys.readouterr().out)["table_2"] == found


def test_what_is_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({"kind": "bsp-sgd lab", "schema_version": 1}))
    with pytest.raises(ArtifactError, match="hosts"):
        Lab.load(path)
    with pytest.raises(SystemExit):
        linear_pipeline.main(["--training", str(path)])
    assert "hosts" in capsys.readouterr().err


def test_the_page_shows_what_is_simulated() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bsp_sgd.md").read_text()
    cells = {name: table_2.simulated(name, table_2.BYTES_PER_S) for name in NETWORKS}
    for collective in table_2.COLLECTIVES:
        found = [cells[n][Place(collective, k)].iteration_s for n in NETWORKS for k in ALGORITHMS]
        row = " | ".join(f"{seconds:.3f}" for seconds in found)
        assert f"| {collective.upper()} | {row} |\n" in page
