"""Lab: an emulated cluster that exists for the length of a ``with`` block.

Example:
    >>> with Lab(Topology(hosts=4, ranks_per_host=2)) as lab:  # doctest: +SKIP
    ...     outcome = lab.run(["python", "train.py"])
    ...     print(outcome.summary(), lab.counters())
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import Cluster
from syncopate.errors import SyncopateError
from syncopate.lab import network, state, support
from syncopate.lab.names import new_run_id
from syncopate.lab.network import LinkCounter
from syncopate.lab.output import LineSink, PrefixedOutput
from syncopate.lab.ranks import Outcome, RankGroup, require_command
from syncopate.lab.stops import Stops
from syncopate.lab.topology import Topology

GRACE_S = 10.0
"""How long ranks may go on after another failed: time to notice, and to say which was lost."""


class LabReport(Artifact, frozen=True, kw_only=True):
    """One run in a lab, as ``syncopate lab run --json`` writes it.

    Attributes:
        topology: what was emulated.
        command: what every rank ran.
        outcome: how each rank ended.
        links: bytes that each link carried during the run.
    """

    KIND: ClassVar[str] = "lab-run"

    topology: Topology
    command: tuple[str, ...]
    outcome: Outcome
    links: tuple[LinkCounter, ...]


class Lab:
    """Emulated hosts on this machine, from entering the block to leaving it, however it is left.

    While the block runs in the main thread, SIGINT, SIGTERM and SIGHUP unwind it; during
    :meth:`run` they go to the ranks. A lab whose process was killed outright loses its ranks with
    it, and ``syncopate lab clean`` removes the rest.

    Args:
        topology: what to emulate.
        standing: leave the lab standing when the block ends well, until :func:`take_down`.

    Raises:
        SyncopateError: on entering, where this machine, user or kernel cannot make a lab.
    """

    def __init__(self, topology: Topology, *, standing: bool = False) -> None:
        self.topology = topology
        self.run_id = new_run_id()
        self._standing = standing
        self._lock: int | None = None
        self._stops = Stops()

    def __enter__(self) -> Lab:
        support.require()
        self._stops.install()
        try:
            with self._stops.deferred():
                self._lock = state.record(self.run_id, self.topology, standing=self._standing)
                network.build(self.run_id, self.topology, checkpoint=self._stops.check)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._standing and kind is None:
            self._leave()
        else:
            self._remove()

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        sink: LineSink | None = None,
        grace_s: float = GRACE_S,
    ) -> Outcome:
        """Run a command on every rank, and wait for all of them.

        Args:
            command: program and arguments; each rank gets torchrun's environment variables.
            environment: what the ranks inherit; this process's own otherwise.
            sink: takes the lines they print; printed with the rank in front otherwise.
            grace_s: how long the others may go on after a rank failed, and all after a signal.

        Returns:
            How each rank ended.

        Raises:
            SyncopateError: outside the ``with`` block, or no such program.
        """
        self._require_entered()
        require_command(command)
        base = os.environ if environment is None else environment
        group = RankGroup(self.run_id, self.topology, sink or self._printer(), grace_s)
        return group.run(command, base, self._stops)

    def limit(self, host: int, rate_bytes_per_s: float, *, sent_only: bool = False) -> None:
        """Give the link of a host another rate, also while ranks run; :attr:`topology` stays.

        Args:
            host: whose.
            rate_bytes_per_s: of both directions.
            sent_only: change what the host sends, and leave what it receives as it is.

        Raises:
            InvalidValueError: no such host, or no such rate.
            SyncopateError: outside the ``with`` block.
        """
        self._require_entered()
        self.topology.with_host_rates({host: rate_bytes_per_s})  # refuses what no link can have
        network.reshape(self.run_id, self.topology, host, rate_bytes_per_s, sent_only=sent_only)

    def counters(self) -> tuple[LinkCounter, ...]:
        """Return what each host's link, then each rack's uplink, has carried so far."""
        self._require_entered()
        with self._stops.deferred():
            return network.counters(self.run_id, self.topology)

    def cluster(self) -> Cluster:
        """Return the cluster this lab emulates, with nominal figures: nothing measured."""
        return self.topology.cluster()

    def _printer(self) -> PrefixedOutput:
        where = self.topology
        hosts = [where.hostname(where.host_of(rank)) for rank in range(where.world_size)]
        return PrefixedOutput([f"{host} rank {rank}" for rank, host in enumerate(hosts)])

    def _require_entered(self) -> None:
        if self._lock is None:
            raise SyncopateError("this lab does not stand; use it inside `with Lab(topology):`")

    def _remove(self) -> None:
        with self._stops.deferred():
            try:
                take_down(self.run_id, self.topology)
            finally:
                self._leave()

    def _leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._stops.restore()


def take_down(run_id: str, topology: Topology) -> None:
    """Remove a standing lab, with all that still runs in it."""
    state.remove(run_id, network.namespaces(run_id, topology))
