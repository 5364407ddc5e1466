"""Step: when one synchronised training step did what, and its spans for the timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from syncopate.recipe import Recipe
from syncopate.timeline import Span
from syncopate.tracing import Recorder
from syncopate.tracing.clocks import Clock


class Ran(Protocol):
    """What carried a message."""

    @property
    def started_s(self) -> float:
        """When it began, by ``time.perf_counter``."""

    @property
    def finished_s(self) -> float:
        """When it was over, on the same clock."""

    def wait(self) -> None:
        """Return when it is over."""


@dataclass(frozen=True)
class Sent:
    """One collective of a step: one dtype of one bucket.

    Attributes:
        bucket: the bucket's place in the plan.
        recipe: how it travelled.
        nbytes: bytes on the wire, what rode along included.
        handle: knows when it ran.
    """

    bucket: int
    recipe: Recipe
    nbytes: int
    handle: Ran


@dataclass
class Step:
    """The stamps of one step; a step ends with a synchronised backward.

    A stamp is what the engine's clock gives, or None for what did not happen: a second backward of
    one graph has no forward, the first step no update before it.

    Attributes:
        forward_start: the model was called (in the last micro-batch, when several accumulate).
        backward_start: backward reached the model's outputs, which ends forward and loss.
        backward_end: all gradients of this rank are there.
        end: all averages are there, unless they may end behind the step; where weights are pulled,
            all pulls are launched.
        update: start and end of the optimizer's step *before* this forward, which closed the
            previous iteration.
        earlier: ``(forward_start, backward_start, backward_end)`` of the accumulated micro-batches.
        ready: ``(parameter index, stamp)`` in order of readiness; only of held steps.
        closing: start and end of the optimizer's step that closed *this* iteration, where it is
            known at the step's end.
        pushes: the collectives of the gradients, in launch order.
        pulls: those of the weights, likewise; the next forward waits for them.
        called: the model was called, before ranks met; :attr:`forward_start` is after that.
    """

    forward_start: Any = None
    backward_start: Any = None
    backward_end: Any = None
    end: Any = None
    update: tuple[Any, Any] | None = None
    earlier: list[tuple[Any, Any, Any]] = field(default_factory=list)
    ready: list[tuple[int, Any]] = field(default_factory=list)
    closing: tuple[Any, Any] | None = None
    pushes: list[Sent] = field(default_factory=list)
    pulls: list[Sent] = field(default_factory=list)
    called: Any = None


class StepRecorder:
    """Keeps steps and turns them into spans when asked: recording itself is one list append.

    Args:
        rank: whose steps.
        clock: made the stamps.
    """

    def __init__(self, rank: int, clock: Clock) -> None:
        self.steps: list[Step] = []
        self._rank = rank
        self._clock = clock
        # Stamps of a device are placed on the host's clock by one moment known on both.
        self._anchor = clock.stamp()
        clock.finish()
        self._anchor_s = time.perf_counter()

    def spans(self, last_update: tuple[Any, Any] | None = None) -> tuple[Span, ...]:
        """Return the spans of every step, on ``time.perf_counter``; waits for the device.

        Args:
            last_update: the optimizer's step after the last backward.
        """
        self._clock.finish()
        recorder = Recorder(self._rank)
        updates = [step.update for step in self.steps[1:]] + [last_update]
        for iteration, (step, following) in enumerate(zip(self.steps, updates, strict=True)):
            self._add_step(recorder, iteration, step)
            update = step.closing or following
            if update is not None:
                self._add(recorder, "update", iteration, update)
        return recorder.drain()

    def _add_step(self, recorder: Recorder, iteration: int, step: Step) -> None:
        passes: Sequence[tuple[Any, Any, Any]] = (
            *step.earlier,
            (step.forward_start, step.backward_start, step.backward_end),
        )
        for forward_start, backward_start, backward_end in passes:
            if forward_start is not None:
                self._add(recorder, "forward", iteration, (forward_start, backward_start))
            self._add(recorder, "backward", iteration, (backward_start, backward_end))
        waited = step.closing[0] if step.closing else step.end
        self._add(recorder, "wait", iteration, (step.backward_end, waited))
        for lane, collectives in (("push", step.pushes), ("pull", step.pulls)):
            for sent in collectives:
                sent.handle.wait()
                recorder.add(
                    f"bucket {sent.bucket}",
                    lane,
                    (sent.handle.started_s, sent.handle.finished_s),
                    iteration=iteration,
                    channel=sent.recipe.channel,
                    nbytes=sent.nbytes,
                    detail=sent.recipe.algorithm,
                )

    def _add(self, recorder: Recorder, lane: str, iteration: int, stamps: tuple[Any, Any]) -> None:
        start_s, end_s = (
            self._anchor_s + self._clock.between_s(self._anchor, stamp) for stamp in stamps
        )
        recorder.add(lane, lane, (start_s, max(start_s, end_s)), iteration=iteration)
