"""Measured curves beyond their samples: line rate, prices of schedules, and noise."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import (
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Handling,
    Level,
    LinearFit,
)
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import wire_s
from syncopate.costs.model.collective import (
    UNMEASURED,
    collective_costs,
    fixed_cost,
    schedule_cost,
)
from syncopate.costs.model.fits import tail_slope
from syncopate.costs.model.functions import CurveCost
from syncopate.costs.model.training import training_costs
from syncopate.costs.schedule.congestion import busiest_s_per_byte
from syncopate.planning import POLICIES, make_plan
from syncopate.schedules.base import Schedule
from syncopate.schedules.registry import NATIVE, algorithms, build, candidates
from syncopate.simulation import simulate
from syncopate.units import KIB, MIB

GIGABIT = Cluster.preset("1gbe", 4)
LINE = 1.5 / GIGABIT.levels[0].bandwidth_bytes_per_s
RESNET_BYTES = 102_228_128
LEAST_SHARE = {
    "all_reduce": lambda units: 2 * (units - 1) / units,
    "reduce_scatter": lambda units: (units - 1) / units,
    "all_gather": lambda units: (units - 1) / units,
    "broadcast": lambda units: 1.0,
    "reduce": lambda units: 1.0,
}


def curve(
    algorithm: str, points: dict[int, float], collective: str = "all_reduce"
) -> CollectiveCurve:
    return CollectiveCurve(
        collective=collective,
        algorithm=algorithm,
        points=tuple(CurvePoint(nbytes=n, samples_s=(s,)) for n, s in sorted(points.items())),
        fit=LinearFit(a_s=0.0, b_s_per_byte=0.0),
    )


def busiest_link_s(schedule: Schedule, cluster: Cluster) -> float:
    """Count every transfer at every link it passes, straight from the definition."""
    seconds, unit_ranks = 0.0, 1
    for level in cluster.levels:
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for transfer in schedule.transfers:
            here = cluster.position(transfer.src) // unit_ranks
            there = cluster.position(transfer.dst) // unit_ranks
            if here != there:
                sent[here] += transfer.stop - transfer.start
                received[there] += transfer.stop - transfer.start
        if level.size > 1:
            most = max([*sent.values(), *received.values(), 0]) / schedule.chunks
            seconds = max(seconds, most / level.bandwidth_bytes_per_s)
        unit_ranks *= level.size
    return seconds


def least_link_s(collective: str, cluster: Cluster) -> float:
    sizes = [level.size for level in cluster.levels]
    return max(
        (
            LEAST_SHARE[collective](prod(sizes[index:])) / level.bandwidth_bytes_per_s
            for index, level in enumerate(cluster.levels)
            if level.size > 1
        ),
        default=0.0,
    )


@st.composite
def networks(draw: st.DrawFn) -> Cluster:
    """Draw one to three levels, ranks in any order, with and without handling and bursts."""
    sizes = draw(st.sampled_from([(2,), (3,), (4,), (8,), (2, 2), (3, 2), (1, 4), (2, 2, 2)]))
    levels = tuple(
        Level(
            name="device" if index + 1 < len(sizes) else "host",
            size=size,
            latency_s=draw(st.sampled_from([0.0, 1e-5, 1e-3])),
            bandwidth_bytes_per_s=draw(st.sampled_from([1e8, 1e9, 5e10])),
            burst_bytes=draw(st.sampled_from([0.0, 1e5])),
        )
        for index, size in enumerate(sizes)
    )
    ranks = list(range(prod(sizes)))
    handling = draw(st.sampled_from([(), (Handling(call_s=1e-5, round_s=1e-5, stream_s=1e-6),)]))
    return Cluster(
        name="drawn",
        levels=levels,
        placement=draw(st.one_of(st.just(()), st.permutations(ranks).map(tuple))),
        reduction_s_per_byte=2e-10,
        handling=handling,
    )


@st.composite
def measured(draw: st.DrawFn, collective: str = "") -> tuple[Cluster, str]:
    """Draw curves of several algorithms: dense or sparse, small-only, noisy, or pure chance."""
    cluster = draw(networks())
    collective = collective or draw(st.sampled_from(sorted(LEAST_SHARE)))
    known = [NATIVE, *algorithms(collective)]
    names = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    curves = []
    for name in names:
        count = draw(st.integers(1, 30))
        largest = draw(st.sampled_from([64, 64 * KIB, 4 * MIB, 256 * MIB]))
        sizes = np.unique(np.geomspace(4, largest, count).astype(int))
        line = least_link_s(collective, cluster)
        seconds = rng.choice([1e-5, 1e-3]) + rng.choice([0.5, 1.0, 2.0]) * line * sizes
        noise = draw(st.sampled_from([0.0, 0.01, 0.05]))
        seconds = np.abs(seconds * (1 + noise * rng.standard_normal(len(sizes))))
        if draw(st.booleans()) and draw(st.booleans()):
            seconds = rng.lognormal(-9, 3, len(sizes))
        found = dict(zip(sizes.tolist(), seconds.tolist(), strict=True))
        curves.append(curve(name, found, collective))
    return structs.replace(cluster, curves=tuple(curves)), collective


@settings(max_examples=150, deadline=None)
@given(measured(), st.lists(st.integers(1, 2**31), min_size=1, max_size=6))
def test_nothing_is_cheaper_than_its_bytes_at_line_rate(
    drawn: tuple[Cluster, str], more: list[int]
) -> None:
    cluster, collective = drawn
    costs = collective_costs(cluster, collective)
    for one in cluster.curves:
        largest = one.points[-1].nbytes
        sizes = largest + np.array([1, *more, RESNET_BYTES])
        least = least_link_s(collective, cluster)
        if one.algorithm != NATIVE:
            schedule = build(collective, one.algorithm, cluster.world_size)
            least = busiest_link_s(schedule, cluster)
            assert busiest_s_per_byte(schedule, cluster) == pytest.approx(least, rel=1e-12)
        cost = costs.of(one.algorithm)
        assert (cost(sizes) >= least * sizes * (1 - 1e-9)).all()
        # Where it was measured, the curve is believed.
        inside = np.array([point.nbytes for point in one.points])
        assert cost(inside).tolist() == CurveCost(one)(inside).tolist()
        assert (np.diff(cost(np.unique([*inside, *sizes]))) >= 0).all()
    sizes = max(one.points[-1].nbytes for one in cluster.curves) + np.array([1, *more])
    assert (costs(sizes) >= least_link_s(collective, cluster) * sizes * (1 - 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(
    drawn=measured("all_reduce"),
    numels=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=8),
    policy=st.sampled_from(sorted(POLICIES)),
    channels=st.integers(1, 3),
    dtypes=st.integers(1, 2),
)
def test_no_plan_is_predicted_below_the_bound(
    drawn: tuple[Cluster, str], numels: list[int], policy: str, channels: int, dtypes: int
) -> None:
    cluster, _ = drawn
    tensors = tuple(
        GradientTensor(
            name=f"t{index}",
            numel=numel,
            dtype=("float32", "bfloat16")[index % dtypes],
            backward_s=1e-4 * (index % 3),
        )
        for index, numel in enumerate(numels)
    )
    workload = Workload(model="m", tensors=tensors, forward_s=1e-4, backward_s=3e-3)
    plan = make_plan(workload, cluster, policy, channels=channels)
    assert plan.prediction is not None
    assert plan.prediction.bound_s >= workload.compute_s
    assert plan.prediction.iteration_s >= plan.prediction.bound_s * (1 - 1e-9)
    timeline = simulate(workload, plan, cluster, iterations=2)
    starts = [span.start_s for span in timeline.spans if span.iteration == 1]
    lasted_s = timeline.duration_s - min(starts)
    assert lasted_s == pytest.approx(plan.prediction.iteration_s)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05])
def test_noise_between_neighbours_is_no_slope(noise: float) -> None:
    """200 dense curves; the slope of the last two points would be off by half in a third."""
    off, naive = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        sizes = np.geomspace(1e3, 1e8, 100).round()
        seconds = (2e-3 + LINE * sizes) * (1 + noise * rng.standard_normal(len(sizes)))
        found = dict(zip(sizes.astype(int).tolist(), seconds.tolist(), strict=True))
        slope = float(CurveCost(curve("ring", found)).pieces.slope_s_per_byte[-1])
        off.append(abs(slope / LINE - 1))
        last = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        naive.append(max(last, 0.0) / LINE)
    assert max(off) <= 1.2 * noise
    assert float(np.median(off)) <= 0.3 * noise
    if noise == 0.05:
        assert sum(not 1 / 1.5 <= ratio <= 1.5 for ratio in naive) >= 200 / 3


def test_a_straggling_size_does_not_tilt_the_end() -> None:
    sizes = np.array([2.0**k for k in range(10, 27)])
    seconds = 1e-3 + LINE * sizes
    for straggler in (-1, -2, -4):
        late = seconds.copy()
        late[straggler] *= 1.5
        assert tail_slope(sizes, late) == pytest.approx(LINE, rel=0.06)


def test_the_end_of_a_curve_that_bends_is_that_of_its_upper_part() -> None:
    sizes = np.array([2.0**k for k in range(2, 28)])
    seconds = 1e-3 + 1e-10 * np.minimum(sizes, 2.0**18) + 1e-8 * np.maximum(sizes - 2.0**18, 0)
    assert tail_slope(sizes, seconds) == pytest.approx(1e-8, rel=1e-3)
    assert tail_slope(np.array([1.0, 2.0]), np.zeros(2)) == 0.0


def priced(algorithm: str, sizes: list[int], factor: float = 1.0) -> CollectiveCurve:
    """A curve that lies ``factor`` times above the price."""
    cost = schedule_cost(GIGABIT, "all_reduce", "ring" if algorithm == NATIVE else algorithm)
    return curve(algorithm, {size: factor * float(cost(size)) for size in sizes})


SHORT = [4**k for k in range(1, 9)]
LONG = [*SHORT, 256 * KIB, *(2**k * MIB for k in range(7)), RESNET_BYTES]


@pytest.mark.parametrize("sizes", [SHORT, LONG])
def test_who_was_measured_at_short_messages_is_no_candidate_at_long_ones(sizes: Any) -> None:
    """At short messages flat trees pass in bursts, which is how one was chosen for 102 MB."""
    flat_tree = curve("flat_tree", {size: 1e-4 + 1e-10 * size for size in SHORT})
    doubling = curve("recursive_doubling", {size: 1e-4 + 1e-10 * size for size in SHORT})
    cluster = structs.replace(GIGABIT, curves=(flat_tree, doubling, priced("ring", sizes)))
    costs = collective_costs(cluster)
    assert costs.best(16 * KIB) == "flat_tree"
    for nbytes in (8 * MIB, 25 * MIB, RESNET_BYTES):
        assert costs.best(nbytes) == "ring"
        for name in ("flat_tree", "recursive_doubling"):
            price = fixed_cost(GIGABIT, "all_reduce", name, {})
            assert float(costs.of(name)(nbytes)) >= float(price(nbytes)) * (1 - 1e-9)


def test_what_has_no_price_stays_behind_those_that_were_measured_further() -> None:
    native = curve(NATIVE, dict.fromkeys(SHORT, 0.0001))
    cluster = structs.replace(GIGABIT, curves=(native, priced("ring", LONG, 1.1)))
    costs = collective_costs(cluster)
    assert costs.best(64 * KIB) == NATIVE
    sizes = [MIB, 25 * MIB, 4 * RESNET_BYTES]
    assert costs.of(NATIVE)(sizes) == pytest.approx(costs.of("ring")(sizes) * (1 + UNMEASURED))
    assert {costs.best(size) for size in sizes} == {"ring"}


def test_what_was_given_up_for_being_slow_stays_as_far_behind() -> None:
    """Gloo's own reduce-scatter, given up at 256 KiB, was taken for the best one at 8 MiB."""
    ring = priced("ring", LONG)
    last_s = 2.5 * ring.points[LONG.index(256 * KIB)].expected_s
    native = curve(NATIVE, dict.fromkeys((*SHORT, 256 * KIB), last_s))
    costs = collective_costs(structs.replace(GIGABIT, curves=(native, ring)))
    sizes = [MIB, 25 * MIB, 4 * RESNET_BYTES]
    assert costs.of(NATIVE)(sizes) == pytest.approx(2.5 * costs.of("ring")(sizes))


def test_a_price_that_says_so_makes_a_candidate_of_what_was_measured_at_short_messages() -> None:
    """A ring that was left out beats the trees that were measured at every size."""
    trees = priced("binary_tree", LONG, 1.2)
    cluster = structs.replace(GIGABIT, curves=(trees, priced("ring", SHORT)))
    costs = collective_costs(cluster)
    assert costs.best(RESNET_BYTES) == "ring"
    # Its price is raised as the trees' were, and held to more than noise.
    expected = 1.2 * (1 + UNMEASURED) * float(fixed_cost(GIGABIT, "all_reduce", "ring", {})(1e8))
    assert float(costs.of("ring")(1e8)) == pytest.approx(expected)
    # Prices about the same are no reason to run what nobody measured.
    close = structs.replace(
        GIGABIT, curves=(priced("ring", SHORT, 0.5), priced("halving_doubling", LONG))
    )
    assert collective_costs(close).best(RESNET_BYTES) == "halving_doubling"


def test_curves_without_a_known_schedule_keep_to_the_fewest_bytes() -> None:
    other = structs.replace(
        curve("lp", {MIB: 1e-4}),
        points=(CurvePoint(nbytes=MIB, samples_s=(1e-4,), options={"blocks": 2, "colour": 3}),),
    )
    stranger = curve("somebodys", {MIB: 1e-4})
    cluster = structs.replace(GIGABIT, curves=(other, stranger))
    for name in ("lp", "somebodys"):
        assert float(collective_costs(cluster).of(name)(1e8)) == pytest.approx(LINE * 1e8)


def test_in_training_a_burst_passes_once() -> None:
    """A thousand messages of 64 KiB do not take a thousand times what one alone took."""
    burst = structs.replace(
        GIGABIT,
        curves=(priced("ring", LONG), curve(NATIVE, dict.fromkeys((*SHORT, 256 * KIB), 0.0001))),
    )
    bytes_s = wire_s(burst, RESNET_BYTES)
    costs = training_costs(burst, RESNET_BYTES)
    count = RESNET_BYTES // (64 * KIB)
    assert count * float(collective_costs(burst)(64 * KIB)) < bytes_s / 2
    assert count * float(costs(64 * KIB)) >= bytes_s * 0.999
    # Which algorithm is the cheapest does not change.
    assert costs.best(64 * KIB) == NATIVE
    assert costs.bucket([64 * KIB, 4]).algorithm == NATIVE
    assert costs.only("ring").least_s_per_byte == costs.least_s_per_byte > 0
    # All that a small model sends passes at once.
    assert float(training_costs(burst, 64 * KIB)(64 * KIB)) == pytest.approx(1e-4)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_the_start_up_of_one_channel_hides_no_bytes_of_another(channels: int) -> None:
    flat = structs.replace(GIGABIT, curves=(curve("ring", {4: 5e-3, MIB: 1.5e-2}),))
    tensors = tuple(GradientTensor(name=f"t{i}", numel=MIB // 8) for i in range(40))
    workload = Workload(model="m", tensors=tensors, forward_s=0.0, backward_s=0.0)
    prediction = make_plan(workload, flat, "wfbp", channels=channels).prediction
    assert prediction is not None
    assert prediction.iteration_s >= prediction.bound_s * (1 - 1e-9)


def test_every_size_is_dearer_than_the_one_before() -> None:
    for name in candidates("all_reduce", GIGABIT):
        cluster = structs.replace(
            GIGABIT, curves=(priced("ring", LONG), curve(name, {4: 1e-4, 64 * KIB: 1e-3}))
        )
        values = collective_costs(cluster)(np.geomspace(1, 1e9, 300)).tolist()
        assert all(after >= before for before, after in pairwise(values))
