"""Decision tables: the ranges of the decisions, the times beside them, and restricted choices."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.decide.decisions import decisions
from syncopate.costs.decide.tabulate import decision_table
from syncopate.costs.model.collective import collective_costs
from syncopate.errors import UnknownNameError
from syncopate.schedules.registry import collectives
from tests.unit import examples


@pytest.mark.parametrize("nodes", [1, 2, 6, 8])
def test_every_collective_has_the_ranges_of_its_decisions(nodes):
    cluster = Cluster.preset("10gbe", nodes)
    table = decision_table(cluster)
    assert [each.collective for each in table.collectives] == list(collectives())
    assert (table.world_size, table.hosts, table.probed) == (nodes, nodes, False)
    for each in table.collectives:
        assert each.basis == "priced"
        assert each.measured_bytes is None
        found = [(r.min_bytes, r.max_bytes, r.chosen.algorithm) for r in each.ranges]
        expected = decisions(cluster, each.collective)
        assert found == [(d.min_bytes, d.max_bytes, d.recipe.algorithm) for d in expected]


def test_runners_up_are_all_others_the_fastest_first():
    cluster = Cluster.preset("10gbe", 8)
    costs = collective_costs(cluster, "all_reduce").costs
    for each in decision_table(cluster, ("all_reduce",)).of("all_reduce").ranges:
        assert {each.chosen.algorithm, *(o.algorithm for o in each.others)} == set(costs)
        times = [other.expected_s for other in each.others]
        assert times == sorted(times)
        assert each.chosen.expected_s <= times[0]
        for one in (each.chosen, *each.others):
            assert one.expected_s == pytest.approx(float(costs[one.algorithm](each.at_bytes)))


def test_measured_sizes_stand_for_their_ranges():
    found = decision_table(examples.steady_cluster(), ("all_reduce",)).of("all_reduce")
    assert found.basis == "measured"
    assert found.measured_bytes == (1024, 1 << 20)
    small, large = found.ranges
    assert (small.chosen.algorithm, small.at_bytes) == ("recursive_doubling", 1024)
    assert (large.chosen.algorithm, large.at_bytes) == ("ring", 1 << 20)
    assert small.chosen.expected_s == pytest.approx(0.1e-3)
    assert [other.algorithm for other in small.others] == ["ring"]


def test_a_measured_size_at_the_end_of_a_range_is_of_the_range():
    sizes = (1024, 2047, 2048, 4096, 8192)
    curves = tuple(
        CollectiveCurve(
            collective="all_reduce",
            algorithm=name,
            points=tuple(
                CurvePoint(nbytes=n, samples_s=(t,)) for n, t in zip(sizes, times_s, strict=True)
            ),
            fit=LinearFit(a_s=1e-3, b_s_per_byte=0.0),
        )
        for name, times_s in (
            ("recursive_doubling", (1e-3, 1e-3, 4e-3, 4e-3, 4e-3)),
            ("ring", (2e-3, 2e-3, 2e-3, 2e-3, 2e-3)),
        )
    )
    cluster = structs.replace(examples.steady_cluster(), curves=curves)
    small, large = decision_table(cluster, ("all_reduce",)).of("all_reduce").ranges
    assert (small.max_bytes, large.min_bytes) == (2047, 2048)
    assert small.at_bytes == 2047  # the second of 1024 and 2047
    assert large.at_bytes == 4096  # the second of 2048, 4096 and 8192


def test_a_runner_up_that_noise_alone_separates_is_tied():
    native = (1.0e-3, 2.6e-3, 1.0e-3, 2.0e-3)  # 1.65 ms, and 0.4 ms of standard error
    curves = tuple(
        CollectiveCurve(
            collective="all_reduce",
            algorithm=name,
            points=(CurvePoint(nbytes=1024, samples_s=samples_s),),
            fit=LinearFit(a_s=1e-3, b_s_per_byte=0.0),
        )
        for name, samples_s in (
            ("native", native),
            ("ring", (1.2e-3, 1.3e-3, 1.25e-3, 1.3e-3)),
            ("recursive_doubling", (9e-3, 9e-3, 9e-3, 9e-3)),
        )
    )
    cluster = structs.replace(examples.steady_cluster(), curves=curves)
    (found,) = decision_table(cluster, ("all_reduce",)).of("all_reduce").ranges
    assert found.chosen.algorithm == "native"
    assert [(other.algorithm, other.tied) for other in found.others] == [
        ("ring", True),  # 23% ahead
        ("recursive_doubling", False),
    ]
    assert found.others[0].expected_s < 0.8 * found.chosen.expected_s


def test_it_is_told_which_collective_is_being_worked_on():
    told = []
    wanted = ("broadcast", "reduce")
    decision_table(Cluster.preset("10gbe", 4), wanted, progress=lambda *one: told.append(one))
    assert told == [("broadcast", 0.0), ("reduce", 0.5), ("", 1.0)]


def test_prices_within_noise_are_tied():
    for each in decision_table(Cluster.preset("10gbe", 64)).of("broadcast").ranges:
        for other in each.others:
            ratio = other.expected_s / each.chosen.expected_s
            assert other.tied == (max(ratio, 1 / ratio) <= 1.05)


def test_a_choice_can_be_restricted():
    cluster = Cluster.preset("10gbe", 8)
    among = {"all_reduce": ("ring", "binary_tree"), "broadcast": ("mst",)}
    table = decision_table(cluster, among=among)
    assert [each.collective for each in table.collectives] == ["all_reduce", "broadcast"]
    chosen = [r.chosen.algorithm for r in table.of("all_reduce").ranges]
    assert chosen == ["binary_tree", "ring"]
    assert table.of("broadcast").ranges[0].others == ()
    with pytest.raises(UnknownNameError, match="unknown collective 'reduce'"):
        table.of("reduce")
    with pytest.raises(UnknownNameError, match="all_redcue"):
        decision_table(cluster, ("all_redcue",))
