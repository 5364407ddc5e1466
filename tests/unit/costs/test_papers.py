"""LP's Table 1 and BlueConnect's equations, against the prices of the schedules."""

from __future__ import annotations

import pytest

from formulas.blueconnect import blueconnect_s, one_level_s, stages, two_level_s
from formulas.linear_pipeline import TABLE_1, table_1
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.papers.closed_forms import closed_form
from syncopate.costs.schedule.price import price
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules.registry import build, fitted

ALPHA, BETA, GAMMA = 45.26e-6, 8 / 9.4e9, 2.5e-10
SIZES = (1.0, 1e4, 1e8)


def tiers(*sizes: int, rates: tuple[float, ...], alpha: float = 1e-5) -> Cluster:
    """Return a cluster whose ranks a launcher numbered backwards."""
    found = tuple(
        Level(name="", size=size, latency_s=alpha, bandwidth_bytes_per_s=rate)
        for size, rate in zip(sizes, rates, strict=True)
    )
    world_size = Cluster(name="", levels=found).world_size
    return Cluster(name="", levels=found, placement=tuple(range(world_size))[::-1])


def priced(name: str, cluster: Cluster, nbytes: float, **options) -> float:
    options = fitted("all_reduce", name, cluster) | options
    return price(build("all_reduce", name, cluster.world_size, **options), cluster, nbytes)


CLUSTERS = (
    tiers(4, 16, 3, rates=(32e9, 12.5e9, 200e9)),
    tiers(4, 2, rates=(1e9, 1e9)),
    tiers(3, 2, 2, rates=(3e9, 2e9, 1e9)),
    tiers(2, 5, rates=(1e9, 7e9)),
    tiers(8, rates=(1e9,)),
    tiers(1, 6, rates=(1.0, 1e9)),
)


@pytest.mark.parametrize("p", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("blocks", [2, 7, 64])
@pytest.mark.parametrize("key", TABLE_1)
def test_table_1_is_the_price_but_for_what_is_put_right(p, blocks, key):
    """Every entry against the schedule: equal, or the steps that the module names too many."""
    log = (p - 1).bit_length()
    saved = 2 * (p - 2 + blocks) - 1 if p > 2 else blocks + 1
    steps_too_many = {
        ("broadcast", "lp"): 1,
        ("reduce", "lp"): 1,
        ("all_reduce", "lp"): 2 * (p - 1 + blocks) - saved,
    }
    options = {"blocks": blocks} if key[1] == "lp" else {}
    ours, printed = closed_form(*key, p, **options), table_1(*key, p, blocks)
    extra = steps_too_many.get(key, 0)
    ring_startups = p - 1 - log if key == ("broadcast", "be") else 0
    assert printed.startups == ours.startups + extra + ring_startups
    assert printed.wire == pytest.approx(ours.wire + extra / blocks)
    adds = key[1] == "lp" and key[0] != "broadcast"
    assert printed.additions == pytest.approx(ours.additions + adds / blocks)


def test_table_1_in_seconds():
    lp = table_1("all_reduce", "lp", 4, 16)
    n, b = 16e3, 1e3
    expected = 2 * (3 + 16) * ALPHA + (b * 4 - b + n) * (2 * BETA + GAMMA)
    assert lp.seconds(n, ALPHA, BETA, GAMMA) == pytest.approx(expected)
    mst = table_1("reduce", "mst", 4).seconds(n, ALPHA, BETA, GAMMA)
    assert mst == pytest.approx(2 * (ALPHA + n * BETA + n * GAMMA))
    be = table_1("broadcast", "be", 4).seconds(n, ALPHA, BETA, GAMMA)
    assert be == pytest.approx((2 + 3) * ALPHA + 2 * 3 / 4 * n * BETA)


def test_table_1_refuses_what_it_does_not_have():
    with pytest.raises(UnknownNameError, match=r"'reduce \(ring\)'; known: broadcast \(be\)"):
        table_1("reduce", "ring", 4)
    with pytest.raises(InvalidValueError, match="world_size is 1"):
        table_1("reduce", "lp", 1)
    with pytest.raises(InvalidValueError, match=r"blocks is 0\.5"):
        table_1("reduce", "lp", 2, 0.5)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: "x".join(str(x.size) for x in c.levels))
@pytest.mark.parametrize("nbytes", SIZES)
def test_equations_3_and_7_are_prices(cluster, nbytes):
    assert one_level_s(cluster, nbytes) == pytest.approx(priced("ring", cluster, nbytes), rel=1e-9)
    assert blueconnect_s(cluster, nbytes) == pytest.approx(
        priced("blueconnect", cluster, nbytes, stages=stages(cluster)), rel=1e-9
    )


def test_equation_4_is_the_price_for_nodes_of_two():
    for cluster in (
        tiers(2, 5, rates=(7e9, 1e9)),
        tiers(2, 3, rates=(7e9, 1e9)),
        tiers(2, 3, 3, rates=(7e9, 5e9, 1e9)),
    ):
        for nbytes in SIZES:
            assert two_level_s(cluster, nbytes) == pytest.approx(
                priced("two_level", cluster, nbytes), rel=1e-9
            )


@pytest.mark.parametrize("sizes", [(4, 16, 3), (3, 5), (4, 4)])
def test_equation_4_has_the_bytes_of_the_schedule_for_any_node(sizes):
    cluster = tiers(*sizes, rates=(32e9, 12.5e9, 6e9)[: len(sizes)], alpha=0.0)
    assert two_level_s(cluster, 1e8) == pytest.approx(priced("two_level", cluster, 1e8), rel=1e-9)


def test_stages_are_recursive_for_powers_of_two():
    assert stages(tiers(4, 1, 3, rates=(1.0, 1.0, 1.0))) == ("recursive", "ring")


@pytest.mark.parametrize("formula", [one_level_s, two_level_s, blueconnect_s])
def test_one_rank_costs_nothing(formula):
    alone = tiers(1, rates=(1.0,))
    assert formula(alone, 1e6) == 0.0
