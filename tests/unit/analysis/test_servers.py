"""Servers compared with each other: which is slow, and what an iteration takes without that."""

from __future__ import annotations

import json

import pytest

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.causes.trial import SLOW_SERVER
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.replay import Replay
from syncopate.cli import main
from syncopate.runs.served import trips_of
from syncopate.tracing.run import read_run
from tests.unit.tracing.served_cases import Job

LATE_S = 0.02


def trained(directory, late_s, servers=2, keys=4):
    """Return a run of eight iterations; each computes 10 ms behind the last weights of another."""
    job = Job(servers=servers, keys=keys, late_s=late_s)
    job.first_values(0.1)
    for number in range(8):
        job.iteration(number, 1.0 + number * (0.02 + max(late_s.values(), default=0.0)))
    directory.mkdir()
    job.write(directory)
    return directory


def explained(directory):
    run = read_run(directory)
    return explanation(run.timeline, trips=trips_of(run))


def test_a_slow_worker_is_named_and_not_the_servers_that_wait_for_it(tmp_path):
    job = Job(servers=2, keys=4, behind_s={"w1": LATE_S})
    job.first_values(0.1)
    for number in range(8):
        job.iteration(number, 1.0 + number * (0.02 + LATE_S))
    job.write(tmp_path)
    found = explained(tmp_path)
    first = found.causes[0]
    assert (first.kind, first.ranks, first.lane) == ("compute", (1,), "backward")
    # Worker 0 computes until it has pushed, and is done 19 ms before worker 1.
    assert first.own - first.others == pytest.approx(0.019)
    assert first.gain_s == pytest.approx(first.own - first.others, rel=0.1)
    assert found.error == pytest.approx(0.0, abs=1e-9)


def test_a_slow_server_is_named_with_what_it_costs(tmp_path):
    found = explained(trained(tmp_path / "a", {"s1": LATE_S}))
    first = found.causes[0]
    assert (first.kind, first.ranks, first.lane) == (SLOW_SERVER, (1,), "answer")
    assert first.gain_s == pytest.approx(LATE_S, rel=0.05)
    assert first.own - first.others == pytest.approx(LATE_S)
    # What is left of its messages is no second cause of the same time.
    assert sum(cause.gain_s for cause in found.causes) <= found.iteration_s - found.bound_s + 1e-9


def test_equal_servers_are_not_blamed(tmp_path):
    found = explained(trained(tmp_path / "a", {"s0": LATE_S, "s1": LATE_S}))
    assert SLOW_SERVER not in {cause.kind for cause in found.causes}


def test_a_single_server_is_compared_with_nobody(tmp_path):
    found = explained(trained(tmp_path / "a", {"s0": LATE_S}, servers=1))
    assert [cause.kind for cause in found.causes] == ["server"]


def test_of_three_the_two_slow_ones_are_one_cause(tmp_path):
    """To mend one alone gains nothing: the other is as late."""
    found = explained(trained(tmp_path / "a", {"s1": LATE_S, "s2": LATE_S}, servers=4, keys=8))
    assert found.causes[0].kind == SLOW_SERVER
    assert found.causes[0].ranks == (1, 2)
    assert found.causes[0].gain_s == pytest.approx(LATE_S, rel=0.05)


def test_a_server_has_time_for_the_bytes_that_it_has_more(tmp_path):
    """Server 0 has two of three slices, and is as fast: none is slow."""
    run = read_run(trained(tmp_path / "a", {}, keys=3))
    assert Servers(trips_of(run), Replay(run.timeline)).slow == ()


def test_the_command_names_the_server_and_the_stage(tmp_path, monkeypatch, capfd):
    path = trained(tmp_path / "a", {"s1": LATE_S})
    monkeypatch.setattr("sys.argv", ["syncopate", "explain", str(path)])
    assert main() == 0
    told = " ".join(capfd.readouterr().out.split())
    assert (
        "1. server 1 has weights there later than the others: 21.20 ms a slice in 'answer'" in told
    )
    assert "where others take 1.20 ms" in told
    monkeypatch.setattr("sys.argv", ["syncopate", "explain", str(path), "--json"])
    assert main() == 0
    first = json.loads(capfd.readouterr().out)["causes"][0]
    assert (first["kind"], first["ranks"]) == (SLOW_SERVER, [1])
