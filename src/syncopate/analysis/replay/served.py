"""Served: a run with parameter servers whose messages go by turns, by their prices.

[Note: by turns] A plan has servers and ranks send first what the next forward needs first. That is
what backward is last done with: of the messages of an iteration the last push, and its pull, go
first. So at another rate other messages wait, and what one took beside them says little of it.
Messages take their prices then, and of the recording stay computation, which ranks are slow, and
what waits for what.

[Note: what prices leave out] How well links are filled is no matter of prices: servers have unequal
shares, and processors work beside the wire. One figure is fitted: bytes take so much of their price
that the median iteration on the run's own network is as long as it was recorded. It stays there.
Where computation hides messages the iteration says nothing of them, and bytes take their price.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from syncopate.analysis.replay.flows import Played, Player, Program
from syncopate.analysis.replay.links import TurnLinks
from syncopate.analysis.replay.played import Replay, own_pushes
from syncopate.analysis.replay.program import POOL_IN, POOL_OUT
from syncopate.analysis.replay.rank import PUSH, Parts
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.network import Message, Network
from syncopate.artifacts.timelines.spans import Numbers

_CLOSE = 0.002
"""The fitted iteration is off by no more."""

_TRIED, _TELLS = 1.1, 0.01
"""Where bytes that take a tenth longer make iterations longer by a smaller part, these do not say
what bytes take."""

_MOST = 2.0
"""Bytes take at most so many times their price, and at least that part of it."""

_STEPS = 12


class Served:
    """A run whose messages go by turns.

    Args:
        replay: of the run.
        program: of it; its flows are changed.
        messages: of the run.
        timeline: says which ranks are alike.
    """

    def __init__(
        self, replay: Replay, program: Program, messages: Sequence[Message], timeline: Timeline
    ) -> None:
        self._replay, self._program, self._messages = replay, program, messages
        first = replay.messages.first
        turns, counts = _turns(replay.parts), {one.rank: len(one.all) for one in timeline.alike}
        for flow in program.flows:
            part = int(first[flow.message])
            flow.turn = int(turns[part])
            flow.count = counts.get(int(replay.parts.rank[part]), 1)

    def played(self, there: Network, here: Network | None) -> Played:
        """Return when everything is on a network.

        Args:
            there: the network.
            here: the run's own; None: not known.
        """
        return self._play(there, 1.0 if here is None else self.fitted(here))

    def fitted(self, own: Network) -> float:
        """Return what part of their price bytes take, by [Note: what prices leave out]."""
        off = self._off(own, 1.0)
        one_way = _TRIED if off < 0 else 1 / _TRIED
        if abs(off) <= _CLOSE or abs(self._off(own, one_way) - off) < _TELLS:
            return 1.0
        low, high = (1.0, _MOST) if off < 0 else (1 / _MOST, 1.0)
        part = 1.0
        for _ in range(_STEPS):
            part = math.sqrt(low * high)
            off = self._off(own, part)
            if abs(off) <= _CLOSE:
                break
            low, high = (low, part) if off > 0 else (part, high)
        return part

    def _off(self, own: Network, part: float) -> float:
        """Return by what part the median iteration is longer than it was recorded."""
        replay, played = self._replay, self._play(own, part)
        ends_s = played.tasks_s + np.array(self._program.tasks_s), played.ends_s
        were_s = replay.tasks.end_s - replay.origin_s, replay.parts.end_s - replay.origin_s
        lasts_s, lasted_s = (np.median(replay.between_s(*one)) for one in (ends_s, were_s))
        return float(lasts_s / lasted_s - 1)

    def _play(self, network: Network, part: float) -> Played:
        """Return when everything is where bytes take a part of their price."""
        for flow in self._program.flows:
            price = network.price(self._messages[flow.message])
            flow.startup_s = price.startup_s * flow.share
            bytes_s = price.bytes_s * part * flow.share
            count = len(flow.parts)
            flow.progress_s = [flow.startup_s + bytes_s * (at + 1) / count for at in range(count)]
        pools = {POOL_IN: network.pool, POOL_OUT: network.pool}
        return Player(self._program, TurnLinks(self._program.flows, pools, many=pools)).play()


def _turns(parts: Parts) -> Numbers:
    """Return the turn of each part by [Note: by turns]: how many pushes come behind its own."""
    pushes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for part in np.argsort(parts.start_s, kind="stable").tolist():
        if parts.lane[part] == PUSH:
            pushes[int(parts.rank[part]), int(parts.iteration[part])].append(part)
    found = np.zeros(len(parts.rank), np.int64)
    for mine in pushes.values():
        found[mine] = np.arange(len(mine))[::-1]
    for pull, push in own_pushes(parts).items():
        found[pull] = found[push]
    return found
