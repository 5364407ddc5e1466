"""Ranks that only run collectives find out whose link is slow, and accuse no rank where none is."""

from __future__ import annotations

from syncopate.lab import Topology
from tests.lab.hosts import run_on_hosts
from tests.lab.training import train

FOUR = Topology(hosts=4)


def test_the_slow_host_is_named_once_by_rank_0() -> None:
    topology = FOUR.with_host_rates({2: FOUR.rate_bytes_per_s / 10})
    warned = [messages for _, messages in run_on_hosts(topology, train, 90.0)]
    (warning,) = warned[0]
    assert warning.startswith("host2 (rank 2) has a slow link: rank 1 -> 2 at ")
    assert ", 2 -> 3 at " in warning
    assert warned[1:] == [[], [], []]


def test_where_all_links_are_equal_nobody_is_accused() -> None:
    told = run_on_hosts(FOUR, train, 15.0)
    assert [messages for _, messages in told] == [[], [], [], []]
    assert told[0][0] > 20, "too little was carried to judge by"
