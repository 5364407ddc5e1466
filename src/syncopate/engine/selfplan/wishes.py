"""Wishes: what a user asks of self-planning and of the plan that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import LIKE_DDP, SHARDED

PLANNED = (*LIKE_DDP, SHARDED)
"""The exchanges that self-planning plans. Unasked it chooses from those like DDP alone."""


@dataclass(frozen=True)
class Wishes:
    """A user's options for self-planning.

    Attributes:
        policy: what makes the plan; None: the best of all.
        channels: how many collectives at once; None for the best.
        exchange: one of :data:`PLANNED`; None for whichever of those like DDP is best.
        cluster: plan for it; measured when None.
        cache: whether to use and keep plans of other runs.
        deterministic: whether a plan may depend on nothing that a clock said, unless it was kept.
    """

    policy: str | None = None
    channels: int | None = None
    exchange: str | None = None
    cluster: Cluster | None = None
    cache: bool = True
    deterministic: bool = False

    def takes(self, exchange: str) -> bool:
        """Whether plans of ``exchange`` may train."""
        return exchange in (LIKE_DDP if self.exchange is None else (self.exchange,))
