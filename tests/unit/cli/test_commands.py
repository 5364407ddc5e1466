"""The command line in this process: what it prints, writes and refuses."""

from __future__ import annotations

import errno
import json
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import msgspec
import pytest

import syncopate
from syncopate.cli import calibrate, main
from syncopate.cluster import Cluster
from syncopate.decision_table import DecisionTable
from syncopate.delay import Delay
from syncopate.errors import PlanError
from syncopate.plan import SERVERLESS, Plan
from syncopate.planning.registry import POLICIES
from syncopate.timeline import Timeline
from syncopate.units import format_seconds
from tests.unit import examples
from tests.unit.devices import device


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Run a command line in a folder with a workload and a cluster; return code, out, err."""
    for name in ("RANK", "WORLD_SIZE", "SYNCOPATE_RENDEZVOUS", "SYNCOPATE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    examples.workload().save("workload.json")
    examples.cluster().save("cluster.json")
    Path("large.json").write_bytes(
        Cluster.preset("10gbe", 97).to_json().replace(b"97,", b"1000000000,")
    )

    def run(line: str):
        monkeypatch.setattr(sys, "argv", ["syncopate", *line.split()])
        code = main()
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


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


def test_a_policy_by_name_is_written_for_its_best_exchange(run):
    code, out, _ = run("plan -w workload.json -c cluster.json --policy threshold --json")
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
    assert run("plan -w workload.json -c cluster.json --policy wfbp --exchange rooted")[0] == 0
    plan = Plan.load("plan.json")
    assert (plan.policy, plan.exchange, plan.channels) == ("wfbp", "rooted", 1)
    assert run("plan -w workload.json -c cluster.json --wire-dtype float16")[0] == 0
    assert Plan.load("plan.json").wire_dtype == "float16"
    code, _, err = run("plan -w workload.json -c cluster.json --exchange shared")
    assert code == 2
    assert "unknown exchange 'shared'; known: allreduce, sharded, rooted, served, all" in err
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


def test_plan_on_a_network_that_is_not_there(run):
    code, out, _ = run("plan -w workload.json --network 10gbe --nodes 64")
    assert code == 0
    assert Plan.load("plan.json").world_size == 64
    assert "64 nodes, 10gbe" in out


def test_plan_as_json_is_every_plan(run):
    code, out, err = run("plan -w workload.json -c cluster.json --json")
    assert code == 0
    assert err == ""
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
)
@pytest.mark.parametrize("command", ["choose wrong.json", "plan -w workload.json -c wrong.json"])
def test_curves_of_what_there_is_not_are_refused(run, command, change, complaint):
    cluster = examples.cluster()
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
    assert err.endswith("wrote new/rules.json\n")
    with open("new/rules.json", encoding="utf-8") as file:
        assert "allreduce" in json.load(file)["collectives"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("plan -w none.json -c cluster.json", "none.json: cannot read this workload file"),
        ("plan -w cluster.json -c cluster.json", "at $.kind: expected a 'workload' artefact"),
        ("plan -w workload.json", "--cluster is None; it must be given, or else --network"),
        ("plan -w workload.json --network 10gbe", "--nodes is None; it must be an integer >= 1"),
        ("plan -w workload.json --network 10gbe --nodes 0", "--nodes is 0"),
        ("plan -w workload.json --network 5gbe --nodes 4", "unknown network '5gbe'; known: 1gbe"),
        ("plan -w workload.json -c cluster.json --nodes 4", "the only one of --cluster and"),
        ("plan -w workload.json -c cluster.json --policy best", "unknown policy 'best'; known: wf"),
        ("plan -w workload.json -c cluster.json --algorithm rign", "unknown algorithm 'rign'"),
        ("choose", "CLUSTER is None; it must be given, or else --network and --nodes"),
        ("choose cluster.json --nodes 4", "the only one of CLUSTER and --network"),
        (
            "choose --network 10gbe --nodes 1000000000",
            "nodes is 1000000000; it must be at most 1048576",
        ),
        (
            "plan -w workload.json -c large.json",
            "size of all levels is 1000000000; it must be at most",
        ),
        ("choose cluster.json --collective all_redcue", "unknown collective 'all_redcue'"),
        ("choose workload.json", "expected a 'cluster' artefact, found 'workload'"),
        ("convert cluster.json --to mscl", "unknown format 'mscl'; known: timeline, perfetto,"),
        ("convert cluster.json", "found a 'cluster' artefact; expected a timeline, files of"),
        ("convert cluster.json workload.json --to open-mpi", "left out after a cluster"),
        ("convert --network 10gbe --nodes 8", "--network is '10gbe'; it must be left out"),
        ("convert", "FILE is None; it must be given: a timeline, or one file of each rank"),
        ("convert cluster.json --to open-mpi --channels 4", "left out: it belongs to --to nccl"),
        ("convert cluster.json --to nccl-tuner --channels 0", "channels is 0"),
        ("convert cluster.json --to nccl-tuner --channels -1", "channels is -1; it must be an int"),
        ("convert cluster.json --to nccl-tuner --protocol fast", "unknown protocol 'fast'"),
        ("calibrate --local 4 --budget 0", "--budget is 0.0"),
        ("calibrate --local 4 --sizes 1KiB,big", "size is 'big'"),
        ("calibrate --local 0", "--local is 0"),
        ("calibrate --local 4 --collectives all_redcue", "unknown collective 'all_redcue'; known"),
        ("calibrate --local 4 --collectives ,", "it must be all, or some of all_reduce, "),
        ("profile m:f --iterations 0", "--iterations is 0"),
        ("profile m:f --warmup -1", "--warmup is -1"),
        ("profile m:f --optimizer Adm", "unknown optimizer 'Adm'; known: SGD, Adam, AdamW"),
        ("profile syncopate.zoo:nothing", "nothing"),
    ],
)
def test_mistakes_are_one_clear_line_and_exit_code_2(run, line, complaint):
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_model_that_raises_is_one_clear_line(run):
    with open("bad_model.py", "w", encoding="utf-8") as file:
        file.write(
            "import torch\n"
            "class Bad(torch.nn.Linear):\n"
            "    def forward(self, x):\n"
            "        return super().forward(x) @ torch.zeros(5, 5)\n"
            "def build():\n"
            "    return Bad(2, 2), torch.ones(3, 2)\n"
        )
    code, out, err = run("profile bad_model.py:build")
    assert (code, out) == (1, "")
    told = "mat1 and mat2 shapes cannot be multiplied (3x2 and 5x5) (at bad_model.py:4)"
    assert err == f"error: profiling bad_model.py:build raised RuntimeError: {told}\n"


def test_calibrating_alone_says_how_to_start_ranks(run):
    code, _, err = run("calibrate")
    assert code == 1
    assert "`syncopate calibrate --local 4`" in err
    assert "torchrun" in err


def test_local_ranks_are_refused_under_torchrun(run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run("calibrate --local 2")
    assert code == 2
    assert "left out under torchrun" in err


def test_mistakes_that_all_ranks_share_are_printed_by_rank_0_alone(run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("profile m:f --iterations 0") == (2, "", "")
    code, _, err = run("plan -w none.json -c cluster.json")
    assert code == 2
    assert err.startswith("error: rank 1: none.json")


def test_unknown_options_and_commands_are_refused(run):
    for line in ("plan --colour red", "fly", "plan"):
        code, out, err = run(line)
        assert code == 2
        assert out == ""
        assert "Usage: syncopate" in err


def test_debug_shows_the_traceback(run, monkeypatch):
    monkeypatch.setenv("SYNCOPATE_DEBUG", "1")
    with pytest.raises(syncopate.SyncopateError):
        run("plan -w none.json -c cluster.json")


def test_a_refusal_inside_a_command_has_its_own_exit_code(run, monkeypatch):
    def refuse(*args, **options):
        raise PlanError("no")

    monkeypatch.setattr("syncopate.planning.planner.compare", refuse)
    assert run("plan -w workload.json -c cluster.json") == (2, "", "error: no\n")


@pytest.mark.parametrize(
    "line",
    ["--help", "choose --network 10gbe --nodes 2", "choose --network 10gbe --nodes 2 --json"],
)
def test_a_full_standard_output_is_one_clear_line(run, monkeypatch, line):
    with open(device(Path(), "full"), "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = run(line)
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        with suppress(OSError):
            full.close()
    assert (code, err) == (2, "error: standard output: cannot write: No space left on device\n")


def test_other_files_that_cannot_be_written_are_not_called_standard_output(run, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("syncopate.planning.planner.compare", full)
    with pytest.raises(OSError, match="No space"):
        run("plan -w workload.json -c cluster.json")


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (ModuleNotFoundError("No", name="torch.nn"), "this needs torch, which is not installed: "),
        (ModuleNotFoundError("No", name="sklearn"), "-m pip install scikit-learn"),
        (
            ImportError("libcudart.so: cannot open", name="torch"),
            "this needs torch, which cannot be imported: libcudart.so: cannot open",
        ),
    ],
)
def test_a_missing_package_is_one_clear_line(run, monkeypatch, error, complaint):
    def missing(*args, **options):
        raise error

    monkeypatch.setattr("syncopate.planning.planner.compare", missing)
    code, out, err = run("plan -w workload.json -c cluster.json")
    assert (code, out) == (1, "")
    assert err.startswith("error: this needs ")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_fault_of_our_own_imports_stays_a_traceback(run, monkeypatch):
    def missing(*args, **options):
        raise ImportError("cannot import name 'plans'", name="syncopate.planning")

    monkeypatch.setattr("syncopate.planning.planner.compare", missing)
    with pytest.raises(ImportError, match="plans"):
        run("plan -w workload.json -c cluster.json")


def test_an_interrupt_exits_with_130(run, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("syncopate.planning.planner.compare", interrupt)
    assert run("plan -w workload.json -c cluster.json")[0] == 130


def test_a_module_that_is_not_there_is_one_clear_line(run):
    code, out, err = run("profile nowhere:f")
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert "nowhere" in err
    assert "Traceback" not in err


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
    monkeypatch.setattr("syncopate.reports.pages.page._NEEDED", ("no_such_package",))
    code, out, err = run("bench --local 2 --html bench.html")
    assert (code, out) == (1, "")
    assert "pip install 'syncopate[html]'" in err


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_wrong_with_a_cluster_is_shown(tmp_path, capsys, as_json):
    warned = msgspec.structs.replace(examples.cluster(), warnings=("host[3] is slow",))
    calibrate._show(warned, tmp_path / "warned.json", as_json)
    printed = capsys.readouterr()
    assert "warning: host[3] is slow\n" in (printed.err if as_json else printed.out)
    assert Cluster.load(tmp_path / "warned.json") == warned
    if as_json:
        assert Cluster.from_json(printed.out) == warned
