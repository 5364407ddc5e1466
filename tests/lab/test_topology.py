"""Calibration in a lab: racks are found, in whatever order ranks stand, and slow hosts named.

Or a file names the racks: then nobody searches for them.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration import calibrate as calibrating
from syncopate.calibration.racks import discovery
from syncopate.cli import main
from syncopate.collectives import Communicator
from syncopate.lab import Topology
from tests.lab.hosts import run_on_hosts

GBIT = 1e9 / 8


def calibrated_here(racks: int) -> Cluster:
    """Be a rank that calibrates."""

    def patiently(*arguments):
        # On a busy machine rates may fit no racks, and discovery says so. Or processors are slower
        # than uplinks, and there are none to be seen. The next try may do better.
        for _ in range(6):
            found = discovery.discover(*arguments)
            told = not any("could not be told" in warning for warning in found.warnings)
            if told and bool(found.placement) == (racks > 1):
                break
        return found

    dist.init_process_group("gloo")
    with (
        mock.patch.object(calibrating, "discover", patiently),
        Communicator(timeout_s=60) as communicator,
    ):
        cluster = calibrating.calibrate(
            communicator, budget_s=1.0, sizes=[4096], algorithms=["native"]
        )
    dist.destroy_process_group()
    return cluster


def calibrated(topology: Topology) -> Cluster:
    """Return what a calibration finds in a lab."""
    return run_on_hosts(topology, calibrated_here, topology.racks)[0]


def command_without_a_search(*words: str) -> tuple[int, str]:
    """Be a rank of ``syncopate calibrate`` that cannot search for racks."""
    del calibrating.discover, discovery.RackSearch
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["syncopate", "calibrate", *words]),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        code = main()
    return code, printed.getvalue()


def test_racks_that_alternate_are_found_and_put_one_after_the_other():
    # At an eighth of a gigabit eight ranks fill their links on two busy cores too.
    topology = Topology(
        hosts=8,
        racks=2,
        rate_bytes_per_s=GBIT / 8,
        uplink_bytes_per_s=GBIT / 8,
        placement="alternating",
    )
    cluster = calibrated(topology)
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4), ("rack", 2)]
    assert cluster.placement == topology.cluster().placement == (0, 2, 4, 6, 1, 3, 5, 7)
    # What four pairs get across together; loosely, for busy machines.
    nominal = topology.cluster().levels[1].bandwidth_bytes_per_s
    assert 0.6 * nominal < cluster.levels[1].bandwidth_bytes_per_s < 1.2 * nominal
    assert not any("exchanges data at" in warning for warning in cluster.warnings)


def test_a_flat_network_has_no_racks():
    cluster = calibrated(Topology(hosts=4, rate_bytes_per_s=GBIT))
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4)]
    assert cluster.placement == ()
    assert not any("exchanges data at" in warning for warning in cluster.warnings)


def test_a_host_at_a_tenth_of_the_speed_is_named():
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
    options = ("--budget", "4", "--sizes", "4KiB", "--algorithms", "native")

    def told(table: Path) -> list[tuple[int, str]]:
        words = ("--racks", str(table), "-o", f"{table}.json", *options)
        return run_on_hosts(topology, command_without_a_search, *words)

    refused = told(short)
    assert [code for code, _ in refused] == [2] * topology.world_size, refused
    said = "".join(text for _, text in refused)
    assert f"{short}: no line for host3; every host of the job must have a line" in said
    assert not Path(f"{short}.json").exists()

    done = told(whole)
    assert [code for code, _ in done] == [0] * topology.world_size, done
    cluster = Cluster.load(f"{whole}.json")
    levels = [(level.name, level.size) for level in cluster.levels]
    assert levels == [("device", 2), ("host", 2), ("rack", 2)]
    assert cluster.placement == topology.cluster().placement == (0, 1, 4, 5, 2, 3, 6, 7)
    assert cluster.metadata["racks"] == f"as {whole} says"
    # What two pairs get across together, which is more than one alone; loosely, for busy machines.
    host, uplink = (level.bandwidth_bytes_per_s for level in cluster.levels[1:])
    assert 1.3 * host < uplink < 2.4 * host
