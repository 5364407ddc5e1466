"""Player: what a partition takes, found by playing its iteration; prices are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.plan import EXCHANGES, ROOTED
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import CostFunction, startup_part_s
from syncopate.planning.parts import WHOLE, Message, messages
from syncopate.planning.problem import Partition, Problem, pull_channels, pull_order
from syncopate.planning.search.uneven import Uneven
from syncopate.simulation.fluid import Collective
from syncopate.simulation.iteration import lasts_s
from syncopate.simulation.traffic import Pull, Traffic, link_of, parts_at_servers

PRICED_MESSAGES = 64
"""As many messages are played while one with unequal shards is priced."""

_SERVED_WORK = 2 * 2 * 4
"""As much as a part counts where weights are served: it goes both ways, in two iterations, and each
is about four times the work of a message that waits for nothing but its turn."""

_Prices = dict[tuple[int, int, int, int], tuple[float, float]]
"""First gradient, one past the last, part and parts of a message -> what it costs."""


class Player:
    """Plays partitions, and remembers the price of each bucket.

    Args:
        problem: the workload's ready times and sizes, and the costs.
        workload: whose iteration is played.
        interference: what overlap costs.
        channels: buckets take the channels in turn.

    Attributes:
        problem, workload, interference, channels: as given.
        grain: the most that a message carries of a tensor alone in its bucket.
        replicated: the first gradients, whose buckets every rank updates.
        played: how many messages were played so far.
    """

    def __init__(
        self, problem: Problem, workload: Workload, interference: Interference, channels: int
    ) -> None:
        self.problem = problem
        self.workload = workload
        self.interference = interference
        self.channels = channels
        self._pushes: _Prices = {}
        self._pulls: _Prices = {}
        self._replicated: _Prices = {}
        self._uneven: Uneven | None = None
        self._ready_s: list[float] = [0.0, *problem.ready_s.tolist()]
        self._needed_s: dict[tuple[int, int], float] = {}
        self.grain = WHOLE
        self.replicated = 0
        self.played = 0

    def with_shards(self, uneven: Uneven) -> Player:
        """Return a player of messages with the shards that they are going to have."""
        other = Player(self.problem, self.workload, self.interference, self.channels)
        other._uneven = uneven
        return other

    def cut_to(self, grain: float) -> Player:
        """Return a player of messages that carry no more than ``grain`` of a tensor alone."""
        other = copy(self)
        other.grain = grain
        return other

    def replicating(self, first: int) -> Player:
        """Return a player in whose plans every rank updates the first gradients."""
        other = copy(self)
        other.replicated = first
        return other

    def score(self, partition: Partition) -> tuple[float, int]:
        """Return the iteration time and the number of messages each way."""
        traffic = self._traffic(partition)
        if traffic.served:
            self.played += _SERVED_WORK * sum(pull.parts for pull in traffic.pulls if pull)
        else:
            self.played += len(traffic.pushes) + len(traffic.pulls)
        iteration_s = lasts_s(self.workload, traffic, self.interference)
        return iteration_s, len(traffic.pushes)

    def _traffic(self, partition: Partition) -> Traffic:
        problem, channels = self.problem, self.channels
        pushes: list[Collective] = []
        pulls: list[Pull | None] = []
        sent, ready_s = messages(problem, partition, self.grain), self._ready_s
        links = self._links(partition)
        for index, message in enumerate(sent):
            duration_s, startup_s = self._push_price(message)
            at_s, link = ready_s[message.stop], links[message.bucket][0]
            pushes.append(Collective(at_s, duration_s, startup_s, index % channels, link=link))
        if problem.pulls is None:
            return Traffic(tuple(pushes), (), self.workload.update_s)
        needed_s = [self._needed(one.start, one.stop) for one in sent]
        order = pull_order(needed_s)
        turns = pull_channels([i for i in order if sent[i].stop > self.replicated], channels)
        for index, (message, at_s) in enumerate(zip(sent, needed_s, strict=True)):
            if index not in turns:
                pulls.append(None)
                continue
            duration_s, startup_s = self._price(self._pulls, problem.pulls.cost, message)
            parts = self._parts(message)
            link = links[message.bucket][1]
            pulls.append(Pull(at_s, duration_s, startup_s, turns[index], parts, link=link))
        deferred = problem.pulls.deferred
        if deferred:
            pulls, part = self._deferred(sent, pulls)
        else:
            part = self._update_part(partition)
        update_s = self.workload.update_s * part
        there = tuple(pulls) if any(pulls) else ()
        served = problem.pulls.served
        return Traffic(tuple(pushes), there, update_s, order, served=served, deferred=deferred)

    def _deferred(
        self, sent: Sequence[Message], pulls: Sequence[Pull | None]
    ) -> tuple[list[Pull | None], float]:
        """Return pulls with their updates, and the part of all weights that is not pulled."""
        sizes = [sum(self.problem.sizes(one.start, one.stop)) / one.parts for one in sent]
        total = sum(sizes) or 1.0
        found = [
            None if pull is None else pull._replace(update_s=self.workload.update_s * size / total)
            for pull, size in zip(pulls, sizes, strict=True)
        ]
        at_once = sum(size for pull, size in zip(pulls, sizes, strict=True) if pull is None)
        return found, at_once / total

    def _links(self, partition: Partition) -> list[tuple[int, int]]:
        """Return on which links each bucket is pushed and pulled."""
        pulls = self.problem.pulls
        if pulls is None or not pulls.rooted:
            return [(0, 0)] * len(partition)
        both = (EXCHANGES[ROOTED].push, EXCHANGES[ROOTED].pull)
        return [
            (link_of(both[0], root, pulls.ranks), link_of(both[1], root, pulls.ranks))
            for root in self.problem.roots(partition)
        ]

    def _parts(self, message: Message) -> int:
        """Return in how many parts servers send a bucket back."""
        pulls = self.problem.pulls
        assert pulls is not None
        if not pulls.served:
            return 1
        return parts_at_servers(sum(self.problem.sizes(message.start, message.stop)), pulls.ranks)

    def _push_price(self, message: Message) -> tuple[float, float]:
        pulls = self.problem.pulls
        if self.replicated >= message.stop and pulls is not None and pulls.replicated is not None:
            return self._price(self._replicated, pulls.replicated, message)
        return self._price(self._pushes, self.problem.cost, message)

    def _needed(self, start: int, stop: int) -> float:
        """Return when forward needs the weights of a bucket: the first of them."""
        found = self._needed_s.get((start, stop))
        if found is None:
            assert self.problem.pulls is not None
            found = min(self.problem.pulls.needed_s[start:stop])
            self._needed_s[start, stop] = found
        return found

    def _update_part(self, partition: Partition) -> float:
        """Return the part of all weights that the busiest rank updates."""
        pulls = self.problem.pulls
        assert pulls is not None
        if self._uneven is not None:
            return self._uneven.largest_part
        if not pulls.rooted:
            part = 0.0
            if self.replicated:
                first = max((stop for stop in partition if stop <= self.replicated), default=0)
                filled = self.problem.offsets.sum(axis=0)
                part = float(filled[first]) / (float(filled[-1]) or 1.0)
            return part + (1 - part) / pulls.ranks
        filled = self.problem.offsets.sum(axis=0)
        held: dict[int, float] = {}
        roots = self.problem.roots(partition)
        for root, (start, stop) in zip(roots, pairwise((0, *partition)), strict=True):
            held[root] = held.get(root, 0.0) + float(filled[stop] - filled[start])
        return max(held.values()) / (float(filled[-1]) or 1.0)

    def _price(self, known: _Prices, cost: CostFunction, message: Message) -> tuple[float, float]:
        key = message[1:]
        found = known.get(key)
        if found is None:
            if self._uneven is not None:
                found = self._uneven.price(message, pulled=known is self._pulls)
                self.played += PRICED_MESSAGES
            else:
                carrier, sizes, duration_s = self.problem.carrier(
                    cost, message.start, message.stop, message.parts
                )
                found = duration_s, startup_part_s(carrier, sizes, duration_s)
            known[key] = found
        return found
