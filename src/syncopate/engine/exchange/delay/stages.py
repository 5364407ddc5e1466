"""Stages: the warm-up of a training with a delay, and then weights of each rank's own.

Gradients are pushed in every step, and the owners of the *global* weights update them. During the
warm-up that is all. Then what the parameters hold becomes each rank's own, the *local* weights:
beside the global update, a local rule updates them with the rank's own gradient. In the step
``num`` with ``num % k == k - 1`` the global weights are pulled, into memory of their own, while the
whole next iteration runs on the local ones; its local update begins with what was pulled (Xu et al.
2021, Algorithms 1 and 2).

[Note: when the delay begins] With the first iteration after the warm-up of which ``num % k`` is 0.
So it does where weights were loaded or another plan was installed: until then training goes on
synchronously, from the global weights. Loading a local state goes on at once, on the same local
weights.
"""

# ruff: noqa: B027  (masters do nothing in a call that they do not need)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer, Message, Trainable
from syncopate.engine.exchange.delay.iterations import expect_iterations, iterations_of
from syncopate.engine.exchange.delay.local import Local
from syncopate.engine.exchange.delay.rules import require_rule
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout, Work, nothing


class Masters(ABC):
    """Has the global weights while ranks train on weights of their own."""

    @abstractmethod
    def begin(self, part: FlatBuffer) -> Local:
        """Return the local weights of a flat buffer, which are this rank's own from now on."""

    def end(self, local: Local) -> None:
        """Drop the local weights of a flat buffer; its weights are the global ones again."""

    def give(self, local: Local, flat: Tensor) -> None:
        """Copy this rank's share of the weights to ``flat``, which is about to be pulled."""

    @abstractmethod
    def pull(self, part: FlatBuffer, message: Message, flat: Tensor) -> Work:
        """Begin to bring the global weights that ``message`` carries into ``flat``.

        ``flat`` is as long as the flat buffer. Returns what waits for them, and notes it among the
        pulls of the traffic.
        """

    def take_gradient(self, trainable: Trainable) -> None:
        """Bring a parameter's gradient into its place: an update begins, and reads it there."""

    def guard(self) -> AbstractContextManager[None]:
        """Return a block around one in which the parameters hold the global weights."""
        return nullcontext()

    @abstractmethod
    def gather(self) -> None:
        """Bring the global weights of all flat buffers into their places; all ranks call it."""

    @abstractmethod
    def written(self) -> bool:
        """Say whether a rank wrote to the global weights since they were gathered."""


class Stages:
    """Which flat buffers hold weights of this rank's own.

    Attributes:
        delay: that of the plan.
        masters: has the global weights; set when the exchange is composed.
        here: identity of a flat buffer -> what is kept of it, where it holds local weights.
        parts: the flat buffers whose weights are pulled.
        own_buffers: whether the model's buffers are this rank's own.
        finish: waits for what a step left to come behind it.
    """

    masters: Masters

    def __init__(self, layout: Layout) -> None:
        assert layout.plan.delay is not None
        self._layout, self._weights = layout, layout.shared(FlatWeights)
        self.delay = layout.plan.delay
        expect_iterations(layout.optimizers)
        require_rule(self.delay, layout.optimizers)
        self.here: dict[int, Local] = {}
        self.parts = list(dict.fromkeys(part for part, _ in layout.pulled))
        self.own_buffers = False
        self.finish: Callable[[], None] = nothing

    def taken(self, part: FlatBuffer) -> int:
        """Return how many steps the optimizer of a flat buffer took."""
        trained = self._layout.trained[part.trainables[0].index]
        return iterations_of(self._layout.optimizers[trained.optimizer])

    def of(self, part: FlatBuffer) -> Local | None:
        """Return the local weights of a flat buffer in this iteration; None in the warm-up."""
        local, num = self.here.get(id(part)), self.taken(part)
        begins = num > self.delay.wp and num % self.delay.k == 0
        if local is None and begins and not part.replicated:
            return self.enter(part)
        return local

    @torch.no_grad()
    def enter(self, part: FlatBuffer) -> Local:
        """Let the weights of a flat buffer be this rank's own from now on."""
        self._weights.arrive(id(part))
        local = self.here[id(part)] = self.masters.begin(part)
        return local

    @torch.no_grad()
    def exit(self) -> None:
        """Let all weights be the global ones again, which every rank has in their places by now."""
        self.finish()
        while self.here:
            key, local = self.here.popitem()
            self._weights.arrive(key)
            local.settle()
            local.expect()
            self.masters.end(local)
        self.own_buffers = False

    def pulls_now(self, part: FlatBuffer) -> bool:
        """Whether the step that ends now pulls the global weights of a flat buffer."""
        return self.taken(part) % self.delay.k == 0  # num + 1 steps were taken

    def any_will_pull(self) -> bool:
        """Whether the step that comes pulls some weights."""
        return any((self.taken(part) + 1) % self.delay.k == 0 for part in self.parts)
