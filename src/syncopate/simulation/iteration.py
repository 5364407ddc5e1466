"""One training iteration, played: when each bucket travels, and when the iteration ends.

The model has two kinds of work. *Computation* is one thread: forward, then backward, which makes
each gradient ready at its ready time. *Collectives* run on channels: each channel carries its
buckets one at a time, in the order of the plan, and starts the next as soon as the channel is free
and every gradient of the bucket is ready. The iteration ends when backward and the last collective
have ended and the update has run.

On one channel without interference this is the recurrence of MG-WFBP (Eqs. 6-8),
``end[k] = max(end[k-1], ready[k]) + T(bucket k)``, reproduced to the last bit.

[Note: interference] While backward computes and at least one collective runs, computation
progresses at ``compute_rate`` and collectives at ``1 / collective_stretch``; after backward
everything runs at full speed. Work is a fluid: rates change only at events, and between two events
progress is linear.

[Note: shared link] Collectives on different channels share the link, but not their start-up
times: that is what channels are for. The first part of a collective, the start-up time of its
algorithm for each dtype it carries, always progresses at full speed; the rest, its bytes, at an
equal share of the link among all collectives that are past their start-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from syncopate.cluster import Interference
from syncopate.costs.functions import CostFunction, Envelope, startup_part_s
from syncopate.costs.pieces import FloatArray
from syncopate.errors import PlanError
from syncopate.plan import Bucket
from syncopate.simulation.fluid import Collective, run
from syncopate.workload import GradientTensor, Workload

IDEAL = Interference()


@dataclass(frozen=True)
class Iteration:
    """What one iteration did; times count from the start of the forward pass.

    Attributes:
        starts_s: when each bucket's collective started, in the order of the buckets.
        ends_s: when it ended.
        backward_end_s: when backward ended.
        communication_s: sum of the collectives' costs on an otherwise idle machine.
        compute_s: forward, backward and update alone.
        iteration_s: start of forward to start of the next.
        progress: ``(time, progress)`` points between which computation ran at a constant rate.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    backward_end_s: float
    communication_s: float
    compute_s: float
    iteration_s: float
    progress: tuple[tuple[float, float], ...]

    @property
    def exposed_s(self) -> float:
        """``iteration_s - compute_s``: what overlap did not hide, and what interference cost."""
        return max(self.iteration_s - self.compute_s, 0.0)

    def wall_s(self, progress_s: ArrayLike) -> FloatArray:
        """Return when computation had first made ``progress_s`` seconds of progress (any shape)."""
        times, done = np.array(self.progress).T
        wanted = np.clip(np.asarray(progress_s, float), 0.0, done[-1])
        # Not np.interp: where computation stalled, time stands over one progress as a step.
        after = np.searchsorted(done, wanted, side="left")
        before = np.maximum(after - 1, 0)
        gained = done[after] - done[before]
        share = np.where(gained > 0, (wanted - done[before]) / np.where(gained > 0, gained, 1), 1)
        return np.asarray(times[before] + share * (times[after] - times[before]))


def play(
    workload: Workload,
    buckets: Sequence[Bucket],
    cost: Envelope,
    interference: Interference = IDEAL,
    order: tuple[int, ...] = (),
) -> Iteration:
    """Play one iteration of a plan.

    Args:
        workload: what is computed and made ready.
        buckets: in launch order; together every gradient of the workload exactly once.
        cost: seconds of each algorithm the buckets name.
        interference: what overlap costs; ideal by default.
        order: the plan's order of the ranks, which schedules follow.

    Raises:
        PlanError: a gradient of the workload is in no bucket, or a bucket names another model's.
        UnknownNameError: a bucket's algorithm has no cost, or does not take one of its options.
        InvalidValueError: an option has no such value.
    """
    by_name = {tensor.name: index for index, tensor in enumerate(workload.tensors)}
    held = [name for bucket in buckets for name in bucket.tensors]
    if len(held) != len(by_name) or set(held) != set(by_name):
        wrong = sorted(set(held) ^ set(by_name)) or sorted({n for n in held if held.count(n) > 1})
        raise PlanError(
            f"the buckets and the workload {workload.model!r} do not hold the same gradients, "
            f"each once; at fault: {', '.join(wrong[:3])}. Profile this model and plan again"
        )
    ready = workload.ready_s
    collectives = []
    for bucket in buckets:
        fixed = cost.of(bucket.algorithm).fixed(bucket.all_options(order))
        indices = [by_name[name] for name in bucket.tensors]
        collectives.append(_collective(bucket, indices, workload, ready, fixed))
    return play_collectives(workload, collectives, interference)


def play_collectives(
    workload: Workload, collectives: Sequence[Collective], interference: Interference = IDEAL
) -> Iteration:
    """Play one iteration of collectives that are already priced; see :func:`play`."""
    result = run(workload.forward_s + workload.backward_s, collectives, interference)
    last = max(result.ends_s, default=0.0)
    return Iteration(
        starts_s=result.starts_s,
        ends_s=result.ends_s,
        backward_end_s=result.compute_end_s,
        communication_s=math.fsum(collective.duration_s for collective in collectives),
        compute_s=workload.compute_s,
        iteration_s=max(result.compute_end_s, last) + workload.update_s,
        progress=result.progress,
    )


def bytes_by_dtype(tensors: Sequence[GradientTensor]) -> dict[str, int]:
    """Return the bytes of each dtype among ``tensors``."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
    return totals


def _collective(
    bucket: Bucket,
    indices: Sequence[int],
    workload: Workload,
    ready_s: Sequence[float],
    cost: CostFunction,
) -> Collective:
    sizes = list(bytes_by_dtype([workload.tensors[i] for i in indices]).values())
    duration_s = float(cost(np.array(sizes, float)).sum())
    return Collective(
        ready_s=max(ready_s[i] for i in indices),
        duration_s=duration_s,
        startup_s=startup_part_s(cost, sizes, duration_s),
        channel=bucket.channel,
    )
