"""Validated: intervals that follow from errors, and what lies outside of what was validated."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.validated import BY_KIND, VALIDATED
from syncopate.errors import InvalidValueError

GPU = BY_KIND["gpu"]


def test_an_interval_is_a_part_of_the_prediction_on_either_side():
    assert GPU.interval_s(1.0) == (GPU.low, GPU.high)
    low_s, high_s = GPU.interval_s(0.3)
    assert (low_s, high_s) == pytest.approx((0.3 * GPU.low, 0.3 * GPU.high))


def test_no_interval_reaches_below_the_physical_bound():
    assert GPU.interval_s(1.0, bound_s=0.98) == (0.98, GPU.high)


@pytest.mark.parametrize(("iteration_s", "bound_s"), [(float("nan"), 0.0), (-1.0, 0.0), (1.0, 2.0)])
def test_what_is_no_prediction_is_refused(iteration_s, bound_s):
    with pytest.raises(InvalidValueError, match="at least the bound"):
        GPU.interval_s(iteration_s, bound_s)


def flat(ranks: int, bytes_per_s: float) -> Cluster:
    return Cluster.flat(ranks, latency_s=1e-5, bandwidth_bytes_per_s=bytes_per_s)


def test_a_cluster_outside_of_what_was_validated_is_said_to_be():
    assert GPU.outside(flat(32, 1.175e9)) == ()
    assert GPU.outside(flat(64, 1.25e9)) == ("64 ranks are outside of what was validated, 8 to 32",)
    assert GPU.outside(flat(16, 0.125e9)) == (
        "links of 1.00 Gbit/s are outside of what was validated, 10.00 Gbit/s to 100.00 Gbit/s",
    )


def test_each_kind_has_one_row_whose_interval_has_the_prediction_in_it():
    assert len(BY_KIND) == len(VALIDATED)
    assert all(row.low < 1 < row.high and row.median <= row.p90 for row in VALIDATED)
