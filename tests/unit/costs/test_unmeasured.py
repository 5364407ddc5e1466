"""What stands in for an algorithm that has no price on a cluster."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Bucket, Plan
from syncopate.costs.model.collective import UnmeasuredError, collective_costs, fixed_cost
from syncopate.costs.model.training import plan_costs, stand_ins, training_costs
from syncopate.costs.model.unmeasured import for_native, stand_in
from syncopate.errors import UnknownNameError
from syncopate.recipe import NATIVE, Recipe
from syncopate.units import MIB
from tests.unit.costs.test_beyond_samples import curve

FLAT = Cluster.preset("1gbe", 4)
BYTES = 100_000_000
SIZES = (4096, MIB, 64 * MIB)


def measured(name: str, factor: float) -> Cluster:
    """A cluster on which one all-reduce was measured: so many times the ring's price."""
    price = fixed_cost(FLAT, "all_reduce", "ring", {})
    return structs.replace(
        FLAT, curves=(curve(name, {n: factor * float(price(n)) for n in SIZES}),)
    )


def plan_of(algorithm: str, collective: str = "all_reduce") -> Plan:
    """A plan of one bucket."""
    bucket = Bucket(tensors=("w",), nbytes=4, push=Recipe(collective, algorithm))
    return Plan(model="m", fingerprint="f", world_size=4, policy="single", buckets=(bucket,))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_ring_stands_in_for_the_backends_own(collective: str) -> None:
    found = stand_in(FLAT, collective, NATIVE)
    ring = collective_costs(FLAT, collective, ("ring",)).of("ring")
    assert found.by == "ring"
    assert [float(found.cost(n)) for n in SIZES] == [float(ring(n)) for n in SIZES]
    assert found.told == (
        f"native for {collective} was not measured on {FLAT.name!r}: ring stands in for it"
    )


def test_of_rooted_collectives_mst_does() -> None:
    assert [for_native(name) for name in ("reduce", "broadcast")] == ["mst", "mst"]
    assert stand_in(FLAT, "broadcast", NATIVE).by == "mst"


def test_an_unmeasured_schedule_has_its_price_as_far_off_as_the_measured_one() -> None:
    found = stand_in(measured("ring", 2.0), "all_reduce", "binary_tree")
    own = fixed_cost(FLAT, "all_reduce", "binary_tree", {})
    assert found.by == "the price of its schedule"
    assert float(found.cost(MIB)) == pytest.approx(2 * float(own(MIB)))


def test_where_the_backends_own_alone_was_measured_it_stands_in() -> None:
    cluster = measured(NATIVE, 3.0)
    for collective in ("all_reduce", "reduce_scatter"):
        found = stand_in(cluster, collective, "ring")
        own = training_costs(cluster, 0, None, collective).of(NATIVE)
        assert found.by == NATIVE
        assert float(found.cost(MIB)) == float(own(MIB))


def test_what_has_a_price_needs_none() -> None:
    assert stand_in(FLAT, "all_reduce", "ring").by == ""
    assert stand_in(measured(NATIVE, 3.0), "all_reduce", NATIVE).by == ""
    assert stand_ins(FLAT, plan_of("ring")) == ()


def test_a_plan_is_priced_by_what_stands_in() -> None:
    costs = plan_costs(FLAT, BYTES, plan_of(NATIVE))["all_reduce"]
    ring = training_costs(FLAT, BYTES, ("ring",)).of("ring")
    assert costs.names == (NATIVE,)
    assert float(costs.of(NATIVE)(MIB)) == float(ring(MIB))
    assert [one.by for one in stand_ins(FLAT, plan_of(NATIVE))] == ["ring"]


def test_planning_takes_none_and_says_which_have_a_price() -> None:
    with pytest.raises(UnmeasuredError) as refused:
        training_costs(measured("ring", 2.0), BYTES, ("binary_tree",))
    assert str(refused.value) == (
        f"algorithm 'binary_tree' was not measured for all_reduce on {FLAT.name!r}; "
        "known here: ring"
    )
    with pytest.raises(UnknownNameError, match=r"'native' was not .*, and has no formula; known"):
        training_costs(FLAT, BYTES, (NATIVE,))


def test_what_is_registered_nowhere_is_unknown() -> None:
    for cluster in (FLAT, measured(NATIVE, 3.0)):
        with pytest.raises(UnknownNameError, match="unknown algorithm 'rign' for all_reduce"):
            stand_in(cluster, "all_reduce", "rign")
