"""Published: the 27 trainings on GPUs, what they are predicted from, and the intervals."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import Interference
from syncopate.costs.model.collective import collective_costs
from syncopate.costs.validated import BY_KIND
from syncopate.units import parse_rate
from syncopate.validation import published
from syncopate.validation.errors import covered, errors_of
from syncopate.validation.page import page
from syncopate.validation.point import LAB, Validation
from syncopate.validation.published import LINKS_BYTES_PER_S, cluster_of, gpu_points, resnet50

REPOSITORY = Path(__file__).parents[3]
KEPT = REPOSITORY / "benchmarks" / "results" / "validation_2core-epyc_2026-11-29.json"
DOCUMENT = REPOSITORY / "docs" / "validation.md"


@cache
def points():
    return {point.name: point for point in gpu_points()}


def test_there_are_three_networks_three_sizes_and_three_methods():
    found = {(p.network, p.ranks, p.way) for p in points().values()}
    assert len(points()) == len(found) == 27
    assert {network for network, _, _ in found} == set(LINKS_BYTES_PER_S)
    assert {(ranks, way) for _, ranks, way in found} == {
        (ranks, way) for ranks in (8, 16, 32) for way in ("BSP", "WFBP", "MG-WFBP")
    }


def test_a_measurement_is_images_over_throughput():
    point = points()["10GbE, 32 GPUs, WFBP"]
    assert point.measured_s == pytest.approx(32 * 64 / 5113.18)
    assert point.phases[0].measured_s == pytest.approx(32 * 64 / 5113.18 - 64 / 253.1)


def test_resnet50_has_its_gradients_and_the_time_of_one_gpu():
    workload = resnet50()
    assert (len(workload.tensors), workload.nbytes) == (161, 4 * 25_557_032)
    assert workload.compute_s == pytest.approx(64 / 253.1)
    assert workload.forward_s / workload.backward_s == pytest.approx(182.488 / 260.931, rel=1e-3)


def test_on_the_cluster_of_nccl_tests_an_all_reduce_takes_what_they_measured():
    cost = collective_costs(cluster_of("10GbE", 8))
    assert float(cost(65536)) == pytest.approx(1228.05e-6)
    assert float(cost(1 << 27)) == pytest.approx(222.1075e-3, rel=1e-3)


def test_tcp_on_100_gbit_has_the_bandwidth_that_another_model_shows():
    nbytes = 1 << 29
    seconds = float(collective_costs(cluster_of("100Gb TCP", 4))(nbytes))
    shown = 2 * 15 / 16 * 4 * 336_232_258 / (128 / 103.34 - 8 / 49)
    assert 2 * 15 / 16 * nbytes / seconds == pytest.approx(shown, rel=1e-3)


def test_bsp_has_one_bucket_wfbp_one_for_each_gradient_and_mg_wfbp_merges():
    workload = resnet50()
    counts = {
        method: len(published.plan_of(workload, "10GbE", 8, method).buckets)
        for method in ("BSP", "WFBP", "MG-WFBP")
    }
    assert (counts["BSP"], counts["WFBP"]) == (1, 161)
    assert 1 < counts["MG-WFBP"] < 10  # an all-reduce costs MG-WFBP's authors 4 ms here


def test_predictions_are_within_what_is_promised():
    found = errors_of(list(points().values()))
    assert found.median <= 0.03
    assert found.p90 <= 0.10


def test_intervals_hold_nine_tenths_of_the_points_that_they_were_not_made_from():
    found = covered(list(points().values()))
    assert found is not None
    assert all(0.85 <= count / 27 <= 0.95 for count in found)


def test_the_table_is_that_of_these_points():
    row, all_points = BY_KIND["gpu"], list(points().values())
    found = errors_of(all_points)
    assert (row.points, row.ranks) == (27, (8, 32))
    assert row.links_bytes_per_s == (
        min(LINKS_BYTES_PER_S.values()),
        max(LINKS_BYTES_PER_S.values()),
    )
    assert (row.median, row.p90) == pytest.approx((found.median, found.p90), abs=5e-5)


def test_the_labs_row_is_that_of_the_points_that_were_kept():
    row, kept = BY_KIND["lab"], Validation.load(KEPT).of(LAB)
    found = errors_of(kept)
    assert (row.points, row.ranks) == (len(kept), (2, 8))
    rates = [parse_rate(point.network.split()[0]) for point in kept]
    assert row.links_bytes_per_s == (min(rates), max(rates))
    assert (row.median, row.p90) == pytest.approx((found.median, found.p90), abs=5e-5)
    assert page(Validation.load(KEPT)) == DOCUMENT.read_text()


def test_without_interference_the_worst_points_are_further_off():
    ideal = errors_of(gpu_points(Interference()))
    assert ideal.p90 > errors_of(list(points().values())).p90
    assert ideal.worst.name == "100Gb TCP, 32 GPUs, WFBP"
