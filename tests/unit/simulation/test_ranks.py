"""Ranks that differ: what a slow one costs, how others wait for it, and what is drawn."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from msgspec import structs

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.ranks.variation import spread
from syncopate.artifacts.cluster import Cluster, Interference, Level, LinearFit
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.artifacts.timelines.alike import Alike
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Envelope, LinearCost
from syncopate.costs.model.training import exchange_costs
from syncopate.delay import Delay, LocalSGD
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.planner import make_plan
from syncopate.simulation import simulate
from syncopate.simulation.ranks import Variation, hosts_of

WORKLOAD = Workload(
    model="small",
    tensors=tuple(
        GradientTensor(name=f"w{i}", numel=1_000_000, backward_s=4e-3, forward_s=1e-3)
        for i in range(10)
    ),
    forward_s=20e-3,
    backward_s=42e-3,
    update_s=3e-3,
    buffers_nbytes=1000,
)
COSTS = {"all_reduce": Envelope({"ring": LinearCost(LinearFit(a_s=10e-3, b_s_per_byte=0.0))})}


def cluster(interference: Interference | None = None, ranks: int = 4) -> Cluster:
    flat = Cluster.preset("1gbe", ranks)
    return structs.replace(flat, interference=interference or Interference())


def slower(workload: Workload, factor: float) -> Workload:
    """The same, each duration times a factor."""
    return structs.replace(
        workload,
        tensors=tuple(
            structs.replace(t, backward_s=factor * t.backward_s, forward_s=factor * t.forward_s)
            for t in workload.tensors
        ),
        forward_s=factor * workload.forward_s,
        backward_s=factor * workload.backward_s,
        update_s=factor * workload.update_s,
    )


def plan_of(exchange: str, where: Cluster) -> Plan:
    if exchange == "local":
        return make_plan(WORKLOAD, where).delayed(LocalSGD(period=2))
    if exchange == "delayed":
        return make_plan(WORKLOAD, where, exchange="sharded").delayed(
            Delay(k=2, local_update="glu")
        )
    return make_plan(WORKLOAD, where, exchange=exchange)


def of(timeline: Timeline, rank: int, lane: str) -> list[tuple[str, float, float]]:
    spans = [s for s in timeline.kept if s.rank == rank and s.lane == lane]
    return [(s.name, round(s.start_s, 9), round(s.end_s, 9)) for s in spans]


@pytest.mark.parametrize(
    ("exchange", "interference"),
    [
        *product(
            ("allreduce", "decoupled", "sharded", "rooted", "served", "delayed", "local"),
            (Interference(), Interference(compute_rate=0.6, collective_stretch=1.3)),
        )
    ],
)
def test_ranks_that_are_all_slower_are_a_slower_workload(
    exchange: str, interference: Interference
) -> None:
    where = cluster(interference)
    plan = plan_of(exchange, where)
    all_of_them = Variation(slow_ranks=dict.fromkeys(range(4), 1.5))
    found = simulate(WORKLOAD, plan, where, iterations=4, variation=all_of_them)
    slow = slower(WORKLOAD, 1.5)
    expected = simulate(slow, plan, where, iterations=4)
    assert found.alike == (Alike(rank=0, ranks=((1, 4),)),)
    mine, other = found.kept, expected.kept
    assert [(s.name, s.lane) for s in mine] == [(s.name, s.lane) for s in other]
    if exchange == "served":  # whose update is the servers', and takes no longer
        assert found.duration_s == pytest.approx(expected.duration_s, rel=0.05)
        return
    np.testing.assert_allclose(mine.start_s, other.start_s, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mine.end_s, other.end_s, rtol=1e-9, atol=1e-12)


def test_what_a_model_measured_of_overlap_holds_for_its_ranks_that_differ_too() -> None:
    where, measured = cluster(), Interference(compute_rate=0.6, collective_stretch=1.3)
    plan = plan_of("allreduce", where)
    work = structs.replace(WORKLOAD, interference=measured)
    varied = Variation(slow_ranks={0: 1.5})
    found = simulate(work, plan, where, variation=varied)
    expected = simulate(WORKLOAD, plan, cluster(measured), variation=varied)
    assert found.duration_s == expected.duration_s


def test_a_collective_begins_with_the_slowest_rank_and_the_others_wait_for_it() -> None:
    work = Workload(
        model="two",
        tensors=(
            GradientTensor(name="a", numel=1000, backward_s=40e-3),
            GradientTensor(name="b", numel=1000, backward_s=20e-3),
        ),
        forward_s=20e-3,
        backward_s=60e-3,
        update_s=10e-3,
    )
    where = cluster()
    plan = make_plan(work, where, "wfbp", costs=COSTS)
    found = simulate(
        work, plan, where, costs=COSTS, iterations=2, variation=Variation(slow_ranks={2: 1.5})
    )
    # Rank 2 has a at 90 ms and b at 120 ms, the others at 60 and 80.
    assert of(found, 2, "push")[:2] == [("bucket 0", 0.09, 0.1), ("bucket 1", 0.12, 0.13)]
    assert of(found, 0, "push")[:2] == [("bucket 0", 0.06, 0.1), ("bucket 1", 0.1, 0.13)]
    assert of(found, 0, "wait")[0] == ("wait for communication", 0.08, 0.13)
    assert of(found, 2, "wait")[0] == ("wait for communication", 0.12, 0.13)
    assert of(found, 0, "update")[0] == ("update", 0.13, 0.14)
    assert of(found, 2, "update")[0] == ("update", 0.13, 0.145)
    # The next iteration begins on each rank when its own update is over.
    assert of(found, 0, "forward")[1] == ("forward", 0.14, 0.16)
    assert of(found, 2, "forward")[1] == ("forward", 0.145, 0.175)
    assert found.duration_s == pytest.approx(2 * 0.145)
    assert found.alike == (Alike(rank=0, ranks=((1, 2), (3, 4))),)


def test_every_rank_waits_at_the_end_of_an_iteration_for_what_is_beside_gradients() -> None:
    where = cluster()
    plan = make_plan(WORKLOAD, where, "single")
    synced = structs.replace(plan, weight_sync_period=2)
    lone = {
        **exchange_costs(where, WORKLOAD.nbytes, "allreduce"),
        "broadcast": Envelope({"lp": LinearCost(LinearFit(a_s=0.5, b_s_per_byte=0.0))}),
    }
    found = simulate(
        WORKLOAD, synced, where, costs=lone, iterations=2, variation=Variation(slow_ranks={1: 2.0})
    )
    told = [of(found, rank, "push")[1] for rank in (0, 1)]
    assert {name for name, *_ in told} == {"flags and buffers"}
    # Both have the end in common; rank 1 updates for 3 ms more, and comes as much later.
    assert told[1][1] - told[0][1] == pytest.approx(3e-3)
    assert (
        told[0][2] == told[1][2] == of(found, 0, "forward")[1][1] == of(found, 1, "forward")[1][1]
    )
    assert of(found, 0, "pull")[0][0] == "weights of rank 0"
    assert of(found, 0, "pull")[0][2] - of(found, 1, "pull")[0][1] == pytest.approx(0.5)


def test_ranks_that_step_by_themselves_meet_at_their_averages() -> None:
    where = cluster()
    plan = make_plan(WORKLOAD, where, "single").delayed(LocalSGD(period=2))
    found = simulate(WORKLOAD, plan, where, iterations=2, variation=Variation(slow_ranks={1: 2.0}))
    compute_s = WORKLOAD.compute_s
    waits = of(found, 0, "wait")
    assert [name for name, *_ in waits] == ["wait for averages", "wait for flags and buffers"]
    assert waits[0][1] == pytest.approx(2 * compute_s)
    assert of(found, 1, "wait")[0][1] == pytest.approx(4 * compute_s)
    assert waits[0][2] == of(found, 1, "wait")[0][2]


def test_analysis_finds_the_slow_rank_and_what_it_costs() -> None:
    where = cluster()
    plan = make_plan(WORKLOAD, where)
    slow = Variation(slow_ranks={3: 1.5})
    found = simulate(WORKLOAD, plan, where, iterations=6, variation=slow)
    worst, *_ = stragglers(found)
    assert (worst.rank, worst.cause) == (3, "compute")
    without_s = simulate(WORKLOAD, plan, where, iterations=6).duration_s
    (told,) = (cause for cause in explanation(found).causes if cause.ranks == (3,))
    assert told.alone_s == pytest.approx((found.duration_s - without_s) / 6, rel=0.05)


def test_equal_seeds_draw_the_same_bits() -> None:
    where = cluster()
    plan = make_plan(WORKLOAD, where)

    def text(seed: int) -> bytes:
        jitter = Variation(jitter=0.05, seed=seed)
        return simulate(WORKLOAD, plan, where, iterations=2, variation=jitter).to_json()

    assert text(1) == text(1) != text(2)


def test_jitter_has_the_mean_and_the_deviation_that_are_given() -> None:
    paces = Variation(jitter=0.2, seed=3).paces(cluster(ranks=500), 200)
    assert paces.mean() == pytest.approx(1.0, abs=2e-3)
    assert paces.std() == pytest.approx(0.2, abs=2e-3)
    assert paces.min() > 0
    longer = simulate(
        WORKLOAD,
        make_plan(WORKLOAD, cluster()),
        cluster(),
        iterations=3,
        variation=Variation(jitter=0.2, seed=3),
    )
    assert longer.alike == ()
    assert len({span.rank for span in longer.kept}) == 4


def test_paces_are_products_of_what_is_given() -> None:
    named = structs.replace(cluster(), hosts=("a", "b", "a", "b"))
    given = Variation(slow_ranks={0: 2.0}, slow_hosts={"a": 1.5}, rank_factors=[3.0])
    assert given.paces(named, 2).tolist() == [[9.0] * 2, [3.0] * 2, [4.5] * 2, [3.0] * 2]
    drawn = Variation(rank_factors=[1.0, 2.0], step_factors=[1.0, 10.0], seed=1)
    assert set(drawn.paces(cluster(ranks=64), 2).ravel().tolist()) == {1.0, 2.0, 10.0, 20.0}
    assert str(given) == "rank 0 x2, host a x1.5, as measured, seed 0"
    assert str(Variation()) == ""


def test_hosts_go_by_number_where_they_have_no_names() -> None:
    levels = tuple(
        Level(name=name, size=2, latency_s=0.0, bandwidth_bytes_per_s=1e9)
        for name in ("device", "host")
    )
    where = Cluster(name="levels", levels=levels)
    assert hosts_of(where) == ("0", "0", "1", "1")
    assert hosts_of(structs.replace(where, placement=(0, 2, 1, 3))) == ("0", "1", "0", "1")
    assert hosts_of(structs.replace(where, placement=(3, 1, 0, 2))) == ("1", "0", "1", "0")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"slow_ranks": {0: 0.0}}, "factor of rank 0 is 0.0; it must be a finite number > 0"),
        ({"slow_hosts": {"0": float("inf")}}, "factor of host 0 is inf"),
        ({"rank_factors": [-1.0]}, r"factor is -1\.0"),
        ({"jitter": 1.5}, r"jitter is 1\.5; it must be a number in \[0, 1\]"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"slow_ranks": {4: 2.0}}, r"slow rank is 4; it must be in 0\.\.3"),
    ],
)
def test_nonsense_is_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        Variation(**given).paces(cluster(), 1)  # type: ignore[arg-type]


def test_a_host_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown host 'x' for .*; known: 0, 1, 2, 3"):
        Variation(slow_hosts={"x": 2.0}).paces(cluster(), 1)
    with pytest.raises(UnknownNameError, match=r"known: 0, 1, 2, \.\., 63"):
        Variation(slow_hosts={"x": 2.0}).paces(cluster(ranks=64), 1)


def test_the_spread_of_a_timeline_is_that_of_its_ranks_and_of_their_steps() -> None:
    took_s = {0: (9.0, 1.0, 1.0, 1.0), 1: (9.0, 2.0, 1.0, 4.0), 2: (9.0, 1.0, 1.0, 1.5)}
    spans = [
        Span(name="f", lane="forward", rank=rank, start_s=10 * i, end_s=10 * i + s, iteration=i)
        for rank, each in took_s.items()
        for i, s in enumerate(each)
    ]
    timeline = Timeline(name="t", source="measured", world_size=3, spans=tuple(spans))
    found = spread(timeline)
    assert found.ranks == (1.0, 2.0, 1.0)
    assert found.steps == (1.0, 1.0, 1.0, 1.0, 0.5, 2.0, 1.0, 1.0, 1.5)
    with pytest.raises(InvalidValueError, match="a timeline of ranks that compute"):
        spread(structs.replace(timeline, spans=()))


def test_what_was_simulated_with_slow_ranks_has_their_spread() -> None:
    where = cluster()
    slow = Variation(slow_ranks={3: 1.5})
    plan = make_plan(WORKLOAD, where)
    found = spread(simulate(WORKLOAD, plan, where, iterations=4, variation=slow))
    assert found.ranks == pytest.approx((1.0, 1.0, 1.0, 1.5))
    assert found.steps == pytest.approx([1.0] * 12)
