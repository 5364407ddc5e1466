"""Kinds: the one table of exchanges that the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from syncopate.engine.exchange.allreduce import AllReduce
from syncopate.engine.exchange.averaged import Averaged
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.decoupled import Decoupled
from syncopate.engine.exchange.delay.delayed import Delayed
from syncopate.engine.exchange.delay.served import DelayedServed
from syncopate.engine.exchange.rooted import Rooted
from syncopate.engine.exchange.serving.asynchronous import Asynchronous
from syncopate.engine.exchange.serving.served import Served
from syncopate.engine.exchange.serving.servers import Servers
from syncopate.engine.exchange.sharded import Sharded
from syncopate.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVED, SHARDED, Plan

KINDS: dict[str, type[Exchange]] = {
    ALLREDUCE: AllReduce,
    DECOUPLED: Decoupled,
    SHARDED: Sharded,
    ROOTED: Rooted,
}
"""Name in ``plan.EXCHANGES`` -> what runs it, synchronously and without servers."""


def kind_for(plan: Plan, servers: Servers | None = None) -> Callable[..., Exchange]:
    """Return what runs ``plan``, with parameter servers where it has them."""
    if plan.exchange == SERVED:
        assert servers is not None
        late = Served if plan.delay is None else DelayedServed
        return partial(late if servers.synchronous else Asynchronous, servers=servers)
    if plan.local_sgd is not None:
        return Averaged
    return KINDS[plan.exchange] if plan.delay is None else Delayed
