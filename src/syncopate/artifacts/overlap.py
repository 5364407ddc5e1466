"""Overlap: what computation and collectives cost each other where it was not measured.

Ideal overlap promises too much, and what it costs depends on the model and the machine, so a
measured cluster keeps what was measured. A typical network, and a cluster of other tools' logs,
have these defaults instead, and say so in their metadata's ``overlap``.

[Note: sources] While a collective runs, computation on GPUs takes 18.9% longer on average and 40.0%
at most: training of GPT and LLaMA models on four A100, H100, MI210 or MI250 ("Characterizing
Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", arXiv 2507.03114,
2025). Through TCP the host's processors copy every byte as well, and a collective beside
computation takes longer than alone: 1.3 times, fitted to ResNet-50 on 8 x 4 RTX 2080 Ti with 10 GbE
(HKBU-HPML/ddl-benchmarks, 2020-05-29; NCCL's own times by dexhunter/allreduce-experiments). There
WFBP is predicted 5% too short and MG-WFBP 3% too long, and 16% and 12% too short if overlap is
ideal (``benchmarks/unmeasured.py``). On the same GPUs with 100 Gbit/s InfiniBand, to which nothing
was fitted, they are 6% too short and 1% too long, and 10% and 3% too short if it is ideal.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.errors import UnknownNameError

OVERLAP = "overlap"
"""The entry of a cluster's metadata that says what overlap is assumed to cost."""

TCP = "tcp"
RDMA = "rdma"


class Assumed(NamedTuple):
    """The assumed cost of overlap, and its source in a sentence."""

    interference: Interference
    source: str


LONGER = 0.189
"""By how much computation on GPUs takes longer beside a collective, in the mean."""

_RATE = 1 / (1 + LONGER)
_OF_GPUS = "computation beside a collective at 84% (arXiv 2507.03114: 18.9% longer on average)"

ASSUMED: dict[str, Assumed] = {
    TCP: Assumed(
        Interference(compute_rate=_RATE, collective_stretch=1.3),
        f"an assumption: {_OF_GPUS}, a collective through TCP beside computation 1.3 times as long "
        "(fitted to ResNet-50 on 32 GPUs with 10 GbE, HKBU-HPML/ddl-benchmarks)",
    ),
    RDMA: Assumed(Interference(compute_rate=_RATE), f"an assumption: {_OF_GPUS}"),
}
"""What carries messages between hosts, or between GPUs of one -> what overlap costs."""


def assuming_overlap(cluster: Cluster, carrier: str) -> Cluster:
    """Return a cluster with the default of what overlap costs; see [Note: sources].

    One on which it was measured stays as it is.

    Args:
        cluster: the machines.
        carrier: ``"tcp"``, or ``"rdma"`` for GPUs whose messages no processor copies.

    Raises:
        UnknownNameError: no such carrier.

    Example:
        >>> assuming_overlap(Cluster.preset("10gbe", 8), "tcp").interference.collective_stretch
        1.3
    """
    if carrier not in ASSUMED:
        raise UnknownNameError("carrier", carrier, ASSUMED)
    if cluster.interference != Interference():
        return cluster
    found = ASSUMED[carrier]
    return replace(
        cluster,
        interference=found.interference,
        metadata=cluster.metadata | {OVERLAP: found.source},
    )
