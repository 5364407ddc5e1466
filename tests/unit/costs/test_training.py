"""Costs of every exchange's collectives in training, measured or not, and the bound of plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Handling, Level
from syncopate.artifacts.plan import EXCHANGES, SERVERLESS, Bucket
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import iteration_bound_s, plan_bound_s, wire_bytes, wire_s
from syncopate.costs.model.collective import collective_costs, fixed_cost
from syncopate.costs.model.training import exchange_costs, training_costs
from syncopate.errors import UnknownNameError
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.registry import candidates
from syncopate.units import MIB
from tests.unit.costs.test_beyond_samples import curve

FLAT = Cluster.preset("1gbe", 4)
BYTES = 100_000_000
SIZES = (4096, 65_536, MIB, 16 * MIB, 64 * MIB)
HALVES = ("reduce_scatter", "all_gather")


def calibrated(factors: dict[int, float], cluster: Cluster = FLAT) -> Cluster:
    """A cluster whose measured ring takes so many times its price at each size."""
    price = fixed_cost(cluster, "all_reduce", "ring", {})
    points = {n: float(price(n)) * factor for n, factor in factors.items()}
    return structs.replace(cluster, curves=(curve("ring", points),))


@pytest.mark.parametrize("exchange", SERVERLESS)
def test_without_measurements_prices_are_the_schedules(exchange: str) -> None:
    costs = exchange_costs(FLAT, BYTES, exchange)
    kind = EXCHANGES[exchange]
    assert tuple(costs) == tuple(filter(None, (kind.push, kind.pull, kind.replicated)))
    for collective, envelope in costs.items():
        assert envelope.names == candidates(collective, FLAT)
        alone = collective_costs(FLAT, collective)
        share = wire_s(FLAT, BYTES, collective) / BYTES
        for n in SIZES:
            assert float(envelope(n)) == pytest.approx(max(float(alone(n)), share * n))


def test_halves_of_a_measured_ring_take_together_what_it_takes() -> None:
    factors = dict(zip(SIZES, (3.0, 2.0, 1.5, 1.1, 1.2), strict=True))
    cluster = calibrated(factors)
    ring = collective_costs(cluster).of("ring")
    halves = [training_costs(cluster, BYTES, ("ring",), name) for name in HALVES]
    for n, factor in factors.items():
        assert sum(float(half(n)) for half in halves) == pytest.approx(float(ring(n)))
        for name, half in zip(HALVES, halves, strict=True):
            price = fixed_cost(cluster, name, "ring", {})
            assert float(half(n)) == pytest.approx(float(price(n)) * factor)
    # Beyond the ring's sizes the factor stays what it was.
    for n, factor in ((1024, 3.0), (256 * MIB, 1.2)):
        price = fixed_cost(cluster, "all_gather", "ring", {})
        assert float(halves[1](n)) == pytest.approx(float(price(n)) * factor, rel=0.02)


@pytest.mark.parametrize("collective", HALVES)
def test_who_turns_to_other_peers_takes_longer_after_another_than_alone(collective: str) -> None:
    """Alone, as calibration measures them, both reach the line."""
    share = wire_s(FLAT, BYTES, collective) / BYTES
    line = {n: share * n for n in SIZES}
    curves = tuple(curve(name, line, collective) for name in ("ring", "recursive"))
    cluster = structs.replace(FLAT, curves=curves)
    costs = training_costs(cluster, BYTES, None, collective)
    for n in SIZES:
        assert float(costs.of("ring")(n)) == pytest.approx(line[n])
        assert float(costs.of("recursive")(n)) == pytest.approx(1.3 * line[n])
        assert costs.best(n) == "ring"
    # What a short message takes is no matter of the wire.
    short = curve("recursive", {4096: 0.2 * share * 2**20, MIB: share * 2**20}, collective)
    slow = curve("ring", {4096: 0.5 * share * 2**20, MIB: 1.1 * share * 2**20}, collective)
    costs = training_costs(structs.replace(FLAT, curves=(slow, short)), BYTES, None, collective)
    assert float(costs(4096)) == pytest.approx(0.2 * share * 2**20)
    assert (costs.best(4096), costs.best(MIB)) == ("recursive", "ring")


def test_what_was_measured_is_believed_and_names_are_checked() -> None:
    cluster = calibrated(dict.fromkeys(SIZES, 2.0))
    measured = curve("ring", {4096: 0.5, MIB: 0.7}, "all_gather")
    both = structs.replace(cluster, curves=(*cluster.curves, measured))
    assert float(training_costs(both, BYTES, None, "all_gather")(4096)) == pytest.approx(0.5)
    assert float(training_costs(both, BYTES, ("ring",), "reduce_scatter")(MIB)) == pytest.approx(
        2 * float(fixed_cost(FLAT, "reduce_scatter", "ring", {})(MIB))
    )
    with pytest.raises(
        UnknownNameError, match=r"algorithm 'native' was not measured for reduce on"
    ):
        training_costs(cluster, BYTES, (NATIVE,), "reduce")
    with pytest.raises(UnknownNameError, match=r"unknown exchange 'shared'; known: allreduce"):
        exchange_costs(cluster, BYTES, "shared")


def test_blocks_are_still_chosen_by_size() -> None:
    cluster = calibrated(dict.fromkeys(SIZES, 2.0))
    costs = training_costs(cluster, BYTES, ("lp",), "reduce")
    small, large = (costs.bucket([n]) for n in (1024, 64 * MIB))
    assert int(large.options["blocks"]) > int(small.options["blocks"])  # type: ignore[arg-type]
    given = costs.of("lp").fixed({"blocks": 7})
    price = fixed_cost(cluster, "reduce", "lp", {"blocks": 7})
    assert float(given(MIB)) == pytest.approx(2 * float(price(MIB)))


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "reduce", "broadcast"])
def test_where_only_the_backends_own_was_measured_it_carries_all(collective: str) -> None:
    points = {n: 1e-3 + n * 2e-8 for n in SIZES}
    cluster = structs.replace(FLAT, curves=(curve(NATIVE, points),))
    costs = training_costs(cluster, BYTES, None, collective)
    assert costs.names == (NATIVE,)
    part = wire_bytes(4, 1.0, collective) / wire_bytes(4, 1.0)
    assert float(costs(MIB)) == pytest.approx(part * points[MIB])


def test_a_factor_may_come_from_any_measured_schedule() -> None:
    price = fixed_cost(FLAT, "all_reduce", "binary_tree", {})
    points = {n: float(price(n)) * 1.5 for n in SIZES}
    cluster = structs.replace(
        FLAT,
        curves=(curve(NATIVE, dict.fromkeys(SIZES, 9.0)), curve("binary_tree", points)),
        handling=(),
    )
    gathered = training_costs(cluster, BYTES, ("ring",), "all_gather")
    expected = 1.5 * float(fixed_cost(FLAT, "all_gather", "ring", {})(MIB))
    assert float(gathered(MIB)) == pytest.approx(expected)
    # But the ring, of which it is a half, knows best.
    rings = calibrated(dict.fromkeys(SIZES, 1.25)).curves
    both = structs.replace(cluster, curves=(*cluster.curves, *rings))
    gathered = training_costs(both, BYTES, ("ring",), "all_gather")
    assert float(gathered(MIB)) == pytest.approx(expected / 1.5 * 1.25)


def test_a_calibrated_machine_keeps_its_handling_in_the_price() -> None:
    handled = structs.replace(FLAT, handling=(Handling(call_s=1e-4, round_s=1e-4),))
    cluster = calibrated(dict.fromkeys(SIZES, 1.3), handled)
    gathered = training_costs(cluster, BYTES, ("ring",), "all_gather")
    price = fixed_cost(handled, "all_gather", "ring", {})
    assert float(gathered(MIB)) == pytest.approx(1.3 * float(price(MIB)))


RACKS = Cluster(
    name="racks",
    levels=(
        Level(name="device", size=2, latency_s=1e-6, bandwidth_bytes_per_s=1e10),
        Level(name="host", size=3, latency_s=1e-5, bandwidth_bytes_per_s=1e9),
    ),
    placement=(0, 2, 4, 1, 3, 5),
)


def buckets_of(exchange: str, sizes: list[int], roots: list[int]) -> list[Bucket]:
    kind = EXCHANGES[exchange]
    return [
        Bucket(
            tensors=(f"w{index}",),
            nbytes=size,
            push=Recipe(kind.push, root=root),
            pull=Recipe(kind.pull, root=root) if kind.pull else None,
        )
        for index, (size, root) in enumerate(zip(sizes, roots, strict=True))
    ]


@pytest.mark.parametrize("exchange", ["allreduce", "sharded"])
@pytest.mark.parametrize("cluster", [FLAT, RACKS], ids=["flat", "racks"])
def test_sharded_training_has_the_bound_of_all_reduces(exchange: str, cluster: Cluster) -> None:
    buckets = buckets_of(exchange, [BYTES, BYTES], [0, 0])
    workload = Workload(
        model="m",
        tensors=(GradientTensor(name="w", numel=BYTES // 2),),
        forward_s=0.0,
        backward_s=0.0,
    )
    assert plan_bound_s(cluster, buckets, 0.0) == pytest.approx(
        iteration_bound_s(workload, cluster)
    )
    assert plan_bound_s(cluster, buckets, 1e9) == 1e9
    assert plan_bound_s(Cluster.preset("1gbe", 1), buckets, 0.25) == 0.25


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_bound_of_rooted_plans_counts_what_the_busiest_host_carries(
    drawn: list[tuple[int, int]],
) -> None:
    """Counted bucket by bucket: who is not the root's sends its bytes, the root's receives them."""
    sizes, roots = [size for size, _ in drawn], [root for _, root in drawn]
    found = plan_bound_s(RACKS, buckets_of("rooted", sizes, roots), 0.0)
    seconds = []
    for level, host_of in (
        (RACKS.levels[0], {rank: rank for rank in range(6)}),
        (RACKS.levels[1], {rank: RACKS.position(rank) // 2 for rank in range(6)}),
    ):
        for host in set(host_of.values()):
            sent = sum(n for n, root in drawn if host_of[root] != host)
            received = sum(n for n, root in drawn if host_of[root] == host)
            seconds.append(2 * max(sent, received) / level.bandwidth_bytes_per_s)
    assert found == pytest.approx(max(seconds))


def test_a_level_that_joins_nothing_bounds_nothing() -> None:
    slow = Level(name="alone", size=1, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    nested = structs.replace(FLAT, levels=(slow, *FLAT.levels))
    buckets = buckets_of("rooted", [BYTES, BYTES], [0, 3])
    bound_s = plan_bound_s(FLAT, buckets, 0.0)
    assert plan_bound_s(nested, buckets, 0.0) == bound_s > 0


@given(st.integers(1, 10**9), st.sampled_from(["reduce_scatter", "all_gather"]))
def test_a_half_of_the_exchange_has_half_the_share(nbytes: int, collective: str) -> None:
    for cluster in (FLAT, RACKS):
        assert wire_s(cluster, nbytes, collective) == pytest.approx(wire_s(cluster, nbytes) / 2)
        assert wire_s(cluster, nbytes, "reduce") >= wire_s(cluster, nbytes) / 2
        costs = training_costs(cluster, nbytes, None, collective)
        sizes = np.geomspace(1, nbytes, 7)
        assert (costs(sizes) >= wire_s(cluster, nbytes, collective) / nbytes * sizes * 0.999).all()
