"""Sharded: every rank owns a share of each bucket, and updates it.

Gradients are reduce-scattered as they become ready, and weights are gathered while the next forward
runs. On the wire that is what an all-reduce sends, but half of it has forward to hide behind; and
the optimizer's state is spread over the ranks. Buckets that the plan has all-reduced are every
rank's.

Shards are cut by element, or between tensors where the optimizer looks at whole ones; so that every
rank gets as many bytes, over all buckets together (:mod:`syncopate.schedules.shards`). Of a tensor
in parts every rank has a shard of each part; one that is looked at whole has one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, Place, Trainable
from syncopate.engine.exchange.owned import Owned
from syncopate.engine.tail import Tail
from syncopate.plan import Plan
from syncopate.schedules.shards import cut_between, cut_by, levelling, whole_owners
from syncopate.workload import TENSOR


class Sharded(Owned):
    """The ``sharded`` exchange."""

    def _allocate(self, plan: Plan) -> tuple[tuple[BucketBuffers, ...], Tail]:
        p = self.communicator.world_size
        by_name = {trainable.name: trainable for trainable in self._trainables}
        spread = [bucket for bucket in plan.buckets if bucket.pull is not None]
        names = dict.fromkeys(chain(*(bucket.tensors for bucket in spread)))
        planned = [by_name[name] for name in names]
        whole = [trainable for trainable in planned if self._is_whole(trainable)]
        nbytes = [trainable.parameter.nbytes for trainable in whole]
        owners = whole_owners(nbytes, p)
        self._owners = dict(zip((each.index for each in whole), owners, strict=True))
        loads = [0] * p
        for size, owner in zip(nbytes, owners, strict=True):
            loads[owner] += size
        rest = sum(trainable.parameter.nbytes for trainable in planned) - sum(loads)
        proportions = levelling(loads, rest)
        buckets, tail = super()._allocate(plan)
        for part in chain(*(bucket.parts for bucket in buckets)):
            if not part.replicated:
                self._cut(part, proportions)
        return buckets, tail

    def _cut(self, part: FlatBuffer, proportions: Sequence[int]) -> None:
        """Say where each rank's shard of a flat buffer's messages begins."""
        if not self._is_whole(part.trainables[0]):
            for message in part.messages:
                message.bounds = cut_by(message.stop - message.start, proportions)
            return
        numels = [trainable.parameter.numel() for trainable in part.trainables]
        held = [self._owners[trainable.index] for trainable in part.trainables]
        bounds = cut_between(numels, held, self.communicator.world_size)
        for message in part.messages:
            inside = (min(max(bound, message.start), message.stop) for bound in bounds)
            message.bounds = tuple(bound - message.start for bound in inside)

    def _is_whole(self, trainable: Trainable) -> bool:
        return self.trained[trainable.index].kind == TENSOR

    def _place(self, trainable: Trainable) -> Place:
        # What stays whole lies in the order of its owners, whose shards lie in theirs.
        return super()._place(trainable)._replace(order=self._owners.get(trainable.index, 0))

    def _share_of(self, message: Message) -> tuple[int, int]:
        assert message.bounds is not None
        rank = self.communicator.rank
        return message.start + message.bounds[rank], message.start + message.bounds[rank + 1]
