"""Pace: how fast the machine computes just now, and what plans cost at that pace.

Machines change pace within seconds: clocks follow the temperature, other programs come and go. A
prediction from a profile taken earlier, held against a measurement, says how much the pace changed
before it says anything about the prediction. So computation takes its turns beside the plans, and
their predictions are scaled to the pace it had there. Communication stays as calibrated.

[Note: the same yardstick] The scale must hold the change of pace and nothing else, so computation
in its turns is what computation in the workload is: another, shorter profile. The obvious
yardstick, the time of a turn of plain training in which ranks exchange nothing, means something
else. Ranks that never meet drift apart where they share cores, and a rank that is late in one
iteration is early in another; with four ranks on two cores they took 7% to 22% less than a profile
beside them, whose iterations all ranks start together and the last one ends ([Note: slowest rank]
in ``profiling.samples``). With a barrier after every iteration they still took 1% to 9% less: who
is done first does not keep the others from a core by noting down the iteration, and the kernel
spreads ranks over cores in another way after another barrier. Predictions would come out short by
as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.collectives import Communicator
from syncopate.planning import predict
from syncopate.profiling.profile import profile
from syncopate.zoo.task import Task


@dataclass(frozen=True)
class Computation:
    """Computation alone as a contender: the bare model, on every rank, exchanging nothing.

    Attributes:
        task: the model without any wrapper, and its batch.
        optimizer: of the model, without any wrapper.
        name: what to call it in tables.
    """

    task: Task
    optimizer: torch.optim.Optimizer
    name: str = "computation"

    def turn(self, communicator: Communicator, *, warmup: int, iterations: int) -> float:
        """Profile for a turn; return the same ``compute_s`` on all ranks."""
        communicator.barrier()
        workload = profile(
            self.task, warmup=warmup, iterations=iterations, optimizer=self.optimizer
        )
        return workload.compute_s


def at_pace(
    plans: Mapping[str, Plan], workload: Workload, cluster: Cluster, compute_s: float
) -> dict[str, Plan]:
    """Return the same plans with what they cost where computation takes ``compute_s``.

    Args:
        plans: made for ``workload`` on ``cluster``; by any key, which is kept.
        workload: as profiled.
        cluster: as calibrated.
        compute_s: computation of one iteration at the pace wanted, in seconds.
    """
    now = workload.scaled(compute_s / workload.compute_s)
    return {
        name: structs.replace(plan, prediction=predict(now, plan, cluster))
        for name, plan in plans.items()
    }
