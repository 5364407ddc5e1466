"""Small, fixed artefacts for tests that only need some, and a way to look into reports."""

from __future__ import annotations

import io
from collections.abc import Iterator

from msgspec import structs
from rich.console import Console, Group, RenderableType
from rich.table import Table

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Interference,
    Level,
    LinearFit,
)
from syncopate.artifacts.plan import Bucket, Plan, Prediction
from syncopate.artifacts.results.benchmark import Benchmark, Point, Series, Timing
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.recipe import Recipe

MS = 1e-3


def cluster() -> Cluster:
    """Return four ranks on two hosts; ring wins large messages, doubling small ones."""
    return Cluster(
        name="two hosts",
        levels=(
            Level(name="device", size=2, latency_s=5e-6, bandwidth_bytes_per_s=10e9),
            Level(name="host", size=2, latency_s=50e-6, bandwidth_bytes_per_s=1.25e9),
        ),
        reduction_s_per_byte=2.5e-10,
        curves=(
            _curve("ring", {1024: 0.3 * MS, 1 << 20: 2 * MS}, a_s=0.3 * MS, b_s_per_byte=1.62e-9),
            _curve("recursive_doubling", {1024: 0.1 * MS, 1 << 20: 3 * MS}, 0.1 * MS, 2.77e-9),
        ),
        interference=Interference(compute_rate=0.8, collective_stretch=1.25),
    )


def steady_cluster() -> Cluster:
    """Return :func:`cluster` as measured without noise: one sample at each size, the median."""
    curves = tuple(
        structs.replace(
            curve,
            points=tuple(
                structs.replace(point, samples_s=point.samples_s[:1]) for point in curve.points
            ),
        )
        for curve in cluster().curves
    )
    return structs.replace(cluster(), curves=curves)


def _curve(algorithm: str, medians_s: dict[int, float], a_s: float, b_s_per_byte: float):
    points = tuple(
        CurvePoint(nbytes=nbytes, samples_s=(median, median * 0.9, median * 2))
        for nbytes, median in medians_s.items()
    )
    fit = LinearFit(a_s=a_s, b_s_per_byte=b_s_per_byte)
    return CollectiveCurve(collective="all_reduce", algorithm=algorithm, points=points, fit=fit)


def benchmark(collective: str = "all_reduce", mode: str = "barrier") -> Benchmark:
    """Return a ring twice as fast as Gloo, with three wrong elements, on 4 ranks of 2 hosts."""
    return Benchmark(
        collective=collective,
        dtype="float32",
        root=-1,
        mode=mode,
        warmup=5,
        hosts=("a", "a", "b", "b"),
        series=(series("ring", wrong=3), series("gloo", slower=2, peer=True)),
        metadata={"torch": "2.13"},
    )


def series(
    contender: str,
    sizes: tuple[int, ...] = (1024, 1 << 20),
    *,
    slower: float = 1,
    wrong: int = 0,
    peer: bool = False,
) -> Series:
    """Return in-place calls of 0.1 and 2 ms times ``slower``; out of place twice that."""
    points = []
    for nbytes, time_s in zip(sizes, (0.1 * MS * slower, 2 * MS * slower), strict=False):
        bad = wrong if nbytes == sizes[-1] else 0
        out, inside = _timing(2 * time_s, bad), _timing(time_s, 0)
        point = Point(count=nbytes // 4, nbytes=nbytes, out_of_place=out, in_place=inside)
        points.append(point)
    return Series(contender=contender, peer=peer, points=tuple(points))


def _timing(time_s: float, wrong: int) -> Timing:
    samples_s = tuple(share * time_s for share in (0.9, 2.0, 0.2, 0.9))
    return Timing(samples_s=samples_s, time_s=time_s, wrong=wrong)


def workload() -> Workload:
    """Return three gradients of 4 KB, 4 MB and 400 KB."""
    tensors = (
        GradientTensor(name="head.weight", numel=1_000, backward_s=2 * MS),
        GradientTensor(name="body.weight", numel=1_000_000, backward_s=10 * MS),
        GradientTensor(name="stem.weight", numel=100_000, backward_s=5 * MS),
    )
    return Workload(
        model="three layers", tensors=tensors, forward_s=9 * MS, backward_s=17 * MS, update_s=MS
    )


def plan(policy: str = "optimal") -> Plan:
    """Return a plan of two buckets for :func:`workload` on :func:`cluster`."""
    return Plan(
        model="three layers",
        fingerprint=workload().fingerprint,
        world_size=4,
        policy=policy,
        buckets=(
            Bucket(
                tensors=("head.weight", "body.weight"),
                nbytes=4_004_000,
                push=Recipe("all_reduce", "ring"),
            ),
            Bucket(
                tensors=("stem.weight",),
                nbytes=400_000,
                push=Recipe("all_reduce", "recursive_doubling"),
            ),
        ),
        prediction=Prediction(
            iteration_s=30 * MS,
            compute_s=27 * MS,
            communication_s=8 * MS,
            exposed_s=3 * MS,
            bound_s=27 * MS,
        ),
        cluster="two hosts",
    )


def tables(*renderables: RenderableType) -> Iterator[Table]:
    """Yield the tables of reports."""
    for renderable in renderables:
        if isinstance(renderable, Table):
            yield renderable
        elif isinstance(renderable, Group):
            yield from tables(*renderable.renderables)


def text(renderable: RenderableType, width: int = 120) -> str:
    """Return what a terminal of ``width`` columns would show, without colours."""
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()
