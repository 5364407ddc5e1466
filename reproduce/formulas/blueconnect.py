"""BlueConnect: the paper's Eqs. 1 to 7 for all-reduce on a network of several levels.

Levels i = 0, 1, .. have p_i units, α_i and the bandwidth w_i that one unit sends across them; n is
the buffer in bytes, reduction is free. The paper has one α for all levels; here it is the level's,
and the largest where a message passes several.

The equations are equal to the prices of the schedules on the same cluster, with ranks in topology
order, as far as their assumptions are those of the algorithms; tests hold them together:

* Eq. 3, the flat ring: always. Its first form lacks a division by p: each of the 2(p - 1) steps
  sends n/p. The second form, 2 T_r, has it and is used here.
* Eq. 4, two levels: the same bytes always. The start-ups are those of a recursive scatter and a
  ring gather in the node, lg p_0 + p_0 - 1, where the schedule's exchange needs 2 lg p_0: equal for
  p_0 = 2.
* Eqs. 6 and 7, BlueConnect: always, with stages as Eq. 1 has them: recursive where p_i is a power
  of two, a ring elsewhere. The printed minimum runs over j < i, which leaves out the stage's own
  link and nothing for stage 0; Eq. 6 shows that j <= i is meant, w_j being shared by the p_0 ..
  p_{j-1} ranks of a unit.

They know of units of equal size alone, and refuse others.

Source: Cho, Finkler and Kung, "BlueConnect: novel hierarchical all-reduce on multi-tiered network
for deep learning" (2019), Sections 2 and 3.
"""

from __future__ import annotations

import math

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, sizes_text
from syncopate.errors import InvalidValueError
from syncopate.schedules.factors import equal_sizes


def ring_s(units: int, nbytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return T_r of Eq. 1: a reduce-scatter or all-gather round a ring."""
    return (units - 1) * latency_s + (units - 1) / units * nbytes / bandwidth_bytes_per_s


def recursive_s(units: int, nbytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return T_c of Eq. 1: one by recursive halving or doubling; lg of others rounded up."""
    startups = (units - 1).bit_length() * latency_s
    return startups + (units - 1) / units * nbytes / bandwidth_bytes_per_s


def ring_or_recursive_s(
    units: int, nbytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return Eq. 1: recursive for powers of two, a ring otherwise."""
    pattern = ring_s if units & (units - 1) else recursive_s
    return pattern(units, nbytes, latency_s, bandwidth_bytes_per_s)


def stages(cluster: Cluster) -> tuple[str, ...]:
    """Return what Eq. 1 makes of every level of more than one unit, as BlueConnect's option."""
    return tuple("ring" if size & (size - 1) else "recursive" for size, _ in _joining(cluster))


def broadcast_s(units: int, nbytes: float, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return Eq. 2: a broadcast or reduce, by scatter and gather."""
    arguments = (units, nbytes, latency_s, bandwidth_bytes_per_s)
    return recursive_s(*arguments) + ring_s(*arguments)


def one_level_s(cluster: Cluster, nbytes: float) -> float:
    """Return Eq. 3, second form: the flat ring at the pace of the slowest level."""
    return 2 * ring_s(cluster.world_size, nbytes, *_slowest(cluster))


def two_level_s(cluster: Cluster, nbytes: float) -> float:
    """Return Eq. 4: reduce in the node (level 0), all-reduce among leaders, broadcast."""
    (size, node), *_ = _joining(cluster) or ((1, cluster.levels[0]),)
    inside = broadcast_s(size, nbytes, node.latency_s, node.bandwidth_bytes_per_s)
    leaders = cluster.world_size // size
    return 2 * inside + 2 * ring_or_recursive_s(leaders, nbytes, *_slowest(cluster))


def blueconnect_s(cluster: Cluster, nbytes: float) -> float:
    """Return Eqs. 6 and 7: one reduce-scatter and one all-gather per level."""
    seconds, inner, bandwidth = 0.0, 1, math.inf
    for size, level in _joining(cluster):
        # The ranks of a unit share its link; what they have in common goes no faster than that.
        bandwidth = min(bandwidth, level.bandwidth_bytes_per_s / inner)
        seconds += 2 * ring_or_recursive_s(size, nbytes / inner, level.latency_s, bandwidth)
        inner *= size
    return seconds


def _joining(cluster: Cluster) -> tuple[tuple[int, Level], ...]:
    """Return the levels that join anything, each with the size of its units."""
    sizes = equal_sizes(cluster)
    if len(sizes) < len(cluster.joining):
        rule = "units of equal size, as the paper's equations have them"
        raise InvalidValueError("levels", sizes_text(cluster.levels), rule)
    return tuple(zip(sizes, cluster.joining, strict=True))


def _slowest(cluster: Cluster) -> tuple[float, float]:
    levels = cluster.joining or cluster.levels
    latency_s = max(level.latency_s for level in levels)
    return latency_s, min(level.bandwidth_bytes_per_s for level in levels)
