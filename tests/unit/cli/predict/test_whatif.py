"""``syncopate whatif``: from files to answers, and what it refuses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from msgspec.structs import replace

from syncopate.analysis.phases import last_iteration_s
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.results.whatif import WhatIf
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.cli.common import sources, timelines
from syncopate.planning.planner import make_plan
from syncopate.planning.whatif.predictor import Predictor
from syncopate.runs.reading import Recorded
from syncopate.simulation import simulate
from tests.unit import examples
from tests.unit.analysis.made import made


def _found() -> WhatIf:
    return WhatIf.load("whatif.json")


def test_a_workload_on_a_typical_network(run):
    code, out, err = run("whatif workload.json --network 10gbe --nodes 2..8 --bandwidth 1g,10g")
    assert code == 0, err
    assert "wrote whatif.json" in err
    found = _found()
    assert [point.setting.nodes for point in found.points] == [2, 2, 4, 4, 8, 8]
    flowing = " ".join(out.split())
    assert all(said in flowing for said in found.sentences)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_plan_and_simulate_add_gradients_where_what_if_does(run, device):
    work = Workload.load("workload.json")
    replace(work, metadata=work.metadata | {"device": device}).save("workload.json")
    there = "--network 10gbe --nodes 8"
    how = "--policy threshold --exchange allreduce --algorithm ring"
    assert run(f"whatif workload.json {there} {how}")[0] == 0
    expected_s = _found().points[0].best.prediction.iteration_s
    assert run(f"plan -w workload.json {there} {how} --channels 1 -o plan.json")[0] == 0
    assert Plan.load("plan.json").expected_s == pytest.approx(expected_s, rel=1e-9)
    play = f"simulate -w workload.json -p plan.json {there}"
    played_s = []
    for more in ("", "--gpus-per-node 1"):
        assert run(f"{play} {more} -o played.json")[0] == 0
        played_s.append(last_iteration_s(Timeline.load("played.json")))
    assert (played_s[0] == pytest.approx(played_s[1], rel=1e-9)) == (device == "cuda")


def test_a_cluster_file_says_itself_how_fast_gradients_are_added(run):
    work = Workload.load("workload.json")
    figures = []
    for device in ("cuda", "cpu"):
        replace(work, metadata=work.metadata | {"device": device}).save("workload.json")
        assert run("plan -w workload.json -c cluster.json --policy threshold -o plan.json")[0] == 0
        figures.append(Plan.load("plan.json").expected_s)
    assert figures[0] == figures[1]


def test_an_algorithm_leaves_out_the_exchanges_that_do_not_have_it(run):
    line = "whatif workload.json --network 10gbe --nodes 4 --algorithm"
    code, _, err = run(f"{line} lp")
    assert code == 0, err
    code, _, err = run(f"{line} gossip")
    assert code == 2
    assert "unknown algorithm 'gossip'" in err


def test_two_outputs_are_two_files(run):
    code, _, err = run("whatif workload.json --network 10gbe --nodes 4 -o a --page a")
    assert code == 2
    assert "another file than --output" in err


def test_a_calibrated_cluster_is_today(run):
    code, _, err = run("whatif workload.json -c cluster.json --nodes 1,2,4 --gpu-speed 1,2")
    assert code == 0, err
    assert _found().base.setting.nodes == 2
    assert _found().cluster == "two hosts"


def test_json_is_the_file(run):
    code, out, _ = run("whatif workload.json --network 10gbe --nodes 4 --json -o other.json")
    assert code == 0
    assert WhatIf.from_json(out) == WhatIf.load("other.json")
    assert json.loads(out)["kind"] == "whatif"
    assert run("whatif workload.json --network 10gbe --nodes 4 --json -o -")[0] == 2


def test_a_page_and_costs(run):
    pytest.importorskip("jinja2", reason="the extra html is not installed")
    Path("prices.toml").write_text("epoch_samples = 1000\ngpu_hour = 3.6\n")
    code, _, err = run(
        "whatif workload.json --network 10gbe --nodes 2,4 --samples 10 --prices prices.toml "
        "--page page.html"
    )
    assert code == 0, err
    point = _found().points[0]
    assert point.setting.batch == 10
    # 1000 samples by 2 ranks of 10: 50 iterations, each costs its seconds of two GPUs.
    seconds = 50 * point.best.prediction.iteration_s
    assert point.epoch_cost == pytest.approx(seconds * 2 * 3.6 / 3600)
    assert "Single changes from today" in Path("page.html").read_text()


def test_second_profiles_are_files(run):
    slow = replace(examples.workload().scaled(3), metadata={"batch": "64"})
    slow.save("slow.json")
    line = "whatif workload.json --network 10gbe --nodes 2 --samples 32 "
    code, _, err = run(f"{line}--gpu-speed 1,slow.json --batch 32,slow.json")
    assert code == 0, err
    named = [(point.setting.profile, point.setting.batch) for point in _found().points]
    assert named == [("", 32), ("", 64), ("slow", 32), ("slow", 64)]
    assert _found().points[1].ddp.prediction.compute_s == pytest.approx(3 * 27e-3)


def test_how_gradients_travel_may_vary(run):
    code, _, err = run(
        "whatif workload.json -c cluster.json --exchange best,sharded --wire-dtype none,bfloat16 "
        "--level host.latency=1us,1ms --today best --uncertain bandwidth=20%,method=0.01"
    )
    assert code == 0, err
    found = _found()
    assert found.varied == ("exchange", "wire_dtype", "host.latency")
    assert "Bandwidth within 20%" in found.interval


@pytest.mark.parametrize(
    "how", ["--pull-period 0,4", "--local-sgd 0,8", "--exchange served --servers 1,4"]
)
def test_late_weights_and_servers_are_settings(run, how):
    code, _, err = run(f"whatif workload.json --network 1gbe --nodes 4 {how}")
    assert code == 0, err
    slow, fast = (point.best.prediction.iteration_s for point in _found().points)
    assert fast < slow


def test_a_timeline_is_a_training_too(run):
    made(4, 5, nbytes=(4_000_000, 2_000_000)).save("timeline.json")
    code, _, err = run("whatif timeline.json --bandwidth 1g,10g --nodes 4,8")
    assert code == 0, err
    found = _found()
    assert found.unit == "iterations/s of a rank"
    assert found.base.best.prediction.compute_s == pytest.approx(7.0)
    assert any("pieces of up to a mebibyte" in text for text in found.assumptions)
    assert any("nothing is known" in text for text in found.assumptions)


def test_a_run_is_held_against_what_is_predicted_of_it(run):
    cluster, work = Cluster.preset("10gbe", 4), examples.workload()
    plan = make_plan(work, cluster, "threshold", algorithm="ring")
    simulate(work, plan, cluster, iterations=6).save("timeline.json")
    cluster.save("tengbe.json")
    code, _, err = run("whatif timeline.json -c tengbe.json")
    assert code == 0, err
    said = next(text for text in _found().sentences if text.startswith("The run itself took"))
    off = int(said.removesuffix("%.").rpartition(" ")[2])
    assert abs(off) <= 10


def test_what_lies_beside_a_run_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "read_recorded", lambda path: Recorded(made(4, 5)))
    examples.workload().save(tmp_path / "workload.json")
    examples.cluster().save(tmp_path / "cluster.json")
    found = sources.trained(tmp_path)
    assert found.workload == examples.workload()
    assert (found.ranks, found.today) == (4, "ddp")
    assert sources.base_cluster(found, sources.Base(), {}) == (examples.cluster(), ())


def test_ctrl_c_keeps_what_was_done(run, monkeypatch):
    real, seen = Predictor.point, []

    def point(self, setting):
        seen.append(setting)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return real(self, setting)

    monkeypatch.setattr(Predictor, "point", point)
    code, out, err = run("whatif workload.json --network 10gbe --nodes 2..16")
    assert code == 130
    assert "interrupted: 2 of 4 points are kept" in err
    assert "The sweep was interrupted" in out
    assert len(_found().points) == 2
    assert not _found().complete


def test_ctrl_c_before_the_first_point_writes_nothing(run, monkeypatch):
    def point(self, setting):
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "point", point)
    assert run("whatif workload.json --network 10gbe --nodes 2..16")[0] == 130
    assert not Path("whatif.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("workload.json", "--cluster is not given; it must be given, or --network, or --bandwidth"),
        ("workload.json --network 10gbe", "--nodes is not given; it must be given, as 4,8"),
        ("workload.json --network 3gbe --nodes 4", "unknown network '3gbe'"),
        ("workload.json -c cluster.json --network 10gbe", "only one of --cluster and --network"),
        ("cluster.json --network 10gbe --nodes 4", "cluster.json"),
        ("none.json --network 10gbe --nodes 4", "none.json: cannot read it"),
        ("workload.json --network 10gbe --nodes 8..4", "nodes is '8..4'"),
        ("workload.json --network 10gbe --nodes 4 --bandwidth 10x", "rate of a link is '10x'"),
        ("workload.json --network 10gbe --nodes 4 --batch 64", "does not say which batch"),
        ("workload.json --network 10gbe --nodes 4 --keep 2", "keep is 2"),
        ("workload.json --network 10gbe --nodes 4 --today now", "unknown way of today 'now'"),
        ("workload.json --network 10gbe --nodes 4 --uncertain bandwidth", "--uncertain is"),
        ("workload.json --network 10gbe --nodes 4 --level rack", "--level is 'rack'"),
        (
            "workload.json --network 10gbe --nodes 4 --level host.latency=1us "
            "--level host.latency=1ms",
            "--level is 'host.latency'; it must be given once",
        ),
        (
            "workload.json --network 10gbe --nodes 4 --uncertain latency=1%,latency=90%",
            "--uncertain is 'latency'; it must be given once",
        ),
        ("workload.json --network 10gbe --nodes 4 --samples 0", "--samples is 0"),
        ("workload.json --network 10gbe --nodes 4 --prices none.toml", "none.toml"),
        ("workload.json --network 10gbe --nodes 4 --exchange gossip", "unknown exchange 'gossip'"),
    ],
)
def test_wrong_questions_are_one_clear_line(run, options, said):
    code, out, err = run(f"whatif {options}")
    assert code == 2
    assert out == ""
    assert said in " ".join(err.split())


REPOSITORY = Path(__file__).parents[4]
PAGE = (REPOSITORY / "docs" / "whatif.md").read_text()


GENERATE = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))


def test_the_page_answers_three_questions():
    assert len(GENERATE["questions"](PAGE)) == 3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_page_says_what_the_command_says(place):
    command = GENERATE["questions"](PAGE)[place]
    said = PAGE.split(command)[1].split("```")[2].strip().splitlines()
    assert said == GENERATE["answer"](command), "run `make docs` and commit docs/whatif.md"


def test_the_workloads_of_the_page_are_what_their_script_writes():
    written = runpy.run_path(str(REPOSITORY / "examples" / "workloads.py"))["workloads"]()
    for name, workload in written.items():
        assert Workload.load(REPOSITORY / "examples" / "workloads" / f"{name}.json") == workload
    assert written["resnet50"].nbytes == 4 * 25_557_032
    assert written["resnet50"].compute_s == pytest.approx(64 / 253.1)
