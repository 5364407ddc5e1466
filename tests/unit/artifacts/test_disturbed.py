"""Disturbed: what a calibration's own file says against its figures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.disturbed import disturbed, doubts
from tests.unit import examples


def _calibrated(sizes=(1024, 2048, 4096), **metadata):
    cluster = examples.cluster()
    curves = tuple(
        replace(curve, points=tuple(replace(curve.points[0], nbytes=size) for size in sizes))
        for curve in cluster.curves
    )
    return replace(cluster, curves=curves, metadata={"budget_s": "10"} | metadata)


@pytest.mark.parametrize("took", ["10.2", "30", "35", "many"])
def test_a_calibration_near_its_budget_is_believed(took):
    assert disturbed(_calibrated(elapsed_s=took)) == ()


def test_a_calibration_that_took_many_times_its_budget_is_doubted():
    (said,) = disturbed(_calibrated(elapsed_s="35.1"))
    assert said.startswith("calibration took 35.10 s for a budget of 10.00 s: other work on these")


def test_two_sizes_are_doubted_and_three_are_not():
    (said,) = disturbed(_calibrated(sizes=(1024, 2048)))
    assert said.startswith("all_reduce was measured at 1.0 KiB and 2.0 KiB alone")


def test_curves_that_were_not_calibrated_here_are_not_judged():
    assert disturbed(examples.cluster()) == ()


def test_doubts_are_what_calibration_wrote_and_what_it_did_not_once_each():
    cluster = _calibrated(elapsed_s="201")
    (overrun,) = disturbed(cluster)
    assert doubts(replace(cluster, warnings=("a slow host", overrun))) == ("a slow host", overrun)
    assert doubts(replace(cluster, warnings=("a slow host",))) == ("a slow host", overrun)


def test_two_sizes_are_doubted_where_other_algorithms_were_measured_at_others():
    cluster = _calibrated()
    (curve,) = cluster.curves[:1]
    first, second, third = curve.points
    curves = (
        replace(curve, algorithm="ring", points=(first, second)),
        replace(curve, algorithm="direct", points=(first, third)),
        replace(curve, algorithm="recursive", points=(first, second, third)),
    )
    (said,) = disturbed(replace(cluster, curves=curves))
    assert said.startswith(
        "all_reduce was measured at 1.0 KiB and 2.0 KiB alone (ring); "
        "1.0 KiB and 4.0 KiB alone (direct): what other sizes take is a guess"
    )
