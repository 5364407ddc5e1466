"""Runs a function on every rank of a lab, each a process that has imported torch already.

It costs tens of milliseconds a rank, where :meth:`syncopate.lab.Lab.run` starts a Python anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from syncopate.lab import Lab, Topology, launch
from syncopate.lab.kernel import NAMESPACES
from syncopate.lab.names import host_namespace
from syncopate.lab.ranks import host_environment, rank_environment
from syncopate.lab.state import hosts_file
from tests.children import HANGS_S
from tests.multiprocess.harness import run_processes


@dataclass(frozen=True)
class _OnItsHost:
    """What one rank's process does; it travels pickled."""

    run_id: str
    topology: Topology
    rank: int
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self) -> Any:
        host = self.topology.host_of(self.rank)
        namespace = NAMESPACES / host_namespace(self.run_id, host)
        launch.enter(str(namespace), self.topology.hostname(host), str(hosts_file(self.run_id)))
        os.environ.update(host_environment(self.run_id, os.environ))
        os.environ.update(rank_environment(self.topology, self.rank))
        return self.function(*self.args)


def run_on_hosts(
    topology: Topology, function: Callable[..., Any], *args: Any, timeout_s: float = HANGS_S
) -> list[Any]:
    """Run ``function(*args)`` on every rank of a lab that is made for it.

    Args:
        topology: what to emulate.
        function: a module-level function; it finds the variables that torchrun sets.
        args: its arguments; they and what it returns travel pickled.
        timeout_s: limit for all ranks.

    Returns:
        One result per rank, in rank order.

    Raises:
        RankFailedError: a rank raised, ended without a result, or was still running at the limit.
    """
    with Lab(topology) as lab:
        ranks = range(topology.world_size)
        calls = [_OnItsHost(lab.run_id, topology, rank, function, args) for rank in ranks]
        return run_processes(calls, timeout_s=timeout_s)
