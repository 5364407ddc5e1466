"""Requests: their names, what tells them apart, and what ``"auto"`` makes of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives.choices import Choices
from syncopate.collectives.request import require_recipe, schedule_of
from syncopate.costs.decide.decisions import Decision, decisions
from syncopate.errors import UnknownNameError
from syncopate.recipe import Recipe
from syncopate.schedules.registry import collectives


def test_a_label_names_root_and_options() -> None:
    assert Recipe("all_reduce", "ring").label == "all_reduce (ring)"
    piped = Recipe("broadcast", "lp", 2, {"order": (1, 0, 2), "blocks": 8})
    assert piped.label == "broadcast (lp, root 2, blocks=8, order=(1, 0, 2))"


def test_the_label_of_a_long_order_is_short_and_still_its_own() -> None:
    orders = [tuple(range(64)), (1, 0, *range(2, 64)), (*range(62), 63, 62)]
    labels = {Recipe("all_reduce", "ring", 0, {"order": order}).label for order in orders}
    assert len(labels) == 3
    assert max(map(len, labels)) < 80
    assert all("order=(" in label and "checksum" in label for label in labels)


def test_equal_options_have_equal_keys() -> None:
    one = Recipe("all_reduce", "blueconnect", 0, {"factors": [2, 4], "pipelines": 2})
    other = Recipe("all_reduce", "blueconnect", 0, {"pipelines": 2, "factors": (2, 4)})
    assert hash(one.key) == hash(other.key)
    assert one.key == other.key
    assert Recipe("all_reduce", "ring", 0, {}).key == Recipe("all_reduce", "ring").key
    assert one.key != replace(one, options={"factors": (4, 2), "pipelines": 2}).key


def test_an_undecided_request_has_no_schedule() -> None:
    known = "known: native, mst, flat_tree, be, lp, auto"
    with pytest.raises(UnknownNameError, match=f"unknown algorithm 'auto' for broadcast; {known}"):
        schedule_of(Recipe("broadcast", "auto"), 4)
    with pytest.raises(UnknownNameError, match=f"unknown algorithm 'mts' for broadcast; {known}"):
        require_recipe(Recipe("broadcast", "mts"), 4)


def test_a_choice_keeps_the_root_and_is_the_table_s() -> None:
    cluster = Cluster.preset("10gbe", 8)
    found = Choices({name: decisions(cluster, name) for name in collectives()})
    for collective in collectives():
        for decision in decisions(cluster, collective):
            for nbytes in {decision.min_bytes, decision.max_bytes or 2**50}:
                chosen = found.resolve(Recipe(collective, "auto", 3), nbytes)
                told = decision.recipe
                assert chosen == Recipe(collective, told.algorithm, 3, told.options)
    with pytest.raises(UnknownNameError, match=r"'blocks' for reduce \(auto\); known: none"):
        found.resolve(Recipe("reduce", "auto", 0, {"blocks": 2}), 8)


def test_auto_decides_for_every_root_alone() -> None:
    """What was decided for one root at a size is not what another root asks for."""
    algorithms = {"broadcast": "mst", "reduce": "be"}
    found = Choices(
        {name: (Decision(0, None, Recipe(name, each)),) for name, each in algorithms.items()}
    )
    for root in (0, 2, 1):
        for collective, algorithm in algorithms.items():
            for channel in (1, 0):
                resolved = found.resolve(Recipe(collective, "auto", root, {}, channel), 4096)
                assert resolved == Recipe(collective, algorithm, root, {}, channel)
