"""Deferred steps: what an optimizer's step would have done, done for some parameters later.

A copy of the optimizer makes it (``optimizers.py``, [Note: a copy of the optimizer]). Its
parameters are others on the same memory, each with its average as gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from syncopate.engine.exchange.groups import parameters_of
from syncopate.engine.exchange.optimizers import copy_for, step_with
from syncopate.engine.exchange.proxies.state import raw_state

StandIn = Callable[[Tensor], tuple[int, nn.Parameter] | None]


class DeferredStep:
    """One step of an optimizer on some parameters; see the module.

    Args:
        optimizer: whose step.
        noted: its attributes when it stepped.
        stand_in: returns of a parameter its index and the parameter that stands for it.
        indices: of the parameters to update.
        gradients: per index the gradient.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        noted: Mapping[str, Any],
        stand_in: StandIn,
        indices: set[int],
        gradients: Mapping[int, Tensor],
    ) -> None:
        # The script may give the optimizer another state before this is done.
        self._state = raw_state(optimizer)
        self._pairs: list[tuple[Tensor, nn.Parameter, Tensor]] = []
        standing: list[list[nn.Parameter]] = []
        for parameters in parameters_of(optimizer):
            found = [(each, stand_in(each)) for each in parameters]
            own = [(p, one[1], gradients[one[0]]) for p, one in found if one and one[0] in indices]
            self._pairs += own
            standing.append([parameter for _, parameter, _ in own])
        self._copy = copy_for(optimizer, standing, noted)

    def __call__(self) -> None:
        """Update the parameters, on any thread."""
        state = self._state
        known: dict[Tensor, Any] = {
            stand_in: state[p] for p, stand_in, _ in self._pairs if p in state
        }
        self._copy.state = defaultdict(dict, known)
        try:
            step_with(self._copy, [(stand_in, gradient) for _, stand_in, gradient in self._pairs])
        finally:
            for parameter, stand_in, _ in self._pairs:
                if stand_in in self._copy.state:
                    state[parameter] = self._copy.state[stand_in]
