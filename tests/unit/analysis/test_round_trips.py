"""Trips: the stages between a push to a server and the weights that come back."""

from __future__ import annotations

import pytest

from syncopate.analysis.round_trips import mean_round_trips
from syncopate.artifacts.timelines.round_trip import STAGES, RoundTrip
from syncopate.runs.served import trips_of
from syncopate.tracing.run import read_run
from tests.unit.tracing.served_cases import Job


def trips(job, directory):
    job.write(directory)
    return trips_of(read_run(directory))


def test_the_stages_of_a_trip_add_up_to_it(tmp_path):
    job = Job(keys=1)
    job.first_values(0.1)
    job.iteration(0, 1.0)
    first, second = trips(job, tmp_path)
    assert [(t.rank, t.name, t.iteration) for t in (first, second)] == [(0, "t0", 0), (1, "t0", 0)]
    assert sum(first.stages_s) == pytest.approx(first.back_s - first.queued_s)
    # What the cases of the tracing tests say of sending, the other worker, the update and so on.
    for trip, others_s in ((first, 0.002), (second, 0.0)):
        expected = (0.0011, others_s, 0.0007, 0.0022, 0.0012, 0.0011)
        assert trip.stages_s == pytest.approx(expected)


def test_a_request_that_came_before_the_update_takes_no_time(tmp_path):
    trip = RoundTrip(0, "t0", "s0", 0, 0, 100, 0.0, 1.0, 2.0, 3.0, 5.0, 3.5, 4.0, 6.0, 7.0, 8.0)
    assert trip.stages_s == (2.0, 1.0, 2.0, 0.0, 1.0, 2.0)


def test_without_waiting_for_others_a_trip_is_its_own(tmp_path):
    job = Job(keys=1)
    job.mode = "asgd"
    job.first_values(0.1)
    job.iteration(0, 1.0)
    assert [t.stages_s[STAGES.index("other workers")] for t in trips(job, tmp_path)] == [0.0, 0.0]


def test_the_mean_is_of_each_servers_trips(tmp_path):
    job = Job(servers=2, keys=3)
    job.first_values(0.1)
    for number in range(2):
        job.iteration(number, 1.0 + number)
    job.iteration(2, 3.0, pulls=False)  # nothing comes back
    found = mean_round_trips(trips(job, tmp_path))
    assert [(one.server, one.trips) for one in found] == [("s0", 8), ("s1", 4)]
    for one in found:
        assert one.stages_s == pytest.approx((0.0011, 0.001, 0.0007, 0.0022, 0.0012, 0.0011))
        assert one.total_s == pytest.approx(0.0073)
