"""Question: what a plan of units can choose, and a plan for each choice.

A unit is a run of neighbouring blocks of the model, in the order of forward. What forward needs
first is the root unit, with the parameters that lie beside blocks
(:mod:`syncopate.artifacts.sharding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, FSDP, Bucket, Plan
from syncopate.artifacts.sharding import ROOT_BLOCK, Sharding, blocks
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.question import recipe_of
from syncopate.simulation.fsdp.traffic import GATHERS, SCATTERS
from syncopate.simulation.traffic import bytes_by_dtype


@dataclass(frozen=True)
class UnitQuestion:
    """The choices of a plan of units.

    Attributes:
        workload: the model's gradients and times.
        cluster: the machines.
        costs: of the collectives within a group of ranks.
        policy: the name of what decides, for the plan.
        ranks: how many ranks share all weights; 0 for all.
    """

    workload: Workload
    cluster: Cluster
    costs: Costs
    policy: str
    ranks: int = 0

    @cached_property
    def _blocks(self) -> list[list[int]]:
        """The tensors of each block in ready order, those of the root unit last."""
        tensors, needed_s = self.workload.tensors, self.workload.needed_s
        named = blocks(tensor.name for tensor in tensors)
        held: dict[str, list[int]] = {}
        for index, tensor in enumerate(tensors):
            held.setdefault(named[tensor.name], []).append(index)
        root = held.pop(ROOT_BLOCK, [])
        order = sorted(
            held.values(), key=lambda some: (min(needed_s[at] for at in some), -max(some))
        )
        if not root:
            root, *order = order
        return [*reversed(order), root]

    @cached_property
    def problem(self) -> Problem | None:
        """The problem of cutting the blocks into units; None where there is the root unit alone."""
        *some, _ = self._blocks
        if not some:
            return None
        tensors = self.workload.tensors
        dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        nbytes = np.zeros((len(dtypes), len(some)))
        for place, block in enumerate(some):
            for index in block:
                nbytes[dtypes.index(tensors[index].dtype), place] += tensors[index].nbytes
        ready_s = [max(self.workload.ready_s[index] for index in block) for block in some]
        return Problem(list(accumulate(ready_s, max)), nbytes, self.costs[EXCHANGES[FSDP].push])

    @property
    def sizes(self) -> list[int]:
        """The bytes of each block, in ready order, the root unit's last."""
        tensors = self.workload.tensors
        return [sum(tensors[index].nbytes for index in block) for block in self._blocks]

    def unit_bytes(self, partition: Partition) -> list[int]:
        """Return the bytes of the units of a partition of the blocks, the root unit's last."""
        sizes = self.sizes
        return [*(sum(sizes[a:b]) for a, b in pairwise((0, *partition))), sizes[-1]]

    def plan(self, partition: Partition, prefetch: int, kept: int) -> Plan:
        """Return the plan of a choice, without a prediction.

        Args:
            partition: the ends of the units among the blocks; empty where there are none.
            prefetch: of how many units ahead weights are asked for.
            kept: how many of the units stay gathered from forward to backward beside the root unit;
                those that forward comes to last.
        """
        workload, some = self.workload, self._blocks
        units = [[*chain(*some[a:b])] for a, b in pairwise((0, *partition))] + [some[-1]]
        root = len(units) - 1
        return Plan(
            model=workload.model,
            fingerprint=workload.fingerprint,
            world_size=self.cluster.world_size,
            policy=self.policy,
            buckets=tuple(self._unit(sorted(unit)) for unit in units),
            exchange=FSDP,
            channels=1 + max(GATHERS, SCATTERS),
            cluster=self.cluster.name,
            sharding=Sharding(
                prefetch=prefetch, kept=(*range(min(kept, root)), root), ranks=self.ranks
            ),
        )

    def _unit(self, unit: list[int]) -> Bucket:
        kind = EXCHANGES[FSDP]
        tensors = [self.workload.tensors[index] for index in unit]
        sizes = list(bytes_by_dtype(tensors).values())
        push = recipe_of(kind.push, self.costs[kind.push], sizes, channel=SCATTERS)
        pull = recipe_of(kind.pull, self.costs[kind.pull], sizes, channel=GATHERS)
        return Bucket(
            tensors=tuple(tensor.name for tensor in tensors),
            nbytes=sum(sizes),
            push=push,
            pull=pull,
        )
