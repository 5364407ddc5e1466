"""Rooted: one rank per bucket owns all of it: BSP-SGD Algorithms 1 and 2 of the LP paper.

Gradients are reduced to the root of their bucket, which updates the weights and broadcasts them.
With one bucket that is Algorithm 2. With many, each reduced while backward goes on and broadcast
while the next forward does, it is Algorithm 1 (Section 3.3).
"""

from __future__ import annotations

from syncopate.engine.buckets import BucketBuffers, FlatBuffer
from syncopate.engine.exchange.owned import Owned


class Rooted(Owned):
    """The ``rooted`` exchange."""

    def own_range(self, bucket: BucketBuffers, part: FlatBuffer) -> tuple[int, int]:
        """Return all of a flat buffer at the root of its bucket, and nothing elsewhere."""
        mine = bucket.push.root == self.communicator.rank
        return (0, part.gradients.numel()) if mine else (0, 0)
