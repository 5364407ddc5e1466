"""What tests of self-planning share: a training beside DDP that plans for itself, and its log."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from syncopate.artifacts.cluster import Cluster
from syncopate.engine.selfplan import payback, phases
from tests.multiprocess.engine.cases import TIMEOUT_S, Pair, data, distribute

CLUSTER = Cluster.flat(2, latency_s=1e-5, bandwidth_bytes_per_s=1e9)

MOST_STEPS = 50_000
"""Steps take milliseconds, and what plans beside them has little of a busy machine."""

EVERYTHING = 1e9
"""A share of the time that lets nothing wait: steps here take milliseconds."""


def small_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 2)
    )


class SelfPlanned(Pair):
    """A pair whose Syncopate half plans for itself."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__(rank, small_model)
        model, optimizer = self.model, self.optimizer
        model.syncopate.detach()
        self.model, self.optimizer = distribute(model, optimizer, timeout_s=TIMEOUT_S, **options)

    def train(self, rank: int, steps: int) -> None:
        for step in range(steps):

            def train(model: Any, optimizer: Any, step: int = step) -> None:
                optimizer.zero_grad()
                with model.no_sync():
                    model(data(rank, 2 * step, 4, 8)).square().mean().backward()
                model(data(rank, 2 * step + 1, 4, 8)).square().mean().backward()
                optimizer.step()

            self.run(train)
            # What a rank does between its steps is its own affair.
            self.model.eval()
            for _ in range(step % 3 + rank):
                with torch.no_grad():
                    self.model(data(rank, 0, 4, 8))
                self.model(data(rank, 0, 4, 8)).sum()
            self.model.train()

    def settle(self, rank: int) -> int:
        """Train until self-planning is over; return after how many steps."""
        for step in range(1, MOST_STEPS):
            self.train(rank, 1)
            if not self.model.syncopate.planning:
                return step
        raise AssertionError(f"still planning after {MOST_STEPS} steps")

    def forge(self, ddp_s: float, plan_s: float) -> None:
        """Let this rank's clock say that steps take so long, by the plan at work."""
        engine = self.model.syncopate
        # A forged clock says nothing of what could be gained.
        phases.least_step_s = lambda *_: 0.0

        def between_s(_: Any, __: Any) -> float:
            return plan_s if engine.plan.policy == "wfbp" else ddp_s

        engine.readiness.clock.between_s = between_s


@contextmanager
def stderr() -> Iterator[io.StringIO]:
    """Catch what is logged, which is on standard error where logging is not configured."""
    log, before = io.StringIO(), sys.stderr
    sys.stderr = log
    logging.getLogger("syncopate").handlers.clear()
    try:
        yield log
    finally:
        sys.stderr = before
        logging.getLogger("syncopate").handlers.clear()


def at_any_price() -> None:
    """Let self-planning wait for nothing, and find no plan good enough."""
    payback.SHARE = EVERYTHING
    phases.least_step_s = lambda *_: 0.0
