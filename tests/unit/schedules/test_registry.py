from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, Level, LinearFit
from syncopate.costs.papers.closed_forms import closed_form
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError, ScheduleError, UnknownNameError
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule, Transfer
from syncopate.schedules.checker import check
from syncopate.schedules.conditions import CONDITIONS
from syncopate.schedules.registry import (
    Algorithm,
    algorithms,
    build,
    candidates,
    collectives,
    fitted,
    register,
    require,
    require_curves,
)
from tests.unit.schedules.play import drawn_rounds


def star(world_size: int) -> Schedule:
    """Everyone sends to rank 0, one after the other, and rank 0 sends the sum to everyone."""
    others = range(1, world_size)
    inward = [Transfer(r - 1, r, 0, 0, 1, "reduce") for r in others]
    outward = [Transfer(world_size - 2 + r, 0, r, 0, 1, "copy") for r in others]
    return Schedule("all_reduce", "star", world_size, 1, inward + outward)


def chain(world_size: int, root: int) -> Schedule:
    """The root sends to its right neighbour, and so on."""
    hops = [
        Transfer(k, (root + k) % world_size, (root + k + 1) % world_size, 0, 1, "copy")
        for k in range(world_size - 1)
    ]
    return Schedule("broadcast", "chain", world_size, 1, hops, root)


STAR = Algorithm("all_reduce", "star", star, "2(p-1) rounds of n bytes", "folklore")
CHAIN = Algorithm("broadcast", "chain", chain, "p-1 rounds of n bytes", "folklore")


@pytest.fixture(autouse=True)
def _table_of_its_own(monkeypatch):
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))


def test_names_that_plans_and_clusters_hold_stay():
    assert collectives() == (
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "reduce",
    )
    flat = {"ring", "flat_tree", "recursive_doubling", "halving_doubling", "binary_tree"}
    assert {*flat, "mst", "be", "lp", "two_level", "blueconnect"} <= {*algorithms("all_reduce")}
    for collective in ("reduce_scatter", "all_gather"):
        assert {"ring", "recursive", "hierarchical"} <= {*algorithms(collective)}
    for collective in ("broadcast", "reduce"):
        assert {"mst", "flat_tree", "be", "lp"} <= {*algorithms(collective)}


def test_every_row_says_what_it_is():
    for (collective, name), row in registry.ALGORITHMS.items():
        assert (row.collective, row.name) == (collective, name)
        assert "n bytes" in row.summary
        assert row.source


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
@pytest.mark.parametrize(("collective", "name"), registry.ALGORITHMS)
def test_every_schedule_says_whose_it_is(world_size, collective, name):
    schedule = build(collective, name, world_size)
    assert (schedule.collective, schedule.algorithm) == (collective, name)
    assert (schedule.world_size, schedule.root) == (world_size, 0)


def test_a_new_algorithm_is_one_row():
    register(STAR)
    assert algorithms("all_reduce")[-1] == "star"
    require("all_reduce", "star")
    for p in (1, 2, 5):
        check(build("all_reduce", "star", p))
    cluster = Cluster.flat(3, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    assert price(build("all_reduce", "star", 3), cluster, 2.0) == 12.0
    assert drawn_rounds(build("all_reduce", "star", 3)) == [
        "round 0  1 +> 0",
        "round 1  2 +> 0",
        "round 2  0 -> 1",
        "round 3  0 -> 2",
    ]


def test_an_algorithm_from_outside_that_is_wrong_is_refused_when_it_is_used():
    def short(world_size):
        outward = [Transfer(world_size - 2 + r, 0, r, 0, 1, "copy") for r in range(1, world_size)]
        inward = [Transfer(0, 1, 0, 0, 1, "reduce")] if world_size > 1 else []
        return Schedule("all_reduce", "short", world_size, 1, inward + outward)

    register(Algorithm("all_reduce", "short", short, "n bytes", "a test"))
    build("all_reduce", "short", 2)
    with pytest.raises(ScheduleError, match="all_reduce"):
        build("all_reduce", "short", 3)


def test_a_rooted_collective_is_built_for_a_root():
    register(CHAIN)
    assert algorithms("broadcast")[-1] == "chain"
    schedule = build("broadcast", "chain", 4, root=2)
    assert schedule.root == 2
    check(schedule)
    assert build("broadcast", "chain", 4, root=2) is schedule
    assert build("broadcast", "chain", 4).root == 0
    with pytest.raises(InvalidValueError, match=r"root is 4; it must be a rank in 0\.\.3"):
        build("broadcast", "chain", 4, root=4)


def test_a_name_is_taken_once():
    register(STAR)
    with pytest.raises(InvalidValueError, match="'star'; it must be none of those taken: native,"):
        register(STAR)
    with pytest.raises(InvalidValueError, match="'native'"):
        register(Algorithm("all_reduce", "native", star, "", ""))
    with pytest.raises(UnknownNameError, match="unknown collective 'gossip'"):
        register(Algorithm("gossip", "star", star, "", ""))


def test_schedules_are_built_once():
    assert build("all_reduce", "ring", 7) is build("all_reduce", "ring", 7)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError,
        match="unknown algorithm 'rign' for all_reduce; known: ring, flat_tree, recursive_doubling",
    ):
        build("all_reduce", "rign", 4)
    with pytest.raises(UnknownNameError, match="unknown collective 'allreduce'; known: all_reduce"):
        build("allreduce", "ring", 4)
    with pytest.raises(
        UnknownNameError, match=r"'native' for all_gather; known: ring, recursive, hier"
    ):
        require("all_gather", "native")
    with pytest.raises(UnknownNameError, match="known: native, ring"):
        require("all_gather", "rign", allow_native=True)
    require("all_gather", "native", allow_native=True)
    require("all_gather", "ring", allow_native=True)


def test_impossible_questions_are_refused():
    with pytest.raises(InvalidValueError, match="world_size is 0"):
        build("all_reduce", "ring", 0)
    with pytest.raises(InvalidValueError, match="0 for all_reduce, which has no root"):
        build("all_reduce", "ring", 4, root=1)


FLAT = Cluster.flat(8, latency_s=1.0, bandwidth_bytes_per_s=1.0)
HOSTS = Cluster(
    name="two racks of two hosts of two",
    levels=tuple(
        Level(name=name, size=size, latency_s=1.0, bandwidth_bytes_per_s=1.0)
        for name, size in (("device", 2), ("alone", 1), ("host", 2), ("rack", 2))
    ),
    placement=(0, 4, 1, 5, 2, 6, 3, 7),
)


def test_candidates_leave_out_twins_and_hierarchies_of_one_level():
    twins = {row.name for row in registry.ALGORITHMS.values() if row.twin}
    assert {"mst", "be"} <= twins
    flat = {*candidates("all_reduce", FLAT)}
    assert {"ring", "flat_tree", "recursive_doubling", "lp"} <= flat
    assert not flat & {*twins, "two_level", "blueconnect"}
    assert {*candidates("all_reduce", HOSTS)} == {*algorithms("all_reduce")} - twins
    assert {*algorithms("all_gather")} - {*candidates("all_gather", FLAT)} == {"hierarchical"}
    assert candidates("reduce", FLAT) == algorithms("reduce")
    for (collective, _), row in registry.ALGORITHMS.items():
        assert not row.twin or row.twin in candidates(collective, FLAT)
    with pytest.raises(UnknownNameError, match="unknown collective 'scan'"):
        candidates("scan", FLAT)


def test_twins_cost_the_same():
    for (collective, name), row in registry.ALGORITHMS.items():
        if row.twin:
            for p in (1, 3, 8, 12):
                assert closed_form(collective, name, p) == closed_form(collective, row.twin, p)


def test_options_that_fit_a_cluster():
    assert fitted("all_reduce", "ring", FLAT) == {}
    assert fitted("all_reduce", "blueconnect", FLAT) == {"factors": (8,)}
    assert fitted("all_reduce", "ring", HOSTS) == {"order": HOSTS.placement}
    assert fitted("all_gather", "hierarchical", HOSTS) == {
        "order": HOSTS.placement,
        "factors": (2, 2, 2),
    }
    for collective in collectives():
        for name in algorithms(collective):
            check(build(collective, name, 8, **fitted(collective, name, HOSTS)))
    alone = Cluster.flat(1, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    assert fitted("all_reduce", "two_level", alone) == {"factors": (1,)}


def test_options_are_remembered_by_what_they_mean():
    first = build("all_reduce", "blueconnect", 6, factors=[2, 3])
    assert build("all_reduce", "blueconnect", 6, factors=(2, 3)) is first
    ring = build("all_reduce", "ring", 6)
    assert build("all_reduce", "ring", 6, order=range(6)) is ring
    assert build("all_reduce", "ring", 6, order=[5, 4, 3, 2, 1, 0]) is not ring


@pytest.mark.parametrize(
    ("collective", "name", "options", "message"),
    [
        (
            "all_reduce",
            "ring",
            {"blocks": 3},
            r"option 'blocks' for all_reduce \(ring\); known: order",
        ),
        ("reduce", "lp", {"block": 3}, "known: blocks, order"),
        ("reduce", "lp", {"blocks": 0}, "blocks is 0; it must be an integer >= 1"),
        ("reduce", "lp", {"blocks": 2.0}, "blocks is 2.0; it must be an integer >= 1"),
        ("broadcast", "lp", {"blocks": True}, "blocks is True"),
        ("all_reduce", "lp", {"blocks": -1}, "blocks is -1"),
        ("all_reduce", "blueconnect", {"pipelines": 0}, "pipelines is 0"),
        ("all_reduce", "blueconnect", {"factors": (3, 3)}, r"product is the world size, 8"),
        ("all_reduce", "blueconnect", {"factors": (-2, -4)}, "integers >= 1, innermost first"),
        ("all_reduce", "blueconnect", {"factors": ()}, "factors is"),
        ("all_reduce", "two_level", {"factors": 8}, "factors is 8; it must be a tuple or list"),
        ("all_reduce", "two_level", {"factors": ("2", "4")}, "a tuple or list of int"),
        ("all_gather", "hierarchical", {"factors": (2, 4), "stages": ("ring",)}, "one per factor"),
        ("all_gather", "hierarchical", {"stages": "ring"}, "a tuple or list, one entry"),
        ("all_reduce", "blueconnect", {"stages": ("ring", "tree")}, "stage 'tree' for blueconnect"),
        ("all_reduce", "ring", {"order": (0, 1, 2)}, r"a permutation of the ranks 0\.\.7"),
        ("all_reduce", "ring", {"order": (0,) * 8}, "a permutation"),
    ],
)
def test_options_that_do_not_fit_are_refused(collective, name, options, message):
    with pytest.raises((InvalidValueError, UnknownNameError), match=message):
        build(collective, name, 8, **options)


def test_conditions():
    assert [name for name, rule in CONDITIONS.items() if rule.rooted] == ["reduce", "broadcast"]
    assert [name for name, rule in CONDITIONS.items() if rule.sharded] == [
        "reduce_scatter",
        "all_gather",
    ]


@pytest.mark.parametrize(
    ("algorithm", "options", "complaint"),
    [
        ("magic", {}, "unknown algorithm 'magic' for broadcast; known: native, "),
        (
            "lp",
            {"blorks": 3},
            r"unknown option 'blorks' .* \(lp\); known: blocks, order",
        ),
        ("lp", {"blocks": (3,)}, r"blocks is \(3,\); it must be an integer >= 1"),
        ("native", {"blocks": 3}, r"unknown option 'blocks' for broadcast \(native\)"),
        ("lp", {"blocks": 3}, ""),
        ("native", {}, ""),
    ],
)
def test_curves_are_of_registered_algorithms_with_their_options(algorithm, options, complaint):
    curve = CollectiveCurve(
        collective="broadcast",
        algorithm=algorithm,
        points=(CurvePoint(nbytes=8, samples_s=(1.0,), options=options),),
        fit=LinearFit(a_s=0.0, b_s_per_byte=0.0),
    )
    cluster = structs.replace(Cluster.preset("10gbe", 4), curves=(curve,))
    with (
        pytest.raises((InvalidValueError, UnknownNameError), match=complaint)
        if complaint
        else nullcontext()
    ):
        require_curves(cluster)
