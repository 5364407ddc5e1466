"""What the command line refuses, and what else goes wrong: one clear error each."""

from __future__ import annotations

import errno
import gzip
import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import syncopate
from syncopate.errors import PlanError
from syncopate.units import MIB
from tests.unit.devices import device


@pytest.fixture
def bad_files(run):
    """Files that are not what they should be, in the folder that commands run in."""
    work = json.loads(Path("workload.json").read_text())
    for name, changed in {
        "nan": {"forward_s": float("nan")},
        "minus": {"forward_s": -1.0},
        "other": {"kind": "red\x1b[31m"},
    }.items():
        Path(f"{name}.json").write_text(json.dumps(work | changed))
    with gzip.open("bomb.json.gz", "wb") as file:
        for _ in range(70):
            file.write(b"[" + b" " * MIB)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("plan -w none.json -c cluster.json", "none.json: cannot read this workload file"),
        ("plan -w cluster.json -c cluster.json", "at $.kind: expected a 'workload' artefact"),
        ("plan -w workload.json", "--cluster is not given; it must be given, or else --network"),
        ("plan -w workload.json --network 10gbe", "--nodes is not given; it must be an integer"),
        ("plan -w workload.json --network 10gbe --nodes 0", "--nodes is 0"),
        ("plan -w workload.json --network 10gbe --racks 3,x", "the hosts of each rack, such as"),
        ("plan -w workload.json --network 10gbe --nodes 8 --racks 3,5", "left out with --racks"),
        ("plan -w workload.json --network 10gbe --nodes 8 --uplink 1g", "left out without --racks"),
        ("whatif workload.json --racks 3,5 --bandwidth 10g", "--racks is (3, 5); it must be given"),
        ("plan -w workload.json --network 5gbe --nodes 4", "unknown network '5gbe'; known: 1gbe"),
        ("plan -w workload.json -c cluster.json --nodes 4", "the only one of --cluster and"),
        ("plan -w workload.json -c cluster.json --policy best", "unknown policy 'best'; known: wf"),
        ("plan -w workload.json -c cluster.json --algorithm rign", "unknown algorithm 'rign'"),
        ("calibrate --local 2 --device tpu", "unknown device 'tpu'; known: cpu, cuda"),
        pytest.param(
            "bench --local 2 --device cuda",
            "--device is 'cuda'; it must be cpu, as torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
        ("choose", "CLUSTER is not given; it must be given, or else --network and --nodes"),
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
        ("convert cluster.json --to mscl", "unknown format 'mscl'; known: timeline, workload,"),
        ("convert cluster.json", "found a 'cluster' artefact; expected a timeline, files of"),
        ("convert cluster.json workload.json --to open-mpi", "left out after a cluster"),
        ("convert --network 10gbe --nodes 8", "--network is '10gbe'; it must be left out"),
        ("convert", "FILE is not given; it must be given: a timeline, or one file of each rank"),
        ("convert cluster.json --to open-mpi --channels 4", "left out: it belongs to --to nccl"),
        ("convert cluster.json --to nccl-tuner --channels 0", "channels is 0"),
        ("convert cluster.json --to nccl-tuner --channels -1", "channels is -1; it must be an int"),
        ("convert cluster.json --to nccl-tuner --protocol fast", "unknown protocol 'fast'"),
        ("calibrate --local 4 --budget 0", "--budget is 0.0"),
        ("calibrate --local 4 --budget nan", "--budget is nan; it must be a finite number"),
        ("calibrate --local 4 --budget inf", "--budget is inf"),
        ("ps local --servers 0 -- true", "servers is 0; it must be at least 1"),
        ("ps local --workers 0 -- true", "workers is 0; it must be at least 1"),
        ("ps local --workers 60000 -- true", "workers is 60001; it must be at most 256"),
        ("ps local --restarts 1 -- true", "--restarts is 1"),
        ("ps local --restarts -1 -- true", "--restarts is -1"),
        ("ps local --on-worker-loss hope -- true", "unknown on_worker_loss 'hope'"),
        ("ps scheduler --host 10.0.0.1", "address is '10.0.0.1'"),
        ("ps scheduler --workers 0", "workers is 0"),
        ("ps scheduler --key missing.key", "missing.key: cannot read this job key"),
        ("ps server --max-payload many", "size is 'many'"),
        ("ps server --max-payload 0", "--max-payload is '0'"),
        ("calibrate --local 4 --sizes 1KiB,big", "size is 'big'"),
        ("calibrate --local 0", "--local is 0"),
        ("calibrate --local 100000", "--local is 100000; it must be an integer from 1 to 256"),
        ("plan -w /dev/zero -c cluster.json", "/dev/zero: this is a device; give a file"),
        ("explain /dev/zero", "/dev/zero: this is a device; give a file"),
        ("convert bomb.json.gz", "bomb.json.gz: unpacks to more than 100 times its size"),
        ("whatif bomb.json.gz", "bomb.json.gz: unpacks to more than 100 times its size"),
        ("plan -w nan.json -c cluster.json", "nan.json at $.forward_s: NaN is no number of JSON"),
        ("plan -w minus.json -c cluster.json", "minus.json at $.forward_s: forward_s is -1.0"),
        ("plan -w other.json -c cluster.json", r"found 'red\x1b[31m'"),
        ("calibrate --local 4 --collectives all_redcue", "unknown collective 'all_redcue'; known"),
        ("calibrate --local 4 --collectives ,", "it must be all, or some of all_reduce, "),
        ("profile m:f --iterations 0", "--iterations is 0"),
        ("profile m:f --warmup -1", "--warmup is -1"),
        ("profile m:f --optimizer Adm", "unknown optimizer 'Adm'; known: SGD, Adam, AdamW"),
        ("profile syncopate.zoo:nothing", "nothing"),
    ],
)
def test_mistakes_are_one_clear_line_and_exit_code_2(run, line, complaint, bad_files):
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


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"RANK": "5"}, "RANK is '5'; it must be an integer from 0 to 1, as WORLD_SIZE is 2"),
        ({"RANK": "y"}, "RANK is 'y'; it must be an integer from 0 to 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; it must be an integer from 1 to"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is '99999'; it must be an integer from 1 to 65535"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is ''; it must be"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not given; it must be the address"),
    ],
)
@pytest.mark.parametrize("line", ["calibrate", "demo -o demo"])
def test_a_launcher_that_tells_nonsense_is_refused_at_once(run, monkeypatch, told, complaint, line):
    around = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (around | told).items():
        monkeypatch.setenv(name, value)
    code, out, err = run(line)
    assert (code, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_mistakes_that_all_ranks_share_are_printed_by_rank_0_alone(run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("profile m:f --iterations 0") == (2, "", "")
    code, _, err = run("plan -w none.json -c cluster.json")
    assert code == 2
    assert err.startswith("error: rank 1: none.json")


@pytest.mark.parametrize(
    ("rank", "prefix"),
    [("", "error: none.json"), ("\x1b[31mX\nY", r"error: rank \x1b[31mX\nY: none.json")],
)
def test_a_rank_is_named_where_there_is_one_and_not_obeyed(run, monkeypatch, rank, prefix):
    monkeypatch.setenv("RANK", rank)
    assert run("plan -w none.json -c cluster.json")[2].startswith(prefix)


def test_where_the_rank_is_empty_results_are_printed(run, monkeypatch):
    monkeypatch.setenv("RANK", "")
    assert "plans; bound" in run("plan -w workload.json -c cluster.json")[1]


@pytest.mark.parametrize(
    "words", [["plan", "--x\u202e\x1b[31m"], ["fly\u202e\x1b"], ["choose", "a", "b\u202e"]]
)
def test_what_a_terminal_would_obey_in_words_is_shown(run, words):
    code, _, err = run(words)
    assert code == 2
    assert "\u202e" not in err
    assert r"\u202e" in err


@pytest.mark.parametrize("line", ["plan --colour red", "fly", "simulate"])
def test_unknown_options_and_commands_are_refused(run, line):
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

    monkeypatch.setattr("syncopate.planning.planner.make_plan", refuse)
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

    monkeypatch.setattr("syncopate.planning.planner.make_plan", full)
    with pytest.raises(OSError, match="No space"):
        run("plan -w workload.json -c cluster.json")


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (ModuleNotFoundError("No", name="torch.nn"), "this needs torch, which is not installed: "),
        (ModuleNotFoundError("No", name="sklearn"), "-m pip install 'scikit-learn>=1.4', or"),
        (ModuleNotFoundError("No", name="other"), "-m pip install 'other'\n"),
        (
            ImportError("libcudart.so: cannot open", name="torch"),
            "this needs torch, which cannot be imported: libcudart.so: cannot open",
        ),
    ],
)
def test_a_missing_package_is_one_clear_line(run, monkeypatch, error, complaint):
    def missing(*args, **options):
        raise error

    monkeypatch.setattr("syncopate.planning.planner.make_plan", missing)
    code, out, err = run("plan -w workload.json -c cluster.json")
    assert (code, out) == (1, "")
    assert err.startswith("error: this needs ")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_fault_of_our_own_imports_stays_a_traceback(run, monkeypatch):
    def missing(*args, **options):
        raise ImportError("cannot import name 'plans'", name="syncopate.planning")

    monkeypatch.setattr("syncopate.planning.planner.make_plan", missing)
    with pytest.raises(ImportError, match="plans"):
        run("plan -w workload.json -c cluster.json")


def test_too_little_memory_is_one_clear_line(run, monkeypatch):
    def full(*args, **options):
        raise MemoryError

    monkeypatch.setattr("syncopate.planning.planner.make_plan", full)
    told = "error: there is no room in memory for this: ask for less of it\n"
    assert run("plan -w workload.json -c cluster.json") == (1, "", told)


def test_an_interrupt_while_packages_are_imported_exits_with_130(run, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("syncopate.cli.common.launcher.adopt", interrupt)
    assert run("--version") == (130, "", "")


def test_an_interrupt_exits_with_130(run, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("syncopate.planning.planner.make_plan", interrupt)
    assert run("plan -w workload.json -c cluster.json")[0] == 130


def test_a_module_that_is_not_there_is_one_clear_line(run):
    code, out, err = run("profile nowhere:f")
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert "nowhere" in err
    assert "Traceback" not in err
