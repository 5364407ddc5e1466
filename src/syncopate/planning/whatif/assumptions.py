"""Assumptions: what a sweep takes for granted and did not measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.overlap import OVERLAP
from syncopate.artifacts.results.whatif import Setting
from syncopate.costs.validated import BY_KIND
from syncopate.planning.whatif.machines import DEVICE
from syncopate.planning.whatif.quick import is_gpu
from syncopate.planning.whatif.work import Work
from syncopate.units import GOODPUT, format_seconds, sold_as


def assumptions(work: Work, cluster: Cluster, settings: Sequence[Setting]) -> Iterator[str]:
    """Yield what is assumed of these settings, a sentence each."""
    if not cluster.probes:
        yield f"links of {cluster.name} are typical ones, not measured"
    if not work.base.metadata.get("device"):
        yield "which device computes is not said; it is taken for a GPU"
    if cluster.curves:
        yield (
            "every point is priced from links alone, also that of the cluster as it is, whose "
            "measured curves say nothing of another"
        )
    if any(sold_as(one.bandwidth_bytes_per_s) for one in settings):
        yield f"of a link's rate as sold {GOODPUT:.0%} arrives as messages"
    if (
        len({one.bandwidth_bytes_per_s for one in settings}) > 1
        and len({one.latency_s for one in settings}) == 1
    ):
        latency = format_seconds(settings[0].latency_s)
        yield f"links of every rate have the latency of today's, {latency}"
    if any(one.gpus_per_node > 1 for one in settings) and not cluster.first_outer:
        rate = DEVICE.bandwidth_bytes_per_s / 1e9
        yield (
            f"GPUs of a node exchange {rate:g} GB/s each way, {format_seconds(DEVICE.latency_s)} "
            "apart, as over 16 lanes of PCIe 3"
        )
    if any(one.gpu_speed != 1 for one in settings):
        yield "devices of another speed take every time of the profile times one factor"
    if len({one.batch for one in settings}) > 1 and work.other_batch is None:
        yield (
            "forward and backward take a time in proportion to the batch, and the update always "
            "the same: a second profile of another batch would measure it"
        )
    profiles = (work.base, *work.profiles.values())
    measured = all(profile.interference is not None for profile in profiles)
    if OVERLAP in cluster.metadata and not measured:
        yield f"overlap: {cluster.metadata[OVERLAP].removeprefix('an assumption: ')}"
    elif cluster.interference.is_ideal and not measured:
        yield "computation and communication do not slow each other down: overlap is free"
    backend = (
        "rings, or trees where they are faster, as NCCL does it"
        if is_gpu(work.base)
        else ("rings, as Gloo does it")
    )
    yield f"DDP's buckets are all-reduced in {backend}"
    yield (
        "plans of points are searched for less than by syncopate plan, which finds ones that are "
        "up to a percent or two faster"
    )
    if is_gpu(work.base):
        ranks = {one.ranks for one in settings}
        yield from BY_KIND["gpu"].outside(ranks, {one.bandwidth_bytes_per_s for one in settings})
    if any(one.pull_period or one.local_sgd for one in settings):
        yield "what late weights do to accuracy is not predicted"
