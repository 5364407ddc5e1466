"""The options of an algorithm are the cheapest, and pipelines run in the most blocks near it."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.decide.options import NEAR, best_options
from syncopate.costs.model.collective import schedule_cost, variants
from syncopate.errors import InvalidValueError, UnknownNameError
from tests.unit.costs.test_blocks import RACKS
from tests.unit.costs.test_model import FLAT


@pytest.mark.parametrize("cluster", [FLAT, RACKS], ids=["flat", "racks"])
@pytest.mark.parametrize("nbytes", [4, 200_000, 5_000_000, 300_000_000])
def test_a_pipeline_runs_in_the_most_blocks_of_about_the_same_price(
    cluster: Cluster, nbytes: int
) -> None:
    cost = schedule_cost(cluster, "broadcast", "lp")
    chosen, cheapest = best_options(cluster, "broadcast", "lp", nbytes), cost.options(nbytes)
    assert chosen["blocks"] >= cheapest["blocks"]
    limit_s = (1 + NEAR) * float(cost(nbytes))
    assert float(cost.fixed(chosen)(nbytes)) <= limit_s
    for options in variants(cluster, "broadcast", "lp"):
        if options["blocks"] > chosen["blocks"]:
            short = nbytes < 64 * 1024 * options["blocks"]
            assert short or float(cost.fixed(options)(nbytes)) > limit_s


def test_what_takes_no_blocks_runs_with_the_cheapest() -> None:
    assert best_options(FLAT, "all_reduce", "ring", 1e6) == {}
    assert best_options(RACKS, "all_reduce", "ring", 1e6) == {"order": RACKS.placement}
    assert best_options(FLAT, "all_reduce", "blueconnect", 1e7) == {"factors": (8,)}
    found = best_options(RACKS, "all_reduce", "blueconnect", 1e7)
    assert found["factors"] == (4, 2)
    cost = schedule_cost(RACKS, "all_reduce", "blueconnect")
    seconds = {
        count: float(cost.fixed(found | {"pipelines": count})(1e7)) for count in (1, 2, 4, 8)
    }
    assert float(cost.fixed(found)(1e7)) <= min(seconds.values()) < seconds[1]


def test_the_caller_may_change_what_it_gets() -> None:
    best_options(FLAT, "broadcast", "lp", 1e6)["blocks"] = 0
    assert best_options(FLAT, "broadcast", "lp", 1e6)["blocks"] > 0


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="unknown algorithm 'pipe' for reduce"):
        best_options(structs.replace(FLAT), "reduce", "pipe", 1e6)
    with pytest.raises(InvalidValueError, match="nbytes is -1"):
        best_options(FLAT, "reduce", "lp", -1)
