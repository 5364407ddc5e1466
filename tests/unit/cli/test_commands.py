"""The command line in this process: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json
import sys
from itertools import product
from pathlib import Path

import msgspec
import pytest

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import SERVERLESS, Plan
from syncopate.artifacts.results.decision_table import DecisionTable
from syncopate.artifacts.timeline import Timeline
from syncopate.cli import calibrate
from syncopate.cli.app import flowing
from syncopate.delay import Delay
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.registry import POLICIES, Policy
from syncopate.units import format_seconds
from tests.unit import examples
from tests.unit.analysis.made import made


def test_version(run):
    assert run("--version") == (0, f"syncopate {syncopate.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    ["calibrate", "profile", "plan", "simulate", "record", "analyze", "bench", "choose", "convert"],
)
def test_help(run, command):
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert "Usage: syncopate" in out
    assert "For example:" in out


def test_paragraphs_of_help_flow_and_examples_keep_their_lines():
    text = """One.

    Two and
    a half.

      three
      four
    """
    assert flowing(text) == "One.\n\n\n\nTwo and a half.\n\n  three\n  four"


@pytest.mark.parametrize("command", ["plan", "choose", "lab up", "ps key"])
def test_examples_are_indented_in_every_help(run, command):
    _, out, _ = run(f"{command} --help")
    lines = [line.rstrip() for line in out.splitlines()]
    (example, *_) = (line for line in lines if line.strip().startswith(f"syncopate {command}"))
    assert example.startswith("   syncopate")


def test_no_command_has_help_whose_lines_end_at_any_other_place_than_the_edge(run):
    code, out, _ = run("demo --help")
    lines = [line.strip() for line in out.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("Four ranks train"))
    paragraph = lines[first : lines.index("", first)]
    assert code == 0
    following = [line.partition(" ")[0] for line in paragraph[1:]]
    longest = max(map(len, paragraph))
    assert all(
        len(line) + 1 + len(word) > longest
        for line, word in zip(paragraph, following, strict=False)
    )


def test_the_help_lists_every_command(run):
    code, out, _ = run("--help")
    assert code == 0
    names = ("demo", "calibrate", "profile", "plan", "simulate", "analyze")
    names += ("bench", "choose", "convert", "record")
    assert all(name in out for name in (*names, "lab"))
    assert run("")[1].strip() == out.strip()


def test_plan_compares_every_policy_for_every_exchange_and_writes_the_best(run):
    code, out, err = run("plan -w workload.json -c cluster.json")
    assert code == 0
    assert all(policy in out for policy in POLICIES)
    assert all(exchange in out for exchange in SERVERLESS)
    assert "> auto" in out
    assert "wrote plan.json" in err
    plan = Plan.load("plan.json")
    assert plan.policy == "auto"
    assert plan.reason in out
    work = examples.workload()
    plan.require_fit([(t.name, t.numel, t.dtype) for t in work.tensors], 4)


@pytest.mark.parametrize(
    ("profiled", "warned"),
    [
        ({"device": "cpu", "ranks_per_host": "1"}, True),
        ({"device": "cpu", "ranks_per_host": "2"}, False),
        ({"device": "NVIDIA H200", "ranks_per_host": "1"}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_a_workload_of_fewer_ranks_than_share_a_host_is_warned_of(run, profiled, warned):
    msgspec.structs.replace(examples.workload(), metadata=profiled).save("workload.json")
    for command in ("plan", "simulate --plan plan.json"):
        code, _, err = run(f"{command} -w workload.json -c cluster.json")
        assert code == 0
        assert ("and two hosts has 2 on each; they share its processors" in err) == warned
        assert ("syncopate profile ... --local 2" in err) == warned


def test_escapes_in_names_are_shown_and_not_obeyed(run):
    work = examples.workload()
    named = msgspec.structs.replace(work.tensors[0], name="a\x1b]0;title\x07")
    evil = msgspec.structs.replace(
        work,
        model="red\x1b[31m\x9b1m",
        tensors=(named, *work.tensors[1:]),
        metadata={"times": "guessed\x1b[2J"},
    )
    evil.save("workload.json")
    cluster = msgspec.structs.replace(examples.cluster(), name="far\u202e", warnings=("no\x1b[A",))
    cluster.save("cluster.json")
    lines = ["plan -w workload.json -c cluster.json", "whatif workload.json -c cluster.json"]
    lines += ["simulate -w workload.json -p plan.json -c cluster.json -o timeline.json"]
    lines += ["analyze timeline.json", "explain timeline.json", "choose cluster.json"]
    said = ""
    for line in lines:
        code, out, err = run(line)
        assert code == 0, err
        assert not set(out + err) & set("\x1b\x9b\x07\u202e"), line
        said += out + err
    for shown in (r"red\x1b[31m\x9b1m", r"a\x1b]0;title\x07", r"guessed\x1b[2J", r"no\x1b[A"):
        assert shown in said


def test_letters_that_a_terminal_cannot_show_are_escaped(run, monkeypatch):
    work = msgspec.structs.replace(examples.workload(), model="na\xefve \u6a21")
    work.save("workload.json")
    for line, shown in (
        ("plan -w workload.json -c cluster.json", b"na\\xefve \\u6a21"),
        ("plan -w workload.json -c cluster.json --json", "na\xefve \u6a21".encode()),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        assert run(line)[0] == 0
        stream.flush()
        assert shown in stream.buffer.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_files_as_windows_writes_them_are_read(run, encoding):
    for path in (Path("workload.json"), Path("cluster.json")):
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        path.write_bytes((mark + path.read_text()).encode(encoding))
    assert run("plan -w workload.json -c cluster.json")[0] == 0


def test_a_calibration_that_was_disturbed_is_doubted_by_all_that_read_it(run):
    cluster = msgspec.structs.replace(
        examples.cluster(), metadata={"budget_s": "10", "elapsed_s": "201.25"}
    )
    cluster.save("cluster.json")
    assert run("plan -w workload.json --network 10gbe --nodes 4")[2].count("warning") == 0
    for line in (
        "plan -w workload.json -c cluster.json",
        "choose cluster.json",
        "simulate -w workload.json -p plan.json -c cluster.json -o timeline.json",
        "explain timeline.json -w workload.json -c cluster.json",
        "whatif workload.json -c cluster.json",
        "report timeline.json -w workload.json -c cluster.json -o page.html",
    ):
        err = run(line)[2]
        assert "warning: cluster.json: calibration took 201.25 s for a budget of 10.00 s" in err
        assert "all_reduce was measured at 1.0 KiB and 1.0 MiB alone" in err


def test_names_of_tensors_are_no_markup(run):
    work = examples.workload()
    named = [f"x[/red]:smile:{index}" for index in range(len(work.tensors))]
    tensors = tuple(
        msgspec.structs.replace(tensor, name=name)
        for tensor, name in zip(work.tensors, named, strict=True)
    )
    msgspec.structs.replace(work, tensors=tensors, model="[bold]").save("workload.json")
    code, out, _ = run("plan -w workload.json -c cluster.json --policy wfbp")
    assert code == 0
    assert all(name in out for name in named)
    assert "plan for [bold] on" in out


def test_a_comparison_writes_nothing(run):
    assert run("plan -w workload.json -c cluster.json")[0] == 0
    best = Path("plan.json").read_bytes()
    for what in ("--policy threshold", "--algorithm ring", "--policy wfbp --json"):
        code, _, err = run(f"plan -w workload.json -c cluster.json {what}")
        assert code == 0
        assert "compared, and not written: --output FILE writes this plan" in err
    assert Path("plan.json").read_bytes() == best


def test_a_policy_by_name_is_written_for_its_best_exchange(run):
    line = "plan -w workload.json -c cluster.json --policy threshold --json -o plan.json"
    code, out, _ = run(line)
    assert code == 0
    plans = [plan for plan in json.loads(out) if plan["policy"] == "threshold"]
    predicted_s = [plan["prediction"]["iteration_s"] for plan in plans]
    assert len(set(predicted_s)) > 1
    assert Plan.load("plan.json").prediction.iteration_s == min(predicted_s)


def test_plan_takes_an_exchange_and_channels(run):
    code, out, _ = run("plan -w workload.json -c cluster.json --exchange sharded --channels 2")
    assert code == 0
    assert "rooted" not in out
    plan = Plan.load("plan.json")
    assert (plan.exchange, plan.channels) == ("sharded", 2)
    line = "plan -w workload.json -c cluster.json --policy wfbp --exchange rooted -o plan.json"
    assert run(line)[0] == 0
    plan = Plan.load("plan.json")
    assert (plan.policy, plan.exchange, plan.channels) == ("wfbp", "rooted", 1)
    assert run("plan -w workload.json -c cluster.json --wire-dtype float16")[0] == 0
    assert Plan.load("plan.json").wire_dtype == "float16"
    code, _, err = run("plan -w workload.json -c cluster.json --exchange shared")
    assert code == 2
    assert (
        "unknown exchange 'shared'; known: allreduce, decoupled, sharded, rooted, served, fsdp, all"
        in err
    )
    code, _, err = run("plan -w workload.json -c cluster.json --exchange rooted --algorithm ring")
    assert code == 2
    assert "unknown algorithm 'ring' for reduce" in err


def test_plan_takes_a_policy_an_algorithm_and_a_file(run):
    code, out, _ = run(
        "plan -w workload.json -c cluster.json --policy wfbp --algorithm ring -o new/w.json"
    )
    assert code == 0
    assert "> wfbp" in out
    plan = Plan.load("new/w.json")
    assert [bucket.push.algorithm for bucket in plan.buckets] == ["ring"] * 3
    # What a ring cannot run is not in the table; of the rest, the best was written.
    assert "rooted" not in out
    assert plan.exchange in ("allreduce", "sharded")


def test_plan_pulls_weights_late(run):
    code, out, _ = run("plan -w workload.json -c cluster.json --pull-period 4")
    assert code == 0
    plan = Plan.load("plan.json")
    assert (plan.exchange, plan.pull_period, plan.delay) == ("sharded", 4, Delay(k=4))
    assert plan.reason in out
    assert "> 4 " in out
    assert "synchronous" in out
    code, out, _ = run("plan -w workload.json -c cluster.json --pull-period 11 --json")
    assert json.loads(out)[-1]["delay"]["k"] == 11
    code, out, _ = run("plan -w workload.json -c cluster.json --pull-period auto")
    plan = Plan.load("plan.json")
    assert f"> {plan.pull_period if plan.delay else 'synchronous'} " in out
    code, out, err = run("simulate -w workload.json -p plan.json -c cluster.json --iterations 9")
    assert code == 0, err
    for wrong, says in (
        ("--pull-period 0", "--pull-period is '0'; it must be an integer >= 1, or auto"),
        ("--pull-period 2 --exchange rooted", "only sharded and served pull weights late"),
    ):
        code, _, err = run(f"plan -w workload.json -c cluster.json {wrong}")
        assert code == 2
        assert says in " ".join(err.split())


def test_plan_with_parameter_servers(run):
    line = "plan -w workload.json -c cluster.json --exchange served"
    code, out, _ = run(f"{line} --servers 2")
    assert code == 0
    assert "servers 2" in out
    code, out, _ = run("simulate -w workload.json -p plan.json -c cluster.json")
    assert code == 0
    assert run(line)[0] == 0
    code, out, _ = run(f"{line} --servers 2 --pull-period 4")
    assert code == 0
    plan = Plan.load("plan.json")
    assert (plan.exchange, plan.pull_period, plan.delay) == ("served", 4, Delay(k=4))
    assert all(f"{mark} {k} " in out for k, mark in ((1, " "), (4, ">"), (8, " ")))
    code, out, _ = run("simulate -w workload.json -p plan.json -c cluster.json --iterations 9")
    assert code == 0
    for wrong, reason in (
        ("--exchange served --servers 0", "servers is 0"),
        ("--servers 2", "--servers is 2; it must be left out without --exchange served"),
        ("--exchange served --wire-dtype float16", "left out with the served exchange"),
    ):
        code, _, err = run(f"plan -w workload.json -c cluster.json {wrong}")
        assert code != 0
        assert reason in err


def test_plan_on_racks_of_unequal_size(run):
    code, out, _ = run("plan -w workload.json --network 10gbe --racks 3,5 --uplink 20gbit")
    assert code == 0
    plan = Plan.load("plan.json")
    assert plan.world_size == 8
    assert "racks of 3+5" in plan.cluster
    again = "--network 10gbe --racks 3,5 --uplink 20gbit"
    code, out, _ = run(f"simulate -w workload.json -p plan.json {again} --iterations 1")
    assert code == 0
    assert f"predicted iteration {format_seconds(plan.prediction.iteration_s)}" in out


def test_plan_on_a_network_that_is_not_there(run):
    code, out, _ = run("plan -w workload.json --network 10gbe --nodes 64")
    assert code == 0
    assert Plan.load("plan.json").world_size == 64
    assert "64 nodes, 10gbe" in out


def test_plan_as_json_is_every_plan(run):
    code, out, err = run("plan -w workload.json -c cluster.json --json")
    assert code == 0
    assert err.splitlines()[-1] == "wrote plan.json"
    plans = json.loads(out)
    fixed = [name for name in POLICIES if name != "auto"]
    assert [(plan["exchange"], plan["policy"]) for plan in plans[:-1]] == [
        *product(SERVERLESS, fixed)
    ]
    assert plans[-1]["policy"] == "auto"
    assert plans[-1] == json.loads(Plan.load("plan.json").to_json())


def test_simulate_plays_the_plan_that_was_written(run):
    assert run("plan -w workload.json -c cluster.json --exchange sharded")[0] == 0
    plan = Plan.load("plan.json")
    code, out, err = run("simulate -w workload.json -p plan.json -c cluster.json --iterations 2")
    assert code == 0
    assert "wrote timeline.json" in err
    timeline = Timeline.load("timeline.json")
    assert timeline.source == "simulated"
    assert {span.iteration for span in timeline.spans} == {0, 1}
    starts = [span.start_s for span in timeline.spans if span.iteration == 1]
    lasted_s = timeline.duration_s - min(starts)
    assert lasted_s == pytest.approx(plan.prediction.iteration_s)
    assert f"an iteration takes {format_seconds(lasted_s)}" in out
    low, high = (format_seconds(end_s) for end_s in (plan.prediction.low_s, plan.prediction.high_s))
    interval = f"predicted iteration {format_seconds(lasted_s)} ({low} to {high} in nine of ten)"
    assert f"{interval}\n" in out
    code, out, _ = run("simulate -w workload.json -p plan.json -c cluster.json --slow-rank 1=1.5")
    assert code == 0
    assert f"{interval}, if ranks were alike\n" in out
    code, out, _ = run(
        "simulate -w workload.json -p plan.json -c cluster.json --background host=0.5"
    )
    assert code == 0
    assert interval not in out
    assert "in nine of ten)" in out
    code, _, err = run("simulate -w workload.json -p plan.json --network 10gbe --nodes 8")
    assert code != 0
    assert "this plan is for 4 ranks; 8 are running" in err
    code, printed, _ = run("simulate -w workload.json -p plan.json -c cluster.json -o -")
    assert code == 0
    assert max(span.iteration for span in Timeline.from_json(printed).spans) == 2


def test_choose_says_which_algorithm_carries_which_sizes(run):
    code, out, err = run("choose cluster.json --collective all_reduce")
    assert (code, err) == (0, "")
    assert "two hosts: 4 ranks on 2 hosts" in out
    assert "measured from 1.0 KiB to 1.0 MiB" in out
    code, out, _ = run("choose --network 10gbe --nodes 64 --json")
    assert code == 0
    table = DecisionTable.from_json(out)
    assert table.world_size == 64
    assert {each.basis for each in table.collectives} == {"priced"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"algorithm": "magic"}, "unknown algorithm 'magic' for all_reduce; known: native, ring"),
        ({"collective": "all_redcue"}, "unknown collective 'all_redcue'"),
        ({"order": (0, 0, 1, 2)}, "order is (0, 0, 1, 2); it must be a permutation"),
    ],
    ids=["algorithm", "collective", "order"],
)
@pytest.mark.parametrize(
    "command",
    [
        "choose wrong.json",
        "plan -w workload.json -c wrong.json",
        "simulate -w workload.json -p plan.json -c wrong.json",
        "convert wrong.json --to nccl-tuner",
        "explain timeline.json -w workload.json -c wrong.json",
        "explain timeline.json -w workload.json -c wrong.json --json",
        "report timeline.json -c wrong.json",
        "bench --local 2 --cluster wrong.json",
    ],
)
def test_curves_of_what_there_is_not_are_refused(run, command, change, complaint):
    cluster = examples.cluster()
    examples.plan().save("plan.json")
    made(2, 6).save("timeline.json")
    curves = (msgspec.structs.replace(cluster.curves[0], **change),)
    msgspec.structs.replace(cluster, curves=curves).save("wrong.json")
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert err.startswith("error: wrong.json at $.curves: ")
    assert complaint in err


def test_convert_writes_rules_and_notes_what_has_no_counterpart(run):
    code, out, err = run("convert --network 10gbe --nodes 8 --to nccl-tuner --channels 4")
    assert code == 0
    assert "allreduce,0,16384,tree,ll,4,8,8,-1,-1" in out.splitlines()
    assert err.startswith("note: allreduce up to 83.1 KiB: recursive_doubling is the fastest here")
    code, out, err = run("convert cluster.json --to open-mpi -o new/rules.json")
    assert (code, out) == (0, "")
    assert err.endswith("wrote new/rules.json, in the new folder new\n")
    assert run("convert cluster.json --to open-mpi -o new/rules.json")[2].endswith("rules.json\n")
    with open("new/rules.json", encoding="utf-8") as file:
        assert "allreduce" in json.load(file)["collectives"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench all_redcue", "unknown collective 'all_redcue'; known: all_reduce"),
        ("bench -a rign", "unknown algorithm 'rign' for all_reduce; known: native, ring"),
        ("bench broadcast -a ring", "unknown algorithm 'ring' for broadcast; known: native, mst"),
        ("bench --against horovod", "unknown peer 'horovod'; known: gloo, mpi"),
        ("bench --cluster none.json", "none.json: cannot read this cluster file"),
        ("bench --from 1MiB --to 4KiB", "last size is 4096"),
        ("bench --sizes 4furlongs", "size is '4furlongs'"),
        ("bench --factor 1", "factor is 1.0"),
        ("bench --dtype float31", "unknown dtype 'float31'"),
        ("bench --root 1", "all_reduce has no root"),
        ("bench --mode fast", "unknown mode 'fast'; known: barrier, back-to-back"),
        ("bench -n 0", "iterations is 0"),
        ("bench --local 0", "--local is 0"),
    ],
)
def test_bench_refuses_before_it_starts_ranks(run, line, message):
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_bench_alone_says_how_to_start_ranks(run):
    code, _, err = run("bench")
    assert code == 1
    assert "syncopate bench --local 4" in err


def test_bench_asks_for_what_it_will_need_before_it_measures(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    code, out, err = run("bench --local 2 --against mpi")
    assert (code, out) == (1, "")
    assert "mpi4py is not installed; install an MPI library" in err
    monkeypatch.setattr("syncopate.reports.pages.page._NEEDED", "no_such_package")
    code, out, err = run("bench --local 2 --html bench.html")
    assert (code, out) == (1, "")
    assert "pip install 'jinja2>=3.1'" in err


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_wrong_with_a_cluster_is_shown(tmp_path, capsys, as_json):
    warned = msgspec.structs.replace(examples.cluster(), warnings=("host[3] is slow",))
    calibrate._show(warned, tmp_path / "warned.json", as_json)
    printed = capsys.readouterr()
    assert "warning: host[3] is slow\n" in (printed.err if as_json else printed.out)
    assert Cluster.load(tmp_path / "warned.json") == warned
    if as_json:
        assert Cluster.from_json(printed.out) == warned


def test_a_policy_of_a_package_that_chooses_by_itself_is_planned_with(run, monkeypatch):
    def mine(question):
        return question.only("sharded", 1).draft((question.problem.length,))

    row = Policy("mine", optimal, "one bucket", "a test", plans=mine, chooses=True)
    monkeypatch.setitem(POLICIES, "mine", row)
    code, out, err = run(
        "plan -w workload.json -c cluster.json --policy mine --exchange sharded -o plan.json"
    )
    assert (code, "mine" in out) == (0, True), err
    plan = Plan.load("plan.json")
    assert (plan.policy, len(plan.buckets)) == ("mine", 1)
