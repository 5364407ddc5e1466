"""`syncopate replay`: a recorded run on other links, another cluster, with other servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import OWN_CLUSTER, Timeline
from syncopate.output import write_output
from syncopate.tracing.dlc import to_dlc
from tests.unit.analysis import written as files
from tests.unit.analysis.made import made
from tests.unit.analysis.written import written
from tests.unit.tracing.test_dlc_timeline import BYTE_S, LENGTHS, traced, worked_out


@pytest.fixture
def play(run):
    """Replay with options; return what was printed as JSON."""
    made(4, 6).save("made.json")

    def play(options: str):
        code, out, err = run(f"replay {options} --json")
        assert code == 0, err
        return json.loads(out)

    return play


def test_a_factor_needs_no_cluster_and_the_timeline_is_one_for_other_commands(play, run):
    found = play("made.json --bandwidth x2 -o there.json")
    assert found["median"] == {"recorded_s": 9.0, "replayed_s": pytest.approx(8.0)}
    assert found["spent"]["recorded"]["transferring_s"] == pytest.approx(2.0)
    assert found["spent"]["replayed"]["transferring_s"] == pytest.approx(1.0)
    assert [one["iteration"] for one in found["iterations"]] == [1, 2, 3, 4, 5]
    assert Timeline.load("there.json").metadata["replayed"] == "its own network, bandwidth x2"
    for command in ("analyze", "explain"):
        code, _, err = run(f"{command} there.json")
        assert code == 0, err
    code, out, _ = run("replay made.json --bandwidth x2")
    assert code == 0
    assert "the median iteration took 9.00 s, and takes 8.00 s there (-11.1%)" in out
    assert "waiting for ranks" in out


def test_a_run_is_played_on_its_own_cluster_and_on_another(play):
    Cluster.preset("1gbe", 4).save("own.json")
    Cluster.preset("10gbe", 4).save("other.json")
    own = play("made.json -c own.json")
    assert own["median"]["replayed_s"] == pytest.approx(own["median"]["recorded_s"])
    assert own["remarks"] == []
    # 100 and 200 bytes are start-up alone, which is the same on both: only bytes differ.
    there = play("made.json -c own.json --on other.json")
    assert there["network"] == "4 nodes, 10gbe"
    faster = play("made.json -c own.json --bandwidth 10gbe --latency x0.5")
    assert faster["median"]["replayed_s"] < there["median"]["replayed_s"]
    alone = play("made.json --network 10gbe")
    (remark,) = alone["remarks"]
    assert "its own network nothing is known" in remark
    assert alone["median"]["replayed_s"] == pytest.approx(7.0, abs=0.01)


def test_a_cluster_beside_a_run_is_its_own(play):
    folder = written(Path("run"), made(4, 6))
    Cluster.preset("1gbe", 4).save(folder / "cluster.json")
    found = play("run --bandwidth 10gbe")
    assert found["network"] == "4 nodes, 1gbe, bandwidth 10gbe"
    assert found["remarks"] == []


def test_a_run_may_say_itself_what_it_ran_on(play, monkeypatch):
    own = {OWN_CLUSTER: Cluster.preset("1gbe", 4).to_json().decode()}
    monkeypatch.setattr(files, "_PLAN", files._PLAN | own)
    written(Path("run"), made(4, 6))
    found = play("run --bandwidth 10gbe -o there.json")
    assert (found["network"], found["remarks"]) == ("4 nodes, 1gbe, bandwidth 10gbe", [])
    assert OWN_CLUSTER not in Timeline.load("there.json").metadata


def test_dlc_traces_of_all_workers_are_a_run(play, run):
    for path, trace in traced(worked_out()).items():
        text = "".join(to_dlc(trace.header, tuple(trace.records)))
        write_output(Path(path), text.encode())
    files = "run/worker-0.txt run/worker-1.txt"
    found = play(f"{files} --bandwidth x10")
    last = LENGTHS[-1] * BYTE_S
    saved_s = found["median"]["recorded_s"] - found["median"]["replayed_s"]
    assert saved_s == pytest.approx(3 * last * 0.9, rel=0.02)
    code, _, err = run("replay run/worker-0.txt --bandwidth x2")
    assert (code, "missing: w1" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("", "--bandwidth is not given; it must be given, or --on"),
        ("--bandwidth 10g", "a factor such as x2, because the run's cluster is not known"),
        ("--bandwidth xx", "factor is 'xx'; it must be x and a finite number > 0"),
        ("--bandwidth x0", "factor is 'x0'"),
        ("--latency x2 --network 10gbe", "left out beside --network"),
        ("--network 10gbe --on cluster.json", "left out beside --on"),
        ("--network nonsense", "unknown network 'nonsense'"),
        ("--on large.json", "at most 1048576 ranks"),
        ("--on eight.json", "ranks of 8 nodes, 10gbe is 8; it must be that of the run, 4"),
        ("--servers 2", "--servers is 2; it must be an integer >= 1, for a run with parameter"),
        ("--bandwidth x2 --recorded-servers 2", "the run had no parameter servers"),
        ("--bandwidth x2 --last 0", "last is 0"),
    ],
)
def test_bad_options_are_one_clear_error(run, options, complaint):
    made(4, 6).save("made.json")
    Cluster.preset("10gbe", 8).save("eight.json")
    code, out, err = run(f"replay made.json {options}")
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.split())
