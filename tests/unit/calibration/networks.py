"""Simulated networks of racks: max-min fair rates of pairs that exchange data at once."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from syncopate.calibration.racks.levels import Matching, Round
from syncopate.calibration.racks.search import Racks, RackSearch


@dataclass
class Network:
    """Hosts in racks, each behind an uplink.

    Attributes:
        racks: the rack of each host.
        uplinks: what each rack's uplink carries, in units of a host's rate.
        hosts: the rate of each host; 1 when left out.
        noise: standard deviation of the logarithm of one measurement.
        outliers: share of measurements that take twice as long.
    """

    racks: Sequence[int]
    uplinks: Sequence[float]
    hosts: Sequence[float] = ()
    noise: float = 0.0
    outliers: float = 0.0

    @classmethod
    def regular(
        cls, racks: int, size: int, ratio: float, placement: str = "blocked", **more: float
    ) -> Network:
        """Return racks of ``size`` hosts with ``ratio`` times the rate of their uplinks."""
        count = racks * size
        of = [host // size if placement == "blocked" else host % racks for host in range(count)]
        if placement == "random":
            random.Random(count).shuffle(of)
        return cls(of, [size / ratio] * racks, **more)  # type: ignore[arg-type]

    @property
    def groups(self) -> set[frozenset[int]]:
        """The hosts of each rack."""
        return {
            frozenset(host for host, rack in enumerate(self.racks) if rack == one)
            for one in set(self.racks)
        }

    def rates(self, pairs: Matching) -> list[float]:
        """Return the rate of every pair, each way."""
        speed = self.hosts or [1.0] * len(self.racks)
        able = [min(speed[a], speed[b]) for a, b in pairs]
        crossed = [{self.racks[a], self.racks[b]} for a, b in pairs]
        rates = list(able)
        left = dict(enumerate(self.uplinks))
        active = {i for i, racks in enumerate(crossed) if len(racks) == 2}
        while active:
            count = {r: sum(r in crossed[i] for i in active) for r in left}
            share = {r: left[r] / n for r, n in count.items() if n}
            limit = {i: min(able[i], *(share[r] for r in crossed[i])) for i in active}
            least = min(limit.values())
            for i in [i for i in active if limit[i] <= least * (1 + 1e-9)]:
                rates[i] = least
                active.discard(i)
                for rack in crossed[i]:
                    left[rack] -= least
        return rates

    def measure(self, pairs: Matching, randomness: random.Random, repetitions: int = 3) -> Round:
        """Return a round of noisy rates."""

        def one(rate: float) -> float:
            slow = 0.5 if randomness.random() < self.outliers else 1.0
            return 1e8 * rate * slow * math.exp(randomness.gauss(0.0, self.noise))

        samples = (tuple(one(rate) for _ in range(repetitions)) for rate in self.rates(pairs))
        return Round(pairs, tuple(samples))

    def search(self, seed: int = 0) -> Racks:
        """Return what a search finds."""
        randomness = random.Random(seed)
        search = RackSearch(len(self.racks))
        while wanted := search.wanted:
            search.observe([self.measure(pairs, randomness) for pairs in wanted])
        assert len(search.rounds) <= search.most_rounds
        return search.found()


def found_groups(found: Racks) -> set[frozenset[int]]:
    """Return the groups that were found, for comparison."""
    return {frozenset(group) for group in found.groups}
