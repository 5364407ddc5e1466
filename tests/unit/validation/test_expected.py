"""Expected: clusters carried to other links, and plans for them."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Handling, Interference, Level
from syncopate.validation.expected import (
    carried,
    cluster_of,
    home_with,
    plan_of,
    predicted_s,
    replayed_workload,
)
from syncopate.validation.grid import PERIOD, WAYS, Cell, home_of
from syncopate.validation.point import Home
from tests.unit.validation.test_grid import cell

REACHED = 0.98


def calibrated(hosts: int) -> Cluster:
    """Return what a calibration at home might have found."""
    nominal = home_of(hosts).cluster()
    level = Level(
        name="host",
        size=hosts,
        latency_s=1e-4,
        bandwidth_bytes_per_s=nominal.levels[0].bandwidth_bytes_per_s * REACHED,
        burst_bytes=70_000.0,
    )
    return structs.replace(
        nominal,
        levels=(level,),
        reduction_s_per_byte=3e-10,
        handling=(Handling(round_s=2e-5),),
        interference=Interference(compute_rate=0.5, collective_stretch=2.0),
    )


def home(hosts: int = 4) -> Home:
    """Return what a calibration at home might have found, and works of a few gradients."""
    whole = replayed_workload(0.01, 0.01)
    small = structs.replace(whole, tensors=whole.tensors[:6])
    return home_with(hosts, calibrated(hosts), {"replayed": small, "computing": small})


def test_rates_are_the_new_ones_and_everything_else_is_what_was_measured_at_home():
    there = cell(rate="2gbit").workers
    found = carried(calibrated(4), home_of(4), there)
    (level,) = found.levels
    nominal = there.cluster().levels[0].bandwidth_bytes_per_s
    assert level.bandwidth_bytes_per_s == pytest.approx(REACHED * nominal)
    assert (level.latency_s, level.burst_bytes) == (1e-4, pytest.approx(70_000 * 2000 / 700))
    assert (found.handling, found.reduction_s_per_byte) == ((Handling(round_s=2e-5),), 3e-10)
    assert found.curves == ()


def test_no_link_carries_more_than_its_rate_whatever_a_calibration_saw():
    seen = calibrated(4)
    twice = structs.replace(
        seen.levels[0], bandwidth_bytes_per_s=2 * seen.levels[0].bandwidth_bytes_per_s
    )
    there = cell(rate="2gbit").workers
    found = carried(structs.replace(seen, levels=(twice,)), home_of(4), there)
    assert found.levels == (
        structs.replace(
            found.levels[0],
            bandwidth_bytes_per_s=there.cluster().levels[0].bandwidth_bytes_per_s,
        ),
    )


def test_racks_become_a_level_with_the_rate_of_their_uplink():
    there = cell(hosts=8, racks=2).workers
    inside, between = carried(calibrated(8), home_of(8), there).levels
    assert (inside.size, between.size) == (4, 2)
    assert between.bandwidth_bytes_per_s == pytest.approx(2 * inside.bandwidth_bytes_per_s)


def test_a_rank_that_sleeps_is_not_slowed_down_by_those_that_communicate():
    assert cluster_of(cell(), home()).interference == Interference()
    computing = cluster_of(cell(work="computing"), home()).interference
    assert computing == Interference(compute_rate=0.5, collective_stretch=2.0)


@pytest.mark.parametrize("exchange", WAYS)
def test_every_exchange_has_a_plan_with_its_prediction(exchange):
    plan = plan_of(cell(exchange=exchange), home())
    assert plan.prediction is not None
    assert plan.prediction.iteration_s >= plan.prediction.compute_s > 0
    if exchange == "averaged":
        assert plan.local_sgd is not None
        assert (plan.exchange, plan.local_sgd.period) == ("allreduce", PERIOD)
    else:
        assert plan.exchange == exchange


def test_slower_links_are_predicted_to_take_longer():
    def expected_s(one: Cell) -> float:
        prediction = plan_of(one, home()).prediction
        assert prediction is not None
        return prediction.iteration_s

    slow, fast = (expected_s(cell(rate=rate)) for rate in ("250mbit", "4gbit"))
    assert slow > fast


def test_one_plan_is_predicted_on_other_links_and_on_its_own():
    one, known = cell(rate="250mbit", racks=2, exchange="allreduce"), home()
    plan = plan_of(one, known)
    assert plan.prediction is not None
    assert predicted_s(one, plan, known) == plan.prediction.iteration_s
    assert one.unlimited.network == "32gbit flat"
    assert predicted_s(one.unlimited, plan, known) < plan.prediction.iteration_s


def test_the_replayed_work_has_a_quarter_of_the_elements_and_the_time_that_is_asked_for():
    workload = replayed_workload()
    assert len(workload.tensors) == 161
    assert workload.nbytes == pytest.approx(25_557_032, rel=1e-4)
    assert workload.compute_s == pytest.approx(0.3)
