"""Racks: finds groups of hosts behind shared uplinks, in a bounded number of rounds.

A state machine without clock or network: it says which matchings to run, is given the rates, and
ends with groups, with the knowledge that there are none, or with the admission that it cannot tell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from syncopate.calibration.racks.grouping import Judgement, judge
from syncopate.calibration.racks.levels import Matching, Observed, Round
from syncopate.calibration.racks.matchings import across, alone, opening, telling

FEWEST_HOSTS = 4
"""Fewer hosts cannot have two pairs at the same time."""

_ROUNDS_PER_DOUBLING = 6
_CONFIRMATIONS = 3
_GOOD_FIT = 1.2


@dataclass(frozen=True)
class Racks:
    """The groups that were found.

    Attributes:
        groups: the hosts of each rack, ascending; a single one where the network is flat or
            nothing was found out.
        slow: hosts that are slow with every partner.
        best_bytes_per_s: the best rate of each host.
        resolved: whether it is certain.
        rounds: how many matchings were run.
    """

    groups: tuple[tuple[int, ...], ...]
    slow: tuple[int, ...]
    best_bytes_per_s: tuple[float, ...]
    resolved: bool
    rounds: int

    @classmethod
    def among(cls, labels: Sequence[int], rounds: Sequence[Round], *, resolved: bool) -> Racks:
        """Return racks by what some rounds say of the hosts.

        Args:
            labels: the group of each host.
            rounds: at least one.
            resolved: whether the groups are certain.
        """
        observed = Observed(len(labels), rounds)
        groups: dict[int, list[int]] = {}
        for host, group in enumerate(labels):
            groups.setdefault(group, []).append(host)
        return cls(
            groups=tuple(map(tuple, groups.values())),
            slow=observed.slow_hosts,
            best_bytes_per_s=tuple(observed.best_bytes_per_s.tolist()),
            resolved=resolved,
            rounds=len(rounds),
        )


class RackSearch:
    """Asks for matchings until it knows.

    Example::

        search = RackSearch(hosts)
        while matchings := search.wanted:
            search.observe(run(matchings))
        print(search.found().groups)

    Args:
        hosts: how many; at least 2.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self.rounds: list[Round] = []
        self.wanted = alone(hosts)
        """The matchings to run next; none when the search is over."""
        if hosts >= FEWEST_HOSTS:
            self.wanted += opening(hosts)
        self.most_rounds = len(self.wanted) + _ROUNDS_PER_DOUBLING * math.ceil(math.log2(hosts))
        """The number of matchings after which it gives up."""
        self._kept: tuple[tuple[int, ...], ...] = ()
        self._labels = (0,) * hosts
        self._agreed = 0
        self._resolved = False

    def observe(self, rounds: Iterable[Round]) -> None:
        """Take the rates of the wanted matchings."""
        self.rounds += rounds
        self.wanted = ()
        observed = Observed(self.hosts, self.rounds)
        if self.hosts < FEWEST_HOSTS or observed.all_alike:
            self._labels, self._resolved = (0,) * self.hosts, True
            return
        judgement = judge(observed, self._kept)
        self._kept = judgement.kept
        certain = self._is_certain(judgement, observed)
        if certain and self._agreed >= _CONFIRMATIONS:
            self._resolved = True
        elif len(self.rounds) < self.most_rounds:
            self.wanted = (self._next(judgement, observed, certain),)

    def found(self) -> Racks:
        """Return the groups found so far."""
        labels = self._labels if self._resolved else (0,) * self.hosts
        return Racks.among(labels, self.rounds, resolved=self._resolved)

    def _is_certain(self, judgement: Judgement, observed: Observed) -> bool:
        labels = judgement.best.labels
        if labels != self._labels:
            self._labels, self._agreed = labels, 0
        explained = judgement.best.misfit < _GOOD_FIT * len(observed.log_ratio)
        return explained and not len(judgement.rivals)

    def _next(self, judgement: Judgement, observed: Observed, certain: bool) -> Matching:
        """Return what tells the best hypothesis from its rivals, or puts it to the test."""
        if not certain and len(judgement.rivals):
            return telling(judgement, observed)
        self._agreed += certain
        inside = (0, max(1, self.hosts // 8))[self._agreed % 2]
        return across(judgement.best.labels, random.Random(len(self.rounds)), inside)
