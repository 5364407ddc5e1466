"""Kinds: the one table of exchanges that the engine runs."""

from __future__ import annotations

from syncopate.engine.exchange.allreduce import AllReduce
from syncopate.engine.exchange.base import Exchange
from syncopate.engine.exchange.delay.delayed import Delayed
from syncopate.engine.exchange.rooted import Rooted
from syncopate.engine.exchange.sharded import Sharded
from syncopate.plan import ALLREDUCE, ROOTED, SHARDED, Plan

KINDS: dict[str, type[Exchange]] = {
    ALLREDUCE: AllReduce,
    SHARDED: Sharded,
    ROOTED: Rooted,
}
"""Name in ``plan.EXCHANGES`` -> what runs it, synchronously."""


def kind_for(plan: Plan) -> type[Exchange]:
    """Return what runs ``plan``."""
    return KINDS[plan.exchange] if plan.delay is None else Delayed
