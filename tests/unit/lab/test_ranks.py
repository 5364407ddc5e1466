from __future__ import annotations

import signal

import pytest

from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.lab.lab import Lab, LabReport
from syncopate.lab.names import new_run_id, owner_of, require_run_id
from syncopate.lab.network import LinkCounter, since
from syncopate.lab.ranks import (
    Outcome,
    RankGroup,
    RankResult,
    host_environment,
    launch_command,
    rank_environment,
    require_command,
)
from syncopate.lab.topology import Topology


def test_ranks_see_what_torchrun_would_set():
    topology = Topology(hosts=2, ranks_per_host=3)
    assert rank_environment(topology, 4) == {
        "RANK": "4",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_the_environment_of_a_host_yields_to_the_users():
    environment = host_environment("0a1b2c", {"OMP_NUM_THREADS": "2", "HOME": "/home/ada"})
    assert environment == {
        "OMP_NUM_THREADS": "2",
        "HOME": "/home/ada",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "SYNCOPATE_LAB": "0a1b2c",
    }


def test_a_command_line_names_its_host():
    line = launch_command("0a1b2c", Topology(hosts=2), 1, ["python", "-c", "1"], parent=7)
    assert line[-3:] == ["python", "-c", "1"]
    assert line[-7:-3] == [
        "7",
        "/var/run/netns/syn0a1b2ch1",
        "host1",
        "/run/syncopate-lab/0a1b2c.hosts",
    ]


@pytest.mark.parametrize(
    ("namespace", "owner"),
    [
        ("syn0a1b2ch12", "0a1b2c"),
        ("syn0a1b2crack0", "0a1b2c"),
        ("syn0a1b2ccore", "0a1b2c"),
        ("syn0a1b2c", None),
        ("sync", None),
        ("my-syn0a1b2ch1", None),
        ("syn0A1B2Ch1", None),
    ],
)
def test_only_namespaces_of_labs_are_recognised(namespace, owner):
    assert owner_of(namespace) == owner


def test_run_ids_have_one_form():
    assert require_run_id(new_run_id())
    with pytest.raises(InvalidValueError, match="six hexadecimal digits"):
        require_run_id("../etc")


def _result(rank: int, code: int, *, stopped: bool = False) -> RankResult:
    return RankResult(rank=rank, host=f"host{rank}", returncode=code, seconds=1.5, stopped=stopped)


@pytest.mark.parametrize(
    ("codes", "first", "received", "exit_code", "summary"),
    [
        ([0, 0], None, None, 0, "2 ranks finished in 2.0 s"),
        ([0], None, None, 0, "1 rank finished in 2.0 s"),
        ([1, 3], 1, None, 3, "rank 1 on host1 exited with code 3 after 1.5 s; then failed: rank 0"),
        ([0, -9], 1, None, 137, "rank 1 on host1 was ended by SIGKILL after 1.5 s"),
        ([-64, 0], 0, None, 192, "rank 0 on host0 was ended by SIGRTMAX after 1.5 s"),
        ([-40, 0], 0, None, 168, "rank 0 on host0 was ended by signal 40 after 1.5 s"),
        ([-2, 0], None, signal.SIGINT, 130, "SIGINT passed on to 2 ranks, all ended after 2.0 s"),
        ([4, -2], 0, signal.SIGINT, 4, "rank 0 on host0 exited with code 4 after 1.5 s; then"),
    ],
)
def test_the_rank_that_failed_first_decides(codes, first, received, exit_code, summary):
    outcome = Outcome(
        ranks=tuple(_result(rank, code) for rank, code in enumerate(codes)),
        first_failed=first,
        received=received,
        seconds=2.0,
    )
    assert outcome.exit_code == exit_code
    assert outcome.summary().startswith(summary)


def test_the_summary_says_who_was_stopped():
    results = (_result(0, -15, stopped=True), _result(1, 5))
    outcome = Outcome(ranks=results, first_failed=1, received=None, seconds=2.0)
    assert outcome.summary() == (
        "rank 1 on host1 exited with code 5 after 1.5 s; ended 1 that still ran"
    )


def test_a_report_survives_the_disk(tmp_path):
    topology = Topology(hosts=2, racks=2).with_host_rates({1: 1e7})
    outcome = Outcome(ranks=(_result(0, 0),), first_failed=None, received=None, seconds=2.0)
    links = (LinkCounter(name="host0", tx_bytes=5, rx_bytes=7),)
    report = LabReport(topology=topology, command=("true",), outcome=outcome, links=links)
    assert LabReport.load(report.save(tmp_path / "run.json")) == report


def test_counters_subtract():
    before = (LinkCounter(name="host0", tx_bytes=5, rx_bytes=7),)
    now = (LinkCounter(name="host0", tx_bytes=15, rx_bytes=8),)
    assert since(before, now) == (LinkCounter(name="host0", tx_bytes=10, rx_bytes=1),)


def test_commands_and_grace_are_checked_before_anything_starts():
    with pytest.raises(InvalidValueError, match="COMMAND"):
        require_command([])
    with pytest.raises(SyncopateError, match="no-such-program: command not found"):
        require_command(["no-such-program"])
    with pytest.raises(InvalidValueError, match=r"grace is -1\.0; it must be a finite number"):
        RankGroup("0a1b2c", Topology(), lambda *line: None, -1.0)


def test_a_lab_outside_its_block_says_so():
    with pytest.raises(SyncopateError, match="use it inside `with Lab"):
        Lab(Topology()).run(["true"])
