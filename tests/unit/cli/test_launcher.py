"""Launchers other than torchrun: whose variables are taken for a rank, and whose are not."""

from __future__ import annotations

import pytest

from syncopate.cli.common import launcher
from syncopate.errors import CalibrationError, CollectiveError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),1",
}


def adopted(variables):
    environment = dict(variables)
    launcher.adopt(environment)
    return environment


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (OPEN_MPI, ("3", "8", "1", "2", "Open MPI")),
        (PMI, ("1", "2", "1", "2", "PMI")),
        (SLURM, ("5", "7", "2", "3", "Slurm")),
        # mpirun inside a step of Slurm: the inner one started the ranks.
        (SLURM | OPEN_MPI, ("3", "8", "1", "2", "Open MPI")),
    ],
)
def test_mpirun_and_srun_are_understood(variables, expected):
    found = adopted(variables)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", launcher.LAUNCHER)
    assert tuple(found[name] for name in names) == expected
    assert int(found["OMP_NUM_THREADS"]) >= 1


def test_ranks_of_one_host_keep_to_it_unless_told_otherwise():
    assert adopted(PMI)["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert "GLOO_SOCKET_IFNAME" not in adopted(OPEN_MPI)
    own = adopted({**PMI, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "7"})
    assert (own["GLOO_SOCKET_IFNAME"], own["OMP_NUM_THREADS"]) == ("eth0", "7")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "4", **OPEN_MPI},
        {**PMI, "PMI_SIZE": "1", "PMI_RANK": "0"},
        {**PMI, "PMI_RANK": ""},
        # A batch script: the job has tasks, this process is none of them.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
    ],
)
def test_what_is_no_rank_of_several_stays_as_it_is(variables):
    assert adopted(variables) == variables


def test_where_to_meet_is_asked_for_when_nobody_says(monkeypatch):
    def missing():
        raise CalibrationError("no mpi4py")

    monkeypatch.setattr("syncopate.benchmarking.mpi.load_mpi", missing)
    monkeypatch.delenv(launcher.LAUNCHER, raising=False)
    assert launcher.meeting_store(1) is None
    monkeypatch.setenv(launcher.LAUNCHER, "Slurm")
    monkeypatch.setenv("MASTER_ADDR", "host0")
    assert launcher.meeting_store(1) is None
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(CollectiveError, match=r"Slurm started the ranks .* MASTER_ADDR"):
        launcher.meeting_store(1)
