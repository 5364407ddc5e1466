"""Costs of a cluster: measured where it was measured, priced where not; and the bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, Level, LinearFit
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.flows.curve import CLOSE
from syncopate.costs.model import collective as model
from syncopate.costs.model.bound import iteration_bound_s, wire_bytes, wire_s
from syncopate.costs.model.collective import (
    BLOCKS,
    collective_costs,
    fixed_cost,
    highest_line,
    schedule_cost,
    variants,
)
from syncopate.costs.schedule.congestion import congestion_lines
from syncopate.costs.schedule.price import price_many
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning import make_plan
from syncopate.schedules.registry import algorithms, build, candidates
from tests.unit import examples

SIZES = np.concatenate(([0.0], np.geomspace(1, 1e10, 50)))
FLAT = Cluster.flat(8, latency_s=5e-5, bandwidth_bytes_per_s=1e9, reduction_s_per_byte=2e-10)
RACKS = Cluster(
    name="3 racks of 2 hosts of 2",
    levels=(
        Level(name="device", size=2, latency_s=2e-6, bandwidth_bytes_per_s=2e10),
        Level(name="host", size=2, latency_s=3e-5, bandwidth_bytes_per_s=1e9),
        Level(name="rack", size=3, latency_s=9e-5, bandwidth_bytes_per_s=3e8),
    ),
)


def measured(algorithm: str, seconds: float) -> CollectiveCurve:
    return CollectiveCurve(
        collective="all_reduce",
        algorithm=algorithm,
        points=(
            CurvePoint(nbytes=10, samples_s=(seconds,)),
            CurvePoint(nbytes=1000, samples_s=(2 * seconds,)),
        ),
        fit=LinearFit(a_s=seconds, b_s_per_byte=1e-3),
    )


@pytest.mark.parametrize("cluster", [FLAT, RACKS], ids=["flat", "racks"])
@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_a_schedule_costs_its_price(cluster: Cluster, algorithm: str) -> None:
    cost = fixed_cost(cluster, "all_reduce", algorithm, {})
    schedule = build("all_reduce", algorithm, cluster.world_size)
    lines = congestion_lines(schedule, cluster)
    busiest = max((line.b_s_per_byte for line in lines), default=0.0)
    expected = np.maximum(price_many(schedule, cluster, SIZES), busiest * SIZES)
    # Where messages are played, a curve joins a few sizes; elsewhere the price is exact.
    close = 1e-9 if cluster is FLAT else 2 * CLOSE
    assert cost(SIZES) == pytest.approx(expected, rel=close)
    assert bool(lines) == (cluster is RACKS)


@pytest.mark.parametrize("cluster", [FLAT, RACKS], ids=["flat", "racks"])
@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
@pytest.mark.parametrize("nbytes", [1.0, 1e5, 1e10])
def test_no_algorithm_beats_the_wire(cluster: Cluster, algorithm: str, nbytes: float) -> None:
    cost = float(schedule_cost(cluster, "all_reduce", algorithm)(nbytes))
    assert cost >= wire_s(cluster, nbytes) * (1 - 1e-12)


def test_ranks_of_a_host_share_its_link() -> None:
    """Two hosts of two ranks; rank r of one exchanges everything with rank r of the other."""
    hosts = Cluster(
        name="2 x 2",
        levels=(
            Level(name="device", size=2, latency_s=0.0, bandwidth_bytes_per_s=1e12),
            Level(name="host", size=2, latency_s=0.0, bandwidth_bytes_per_s=1.0),
        ),
    )
    doubling = schedule_cost(hosts, "all_reduce", "recursive_doubling")
    # Each of the two ranks sends all 10 bytes to the other host, over one link.
    assert float(doubling(10)) == pytest.approx(20.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e-3)), min_size=1, max_size=8))
def test_the_highest_of_several_lines(lines: list[tuple[float, float]]) -> None:
    pieces = highest_line(LinearFit(a_s=a, b_s_per_byte=b) for a, b in lines)
    expected = np.max([a + b * SIZES[1:] for a, b in lines], axis=0)
    assert pieces(SIZES[1:]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_registry_is_priced_where_nothing_was_measured() -> None:
    assert collective_costs(FLAT).names == candidates("all_reduce", FLAT)
    assert collective_costs(FLAT, "all_gather").names == candidates("all_gather", FLAT)
    assert collective_costs(FLAT, names=("ring",)).names == ("ring",)


def test_measured_curves_are_believed() -> None:
    cluster = Cluster(
        name="measured", levels=FLAT.levels, curves=(measured("native", 2.0), measured("ring", 3.0))
    )
    costs = collective_costs(cluster)
    assert costs.names == ("native", "ring")
    assert costs.bucket([10]) == ("native", {}, 2.0)
    # Another collective was not measured here, and is priced.
    assert collective_costs(cluster, "all_gather").names == candidates("all_gather", cluster)
    with pytest.raises(UnknownNameError, match="known here: native, ring"):
        collective_costs(cluster, names=("binary_tree",))


def test_native_has_no_price() -> None:
    rule = (
        r"'native' was not measured for all_reduce on 'flat', and has no formula; known here: ring"
    )
    with pytest.raises(UnknownNameError, match=rule):
        collective_costs(FLAT, names=("native",))


def test_options_suit_the_cluster() -> None:
    placed = structs.replace(RACKS, placement=tuple(range(11, -1, -1)))
    assert variants(FLAT, "all_reduce", "ring") == ({},)
    assert variants(placed, "all_reduce", "ring") == ({"order": placed.placement},)
    assert variants(FLAT, "reduce", "lp") == tuple({"blocks": blocks} for blocks in BLOCKS)
    levels = variants(RACKS, "all_reduce", "blueconnect")
    assert {options["factors"] for options in levels} == {(2, 2, 3)}
    assert levels[0]["pipelines"] == 1
    # On one level nothing works at the same time as anything else.
    assert variants(FLAT, "all_reduce", "blueconnect") == ({"factors": (8,)},)


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_a_price_is_never_above_that_of_the_defaults(algorithm: str) -> None:
    placed = structs.replace(RACKS, placement=(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11))
    default = fixed_cost(placed, "all_reduce", algorithm, {})
    suiting = schedule_cost(placed, "all_reduce", algorithm)
    large = SIZES[SIZES > 1e6]
    assert (suiting(large) <= default(large) * (1 + 1e-9)).all()


def test_costs_are_worked_out_once() -> None:
    assert collective_costs(RACKS) is collective_costs(RACKS)
    assert collective_costs(RACKS, names=["ring"]) is collective_costs(RACKS, names=("ring",))
    assert collective_costs(structs.replace(RACKS)) is not collective_costs(RACKS)


def test_one_rank_communicates_for_nothing() -> None:
    alone = Cluster.flat(1, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    costs = collective_costs(alone)
    assert costs([0, 1, 1e9]).tolist() == [0, 0, 0]
    assert costs.of("native")(1e9) == 0
    assert wire_s(alone, 1e9) == 0


def test_the_bound_counts_the_slowest_level() -> None:
    assert wire_bytes(8, 800) == 1400
    assert wire_s(FLAT, 8e9) == pytest.approx(14.0)
    # Three racks send 2 * 2/3 n each over 3e8 bytes/s; twelve devices 2 * 11/12 n over 2e10.
    assert wire_s(RACKS, 9e8) == pytest.approx(4.0)


def test_no_measurement_is_below_the_bound() -> None:
    fast = Cluster(
        name="shared memory",
        levels=FLAT.levels,
        curves=(measured("ring", 1e-9),),
    )
    assert wire_s(fast, 1000) <= float(collective_costs(fast)(1000))


def test_the_bound_of_an_iteration() -> None:
    tensors = (GradientTensor(name="w", numel=1000),)
    workload = Workload(model="m", tensors=tensors, forward_s=1e-6, backward_s=1e-6, update_s=1e-6)
    assert iteration_bound_s(workload, FLAT) == pytest.approx(2 * 7 / 8 * 4000 / 1e9)
    slow = Workload(model="m", tensors=tensors, forward_s=1.0, backward_s=2.0, update_s=0.5)
    assert iteration_bound_s(slow, FLAT) == 3.5


def test_an_algorithm_without_a_price_vetoes_no_plan(monkeypatch):
    cluster = structs.replace(FLAT, name="not remembered")
    best = make_plan(examples.workload(), cluster)
    lost = {bucket.push.algorithm for bucket in best.buckets}
    price = model.schedule_cost

    def refuse(cluster, collective, algorithm):
        if algorithm in refused:
            raise InvalidValueError("ranks", 8, "fewer")
        return price(cluster, collective, algorithm)

    refused = lost
    monkeypatch.setattr(model, "schedule_cost", refuse)
    other = structs.replace(cluster, name="some have no price")
    plan = make_plan(examples.workload(), other)
    assert not {bucket.push.algorithm for bucket in plan.buckets} & lost
    assert plan.prediction.iteration_s >= best.prediction.iteration_s
    for name in lost:
        with pytest.raises(InvalidValueError, match="ranks is 8"):
            make_plan(examples.workload(), other, algorithm=name)
    refused = set(algorithms("all_reduce"))
    with pytest.raises(InvalidValueError, match="ranks is 8"):
        make_plan(examples.workload(), structs.replace(cluster, name="none has a price"))
