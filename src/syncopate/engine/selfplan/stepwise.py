"""Stepwise: what goes along with a training, a step at a time, and what ranks agree on meanwhile.

Counted in synchronised backwards, which are the same on every rank regardless of what else it does
between them (evaluation, logging).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from syncopate.delay import LocalSGD
from syncopate.engine import console
from syncopate.engine.engine import Engine
from syncopate.engine.step import Step
from syncopate.errors import PlanError
from syncopate.tracing.capture import pause

WARMUP = 3
"""Steps before anything is measured."""

T = TypeVar("T")

Phases = Generator[None, Step, T]
"""Each ``yield`` is one step of training."""


@dataclass(frozen=True)
class Timed:
    """One step: when the one before was over, planning included, and what it did."""

    began: Any
    step: Step


class Stepwise:
    """Takes an engine, which is on a plan, through phases, a step at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: Any = None
        self._phases: Phases[None] | None = None

    def begin(self, phases: Phases[None]) -> None:
        """Go through ``phases`` from the engine's next step on; every rank calls it."""
        self._phases = phases
        next(phases)
        self._engine.readiness.listeners.append(self._step)
        self._engine.plan_with(self.stop)

    def stop(self) -> None:
        """End here and now, with the plan at work."""
        self._engine.readiness.held = False
        if self._step in self._engine.readiness.listeners:
            self._engine.readiness.listeners.remove(self._step)
        self._engine.planning_is_over()

    def _step(self, step: Step) -> None:
        assert self._phases is not None
        try:
            with pause("self-planning"):
                self._phases.send(step)
        except StopIteration:
            self.stop()
        except BaseException:
            self.stop()
            raise
        self._left = self._engine.readiness.clock.stamp()

    def _steps(self, count: int, *, held: bool = False) -> Phases[list[Timed]]:
        """Let the training take ``count`` steps; return them."""
        timed = []
        for _ in range(count):
            self._engine.readiness.held = held
            step = yield
            self._require_exchanged(step)
            timed.append(Timed(self._left, step))
        self._engine.readiness.held = False
        return timed

    def _require_exchanged(self, step: Step) -> None:
        """Refuse a step of local SGD that a rank took by itself; every rank takes the same ones.

        Raises:
            PlanError: there is nothing to measure in it.
        """
        delay = self._engine.delay
        if isinstance(delay, LocalSGD) and not step.pushes:
            raise PlanError(
                f"the warm_up of LocalSGD, {delay.warm_up} steps, was over before measuring was, "
                "and a step by itself sends nothing; give a longer one, or plan="
            )

    def _durations(self, timed: Sequence[Timed]) -> list[float]:
        """Return the durations of steps, the mean over ranks, without the planning between them."""
        own = self._own_durations(timed)
        everyone = self._engine.communicator.all_gather_object(own)
        return [sum(same) / len(same) for same in zip(*everyone, strict=True)]

    def _own_durations(self, timed: Sequence[Timed]) -> list[float]:
        """Return the durations of steps on this rank."""
        clock = self._engine.readiness.clock
        clock.finish()
        return [clock.between_s(one.began, one.step.end) for one in timed]

    def _agreed(self, value: T) -> T:
        """Return rank 0's value, because floating point may differ between ranks."""
        agreed: T = self._engine.communicator.broadcast_object(value)
        return agreed

    def _say(self, message: str) -> None:
        """Log one line on rank 0; on standard error where logging is not configured."""
        if self._engine.communicator.rank == 0:
            console.log(message)
