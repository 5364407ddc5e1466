"""Local: what a rank keeps of one flat buffer while it trains on weights of its own.

The parameters stay where they are: their memory holds the *local* weights. What else there is:

| what | how much | for which rule |
| --- | --- | --- |
| masters: this rank's ranges of the global weights, if ranks own them | a p-th | all |
| gradient: this rank's own, where its bucket does not keep it | all | all but none |
| retrieved: where pulled weights arrive while forward and backward run | all | all but none |
| before: ``pre_weight``, the weights that were retrieved before | all | glu, dc-asgd-a |
| squares: the running mean square of the gradient | all | dc-asgd-a |

[Note: two buffers in turn] An update after a pull begins with the retrieved weights, looks at those
before, and makes the former the latter. So the two exchange their places, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
from torch import Tensor

from syncopate.delay import DC_ASGD_A, GLU, Delay
from syncopate.engine.buckets import FlatBuffer, Message, view_like
from syncopate.engine.exchange.delay.rules import Flat, Hyper, apply
from syncopate.engine.exchange.layout import Work, arrived

STATE = ("weights", "before", "retrieved", "squares")
"""What of a flat buffer is a rank's own, and not to be had from the others."""


class Local:
    """The local weights of one flat buffer, and their rule's memory; see the module.

    Args:
        part: the flat buffer.
        weights: its weights, flat; the global ones now, and the local ones from now on.
        gradient: where this rank's gradient is when the local rule looks at it; empty for none.
        delay: what rule there is.
        owned: per message the range that this rank owns.

    Attributes:
        part: as given.
        weights: as given.
        masters: this rank's ranges of the global weights, one behind the other.
        gradient, before, retrieved, squares: flat, each empty where there is none.
        fresh: whether what was retrieved is to be begun with.
        arriving: the pulls towards :attr:`retrieved` that no look has waited for yet.
        working: the update that runs aside; None where none does.
    """

    def __init__(
        self,
        part: FlatBuffer,
        weights: Tensor,
        gradient: Tensor,
        delay: Delay,
        owned: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.part, self.weights, self.gradient = part, weights, gradient
        self._owned = tuple(owned)
        self.masters = torch.cat([weights[:0], *(weights[low:high] for low, high in owned)])
        none = weights[:0]
        remembers = delay.local_update in (GLU, DC_ASGD_A)
        self.retrieved = torch.empty_like(weights) if delay.runs_ahead else none
        self.before = weights.clone() if remembers else none
        squares = delay.local_update == DC_ASGD_A
        self.squares = torch.zeros_like(weights) if squares else none
        self.fresh = False
        self.arriving: list[Work] = []
        self.working: Future[None] | None = None

    def place_of_master(self, element: int) -> int:
        """Return where among the masters the ``element`` of the flat buffer is."""
        before = 0
        for low, high in self._owned:
            if low <= element < high:
                return before + element - low
            before += high - low
        raise AssertionError(f"element {element} is another rank's")

    def give_masters(self, flat: Tensor) -> None:
        """Copy this rank's ranges of the global weights to their places in ``flat``."""
        start = 0
        for low, high in self._owned:
            flat[low:high].copy_(self.masters[start : start + high - low])
            start += high - low

    def masters_differ(self) -> bool:
        """Say whether this rank's ranges of the weights are other values than the masters."""
        here = torch.cat([self.weights[low:high] for low, high in self._owned])
        return not torch.equal(here.view(torch.uint8), self.masters.view(torch.uint8))

    @torch.no_grad()
    def keep_gradient(self, message: Message) -> None:
        """Copy this rank's gradient in ``message``, before the collective destroys it."""
        self.gradient[message.start : message.stop].copy_(message.gradients)

    def settle(self) -> None:
        """Wait for an update that runs aside.

        Raises:
            CollectiveError, ParameterServerError: a rank or a server is lost.
        """
        working, self.working = self.working, None
        if working is not None:
            working.result()

    def expect(self) -> None:
        """Wait for the weights on their way here.

        Raises:
            CollectiveError, ParameterServerError: a rank or a server is lost.
        """
        arriving, self.arriving = self.arriving, []
        for each in arriving:
            arrived(each)

    def forget_pulls(self) -> None:
        """Forget weights that were to be pulled; no pull of them was launched."""
        self.fresh, self.arriving = False, []

    def updating(self, runs: Sequence[tuple[int, int, Hyper]]) -> Callable[[], None]:
        """Return the function that updates the local weights, each range by its rule.

        It begins with what was retrieved, where something was, and waits for that; the next pull
        may be launched meanwhile. See [Note: two buffers in turn].
        """
        flat = Flat(self.weights, self.gradient, self.before, self.squares)
        if not self.fresh:
            return partial(apply, flat, runs)
        begun_with, arriving = self.retrieved, self.arriving
        self.fresh, self.arriving = False, []
        if self.before.numel():
            self.before, self.retrieved = self.retrieved, self.before

        def update() -> None:
            for each in arriving:
                arrived(each)
            apply(flat._replace(begun=begun_with), runs)

        return update

    # -- to go on where another process left -----------------------------------------------------

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of this rank's own, by name and parameter; waits for all of it."""
        self.settle()
        self.expect()
        return {
            name: {
                trainable.name: view_like(trainable.parameter, flat, offset).to("cpu", copy=True)
                for trainable, offset in self.part.offsets()
            }
            for name in STATE
            if (flat := getattr(self, name)).numel() and (name != "retrieved" or self.fresh)
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the result of :meth:`state`."""
        self.fresh = "retrieved" in state
        for name in STATE:
            flat = getattr(self, name)
            for trainable, offset in self.part.offsets() if name in state and flat.numel() else ():
                view_like(trainable.parameter, flat, offset).copy_(state[name][trainable.name])
