"""Launcher: ranks that ``mpirun`` or ``srun`` started, understood as those of torchrun.

MPI libraries and Slurm tell each process its rank in variables of their own. :func:`adopt`
translates them into torchrun's, so that everything else knows one convention. What they do not tell
is where the ranks meet: MPI itself passes that on when mpi4py is installed, else ``MASTER_ADDR``
and ``MASTER_PORT`` must be set.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any, NamedTuple

from syncopate.errors import CalibrationError, CollectiveError, how_to_install

LAUNCHER = "SYNCOPATE_LAUNCHER"
"""Environment variable: whose variables were translated, such as ``Open MPI``."""

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""The interface on which ranks of one host meet."""


class _Names(NamedTuple):
    """The variables in which a launcher tells rank and number of ranks, of all and on this host."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_KNOWN = (
    _Names(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Names("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # The step's variables: those of the job are also there in a batch script, which is no rank.
    _Names(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
)


def adopt(environment: MutableMapping[str, str]) -> None:
    """Add torchrun's variables to ``environment`` where another launcher started several ranks.

    Where torchrun's are set already nothing changes. One process alone is no rank: a caller that
    wants one rank alone says so with ``--local 1``.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return
    for names in _KNOWN:
        rank, size = (environment.get(name, "") for name in (names.rank, names.size))
        if not (rank.isdecimal() and size.isdecimal()):
            continue
        if int(size) > 1:
            environment.update({"RANK": rank, "WORLD_SIZE": size, LAUNCHER: names.launcher})
            _adopt_local(environment, names)
        return


def _adopt_local(environment: MutableMapping[str, str], names: _Names) -> None:
    local_rank = environment.get(names.local_rank, "")
    # Slurm counts per node, such as 2(x3),1; no more is needed than what the first node has.
    local_size = re.match(r"\d+", environment.get(names.local_size, ""))
    if not (local_rank.isdecimal() and local_size):
        return
    size = max(int(local_size.group()), 1)
    environment.update({"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": str(size)})
    # As torchrun does: ranks share the cores, and with torch's default each would use them all.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // size)))
    if str(size) == environment["WORLD_SIZE"]:
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)


def meeting_store(timeout_s: float) -> Any:
    """Return the store in which ranks of MPI meet; None where torchrun's variables say where.

    Raises:
        CollectiveError: nothing says where the ranks meet.
    """
    if LAUNCHER not in os.environ or "MASTER_ADDR" in os.environ:
        return None
    from syncopate.benchmarking.mpi import load_mpi

    try:
        mpi = load_mpi()
    except CalibrationError:
        raise CollectiveError(
            "rendezvous",
            f"{os.environ[LAUNCHER]} started the ranks and does not say where they meet: install "
            f"mpi4py ({how_to_install('mpi4py')}), or set MASTER_ADDR and MASTER_PORT on every "
            "rank, or start them with torchrun",
        ) from None
    world, size = mpi.COMM_WORLD, int(os.environ["WORLD_SIZE"])
    if world.size != size:
        reason = (
            f"{os.environ[LAUNCHER]} started {size} ranks and mpi4py sees {world.size}: it was "
            "built for another MPI library than the one that started the ranks"
        )
        raise CollectiveError("rendezvous", reason)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=timeout_s)
    hosts = world.allgather(socket.gethostname())
    where = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    store = None
    if world.rank == 0:
        store = TCPStore(where, 0, size, True, limit, wait_for_workers=False)
    port = world.bcast(store.port if store is not None else 0)
    return store or TCPStore(where, port, size, False, limit)


def leave() -> None:
    """Tell MPI, if it passed on where to meet, that this rank is done and did not break off."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
