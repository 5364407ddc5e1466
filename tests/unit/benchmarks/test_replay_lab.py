"""The benchmark of replays in a lab, without one: a simulated run in place of a recorded one."""

from __future__ import annotations

import json

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.simulation import simulate
from syncopate.validation.expected import cluster_of, home_with, plan_of, replayed_workload
from syncopate.validation.grid import COMPUTING, REPLAYED, Cell
from tests.scripts import scripts


@pytest.fixture(scope="module")
def lab():
    with scripts("replay_lab") as (found,):
        yield found


def test_a_run_is_played_at_another_rate_by_what_a_calibration_tells(lab):
    workload = replayed_workload()
    calibrated = Cluster.flat(
        2, latency_s=5e-5, bandwidth_bytes_per_s=0.95 * 700e6 / 8, reduction_s_per_byte=2.5e-10
    )
    home = home_with(2, calibrated, {REPLAYED: workload, COMPUTING: workload})
    cell = Cell(hosts=2, rate="1gbit", racks=1, exchange="allreduce", work=REPLAYED)
    recorded = simulate(workload, plan_of(cell, home), cluster_of(cell, home), iterations=5)
    recorded_s, itself_s, replayed_s, priced_s = lab.replayed(recorded, cell, "250mbit", home)
    assert itself_s == pytest.approx(recorded_s)
    assert replayed_s == pytest.approx(priced_s)
    assert replayed_s > 2 * recorded_s
    times_s = (recorded_s, itself_s, replayed_s, priced_s)
    samples_s = (1.1 * replayed_s, replayed_s, 0.9 * replayed_s)
    found = lab.Found("allreduce", REPLAYED, "1gbit", "250mbit", *times_s, samples_s)
    assert found.errors == (pytest.approx(0.0), pytest.approx(0.0), pytest.approx(0.0))
    assert "allreduce, replayed, 1gbit -> 250mbit" in lab.line(found)
    options = lab.settled(["--quick"])
    assert (options.hosts, options.rates, options.exchanges) == (2, ["250mbit"], ["allreduce"])
    (row,) = json.loads(lab.document(options, [found]))["found"]
    assert row["measured_s"] == replayed_s
