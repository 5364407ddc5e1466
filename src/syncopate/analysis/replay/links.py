"""Links: how flows that share a link divide its rate.

*Equally*: a link of capacity c gives each of n flows c / n.

*By turns*: flows of a lower turn come first, whichever began before, and those of one turn share
what is left by max-min fairness: all grow alike until a link is full, then those on it stay and the
others grow on. So no link is above its capacity, and none is left idle that a flow could use.

A flow moves at the least that its links give, relative to what it has alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_FULL = 1e-9
"""A link of which a smaller part is left is full."""


@dataclass
class Flow:
    """What moves of a message, on the links that it shares.

    Attributes:
        parts: in the order in which they are over.
        links: that it shares.
        waits: for how many starts and ends of others it waits.
        start_s: when it was recorded to move.
        message: that it is of.
        share: which part of the message it carries.
        startup_s: for how long it needs no link.
        progress_s: how far it has come when each part is over.
        turn: on links that flows have by turns, those of a lower one come first.
        count: for how many flows it stands: ranks that do the same are played once.
    """

    parts: list[int]
    links: tuple[int, ...]
    waits: int
    start_s: float
    message: int
    share: float = 1.0
    startup_s: float = 0.0
    progress_s: list[float] = field(default_factory=list)
    turn: int = 0
    count: int = 1


class EqualLinks:
    """Links that flows share equally.

    Args:
        flows: all of them.
        capacity: of each link that has another one than 1.
    """

    def __init__(self, flows: Sequence[Flow], capacity: Mapping[int, float]) -> None:
        self._flows, self._capacity = flows, capacity
        self._on: dict[int, set[int]] = defaultdict(set)

    def change(self, flow: int, on: bool) -> set[int]:
        """Put a flow on its links, or take it off; return all flows of which rates may differ."""
        touched: set[int] = set()
        for link in self._flows[flow].links:
            there = self._on[link]
            if on:
                there.add(flow)
            else:
                there.discard(flow)
            touched |= there
        return touched

    def rate(self, flow: int) -> float:
        """Return at which rate a flow moves, relative to what it has alone."""
        capacities = [self._capacity.get(link, 1.0) for link in self._flows[flow].links]
        given = (
            capacity / max(len(self._on[link]), 1)
            for link, capacity in zip(self._flows[flow].links, capacities, strict=True)
        )
        return min(given, default=1.0) / min(capacities, default=1.0)


class TurnLinks:
    """Links on which flows of a lower turn come first.

    Args:
        flows: all of them.
        capacity: of each link that has another one than 1.
        many: links on which a flow takes as much as all that it stands for; on others they are
            apart.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        capacity: Mapping[int, float],
        many: Iterable[int] = (),
    ) -> None:
        self._flows, self._capacity, self._many = flows, capacity, set(many)
        self._turns: dict[int, set[int]] = defaultdict(set)
        self._uses: dict[int, list[tuple[int, float]]] = {}
        self._alone: dict[int, float] = {}
        self._rates: dict[int, float] = {}

    def change(self, flow: int, on: bool) -> set[int]:
        """Put a flow on its links, or take it off; return all flows of which rates differ."""
        of = self._flows[flow]
        if on:
            self._turns[of.turn].add(flow)
            self._note(flow)
        else:
            self._turns[of.turn].discard(flow)
            del self._uses[flow], self._rates[flow]
        before, self._rates = self._rates, self._shared()
        changed = {each for each, rate in self._rates.items() if before.get(each) != rate}
        return changed | {flow} if on else changed

    def rate(self, flow: int) -> float:
        """Return at which rate a flow moves, relative to what it has alone."""
        given = self._rates.get(flow)
        return 1.0 if given is None else given / self._alone[flow]

    def _note(self, flow: int) -> None:
        """Note which links a flow takes how much of, for each that it moves."""
        of = self._flows[flow]
        self._uses[flow] = [(one, float(of.count if one in self._many else 1)) for one in of.links]
        self._alone[flow] = min((self._capacity.get(one, 1.0) for one in of.links), default=1.0)

    def _shared(self) -> dict[int, float]:
        """Return the rate that every flow gets on its links."""
        left: dict[int, float] = {}
        rates: dict[int, float] = {}
        for turn in sorted(self._turns):
            growing = sorted(self._turns[turn])
            if not growing:
                del self._turns[turn]
            rates.update(dict.fromkeys(growing, 0.0))
            while growing := [flow for flow in growing if not self._held(flow, left)]:
                self._grow(growing, left, rates)
        return rates

    def _held(self, flow: int, left: dict[int, float]) -> bool:
        return any(left.get(link, 1.0) <= 0 for link, _ in self._uses[flow])

    def _grow(self, growing: list[int], left: dict[int, float], rates: dict[int, float]) -> None:
        """Raise the rates of flows equally until a link is full."""
        load: dict[int, float] = defaultdict(float)
        for flow in growing:
            for link, each in self._uses[flow]:
                load[link] += each
        for link in load:
            left.setdefault(link, self._capacity.get(link, 1.0))
        more = min(left[link] / all_of for link, all_of in load.items())
        for flow in growing:
            rates[flow] += more
        for link, all_of in load.items():
            left[link] -= more * all_of
            if left[link] <= _FULL * self._capacity.get(link, 1.0):
                left[link] = 0.0
