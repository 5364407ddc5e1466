"""Fitted: a run's own network, estimated from its messages, where no cluster file tells it.

Of each collective a line ``a + b n`` through what its messages took once all ranks had come, of
messages of each size the median: the slope is the median over all pairs of sizes (Theil and Sen),
the start-up the median of what is left. Messages of one size alone tell no start-up, and are bytes.
So it can be said what the run would take on links that are so many times as fast, and nothing else.

Links of parameter servers are taken to be like those of workers, and weights to come back as fast
as gradients go: what an answer takes longer than that is the server's work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from syncopate.analysis.collectives import is_served
from syncopate.analysis.evidence.clocks import straightened
from syncopate.analysis.replay.elsewhere import capacity_of, kept_of, messages_of
from syncopate.analysis.replay.flows import swept
from syncopate.analysis.replay.played import Replay
from syncopate.analysis.replay.program import program_of
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.network import Message, Price
from syncopate.errors import InvalidValueError, UnknownNameError

_MOST_SIZES = 256
"""Of one collective; of more some are looked at."""

_PUSH, _PULL = "send", "receive"


class Line(NamedTuple):
    """The fitted time of one collective's messages: ``a + b n``.

    Attributes:
        a_s: the start-up.
        b_s_per_byte: of each byte.
    """

    a_s: float
    b_s_per_byte: float


@dataclass(frozen=True)
class FittedNetwork:
    """The network of a recorded run, as its messages tell it, or one with links of another speed.

    Attributes:
        name: what to call it.
        world_size: number of ranks.
        lines: of each collective.
        servers: how many parameter servers there are; 0: none.
        workers: how many ranks send to them at once.
        bandwidth: how many times as fast links are.
        latency: how many times as long start-ups take.
    """

    name: str
    world_size: int
    lines: dict[str, Line]
    servers: int = 0
    workers: int = 1
    bandwidth: float = 1.0
    latency: float = 1.0

    @property
    def pool(self) -> float:
        """The rate of all servers' links together, over that of one worker's link."""
        return float(self.servers or 1)

    def changed(
        self, bandwidth: float = 1.0, latency: float = 1.0, servers: int | None = None
    ) -> FittedNetwork:
        """Return the same with other links.

        Args:
            bandwidth: how many times as fast; > 0.
            latency: how many times as long start-ups take; >= 0.
            servers: how many there are; None: as many as now.

        Raises:
            InvalidValueError: no such factor, or no server.
        """
        if not 0 < bandwidth < np.inf:
            raise InvalidValueError("bandwidth", bandwidth, "a finite factor > 0, such as 2")
        if not 0 <= latency < np.inf:
            raise InvalidValueError("latency", latency, "a finite factor >= 0, such as 0.5")
        if servers is not None and (servers < 1 or not self.servers):
            rule = "an integer >= 1, for a run with parameter servers"
            raise InvalidValueError("servers", servers, rule)
        said = [
            f"{what} x{factor:g}"
            for what, factor in (("bandwidth", bandwidth), ("latency", latency))
            if factor != 1
        ]
        if servers is not None and servers != self.servers:
            said.append(f"{servers} server{'s' * (servers != 1)}")
        return replace(
            self,
            name=", ".join([self.name, *said]),
            servers=self.servers if servers is None else servers,
            bandwidth=self.bandwidth * bandwidth,
            latency=self.latency * latency,
        )

    def price(self, message: Message) -> Price:
        """Return the time of a message.

        Raises:
            UnknownNameError: the run had no such collective.
        """
        if message.collective not in self.lines:
            raise UnknownNameError("collective", message.collective, self.lines, self.name)
        line = self.lines[message.collective]
        startup_s = line.a_s * self.latency
        bytes_s = line.b_s_per_byte * message.nbytes / self.bandwidth
        crowd = max(self.workers / self.servers, 1.0) if self.servers else 1.0
        return Price(startup_s, bytes_s, bytes_s * crowd)


def fitted_network(timeline: Timeline, servers: int = 0) -> FittedNetwork:
    """Return the network of a recorded run, as its messages tell it.

    Args:
        timeline: of the run.
        servers: how many parameter servers it had; 0: none.

    Raises:
        InvalidValueError: nothing was computed or sent, no server is known of a run with some, or
            when messages ended is not known.
    """
    kept, _ = kept_of(timeline)
    run = Replay(straightened(kept)[0])
    served = is_served(run.timeline)
    if served and servers < 1:
        rule = "given: the run does not say how many parameter servers it had"
        raise InvalidValueError("servers of the run", servers, rule)
    workers = timeline.world_size if served else 1
    made = FittedNetwork(
        "its own network", timeline.world_size, {}, servers if served else 0, workers
    )
    program, messages = program_of(run), messages_of(run)
    came_s = swept(program.flows, program.came_s, capacity_of(run, made))
    if not any(map(any, came_s)):
        rule = "recorded: when messages ended is not known, so that nothing of them can be scaled"
        raise InvalidValueError("the time of messages", 0.0, rule)
    took: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for flow, progress_s in zip(program.flows, came_s, strict=True):
        if flow.share == 1 and progress_s:
            message = messages[flow.message]
            took[message.collective][message.nbytes].append(progress_s[-1])
    lines = {name: _line(by_size) for name, by_size in took.items()}
    if served and _PUSH in lines:
        lines[_PULL] = lines[_PUSH]
    return replace(made, lines=lines)


def _line(by_size: dict[int, list[float]]) -> Line:
    sizes = sorted(by_size)
    sizes = sizes[:: -(-len(sizes) // _MOST_SIZES)]
    lasts_s: Sequence[float] = [float(np.median(by_size[size])) for size in sizes]
    n, y = np.array(sizes, float), np.array(lasts_s)
    one, other = np.triu_indices(len(n), 1)
    slope = float(np.median((y[other] - y[one]) / (n[other] - n[one]))) if len(one) else 0.0
    if slope > 0:
        return Line(max(float(np.median(y - slope * n)), 0.0), slope)
    if n.sum() > 0:
        return Line(0.0, float(y.sum() / n.sum()))
    return Line(float(np.median(y)), 0.0)
