"""Shards: ranks have the global weights, each its own ranges of them: SSD-SGD without a server.

Gradients are reduce-scattered in every step, and each owner updates its shard of the global weights
by the user's optimizer; every k-th step these are gathered.

[Note: what is done to gradients] ``parameter.grad`` is the average, as with the sharded exchange.
What changes each of its elements, such as clipping and unscaling, changes the rank's own gradient
in the same way before the local rule sees it, and no more once that may run aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer, Message, Trainable, view_like
from syncopate.engine.exchange.delay.behind_steps import Behind
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.stages import Masters, Stages
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout, Work
from syncopate.engine.exchange.notes import Ranks
from syncopate.engine.exchange.proxies.gradients import Partial
from syncopate.engine.exchange.proxies.partial_gradients import PartialGradients
from syncopate.engine.exchange.push.gathering import Gathering
from syncopate.engine.exchange.shares import Shares
from syncopate.engine.exchange.update.pieces import Pieces
from syncopate.errors import EngineError


class OwnMasters(Masters):
    """This rank's shards of the global weights; see :class:`Masters`."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._stages = layout, layout.shared(Stages)
        self._weights, self._pieces = layout.shared(FlatWeights), layout.shared(Pieces).of
        self._shares, self._gradients = layout.shared(Shares), layout.shared(Partial)
        self._behind, self._ranks = layout.shared(Behind), layout.shared(Ranks)
        self._beside: dict[int, Tensor] = {}
        layout.lend(layout.shared(Gathering), "keeping", self._keep)

    def begin(self, part: FlatBuffer) -> Local:
        """Give this rank's pieces memory of their own, where the global weights go on."""
        weights, delay = self._weights.of(part), self._stages.delay
        owned = [self._shares.of(message) for message in part.messages]
        gradient = torch.zeros_like(weights if delay.runs_ahead else weights[:0])
        local = Local(part, weights, gradient, delay, owned)
        for trainable, offset in part.offsets():
            for piece in self._pieces[trainable.index]:
                place = local.place_of_master(offset + piece.start)
                piece.parameter.data = view_like(piece.parameter, local.masters, place)
            if delay.runs_ahead:
                self._beside[trainable.index] = view_like(trainable.parameter, gradient, offset)
        return local

    def end(self, local: Local) -> None:
        """Let pieces be views of the weights again."""
        for trainable, offset in local.part.offsets():
            for piece in self._pieces[trainable.index]:
                place = offset + piece.start
                piece.parameter.data = view_like(piece.parameter, local.weights, place)
            self._gradients.at(trainable.index).beside = None
            self._beside.pop(trainable.index, None)

    def give(self, local: Local, flat: Tensor) -> None:
        """Copy this rank's shards to ``flat``, unless their update behind the step will do so."""
        if self._behind.ending is None:
            local.give_masters(flat)

    def pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        """Gather the global weights, now, behind the step, or behind the next pushes."""
        return self._behind.pull(part, message, flat)

    # -- this rank's own gradients ---------------------------------------------------------------

    def _keep(self, part: FlatBuffer) -> Sequence[Callable[[], None]]:
        """Return memory for the gradients of a flat buffer, which the reduce-scatter destroys."""
        local = self._stages.of(part)
        if local is None or not local.gradient.numel():
            return ()
        local.settle()  # an update that no look waited for still looks at the gradient before
        for trainable in part.trainables:  # see [Note: what is done to gradients]
            self._gradients.at(trainable.index).beside = self._beside[trainable.index]
        return [partial(local.keep_gradient, message) for message in part.messages]

    def take_gradient(self, trainable: Trainable) -> None:
        """Take a gradient that the script put in the place of ours."""
        gradient, given = self._gradients.at(trainable.index), trainable.parameter.grad
        if given is not None and not gradient.is_place_of(given):
            self._beside[trainable.index].copy_(given)
        gradient.beside = None

    # -- the global weights in their places -----------------------------------------------------

    def gather(self) -> None:
        """Bring the global weights of all flat buffers into their places; all ranks call it."""
        self._behind.finish()
        self._weights.ready()
        for part in self._stages.parts:
            if (local := self._stages.here.get(id(part))) is not None:
                local.settle()
                local.give_masters(local.weights)
                self._layout.gather(part, local.weights)
        self._weights.renewed()

    def written(self) -> bool:
        """Say whether a rank wrote to the global weights since they were gathered."""
        local = self._stages.here.values()
        return self._ranks.anyone(not local or any(each.masters_differ() for each in local))


class UnmixedGradients(PartialGradients):
    """Partial gradients that are never accumulated onto an average.

    Of an average a rank knows its own part, and not what its own gradient in there is.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._stages = layout.shared(Stages)

    def adapt(self, entered: int | None = None) -> None:
        """Refuse to accumulate onto an average; on every rank."""
        super().adapt(entered)
        # Of what another rank owns zeros are left here, and what is added to them is this rank's.
        mine = {id(view.whole) for _, view in self._held.all() if view.own}
        carried = self._held.carried
        if mine & carried and self._stages.delay.runs_ahead and self._stages.here:
            carried.clear()
            raise EngineError(
                "gradients of the step before are still there, and they are averages; the local "
                "update needs this rank's own gradient. Call zero_grad() after each step"
            )
