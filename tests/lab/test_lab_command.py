"""``syncopate lab`` as users and signals meet it: from another process."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.lab import Lab, LabReport, Topology
from tests.children import HANGS_S
from tests.lab.helpers import (
    PYTHON,
    is_alive,
    is_gone,
    lab_command,
    namespaces_of,
    wait_until,
)

STAY = """
import os, signal, sys, time
def end(number, frame):
    print("told", number)
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("up", os.environ["SYNCOPATE_LAB"], os.getpid())
time.sleep(60)
"""


def _wait_for_ranks(process: subprocess.Popen[str], count: int) -> tuple[str, list[int]]:
    """Read until each rank has said that it is up; return the run id and the ranks' pids."""
    assert process.stdout is not None
    lines = [process.stdout.readline().split("] ")[1].split() for _ in range(count)]
    assert {line[0] for line in lines} == {"up"}
    return lines[0][1], [int(line[2]) for line in lines]


def test_a_run_prints_counts_and_writes(tmp_path):
    report, cluster = tmp_path / "run.json", tmp_path / "cluster.json"
    files = ["--counters", "--json", str(report), "--cluster-out", str(cluster)]
    script = "echo $GROUP_RANK; echo oops >&2; exit $RANK"
    process = lab_command("run", "-n", "2", *files, "--", "sh", "-c", script)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1
    assert {"[host0 rank 0] 0", "[host1 rank 1] 1"} <= set(out.splitlines())
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["host0", "host1"]
    assert "[host1 rank 1] oops" in err
    assert "2 hosts x 1 rank at 1.00 Gbit/s: rank 1 on host1 exited with code 1" in err
    written = LabReport.load(report)
    assert [result.returncode for result in written.outcome.ranks] == [0, 1]
    assert [link.name for link in written.links] == ["host0", "host1"]
    assert Cluster.load(cluster).world_size == 2


@pytest.mark.parametrize(
    ("number", "rank_code", "code"),
    [(signal.SIGINT, 0, 130), (signal.SIGTERM, 5, 143)],
)
def test_a_signal_reaches_every_rank_and_the_lab_is_removed(number, rank_code, code):
    process = lab_command("run", "--", *PYTHON, "-c", STAY, str(rank_code))
    run_id, pids = _wait_for_ranks(process, 2)
    assert namespaces_of(run_id)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == code
    assert sorted(line.split("] ")[1] for line in out.splitlines()) == [f"told {number}"] * 2
    assert f"{signal.Signals(number).name} passed on to 2 ranks" in err
    assert is_gone(run_id)
    assert not any(is_alive(pid) for pid in pids)


def test_a_second_interrupt_does_not_wait():
    stubborn = STAY.replace("sys.exit", "int")
    process = lab_command("run", "-n", "1", "--grace", "60", "--", *PYTHON, "-c", stubborn, "0")
    run_id, _ = _wait_for_ranks(process, 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert "told 2" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert is_gone(run_id)


def test_a_killed_lab_takes_its_ranks_along_and_clean_removes_the_rest():
    """Ranks die with the lab; what they started does not, and neither do namespaces."""
    script = 'sleep 600 & echo "up $SYNCOPATE_LAB $$"; echo "child $!"; wait'
    process = lab_command("run", "-n", "1", "--", "sh", "-c", script)
    run_id, pids = _wait_for_ranks(process, 1)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[-1])
    with Lab(Topology(hosts=1)) as alive:
        process.kill()
        process.communicate(timeout=HANGS_S)
        assert wait_until(lambda: not is_alive(pids[0]))
        assert is_alive(child)
        assert namespaces_of(run_id)
        shown = lab_command("show").communicate(timeout=HANGS_S)[0]
        status = {line.split()[0]: line.split()[1] for line in shown.splitlines()}
        assert (status[run_id], status[alive.run_id]) == ("dead", "running")
        err = lab_command("clean").communicate(timeout=HANGS_S)[1]
        assert run_id in err
        assert alive.run_id not in err
        assert is_gone(run_id)
        assert not is_alive(child)
        assert alive.run(["true"]).exit_code == 0


def test_a_lab_can_stand():
    process = lab_command("up", "-n", "2", "--rate", "100mbit")
    run_id = process.communicate(timeout=HANGS_S)[0].strip()
    try:
        lab_command("clean").communicate(timeout=HANGS_S)
        assert len(namespaces_of(run_id)) == 3
        script = "echo $(hostname) $SYNCOPATE_LAB ${RANK-none}; exit 3"
        process = lab_command("exec", "--lab", run_id, "host1", "--", "sh", "-c", script)
        assert process.communicate(timeout=HANGS_S)[0].split() == ["host1", run_id, "none"]
        assert process.returncode == 3
        process = lab_command("exec", "--lab", run_id, "host2", "true")
        assert (
            "HOST is 'host2'; it must be in host0..host1" in process.communicate(timeout=HANGS_S)[1]
        )
        assert process.returncode == 2
    finally:
        assert lab_command("down", run_id).wait(HANGS_S) == 0
    assert is_gone(run_id)


def test_ranks_of_a_lab_meet_through_torch(tmp_path):
    """TCPStore by the master's address and Gloo over eth0: the sum is right, the bytes are counted.

    A recursive or ring all-reduce of n bytes on two ranks sends n from each.
    """
    script = tmp_path / "reduce.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.full((500_000,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(x)\n"
        "print(x.unique().tolist())\n"
        "dist.destroy_process_group()\n"
    )
    report = tmp_path / "run.json"
    process = lab_command("run", "--json", str(report), PYTHON[0], str(script))
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[host0 rank 0] [3.0]", "[host1 rank 1] [3.0]"]
    links = json.loads(report.read_text())["links"]
    assert all(2_000_000 <= link["tx_bytes"] <= 2_200_000 for link in links), links
