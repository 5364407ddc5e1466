"""The benchmark of replays in a lab, without one: a simulated run in place of a recorded one."""

from __future__ import annotations

import json
from contextlib import nullcontext

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
    times_s, iterations_s = lab.replayed(recorded, cell, "250mbit", home)
    recorded_s, itself_s, replayed_s, priced_s = times_s
    assert len(iterations_s) == 4
    assert itself_s == pytest.approx(recorded_s)
    assert replayed_s == pytest.approx(priced_s)
    assert replayed_s > 2 * recorded_s
    samples_s = (1.1 * replayed_s, replayed_s, 0.9 * replayed_s)
    found = lab.Found("allreduce", REPLAYED, "1gbit", "250mbit", *times_s, samples_s)
    assert found.errors == (pytest.approx(0.0), pytest.approx(0.0), pytest.approx(0.0))
    assert "allreduce, replayed, 1gbit -> 250mbit" in lab.line(found)
    slower = lab.Found("allreduce", REPLAYED, "1gbit", "4gbit", *times_s, samples_s, 2 * replayed_s)
    assert (slower.expected_s, slower.error) == (2 * replayed_s, pytest.approx(1.0))
    options = lab.settled(["--quick"])
    assert (options.hosts, options.rates, options.exchanges) == (2, ["250mbit"], ["allreduce"])
    (row,) = json.loads(lab.document(options, [found]))["found"]
    assert row["measured_s"] == replayed_s


def test_what_is_kept_is_measured_no_more(lab, tmp_path, monkeypatch):
    """The second time nothing is asked of a session."""
    workload = replayed_workload()
    calibrated = Cluster.flat(2, latency_s=5e-5, bandwidth_bytes_per_s=0.95 * 700e6 / 8)
    home = home_with(2, calibrated, {REPLAYED: workload, COMPUTING: workload})
    cell = Cell(hosts=2, rate="1gbit", racks=1, exchange="served", work=REPLAYED)
    asked, kept = [], []

    class Session:
        def __init__(self, effort):
            self.recorded = effort.recorded

        def home(self, hosts):
            asked.append(hosts)
            return home

        def trained(self, at, plan):
            asked.append(at.rate)
            kept.append(self.recorded)
            run = simulate(workload, plan, cluster_of(at, home), iterations=self.recorded)
            return (0.5, 0.75), run

    monkeypatch.setattr(lab.Measured, "_session", lambda _, effort: nullcontext(Session(effort)))
    for _ in range(2):
        known = lab.Measured(lab.QUICK, tmp_path)
        assert known.home(2).workloads == home.workloads
        (found,) = lab.measured(known, known.home(2), cell, ["250mbit"])
        assert (found.samples_s, found.processors_s) == ((0.5, 0.75), 0.625)
        assert found.itself_s == pytest.approx(found.recorded_s, rel=0.02)
        assert len(found.iterations_s) == lab.RECORDED
    assert asked == [2, "1gbit", lab.NO_LIMIT, "250mbit"]
    assert kept == [1 + lab.RECORDED, lab.QUICK.recorded, lab.QUICK.recorded]
    assert lab.settled(["--only", "served", "--traces", "a"]).exchanges == ["served"]
