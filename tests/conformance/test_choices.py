"""Whatever the costs may choose is proved right: every option they consider."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster, Level
from syncopate.costs.decide.decisions import decisions
from syncopate.costs.model.collective import schedule_cost, variants
from syncopate.schedules.checker import check
from syncopate.schedules.registry import NATIVE, build, collectives
from tests.conformance.table import TABLE, Row


def placed(*sizes: int) -> Cluster:
    """Return levels ten times as slow each as the one before; ranks number the outermost first."""
    levels = tuple(
        Level(
            name=f"level {i}", size=size, latency_s=1e-6 * 10**i, bandwidth_bytes_per_s=1e10 / 10**i
        )
        for i, size in enumerate(sizes)
    )
    plain = Cluster(name=" x ".join(map(str, sizes)), levels=levels)
    ranks = range(plain.world_size)
    numbers = sorted(ranks, key=plain.coordinates)
    return Cluster(name=plain.name, levels=levels, placement=tuple(map(numbers.index, ranks)))


CLUSTERS = (placed(1), placed(5), placed(2, 3), placed(3, 1, 2), placed(2, 2, 3))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_variant_is_right(row: Row, cluster: Cluster) -> None:
    found = variants(cluster, row.collective, row.algorithm)
    assert found
    for options in found:
        # A pipeline of many blocks is one of few, repeated; its proof takes as many times longer.
        if options.get("blocks", 1) <= 32:
            check(build(row.collective, row.algorithm, cluster.world_size, **options))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("collective", collectives())
def test_every_decision_is_a_variant(collective: str, cluster: Cluster) -> None:
    for decision in decisions(cluster, collective):
        recipe = decision.recipe
        assert recipe.collective == collective
        if recipe.algorithm == NATIVE:
            assert cluster.world_size == 1
            assert recipe.options == {}
        else:
            assert recipe.options in variants(cluster, collective, recipe.algorithm)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("row", TABLE, ids=str)
@pytest.mark.parametrize("nbytes", [1, 10**4, 10**6, 10**8])
def test_the_options_of_a_size_are_its_cheapest(row: Row, cluster: Cluster, nbytes: float) -> None:
    cost = schedule_cost(cluster, row.collective, row.algorithm)
    least_s = min(
        float(cost.fixed(options)(nbytes))
        for options in variants(cluster, row.collective, row.algorithm)
    )
    assert float(cost(nbytes)) == pytest.approx(least_s, rel=1e-9)
    assert float(cost.fixed(cost.options(nbytes))(nbytes)) == pytest.approx(least_s, rel=1e-9)
