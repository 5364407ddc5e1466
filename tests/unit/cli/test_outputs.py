"""Every option of a command line that names a file to write: what becomes of what it names."""

from __future__ import annotations

import os
import stat
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.results.benchmark import Benchmark
from syncopate.artifacts.workload import Workload
from syncopate.cli import bench, main
from syncopate.cli.common import ranks
from syncopate.cli.predict import plan
from syncopate.lab import lab as labs
from syncopate.lab.ranks import Outcome, RankResult
from tests.children import HANGS_S
from tests.unit import examples
from tests.unit.analysis.made import made
from tests.unit.devices import device


class Option(NamedTuple):
    """An option that names a file.

    Attributes:
        line: a command line that ends with the option.
        begins: how what it writes begins.
        shown: a part of what the command prints for people; empty for a command that prints none.
    """

    line: str
    begins: bytes
    shown: str = ""


OPTIONS = {
    "plan": Option("plan -w workload.json -c cluster.json -o", b'{\n "kind": "plan"', "optimal"),
    "calibrate": Option("calibrate -o", b'{\n "kind": "cluster"', "two hosts"),
    "profile": Option(
        "profile tests.multiprocess.builders:small --iterations 1 --warmup 0 -o",
        b'{\n "kind": "workload"',
        "forward",
    ),
    "bench": Option("bench -o", b'{\n "kind": "benchmark"', "ring"),
    "bench --html": Option("bench -o bench.json --html", b"<!doctype html>", "ring"),
    "report": Option("report timeline.json -o", b"<!doctype html>"),
    "convert": Option("convert cluster.json --to nccl-tuner -o", b"#"),
    "lab --json": Option(
        "lab run -n 2 --counters --json FILE -- true", b'{\n "kind": "lab-run"', "host0"
    ),
    "lab --cluster-out": Option(
        "lab run -n 2 --counters --cluster-out FILE -- true", b'{\n "kind": "cluster"', "host0"
    ),
}
ARTEFACTS = {"plan": Plan, "calibrate": Cluster, "profile": Workload, "bench": Benchmark}


class FakeLab:
    """A lab without root: its ranks print a line and end well."""

    def __init__(self, topology, *, standing=False):
        self.topology = topology

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def cluster(self):
        return self.topology.cluster()

    def counters(self):
        return (labs.LinkCounter(name="host0", tx_bytes=1, rx_bytes=2),)

    def run(self, command, *, grace_s):
        print("[host0 rank 0] said by a rank")
        result = RankResult(rank=0, host="host0", returncode=0, seconds=0.1, stopped=False)
        return Outcome(ranks=(result,), first_failed=None, received=None, seconds=0.1)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Run a command in a folder of its own, without ranks; return code, out, err."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SYNCOPATE_RENDEZVOUS", raising=False)
    monkeypatch.delenv("SYNCOPATE_DEBUG", raising=False)
    monkeypatch.setattr(ranks, "joined", lambda **options: nullcontext(None))
    monkeypatch.setattr(syncopate, "calibrate", lambda *given, **options: examples.cluster())
    measured = examples.benchmark()
    right = measured.__class__.from_json(measured.to_json().replace(b'"wrong": 3', b'"wrong": 0'))
    monkeypatch.setattr(bench, "_measure", lambda *given, **told: right)
    monkeypatch.setattr(labs, "Lab", FakeLab)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    examples.workload().save("workload.json")
    examples.cluster().save("cluster.json")
    made(2, 1).save("timeline.json")

    def run(name: str, path: object):
        line = OPTIONS[name].line
        line = line.replace("FILE", str(path)) if "FILE" in line else f"{line} {path}"
        monkeypatch.setattr(sys, "argv", ["syncopate", *line.split()])
        code = main()
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("name", OPTIONS)
def test_a_file_is_replaced_at_once_and_a_link_stays(run, name):
    os.mkdir("there")
    target, link = Path("there", "old"), Path("link")
    target.write_bytes(b"old content")
    target.chmod(0o640)
    link.symlink_to(target)
    with target.open("rb") as reader:
        code, _, err = run(name, link)
        assert reader.read() == b"old content"
    assert code == 0, err
    assert link.is_symlink()
    assert target.read_bytes().startswith(OPTIONS[name].begins)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir("there") == ["old"]


READ = ["workload.json", "./workload.json", "../folder/cluster.json"]


@pytest.mark.parametrize("path", READ)
def test_a_file_that_is_read_is_not_written(run, path):
    before = Path(path).read_bytes()
    code, _, err = run("plan", path)
    assert code == 2
    assert "it must be another file than" in err
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("name", OPTIONS)
def test_a_full_device_is_one_clear_error_and_stays_a_device(run, name):
    full = device(Path(), "full")
    code, _, err = run(name, full)
    assert code == 2
    assert err.endswith(f"error: {full}: cannot write: No space left on device\n")
    assert "Traceback" not in err
    assert stat.S_ISCHR(full.lstat().st_mode)


@pytest.mark.parametrize("name", OPTIONS)
def test_devices_and_pipes_are_written_to_and_stay(run, name):
    os.mkfifo("pipe")
    null = device(Path(), "null")
    Path("link").symlink_to(null)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()), daemon=True)
    reader.start()
    assert run(name, "pipe")[0] == 0
    reader.join(HANGS_S)
    assert read[0].startswith(OPTIONS[name].begins)
    assert stat.S_ISFIFO(os.lstat("pipe").st_mode)
    assert run(name, "link")[0] == 0
    assert Path("link").is_symlink()
    assert stat.S_ISCHR(null.lstat().st_mode)


@pytest.mark.parametrize("name", OPTIONS)
def test_standard_output_has_the_file_for_itself(run, name):
    before = set(os.listdir())
    code, out, err = run(name, "-")
    assert code == 0
    assert out.encode().startswith(OPTIONS[name].begins)
    if name in ARTEFACTS:
        ARTEFACTS[name].from_json(out)
    shown = OPTIONS[name].shown
    assert shown in err
    assert "said by a rank" not in out
    assert "wrote -" not in err
    assert "-" not in set(os.listdir()) - before


@pytest.mark.parametrize("name", OPTIONS)
def test_folders_that_were_made_are_said_once(run, name):
    told = "in the new folder some/where"
    code, _, err = run(name, "some/where/file")
    assert code == 0
    assert told in err
    code, _, err = run(name, "some/where/file")
    assert "some/where/file" in err
    assert told not in err


@pytest.mark.parametrize("name", ["plan", "calibrate", "profile", "bench", "bench --html"])
def test_json_and_a_file_do_not_share_standard_output(run, name):
    code, out, err = run(name, "- --json")
    assert (code, out) == (2, "")
    option = "--html" if "html" in name else "--output"
    rule = "it must be a file, because --json takes standard output already"
    assert err == f"error: {option} is '-'; {rule}\n"


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"convert"}))
@pytest.mark.parametrize("path", ["timeline.json/under-a-file", "."])
def test_what_cannot_be_written_is_refused_before_the_work(run, monkeypatch, name, path):
    def begun(*given, **told):
        raise AssertionError("the work has begun")

    for owner, work in (
        *((syncopate, one) for one in ("calibrate", "profile", "report")),
        (bench, "_measure"),
        (plan, "_plans"),
        (labs, "Lab"),
    ):
        monkeypatch.setattr(owner, work, begun)
    before = sorted(os.listdir())
    code, out, err = run(name, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}: cannot write: ")
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("path", ["-", "workload.json"])
def test_a_demo_that_has_no_folder_does_not_begin(run, monkeypatch, path):
    monkeypatch.delenv("RANK")
    monkeypatch.setitem(OPTIONS, "demo", Option("demo -o", b""))
    code, out, err = run("demo", path)
    assert (code, out) == (2, "")
    assert "it must be a folder, new or not, for several files" in err
