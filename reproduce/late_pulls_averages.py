"""Workers that step by themselves and average: local SGD, DiLoCo and Streaming DiLoCo.

Local SGD (Lin et al. 2020) goes on from the average of all weights. DiLoCo (Douillard et al. 2023)
takes the way from the last common weights to that average as the gradient of an outer Nesterov
step. Streaming DiLoCo (Douillard et al. 2025, Algorithm 2) cuts the weights into fragments, whose
outer steps take turns; an average is under way while workers take some steps more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Method(NamedTuple):
    """How workers average; by default local SGD.

    Attributes:
        period: H, the steps from one average of a weight to its next.
        outer_lr: learning rate of the outer step.
        outer_momentum: its Nesterov momentum.
        fragments: of the weights; the period is a multiple of it.
        overlap: tau, the steps while an average is under way; below period / fragments.
        kept: alpha, the share of a worker's own weights in what it goes on with.
    """

    period: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    fragments: int = 1
    overlap: int = 0
    kept: float = 0.0


class Averages:
    """Workers with momentum SGD each, after a warm-up of synchronous steps.

    Args:
        weights: of all workers, (P, D); changed in place.
        method: how they average.
        warm_up: how many steps are synchronous.
    """

    def __init__(self, weights: Tensor, method: Method, warm_up: int) -> None:
        self.weights, self.method, self.warm_up = weights, method, warm_up
        self.momentum = torch.zeros_like(weights)
        self.common = weights[0].clone()
        self.sent = self.common
        self.outer_momentum = torch.zeros_like(self.common)
        self.outer_steps = 0

    def step(self, gradient: Tensor, weights: Tensor, group: Mapping[str, Any], num: int) -> None:
        """Do iteration ``num``.

        Args:
            gradient: of each worker's weights, (P, D).
            weights: set to the common ones, (D,).
            group: learning rate and momentum of the workers' SGD.
            num: from 0.
        """
        local = num + 1 - self.warm_up
        used = gradient if local > 0 else gradient.mean(0)
        self.momentum.mul_(group["momentum"]).add_(used)
        self.weights.sub_(self.momentum, alpha=group["lr"])
        if local <= 0:
            self.common = self.weights[0].clone()
        else:
            apart = self.method.period // self.method.fragments
            if (local + self.method.overlap) % apart == 0:
                self.sent = self.weights.mean(0)
            if local % apart == 0:
                self._step_outside()
        weights.copy_(self.common)

    def _step_outside(self) -> None:
        """Take the outer step of the fragment that is next."""
        method = self.method
        own, common, sent, momentum = (
            each.tensor_split(method.fragments, dim=-1)[self.outer_steps % method.fragments]
            for each in (self.weights, self.common, self.sent, self.outer_momentum)
        )
        way = common - sent
        momentum.mul_(method.outer_momentum).add_(way)
        common.sub_(way.add(momentum, alpha=method.outer_momentum), alpha=method.outer_lr)
        own.copy_(common.lerp(own, method.kept))
        self.outer_steps += 1
