"""Session: what the parts measured in one start of a lab share: ranks, calibration, counters."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import torch

import syncopate
from syncopate.artifacts.cluster import Cluster
from syncopate.calibration.calibrate import calibrate
from syncopate.collectives import Communicator
from syncopate.collectives.machine import cpu_name
from syncopate.costs.decide.decisions import choose, decisions
from syncopate.lab import Topology, network
from syncopate.lab.ranks import LAB_VARIABLE
from syncopate.recipe import Recipe
from syncopate.schedules.registry import AUTO, NATIVE, build
from syncopate.units import KIB, format_bytes, format_seconds

from .bounds import sent_bytes
from .results import Cell, Decision, label
from .timing import ITEM_BYTES, Contender, Effort, Turns

_COUNTED_CALLS = 2


class Session:
    """The ranks of a lab while they measure.

    Args:
        communicator: all ranks.
        topology: the lab.
        effort: how much time measuring may take.
    """

    def __init__(self, communicator: Communicator, topology: Topology, effort: Effort) -> None:
        self.communicator = communicator
        self.topology = topology
        self.effort = effort
        self._cluster: Cluster | None = None
        self._links: Cluster | None = None
        self._stack = ExitStack()
        self._deciding: dict[int, Communicator] = {}

    def say(self, text: str) -> None:
        """Print progress, on rank 0 alone."""
        if self.communicator.rank == 0:
            print(text, flush=True)

    def cluster(self, *collectives: str) -> Cluster:
        """Return the cluster, ``collectives`` measured; every rank must call it alike.

        Calibrated on the first call, and kept.
        """
        if self._cluster is None:
            budget_s = self.effort.calibration_s * (1 + len(collectives))
            self.say(f"calibrating {', '.join(collectives)}, about {budget_s:g} s")
            self._cluster = calibrate(self.communicator, collectives=collectives, budget_s=budget_s)
        return self._cluster

    def links(self) -> Cluster:
        """Return the cluster with its links measured, and its collectives perhaps."""
        if self._cluster is None and self._links is None:
            self.say("calibrating the links")
            self._links = calibrate(
                self.communicator,
                budget_s=self.effort.calibration_s,
                sizes=(64 * KIB,),
                algorithms=(NATIVE,),
            )
        return self._cluster or self._links  # type: ignore[return-value]

    def auto(self, cluster: Cluster, collective: str, nbytes: int) -> Contender:
        """Return ``auto`` as it decides on ``cluster``; every rank must call it.

        A cluster that was not seen before gets a communicator of its own.
        """
        if id(cluster) not in self._deciding:
            self._deciding[id(cluster)] = self._stack.enter_context(Communicator(cluster=cluster))
        choice = choose(cluster, collective, nbytes)
        ran = label(choice.algorithm, choice.options)
        return Contender(AUTO, ran=ran, communicator=self._deciding[id(cluster)], stands_for=choice)

    def close(self) -> None:
        """Close the communicators that were made here; every rank must call it."""
        self.communicator.barrier()
        self._stack.close()

    def decisions(self, cluster: Cluster, collective: str) -> tuple[Decision, ...]:
        """Return the decision table of a collective, and print it."""
        found = tuple(
            Decision(
                collective=collective,
                least_bytes=row.min_bytes,
                ran=label(row.recipe.algorithm, row.recipe.options),
            )
            for row in decisions(cluster, collective)
        )
        for row in found:
            self.say(f"  {collective} from {format_bytes(row.least_bytes)}: {row.ran}")
        return found

    def measure(
        self,
        collective: str,
        nbytes: int,
        contenders: Mapping[str, Contender],
        communicator: Communicator | None = None,
    ) -> Cell:
        """Return one cell, measured on all ranks or on those of another communicator."""
        turns = Turns(communicator or self.communicator, self.effort)
        cell = turns.measure(collective, nbytes, contenders)
        medians = ", ".join(
            f"{name} {format_seconds(found.median_s)}" for name, found in cell.contenders.items()
        )
        count = len(next(iter(cell.contenders.values())).samples_s)
        what = f"{collective} {format_bytes(nbytes)}, p = {cell.world_size}, n = {count}"
        self.say(f"  {what}: {medians}")
        return cell

    def counted(self, cell: Cell, contenders: Mapping[str, Contender]) -> Cell:
        """Return ``cell`` with the bytes that links sent in a call, counted and by schedule.

        Counted are headers too, and the two barriers around the calls.
        """
        found = {}
        for name, sampled in cell.contenders.items():
            contender = contenders[name]
            found[name] = msgspec.structs.replace(
                sampled,
                link_bytes=self._count(cell, contender),
                scheduled_bytes=self._scheduled(cell, contender),
            )
        return msgspec.structs.replace(cell, contenders=found)

    def _count(self, cell: Cell, contender: Contender) -> dict[str, float]:
        tensor = torch.zeros(cell.nbytes // ITEM_BYTES)
        run = getattr(contender.communicator or self.communicator, cell.collective)
        before = self._counters()
        for _ in range(_COUNTED_CALLS):
            run(tensor, algorithm=contender.algorithm, options=dict(contender.options))
        links = network.since(before, self._counters())
        return {link.name: link.tx_bytes / _COUNTED_CALLS for link in links}

    def _counters(self) -> tuple[network.LinkCounter, ...]:
        """Return the counters of every link while all ranks wait."""
        self.communicator.barrier()
        found = None
        if self.communicator.rank == 0:
            found = network.counters(os.environ[LAB_VARIABLE], self.topology)
        counters: tuple[network.LinkCounter, ...] = self.communicator.broadcast_object(found)
        return counters

    def _scheduled(self, cell: Cell, contender: Contender) -> dict[str, float]:
        chosen = contender.stands_for or Recipe(
            cell.collective, contender.algorithm, options=dict(contender.options)
        )
        if chosen.algorithm == NATIVE:
            return {}
        schedule = build(cell.collective, chosen.algorithm, cell.world_size, **chosen.options)
        sent = sent_bytes(schedule, self.topology, cell.nbytes // ITEM_BYTES, ITEM_BYTES)
        return {name: float(count) for name, count in sent.items()}


def found_by(cluster: Cluster) -> dict[str, Any]:
    """Return what calibration found of the network, by field of a part's result."""
    return {
        "levels": cluster.levels,
        "placement": cluster.placement,
        "reduction_s_per_byte": cluster.reduction_s_per_byte,
    }


def facts() -> dict[str, str]:
    """Return hardware, versions and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "memory": format_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "syncopate": syncopate.__version__,
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
