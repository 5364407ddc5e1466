"""``syncopate convert`` of recorded trainings."""

from __future__ import annotations

import json
import sys

import pytest

from syncopate.analysis.workload import recorded_workload
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.cli import main
from syncopate.planning.planner import make_plan
from tests.unit.analysis.made import made
from tests.unit.tracing.foreign.made import entry, recorded, write
from tests.unit.tracing.served_cases import Job


@pytest.fixture
def convert(monkeypatch, capfd, tmp_path):
    """Run the command in a folder with two recorded ranks; return exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    ranks = [recorded(rank, [entry(1, 1 + 4 * rank, 5)], [(9, 10)]) for rank in (0, 1)]
    write(tmp_path, "rank-", ranks)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["syncopate", "convert", *line.split()])
        code = main()
        told = capfd.readouterr()
        return code, told.out, told.err

    return run


def test_ranks_become_a_timeline_that_says_what_is_not_known(convert):
    code, out, err = convert("rank-0.json rank-1.json -o made/timeline.json")
    assert (code, out) == (0, "")
    assert "note: when 2 collectives ended is not recorded" in err
    assert err.endswith("wrote made/timeline.json, in the new folder made\n")
    timeline = Timeline.load("made/timeline.json")
    assert timeline.world_size == 2
    assert Timeline.from_json(convert("rank-0.json rank-1.json")[1]) == timeline


def test_a_recorded_training_becomes_a_workload_that_is_planned_for(convert, tmp_path):
    timeline = made(2, 4)
    timeline.save("timeline.json")
    code, out, err = convert("timeline.json --to workload -o workload.json")
    assert (code, out) == (0, "")
    assert "note: gradients and times are those of" in err
    work = Workload.load("workload.json")
    assert work == recorded_workload(timeline)
    assert make_plan(work, Cluster.preset("1gbe", 2)).fingerprint == work.fingerprint


def test_what_has_no_computation_becomes_no_workload(convert):
    code, _, err = convert("rank-0.json rank-1.json --to workload")
    assert code == 2
    assert "with spans of backward" in err or "pushes with their bytes" in err


def test_ranks_and_timelines_become_perfetto(convert):
    code, out, _ = convert("rank-0.json rank-1.json --to perfetto")
    assert code == 0
    events = json.loads(out)["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == {"bucket 0", "SGD"}
    convert("rank-0.json rank-1.json -o timeline.json")
    assert convert("timeline.json --to perfetto")[1] == out


@pytest.mark.parametrize(
    ("to", "names"), [("hta", ["rank-0.json", "rank-1.json"]), ("chakra", ["0.et", "1.et"])]
)
def test_hta_and_chakra_have_a_folder_with_a_file_of_each_rank(convert, tmp_path, to, names):
    code, out, err = convert(f"rank-0.json rank-1.json --to {to} -o made/{to}")
    assert (code, out) == (0, "")
    assert "wrote made/" in err
    made = sorted((tmp_path / "made" / to).iterdir())
    assert all(path.name.endswith(name) for path, name in zip(made, names, strict=True))
    assert all(path.stat().st_size for path in made)
    code, _, err = convert(f"rank-0.json rank-1.json --to {to}")
    assert (code, f"--output is '-'; it must be a folder: {to}" in err) == (2, True)


def test_nodes_become_dlc_traces_that_say_what_the_run_says(convert, monkeypatch, capfd, tmp_path):
    job = Job()
    job.connect(0.0)
    job.first_values(0.1)
    for number in range(4):
        job.iteration(number, 1.0 + number)
    (tmp_path / "run").mkdir()
    job.write(tmp_path / "run")
    code, _, err = convert("run --to dlc -o made")
    assert code == 0
    assert "note: worker-0.txt: 8 Ack left out: the format has no place for them" in err
    assert "no file of scheduler" in err
    names = ("worker-0.txt", "worker-1.txt", "server-0.txt")
    said = []
    for files in (["run"], [f"made/{name}" for name in names]):
        monkeypatch.setattr(sys, "argv", ["syncopate", "analyze", *files, "--json"])
        assert main() == 0
        said.append(json.loads(capfd.readouterr().out))
    of_run, of_traces = said
    computed = of_run["served"].pop("computed")
    assert of_run["served"] == of_traces
    assert [one["kind"] for one in computed] == ["update", "update"]
    assert len(of_traces["phases"]) == 2 * 4


def test_runs_of_nodes_are_analysed_explained_compared_and_shown(
    convert, monkeypatch, capfd, tmp_path
):
    for name in ("a", "b"):
        job = Job()
        job.first_values(0.1)
        for number in range(4):
            job.iteration(number, 1.0 + number)
        (tmp_path / name).mkdir()
        job.write(tmp_path / name)
    for command in (["analyze", "a"], ["explain", "a"], ["compare", "a", "b"]):
        monkeypatch.setattr(sys, "argv", ["syncopate", *command])
        assert main() == 0
        out = capfd.readouterr().out
        assert "from a push to the weights" in out
        assert "2.20 ms" in out  # the workers ask so late for the weights
        monkeypatch.setattr(sys, "argv", ["syncopate", *command, "--json"])
        assert main() == 0
        assert json.loads(capfd.readouterr().out)["journeys"]
    code, out, _ = convert("a --to perfetto")
    assert code == 0
    named = ("process_name", "thread_name")
    names = {e["args"]["name"] for e in json.loads(out)["traceEvents"] if e["name"] in named}
    assert {"rank 0", "server 0", "messages sent", "update"} <= names


def test_only_nodes_have_dlc_traces(convert, tmp_path):
    assert "must be the directory of one traced run" in convert("rank-0.json --to dlc -o made")[2]
    (tmp_path / "empty").mkdir()
    assert "holds no file of a rank" in convert("empty --to dlc -o made")[2]
