"""Hypothesis strategies for the vocabulary: any valid cluster, workload, plan or timeline."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from msgspec.structs import replace

from syncopate.artifacts.cluster import (
    MAX_POINT_BYTES,
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Interference,
    LinearFit,
    LinkProbe,
)
from syncopate.artifacts.level import Level, Size, unit_counts
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS, Bucket, Plan, Prediction
from syncopate.artifacts.timeline import LANES, SOURCES, Span, Timeline
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.recipe import NATIVE, WIRE_DTYPES, Recipe
from syncopate.units import DTYPE_BYTES

texts = st.text(max_size=12)
times_s = st.floats(0, 1e6, allow_nan=False, allow_subnormal=False)
sizes = st.integers(0, 2**53)
metadata = st.dictionaries(texts, texts, max_size=3)

levels = st.builds(
    Level,
    name=texts,
    size=st.integers(1, 4),
    latency_s=times_s,
    bandwidth_bytes_per_s=st.floats(1e-3, 1e15),
)
fits = st.builds(LinearFit, a_s=times_s, b_s_per_byte=times_s)
options = st.dictionaries(
    texts,
    st.integers(1, 2**31)
    | st.lists(st.integers(1, 9), max_size=3).map(tuple)
    | st.lists(texts, max_size=3).map(tuple),
    max_size=2,
)
points = st.builds(
    CurvePoint,
    nbytes=st.integers(0, MAX_POINT_BYTES),
    samples_s=st.lists(times_s, min_size=1, max_size=3).map(tuple),
    options=options,
)
point_lists = st.lists(points, min_size=1, max_size=4, unique_by=lambda p: p.nbytes).map(
    lambda found: tuple(sorted(found, key=lambda p: p.nbytes))
)
curves = st.builds(
    CollectiveCurve,
    collective=texts,
    algorithm=texts,
    points=point_lists,
    fit=fits,
    order=st.permutations(range(3)).map(tuple) | st.just(()),
)
probes = st.builds(
    LinkProbe, src=st.integers(0, 9), dst=st.integers(0, 9), points=st.tuples(points)
)
interferences = st.builds(
    Interference, compute_rate=st.floats(0, 1), collective_stretch=st.floats(1, 1e6)
)


@st.composite
def fan_outs(draw: st.DrawFn, most: list[int]) -> tuple[Size, ...]:
    """Draw the sizes of levels, no unit larger than said of its level; most often unequal."""
    found: list[Size] = []
    units = 1
    for size in reversed(most):
        each = draw(st.just([size] * units) | st.tuples(*[st.integers(1, size)] * units))
        found.append(tuple(each) if len(set(each)) > 1 else each[0])
        units = sum(each)
    return tuple(reversed(found))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw a cluster of up to three levels, with or without placement, hosts and curves."""
    drawn = draw(st.lists(levels, min_size=1, max_size=3))
    sizes = draw(fan_outs([level.size for level in drawn]))
    found = tuple(replace(level, size=size) for level, size in zip(drawn, sizes, strict=True))
    ranks = list(range(unit_counts(found)[0]))
    return Cluster(
        name=draw(texts),
        levels=found,
        placement=draw(st.one_of(st.just(()), st.permutations(ranks).map(tuple))),
        hosts=draw(st.one_of(st.just(()), st.tuples(*[texts for _ in ranks]))),
        reduction_s_per_byte=draw(times_s),
        curves=tuple(draw(st.lists(curves, max_size=2))),
        probes=tuple(draw(st.lists(probes, max_size=2))),
        interference=draw(interferences),
        metadata=draw(metadata),
    )


tensors = st.builds(
    GradientTensor,
    name=texts,
    numel=st.integers(0, 2**40),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    backward_s=times_s,
    forward_s=times_s,
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload of up to six tensors."""
    found = tuple(draw(st.lists(tensors, min_size=1, max_size=6, unique_by=lambda t: t.name)))
    return Workload(
        model=draw(texts),
        tensors=found,
        forward_s=draw(times_s),
        backward_s=sum(tensor.backward_s for tensor in found) + draw(times_s),
        update_s=draw(times_s),
        forward_order=draw(st.just(()) | st.permutations(range(len(found))).map(tuple)),
        metadata=draw(metadata),
    )


predictions = st.builds(
    Prediction,
    iteration_s=times_s,
    compute_s=times_s,
    communication_s=times_s,
    exposed_s=times_s,
    bound_s=times_s,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan of up to four buckets."""
    names = draw(st.lists(texts, min_size=1, max_size=8, unique=True))
    cuts = sorted(draw(st.sets(st.integers(1, len(names)), max_size=3)) | {0, len(names)})
    channels = draw(st.integers(1, 3))
    world_size = draw(st.integers(1, 4096))
    order = st.just(())
    if world_size < 20:
        order |= st.permutations(range(world_size)).map(tuple)
    exchange = draw(st.sampled_from(sorted(SERVERLESS)))

    def recipe(collective: str) -> Recipe:
        channel, algorithm = draw(st.integers(0, channels - 1)), draw(texts)
        told = {} if algorithm == NATIVE else draw(options)
        return Recipe(collective, algorithm, 0, told, channel)

    def parts(tensors: tuple[str, ...]) -> list[tuple[int, int] | None]:
        if len(tensors) > 1 or draw(st.booleans()):
            return [None]
        ends = draw(st.sets(st.integers(1, 2**40), min_size=1, max_size=3))
        return list(pairwise((0, *sorted(ends))))

    held = [tuple(names[start:stop]) for start, stop in pairwise(cuts)]
    buckets = tuple(
        Bucket(
            tensors=tensors,
            nbytes=draw(sizes),
            push=recipe(EXCHANGES[exchange].push),
            pull=recipe(EXCHANGES[exchange].pull) if EXCHANGES[exchange].pull else None,
            elements=elements,
        )
        for tensors in held
        for elements in parts(tensors)
    )
    pull_order = st.just(())
    if EXCHANGES[exchange].pull:
        pull_order |= st.permutations(range(len(buckets))).map(tuple)
    return Plan(
        model=draw(texts),
        fingerprint=draw(texts),
        world_size=world_size,
        policy=draw(texts),
        buckets=buckets,
        order=draw(order),
        exchange=exchange,
        channels=channels,
        pull_order=draw(pull_order),
        prediction=draw(st.none() | predictions),
        cluster=draw(texts),
        wire_dtype=draw(st.sampled_from(("", *WIRE_DTYPES))),
        reason=draw(texts),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw a timeline of up to five spans."""
    world_size = draw(st.integers(1, 4))
    spans = []
    for _ in range(draw(st.integers(0, 5))):
        start_s = draw(times_s)
        spans.append(
            Span(
                name=draw(texts),
                lane=draw(st.sampled_from(LANES)),
                rank=draw(st.integers(0, world_size - 1)),
                start_s=start_s,
                end_s=start_s + draw(times_s),
                iteration=draw(st.integers(0, 99)),
                channel=draw(st.integers(0, 3)),
                nbytes=draw(sizes),
                detail=draw(texts),
            )
        )
    return Timeline(
        name=draw(texts),
        source=draw(st.sampled_from(SOURCES)),
        world_size=world_size,
        spans=tuple(spans),
        metadata=draw(metadata),
    )
