"""Past the papers: what plans that they do not have give on each of their clusters.

Beside each paper's own way stand the exact partition of an all-reduce (``optimal``), the exchanges
that hide behind the next forward too (``decoupled``, ``sharded``), and pulls every fourth step
(``sharded``, k = 4). The planner chooses every collective's algorithm, unless a row says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import bsp_sgd_table
import mg_wfbp
import sketchdlc_networks as networks
from bsp_sgd import bsp_sgd_plan
from sketchdlc_worker import LENET5, RESNET50
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, SHARDED, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.delay import Delay
from syncopate.planning.planner import make_plan
from syncopate.simulation.delay import with_delay

from . import blueconnect, ssd_sgd
from . import mg_wfbp as mg
from .rows import Drawn

PERIOD = 4
LATENCY_S = 5e-6
"""Where a paper prints none."""

_SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Place:
    """One paper's training on its cluster.

    Attributes:
        paper: whose.
        what: network and cluster.
        way: the paper's own, in words.
        theirs_s: an iteration of it.
        workload: the training.
        cluster: the machines.
        algorithm: of every collective; None for the best of all.
    """

    paper: str
    what: str
    way: str
    theirs_s: float
    workload: Workload
    cluster: Cluster
    algorithm: str | None = None


def workload(title: str, layers: Sequence[tuple[int, float]], compute_s: float) -> Workload:
    """Return a training whose forward is a third of computation, spread as backward is.

    Args:
        title: its name.
        layers: bytes and work of each layer, in backward order; work in any unit.
        compute_s: forward and backward.
    """
    total = sum(work for _, work in layers)
    third_s = compute_s / 3
    return Workload(
        model=title,
        tensors=tuple(
            GradientTensor(
                name=f"layer {len(layers) - index}",
                numel=nbytes // 4,
                forward_s=third_s * work / total,
                backward_s=2 * third_s * work / total,
            )
            for index, (nbytes, work) in enumerate(layers)
        ),
        forward_s=third_s * _SLACK,
        backward_s=2 * third_s * _SLACK,
    )


def places() -> Iterator[Place]:
    """Yield every paper's clusters."""
    yield from of_mg_wfbp()
    yield from of_linear_pipeline()
    yield of_blueconnect()
    yield from of_ssd_sgd()
    yield from of_sketchdlc()


def of_mg_wfbp() -> Iterator[Place]:
    """Yield Fig. 9's two networks on 64 nodes, by the ring of the paper and by any algorithm."""
    where = mg_wfbp.cluster(64)
    for network in mg.PRINTED:
        seconds = None if network == "GoogLeNet" else mg.alone_s(network)
        setting = mg.setting(network, 64, seconds)
        layers = list(zip(setting.nbytes, setting.backward_s, strict=True))
        work = workload(network, layers, mg.compute_s(setting))
        theirs_s = iteration_s(make_plan(work, where, "mg-wfbp", algorithm="ring"))
        for algorithm, said in (("ring", ", ring"), (None, "")):
            what = f"{network}, 64 K80, 10GbE{said}"
            yield Place("MG-WFBP", what, "MG-WFBP, ring", theirs_s, work, where, algorithm)


def of_linear_pipeline() -> Iterator[Place]:
    """Yield Table 2's networks on four GPUs at 1 GB/s."""
    where = bsp_sgd_table.machine(bsp_sgd_table.BYTES_PER_S)
    for network in bsp_sgd_table.NETWORKS:
        work = bsp_sgd_table.paper_workload(network)
        theirs_s = iteration_s(bsp_sgd_plan(work, where, 1, "lp"))
        way = "LP, Algorithm 1 (overlapped)"
        yield Place("LP", f"{network}, 4 K40m, 1 GB/s", way, theirs_s, work, where)


def of_blueconnect() -> Place:
    """Return ResNet-50 on 192 GPUs, a step of a schedule as it was fitted to Fig. 3a."""
    layers = [(nbytes, seconds) for nbytes, seconds in mg.layers("ResNet-50")]
    work = workload("ResNet-50", layers, blueconnect.COMPUTE_S)
    where = blueconnect.cluster(192, blueconnect.fitted_step_s())
    theirs_s = iteration_s(make_plan(work, where, "single", algorithm="blueconnect"))
    what = f"ResNet-50, 192 P100, {blueconnect.fitted_step_s() * 1e6:.0f} us a step"
    return Place("BlueConnect", what, "BlueConnect after backward", theirs_s, work, where)


def of_ssd_sgd() -> Iterator[Place]:
    """Yield Fig. 7's networks at batch 32 on four machines, links as fast as its pushes."""
    rate = 1 / ssd_sgd.push_s_per_byte()
    where = Cluster.flat(ssd_sgd.MACHINES, latency_s=LATENCY_S, bandwidth_bytes_per_s=rate)
    for network in (ssd_sgd.RESNET50, ssd_sgd.ALEXNET, ssd_sgd.VGG11):
        of = ssd_sgd.times(network, 32, 4)
        theirs_s = ssd_sgd.steady_iteration_s(of, ssd_sgd.LONGEST)
        work = workload(network, ssd_sgd.layers(network), ssd_sgd.compute_s(network, 32))
        what = f"{network}, batch 32, 4 x 4 V100"
        yield Place("SSD-SGD", what, "4 servers, k = 5", theirs_s, work, where)


def of_sketchdlc() -> Iterator[Place]:
    """Yield the two networks on two workers at 56 Gbit/s, without calls and copies on any side."""
    rate = networks.OWN_BITS_PER_S
    where = Cluster.flat(
        networks.WORKERS, latency_s=networks.LATENCY_S, bandwidth_bytes_per_s=rate / 8
    )
    for network in (LENET5, RESNET50):
        work = networks.workload(network)
        theirs_s = work.forward_s + networks.wire_s(network, networks.WORKERS, rate)
        what = f"{networks.TITLES[network]}, 2 workers, 56 Gbit/s"
        yield Place("SketchDLC", what, "1 server, the wire alone", theirs_s, work, where)


def iteration_s(plan: Plan) -> float:
    """Return what a plan is expected to take."""
    assert plan.prediction is not None
    return plan.prediction.iteration_s


def _planned(exchange: str) -> Callable[[Place], float]:
    def found_s(place: Place) -> float:
        return iteration_s(
            make_plan(
                place.workload,
                place.cluster,
                "optimal",
                exchange=exchange,
                algorithm=place.algorithm,
            )
        )

    return found_s


def delayed_s(place: Place) -> float:
    """Return an iteration of the sharded exchange with a pull every fourth step."""
    plan = make_plan(
        place.workload, place.cluster, "optimal", exchange=SHARDED, algorithm=place.algorithm
    )
    delay = Delay(k=PERIOD, warm_up=PERIOD - 1)
    return iteration_s(with_delay(plan, delay, place.workload, place.cluster))


WAYS: dict[str, Callable[[Place], float]] = {
    "optimal": _planned(ALLREDUCE),
    DECOUPLED: _planned(DECOUPLED),
    SHARDED: _planned(SHARDED),
    f"k = {PERIOD}": delayed_s,
}
"""Heading -> an iteration's seconds."""


def row(place: Place) -> tuple[str, ...]:
    """Return a place's cells: milliseconds, and how much faster than the paper's own way."""
    cells = [f"{way(place) * 1e3:.1f} ({_gain(place, way(place))})" for way in WAYS.values()]
    own = f"{place.theirs_s * 1e3:.1f}"
    return (
        place.paper,
        place.what,
        place.way,
        own,
        *cells,
        f"{place.workload.compute_s * 1e3:.1f}",
    )


def _gain(place: Place, seconds: float) -> str:
    return f"{round(place.theirs_s / seconds - 1, 3) + 0.0:+.1%}"


def beyond(*, quick: bool = False) -> Drawn:
    """Return the table; ``quick`` leaves out all but the first place of each paper."""
    seen: set[str] = set()
    lines = []
    for place in places():
        if quick and place.paper in seen:
            continue
        seen.add(place.paper)
        lines.append(row(place))
    headings = ("paper", "training", "its own way", "ms", *WAYS, "computation")
    return Drawn("An iteration, ms (gain over the paper's own way)", headings, tuple(lines))
