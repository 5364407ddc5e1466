"""Racks are found in simulated networks, and nothing is found where there is nothing."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.calibration.racks.levels import Observed, Pairs, Round, expected
from syncopate.calibration.racks.matchings import across, alone, alone_with_two, opening
from syncopate.calibration.racks.search import RackSearch
from tests.unit.calibration.networks import Network, found_groups


class TestMatchings:
    @given(st.integers(2, 140))
    def test_alone_has_every_host_and_few_rounds(self, hosts: int) -> None:
        rounds = alone(hosts)
        assert {host for pairs in rounds for pair in pairs for host in pair} == set(range(hosts))
        assert len(rounds) <= 9
        self._require_matchings(rounds, hosts)

    @given(st.integers(3, 140))
    def test_every_host_has_two_partners_to_be_told_from(self, hosts: int) -> None:
        rounds = alone_with_two(hosts)
        for host in range(hosts):
            assert len({frozenset(pair) for one in rounds for pair in one if host in pair}) >= 2
        assert len(rounds) <= 18
        self._require_matchings(rounds, hosts)

    @given(st.integers(4, 140))
    def test_opening_is_logarithmic(self, hosts: int) -> None:
        rounds = opening(hosts)
        assert len(rounds) <= math.ceil(math.log2(hosts)) + 3
        assert all(len(pairs) == hosts // 2 for pairs in rounds)
        self._require_matchings(rounds, hosts)

    @given(st.lists(st.integers(0, 4), min_size=4, max_size=40), st.integers(0, 5))
    def test_across_keeps_as_few_inside_as_it_must(self, labels: list[int], seed: int) -> None:
        pairs = across(labels, random.Random(seed))
        self._require_matchings((pairs,), len(labels))
        assert len(pairs) == len(labels) // 2
        largest = max(labels.count(group) for group in labels)
        inside = sum(labels[a] == labels[b] for a, b in pairs)
        assert inside == max(0, (2 * largest - len(labels)) // 2)

    def _require_matchings(self, rounds: tuple, hosts: int) -> None:
        for pairs in rounds:
            ends = [host for pair in pairs for host in pair]
            assert len(ends) == len(set(ends))
            assert set(ends) <= set(range(hosts))


class TestExpectations:
    def test_pairs_share_an_uplink_and_what_a_slow_one_leaves(self) -> None:
        pairs = Pairs(
            rounds=1,
            round=np.zeros(3, np.int64),
            a=np.array([0, 1, 2]),
            b=np.array([4, 5, 3]),
            able=np.array([0.1, 1.0, 1.0]),
        )
        labels = np.array([[0, 0, 0, 0, 1, 1]])
        ratios = np.exp(expected(labels, np.array([[0.8, 0.8]]), pairs))
        assert ratios[0] == pytest.approx([1.0, 0.7, 1.0])

    def test_slow_hosts_and_crowded_rounds_are_no_slow_pairs(self) -> None:
        rounds = [
            Round(((0, 1), (2, 3)), ((10.0,), (100.0,))),
            Round(((0, 2), (1, 3)), ((10.0,), (98.0,))),
            Round(((0, 3), (1, 2)), ((10.0,), (97.0,))),
        ]
        observed = Observed(4, rounds)
        assert observed.slow_hosts == (0,)
        assert observed.all_alike
        assert Observed(4, [*rounds[:2], Round(((1, 2),), ((99.0,),))]).all_alike


class TestSearch:
    @pytest.mark.parametrize("placement", ["blocked", "alternating", "random"])
    @pytest.mark.parametrize(("racks", "size"), [(2, 4), (3, 4), (4, 2), (2, 16)])
    def test_regular_racks(self, racks: int, size: int, placement: str) -> None:
        # Placed at random, half the hosts of two racks cross, and nothing shows up to a ratio of 2;
        # of 16 hosts nearly all must cross for a ratio of 1.3 to show, and that takes luck.
        ratios: tuple[float, ...] = (1.5 if size == 16 else 1.3, 2.0, 4.0)
        if placement == "random":
            ratios = (2.0 if size == 2 else 4.0,)
        for ratio in ratios:
            network = Network.regular(racks, size, ratio, placement, noise=0.05, outliers=0.01)
            found = network.search()
            assert found.resolved
            assert found_groups(found) == network.groups
            assert found.slow == ()

    @pytest.mark.parametrize("case", range(12))
    def test_any_ratio_in_noise(self, case: int) -> None:
        """Drawn once and for all: in noise of 10% a search may go wrong, if seldom."""
        draw = random.Random(case)
        racks, size = draw.randint(2, 6), draw.randint(2, 6)
        # Racks of two need more than 1.3 to be told from such noise.
        ratio = max(draw.uniform(1.3, 8.0), 1.5)
        placement = ("blocked", "alternating")[case % 2]
        network = Network.regular(racks, size, ratio, placement, noise=0.1)
        found = network.search(seed=case)
        assert not found.resolved or found_groups(found) == network.groups

    @pytest.mark.parametrize("sizes", [(3, 5), (3, 4, 5), (2, 3, 7), (10, 22)])
    def test_unequal_racks_behind_equal_uplinks(self, sizes: tuple[int, ...]) -> None:
        racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
        random.Random(1).shuffle(racks)
        uplink = sum(sizes) / len(sizes) / 4
        found = Network(racks, [uplink] * len(sizes), noise=0.05).search()
        assert found.resolved
        assert found_groups(found) == Network(racks, []).groups

    @pytest.mark.parametrize("hosts", [2, 3, 4, 7, 16, 128])
    def test_a_flat_network_ends_early(self, hosts: int) -> None:
        found = Network([0] * hosts, [1e9], noise=0.05).search()
        assert found.resolved
        assert found.groups == (tuple(range(hosts)),)
        assert found.rounds == len(RackSearch(hosts).wanted)

    def test_wide_racks_of_many_hosts(self) -> None:
        network = Network.regular(4, 16, 3.0, "random", noise=0.05)
        found = network.search()
        assert found_groups(found) == network.groups
        assert found.rounds <= 30

    def test_a_slow_host_is_no_rack(self) -> None:
        network = Network([0] * 4, [1e9], hosts=[1.0, 1.0, 0.1, 1.0], noise=0.05)
        found = network.search()
        assert found.slow == (2,)
        assert found.groups == ((0, 1, 2, 3),)
        assert found.best_bytes_per_s[2] == pytest.approx(1e7, rel=0.2)

    def test_a_slow_host_among_racks(self) -> None:
        network = Network.regular(2, 4, 4.0, "alternating", noise=0.05)
        network.hosts = [1.0] * 7 + [0.1]
        found = network.search()
        assert found.slow == (7,)
        others = {group - {7} for group in found_groups(found)}
        assert others == {group - {7} for group in network.groups}

    def test_what_cannot_be_told_is_not_claimed(self) -> None:
        """Rates without rhyme or reason."""
        randomness = random.Random(3)
        search = RackSearch(8)
        while wanted := search.wanted:
            search.observe(
                [
                    Round(pairs, tuple((1e8 * randomness.uniform(0.1, 1.0),) for _ in pairs))
                    for pairs in wanted
                ]
            )
        found = search.found()
        assert found.rounds <= search.most_rounds
        assert not found.resolved
        assert found.groups == (tuple(range(8)),)
