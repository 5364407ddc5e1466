"""Hypothesis strategies for workloads, priced collectives and interference, and what plays them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.plan import Bucket
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Costs
from syncopate.simulation.fluid import Collective
from syncopate.simulation.iteration import IDEAL, Iteration, play_traffic
from syncopate.simulation.traffic import Traffic, traffic_of

times_s = st.one_of(st.just(0.0), st.floats(1e-3, 10))
interferences = st.builds(
    Interference, compute_rate=st.floats(0, 1), collective_stretch=st.floats(1, 4)
)


def workload(
    backward_s: list[float], *, forward_s: float = 0.0, tail_s: float = 0.0, update_s: float = 0.0
) -> Workload:
    """A workload of one-element gradients; ``tail_s`` of backward follow the last of them."""
    return Workload(
        model="test",
        tensors=tuple(
            GradientTensor(name=f"w{i}", numel=1, backward_s=seconds)
            for i, seconds in enumerate(backward_s)
        ),
        forward_s=forward_s,
        backward_s=sum(backward_s) + tail_s,
        update_s=update_s,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload of up to eight gradients."""
    return workload(
        draw(st.lists(times_s, min_size=1, max_size=8)),
        forward_s=draw(times_s),
        tail_s=draw(times_s),
        update_s=draw(times_s),
    )


@st.composite
def collectives(draw: st.DrawFn, of: Workload, channels: int = 1) -> list[Collective]:
    """Draw a partition of a workload's gradients into collectives of any duration."""
    length = len(of.tensors)
    cuts = sorted(draw(st.sets(st.integers(1, length))) | {length})
    return [
        Collective(
            ready_s=of.ready_s[stop - 1],
            duration_s=draw(times_s),
            startup_s=draw(times_s),
            channel=draw(st.integers(0, channels - 1)),
        )
        for _, stop in pairwise((0, *cuts))
    ]


def play(
    work: Workload,
    buckets: Sequence[Bucket],
    costs: Costs,
    interference: Interference = IDEAL,
    **how: Any,
) -> Iteration:
    """Play the steady iteration of some buckets; ``how`` is for ``traffic_of``."""
    return play_traffic(work, traffic_of(work, buckets, costs, **how), interference)


def play_collectives(
    work: Workload, found: Sequence[Collective], interference: Interference = IDEAL
) -> Iteration:
    """Play an iteration that pushes these, and pulls nothing."""
    return play_traffic(work, Traffic(tuple(found), update_s=work.update_s), interference)
