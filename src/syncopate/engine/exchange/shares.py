"""Shares: which rank owns what of each bucket: it averages the sums there, and may update weights.

``Owner`` itself: every rank owns all of it, as an all-reduce leaves it.

``Halves``: each rank an equal range, of which it makes averages that all of them gather.

``Spread``: each rank a share, which it updates. Shares are cut by element, or between tensors where
the optimizer looks at whole ones; so that every rank gets as many bytes, over all buckets together
(:mod:`syncopate.schedules.shards`). Of a tensor in parts every rank has a share of each part; one
that is looked at whole has one owner.

``AtRoot``: one rank per bucket owns all of it: BSP-SGD Algorithms 1 and 2 of the LP paper. The
gradients are reduced to the root of their bucket, which updates the weights and broadcasts them.
With one bucket that is Algorithm 2. With many, each reduced while backward goes on and broadcast
while the next forward does, it is Algorithm 1 (Section 3.3). The parts of a tensor may have several
roots, unless its optimizer looks at whole tensors: then the root of the first part is that of all.

``Elsewhere``: servers own all of it.

What a plan has all-reduced every rank owns, under each of them, and nothing is pulled of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import structs

from syncopate.artifacts.workload import TENSOR
from syncopate.engine.buckets import BucketBuffers, FlatBuffer, Message, Place, Trainable
from syncopate.engine.exchange.layout import Layout, Owner
from syncopate.errors import EngineError
from syncopate.schedules.base import chunk_offsets
from syncopate.schedules.shards import adjoined, cut_between, cut_by, levelling, whole_owners


class Halves(Owner):
    """Each rank owns an equal range, between the two halves of an all-reduce."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._given: dict[int, int] = {}
        for place, optimizer in enumerate(layout.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._given.setdefault(id(parameter), place)

    def place(self, trainable: Trainable) -> Place:
        """Keep parameters of several optimizers apart, which step at several times."""
        return Place(apart=self._given.get(id(trainable.parameter), -1))

    def cut(self, buckets: Sequence[BucketBuffers]) -> None:
        """Cut each message that is gathered into equal ranges."""
        for part in chain(*(bucket.parts for bucket in buckets)):
            for message in part.messages:
                if message.pull is not None:
                    numel = message.gradients.numel()
                    message.bounds = chunk_offsets(numel, self._ranks.world_size)


class _Owned(Owner):
    """What owners of weights have in common: one flat buffer for each optimizer."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        for trainable in layout.trainables:
            if trainable.parameter.is_complex():
                raise EngineError(
                    f"{trainable.name!r} is complex, which the {layout.plan.exchange} exchange "
                    "does not carry; use exchange='allreduce'"
                )
        self._trained = layout.trained

    def place(self, trainable: Trainable) -> Place:
        """Keep parameters of several optimizers apart, which step at several times."""
        return Place(apart=self._trained[trainable.index])

    def _is_whole(self, trainable: Trainable) -> bool:
        return self._trained[trainable.index].kind == TENSOR


class Spread(_Owned):
    """Each rank owns a share, which it updates."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        p = self._ranks.world_size
        by_name = {trainable.name: trainable for trainable in layout.trainables}
        spread = [bucket for bucket in layout.plan.buckets if bucket.pull is not None]
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
        self._proportions = levelling(loads, rest)

    def place(self, trainable: Trainable) -> Place:
        """Let what stays whole lie in the order of its owners, whose shares lie in theirs."""
        return super().place(trainable)._replace(order=self._owners.get(trainable.index, 0))

    def cut(self, buckets: Sequence[BucketBuffers]) -> None:
        """Say where each rank's share of each message begins."""
        for part in chain(*(bucket.parts for bucket in buckets)):
            if part.replicated:
                continue
            if self._is_whole(part.trainables[0]):
                self._cut_between(part)
                continue
            for message in part.messages:
                message.bounds = cut_by(message.stop - message.start, self._proportions)

    def _cut_between(self, part: FlatBuffer) -> None:
        numels = [trainable.parameter.numel() for trainable in part.trainables]
        held = [self._owners[trainable.index] for trainable in part.trainables]
        bounds = cut_between(numels, held, self._ranks.world_size)
        for message in part.messages:
            inside = (min(max(bound, message.start), message.stop) for bound in bounds)
            message.bounds = tuple(bound - message.start for bound in inside)


class AtRoot(_Owned):
    """The root of a bucket owns all of it."""

    def cut(self, buckets: Sequence[BucketBuffers]) -> None:
        """Let the parts of a tensor that is looked at whole have one root."""
        for part in chain(*(bucket.parts for bucket in buckets)):
            if self._is_whole(part.trainables[0]):
                root = part.messages[0].push.root
                for message in part.messages:
                    message.push = structs.replace(message.push, root=root)
                    message.pull = message.pull and structs.replace(message.pull, root=root)

    def own(self, message: Message) -> tuple[int, int]:
        """Return all of it at the root of its bucket, and nothing elsewhere."""
        mine = message.pull is None or message.push.root == self._ranks.rank
        return 0, message.gradients.numel() if mine else 0


class Elsewhere(_Owned):
    """Servers own all of every message."""

    def own(self, message: Message) -> tuple[int, int]:
        """Return nothing of what is pulled."""
        return 0, message.gradients.numel() if message.pull is None else 0


class Shares:
    """What this rank owns, as ranges of flat buffers of real elements."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for part in layout.parts:
            owned = adjoined(self.of(message) for message in part.messages)
            for trainable, offset in part.offsets():
                end = offset + trainable.parameter.numel()
                ranges = ((max(low, offset), min(high, end)) for low, high in owned)
                self._ranges[trainable.index] = [(a, b) for a, b in ranges if b > a]

    def of(self, message: Message) -> tuple[int, int]:
        """Return which elements of its flat buffer this rank owns of those that it carries."""
        low, high = self._layout.owner.own(message)
        return message.start + low, message.start + high

    def of_parameter(self, index: int) -> list[tuple[int, int]]:
        """Return this rank's ranges of a parameter, in its flat buffer, in ascending order."""
        return self._ranges[index]
