"""What flows get of links, by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from syncopate.analysis.replay.links import EqualLinks, TurnLinks

POOL = -1


class On(NamedTuple):
    links: tuple[int, ...]
    turn: int = 0
    count: int = 1


def rates(links, flows):
    for flow in range(len(flows)):
        links.change(flow, True)
    return [links.rate(flow) for flow in range(len(flows))]


def test_equally_each_of_n_flows_has_an_nth():
    flows = [On((0,)), On((0, 1)), On((1,))]
    assert rates(EqualLinks(flows, {}), flows) == [0.5, 0.5, 0.5]
    assert rates(EqualLinks(flows, {0: 4.0}), flows) == [0.5, 0.5, 0.5]


def test_what_a_flow_cannot_use_others_have():
    """On the link of two the third flow has a half less than the first two have there."""
    flows = [On((0,)), On((0, 1)), On((1, 2)), On((2,))]
    capacity = {0: 1.0, 1: 2.0, 2: 3.0}
    links = TurnLinks(flows, capacity)
    assert rates(links, flows) == [
        pytest.approx(one) for one in (0.5, 0.5 / 1.0, 1.5 / 2.0, 1.5 / 3.0)
    ]


def test_a_lower_turn_comes_first_and_leaves_what_it_cannot_use():
    """Two ranks with links of 1 on a pool of 1.5; the later flow of each has the higher turn."""
    flows = [On((0, POOL), 0), On((0, POOL), 1), On((2, POOL), 1), On((2, POOL), 2)]
    links = TurnLinks(flows, {POOL: 1.5})
    assert rates(links, flows) == [1.0, 0.0, 0.5, 0.0]
    assert links.change(0, on=False) == {1, 2}
    assert [links.rate(flow) for flow in (1, 2, 3)] == [0.75, 0.75, 0.0]


def test_a_flow_that_stands_for_others_takes_as_much_of_what_they_share():
    flows = [On((0, POOL), count=4)]
    assert rates(TurnLinks(flows, {POOL: 2.0}, many=[POOL]), flows) == [0.5]
