"""Rooted: one rank per bucket owns all of it: BSP-SGD Algorithms 1 and 2 of the LP paper.

Gradients are reduced to the root of their bucket, which updates the weights and broadcasts them.
With one bucket that is Algorithm 2. With many, each reduced while backward goes on and broadcast
while the next forward does, it is Algorithm 1 (Section 3.3).

The parts of a tensor may have several roots, unless its optimizer looks at whole tensors: then the
root of the first part is that of all.
"""

from __future__ import annotations

from itertools import chain

from msgspec import structs

from syncopate.engine.buckets import BucketBuffers, Message
from syncopate.engine.exchange.owned import Owned
from syncopate.engine.tail import Tail
from syncopate.plan import Plan
from syncopate.workload import TENSOR


class Rooted(Owned):
    """The ``rooted`` exchange."""

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        buckets, tail = super()._allocate(plan)
        for part in chain(*(bucket.parts for bucket in buckets)):
            if self.trained[part.trainables[0].index].kind == TENSOR:
                root = part.messages[0].push.root
                for message in part.messages:
                    message.push = structs.replace(message.push, root=root)
                    message.pull = message.pull and structs.replace(message.pull, root=root)
        return buckets, tail

    def _share_of(self, message: Message) -> tuple[int, int]:
        # All of it at the root of its bucket, and nothing elsewhere.
        mine = message.push.root == self.communicator.rank
        return message.start, message.stop if mine else message.start
