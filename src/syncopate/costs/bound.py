"""Bound: the iteration time that no plan can beat.

To all-reduce n bytes over u units, each unit has to send at least ``2 (u-1)/u n`` bytes
(Patarasuk and Yuan 2009), whatever the algorithm. At every level of the network the units are the
groups that its links join, and an iteration takes at least as long as its computation:

    bound = max(compute, max over levels of 2 (u-1)/u n / bandwidth)
"""

from __future__ import annotations

import math

import numpy as np

from syncopate.cluster import Cluster
from syncopate.costs.functions import CurveCost
from syncopate.units import MIB
from syncopate.workload import Workload

_LONG_BYTES = MIB


def wire_bytes(world_size: int, nbytes: float) -> float:
    """Return the bytes each of ``world_size`` units must send to all-reduce ``nbytes``."""
    return 2 * (world_size - 1) / world_size * nbytes


def wire_s(cluster: Cluster, nbytes: float) -> float:
    """Return the least time in which ``nbytes`` can be all-reduced on ``cluster``.

    A calibrated cluster may have measured an all-reduce faster than its link probes allow, as when
    ranks share memory; then its fastest measured rate is the line rate.
    """
    units, seconds = 1, 0.0
    for level in reversed(cluster.levels):
        units *= level.size
        if level.size > 1:
            seconds = max(seconds, wire_bytes(units, nbytes) * level.byte_time_s)
    return min(seconds, nbytes * _measured_s_per_byte(cluster))


def _measured_s_per_byte(cluster: Cluster) -> float:
    """Return the least time per byte of any measured all-reduce; infinite when none was."""
    rates = [math.inf]
    for curve in cluster.curves:
        if curve.collective == "all_reduce":
            if curve.points[-1].nbytes >= _LONG_BYTES:
                # Beyond the largest size a message approaches the slope of the curve's end, which
                # between short ones is noise.
                rates.append(float(CurveCost(curve).pieces.slope_s_per_byte[-1]))
            rates += [float(np.median(p.samples_s)) / p.nbytes for p in curve.points if p.nbytes]
    return min(rates)


def iteration_bound_s(workload: Workload, cluster: Cluster) -> float:
    """Return the physical bound of one training iteration in seconds."""
    return max(workload.compute_s, wire_s(cluster, workload.nbytes))
