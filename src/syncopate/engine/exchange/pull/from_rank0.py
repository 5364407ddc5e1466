"""From rank 0: its weights are broadcast every so many steps (LP, Algorithm 3).

Where several optimizers train a model, each one's own weights after its own steps. Where the
all-reduces of gradients are bit-identical on all ranks, this changes nothing as long as every
rank's optimizer computes alike.
"""

from __future__ import annotations

from collections import Counter

from torch.optim import Optimizer

from syncopate.engine.checks.agreement import explaining
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.parts import Pull, Stepped
from syncopate.engine.model.state import broadcast_tensors


class FromRank0(Pull):
    """Pulls nothing, or rank 0's weights where the plan has a ``weight_sync_period``."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._steps: Counter[Optimizer] = Counter()

    def launch(self, stepped: Stepped) -> None:
        """Broadcast rank 0's weights, where it is their turn, and wait for them."""
        optimizer, period = stepped.optimizer, self._layout.plan.weight_sync_period
        self._steps[optimizer] += 1
        if not period or self._steps[optimizer] % period:
            return
        trained = groups.trained_ids(optimizer)
        parameters = [each.parameter for each in self._layout.trainables]
        weights = [one.data for one in parameters if id(one) in trained]
        with explaining():
            broadcast_tensors(self._layout.communicator, weights, 0)
