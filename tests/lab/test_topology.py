"""Calibration in a lab: racks are found, in whatever order ranks stand, and slow hosts named."""

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


@pytest.fixture
def calibrated(tmp_path: Path):
    """Return what a calibration finds in a lab."""

    def run(topology: Topology) -> Cluster:
        path = tmp_path / "cluster.json"
        lines: list[str] = []
        with Lab(topology) as lab:
            outcome = lab.run(
                [sys.executable, "-c", CALIBRATE, str(path)],
                sink=lambda rank, stream, line: lines.append(line),
            )
        assert outcome.exit_code == 0, "\n".join(lines)
        return Cluster.load(path)

    return run


def test_racks_that_alternate_are_found_and_put_one_after_the_other(calibrated):
    topology = Topology(
        hosts=8,
        racks=2,
        rate_bytes_per_s=GBIT,
        uplink_bytes_per_s=GBIT,
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
