"""Calibration in a lab: racks are found, in whatever order ranks stand, and slow hosts named.

Or a file names the racks: then nobody searches for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from syncopate.cluster import Cluster
from syncopate.lab import Lab, Topology

GBIT = 1e9 / 8

CALIBRATE = """
import sys
import torch
import torch.distributed as dist
from syncopate.calibration import calibrate as calibrating
from syncopate.calibration.racks.discovery import discover
from syncopate.collectives import Communicator

def patiently(*arguments):
    # On a busy machine rates may fit no racks, and discovery says so: the next try may do better.
    for _ in range(4):
        found = discover(*arguments)
        if not any("could not be told" in warning for warning in found.warnings):
            break
    return found

calibrating.discover = patiently
torch.set_num_threads(1)
dist.init_process_group("gloo")
with Communicator(timeout_s=60) as communicator:
    cluster = calibrating.calibrate(
        communicator, budget_s=1.0, sizes=[4096], algorithms=["native"]
    )
    if communicator.rank == 0:
        cluster.save(sys.argv[1])
dist.destroy_process_group()
"""


WITHOUT_A_SEARCH = """
import os
import sys
from syncopate.calibration import calibrate
from syncopate.calibration.racks import discovery
from syncopate.cli import main

del calibrate.discover, discovery.RackSearch
# One import of torch serves all tables; each has a process and a rendezvous of its own.
tables, options = sys.argv[1].split(","), sys.argv[2:]
for table in tables:
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    pid = os.fork()
    if not pid:
        sys.argv[1:] = ["calibrate", "--racks", table, "-o", table + ".json", *options]
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(1, f"{table}: exit code {ended}\\n".encode())
"""


def run_in_lab(topology: Topology, *command: str) -> tuple[int, str]:
    """Run Python on every rank of a lab; return the exit code and all that was printed."""
    lines: list[str] = []
    with Lab(topology) as lab:
        outcome = lab.run(
            [sys.executable, "-c", *command],
            sink=lambda rank, stream, line: lines.append(line),
        )
    return outcome.exit_code, "\n".join(lines)


@pytest.fixture
def calibrated(tmp_path: Path):
    """Return what a calibration finds in a lab."""

    def run(topology: Topology) -> Cluster:
        path = tmp_path / "cluster.json"
        code, printed = run_in_lab(topology, CALIBRATE, str(path))
        assert code == 0, printed
        return Cluster.load(path)

    return run


def test_racks_that_alternate_are_found_and_put_one_after_the_other(calibrated):
    # At a quarter of a gigabit eight ranks fill their links on two busy cores too.
    topology = Topology(
        hosts=8,
        racks=2,
        rate_bytes_per_s=GBIT / 4,
        uplink_bytes_per_s=GBIT / 4,
        placement="alternating",
    )
    cluster = calibrated(topology)
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4), ("rack", 2)]
    assert cluster.placement == topology.cluster().placement == (0, 2, 4, 6, 1, 3, 5, 7)
    # What four pairs get across together; loosely, for busy machines.
    nominal = topology.cluster().levels[1].bandwidth_bytes_per_s
    assert 0.6 * nominal < cluster.levels[1].bandwidth_bytes_per_s < 1.2 * nominal
    assert cluster.warnings == ()


def test_a_flat_network_has_no_racks(calibrated):
    cluster = calibrated(Topology(hosts=4, rate_bytes_per_s=GBIT))
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4)]
    assert cluster.placement == ()
    assert not any("exchanges data at" in warning for warning in cluster.warnings)


def test_a_host_at_a_tenth_of_the_speed_is_named(calibrated):
    topology = Topology(hosts=4, rate_bytes_per_s=GBIT).with_host_rates({3: GBIT / 10})
    cluster = calibrated(topology)
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4)]
    assert cluster.warnings[0].startswith("host3 exchanges data at ")
    # A collective goes at the pace of the slowest.
    assert cluster.levels[0].bandwidth_bytes_per_s < GBIT / 5


def test_a_file_names_the_racks_and_nobody_searches_for_them(tmp_path: Path):
    topology = Topology(
        hosts=4,
        racks=2,
        ranks_per_host=2,
        rate_bytes_per_s=GBIT / 10,
        uplink_bytes_per_s=GBIT / 5,
        placement="alternating",
    )
    short, whole = tmp_path / "short.txt", tmp_path / "whole.txt"
    short.write_text("host0 left\nhost1 right\nhost2 left\n")
    whole.write_text("# hall 1\nhost9 right\nhost3 right\nhost1 right\nhost2 left\nhost0 left\n")
    options = ("--budget", "2", "--sizes", "4KiB", "--algorithms", "native")
    code, printed = run_in_lab(topology, WITHOUT_A_SEARCH, f"{short},{whole}", *options)
    assert code == 0, printed

    assert printed.count(f"{short}: exit code 2") == topology.world_size, printed
    assert f"{short}: no line for host3; every host of the job must have a line" in printed
    assert not Path(f"{short}.json").exists()

    assert printed.count(f"{whole}: exit code 0") == topology.world_size, printed
    cluster = Cluster.load(f"{whole}.json")
    levels = [(level.name, level.size) for level in cluster.levels]
    assert levels == [("device", 2), ("host", 2), ("rack", 2)]
    assert cluster.placement == topology.cluster().placement == (0, 1, 4, 5, 2, 3, 6, 7)
    assert cluster.metadata["racks"] == f"as {whole} says"
    # What two pairs get across together, which is more than one alone; loosely, for busy machines.
    host, uplink = (level.bandwidth_bytes_per_s for level in cluster.levels[1:])
    assert 1.3 * host < uplink < 2.4 * host
