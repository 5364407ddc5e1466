"""Step: the stamps of one synchronised training step, and the events that recorders take of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from syncopate.recipe import Recipe
from syncopate.tracing.clocks import Clock
from syncopate.tracing.recorder import Event, Recorder

_MOST_PENDING = 32
"""Steps of which something may be on its way; what is under way then is dropped."""

_UNKNOWN_S = float("nan")


class State(IntEnum):
    """What the current backward does with its gradients."""

    IDLE = 0
    """No backward runs."""
    SYNC = 1
    """Buckets are launched as they become ready."""
    HELD = 2
    """Ready times are noted; every bucket is launched at the end."""
    SKIP = 3
    """Gradients accumulate locally (``no_sync``)."""


class Move(IntEnum):
    """The next action of a rank, which ranks announce within ``join()``."""

    JOINED = 0
    """Nothing of its own: it has run out of inputs."""
    FORWARD = 1
    """The exchange of buffers before a forward."""
    BACKWARD = 2
    """The exchange of gradients."""

    @property
    def describe(self) -> str:
        """For messages."""
        return ("ran out of inputs", "began a forward", "came to a backward")[self]


class Ran(Protocol):
    """The handle of a collective or a message."""

    @property
    def launched_s(self) -> float:
        """When it was handed over, by ``time.perf_counter``."""

    @property
    def started_s(self) -> float:
        """When it began, by ``time.perf_counter``."""

    @property
    def finished_s(self) -> float:
        """When it was over, on the same clock."""

    def done(self) -> bool:
        """Say whether it is over, without blocking."""

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
        ready: when all that a push carries was there; None: not known.
    """

    bucket: int
    recipe: Recipe
    nbytes: int
    handle: Ran
    ready: Any = None


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
        number: counts the synchronised backwards, from 0.
        arrived: when the last gradient of a bucket was there, by launch order; kept where
            there is a listener.
        waits: ``(bucket, start_s, end_s)`` of waits for weights, by ``time.perf_counter``.
        updates: ``(bucket, start_s, end_s)`` of updates that were left to the forward, likewise.
        whole: whether it is a step; else only the update that closes one that was noted before.
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
    number: int = 0
    arrived: dict[int, Any] = field(default_factory=dict)
    waits: list[tuple[int, float, float]] = field(default_factory=list)
    updates: list[tuple[int, float, float]] = field(default_factory=list)
    whole: bool = True

    @property
    def timings(self) -> tuple[tuple[int, int, float, float], ...]:
        """``(bucket, bytes on the wire, start, end)`` of each push, in launch order, once over."""
        return tuple(
            (push.bucket, push.nbytes, push.handle.started_s, push.handle.finished_s)
            for push in self.pushes
        )


class Watch(Protocol):
    """Sees every step of a plan that has settled, and says when ranks shall plan again.

    Attributes:
        asks: whether this rank asks for a new plan, in what it says with its next gradients.
        due: whether enough ranks have asked, in a message that every rank has read.
    """

    asks: bool
    due: bool

    def __call__(self, step: Step) -> None:
        """Take a step that is over on this rank; it has no stamp of its end."""

    def hear(self, asking: Sequence[int]) -> None:
        """Take the ranks that asked; every rank hears the same, at the same step."""

    def begin(self) -> None:
        """Begin to plan, with the step whose backward begins; every rank does."""


class StepRecorder:
    """Listens to steps and notes their events, once all that was launched in them is over.

    They are of the ``model``-th model of this process, stamped by ``clock``.
    """

    def __init__(self, recorder: Recorder, clock: Clock, model: int = 0) -> None:
        self.recorder = recorder
        self._model = model
        self._clock = clock
        self._pending: deque[Step] = deque()
        self._updated = -1
        self._last: int | None = None
        # Stamps of a device are placed on the host's clock by one moment known on both. Where the
        # stamps are the host's own, a second look would differ by what the processor did between.
        self._anchor = clock.stamp()
        clock.finish()
        known_s = clock.host_s(self._anchor)
        self._anchor_s = time.perf_counter() if known_s is None else known_s

    def __call__(self, step: Step) -> None:
        """Take a step that is over for this rank; parts of it may be on their way."""
        if step.update is not None and self._last == step.number - 1:
            self._pending.append(Step(number=step.number - 1, closing=step.update, whole=False))
        self._pending.append(step)
        self._last = step.number
        while self._pending and self._is_over(self._pending[0]):
            self._put(self._pending.popleft())
        while len(self._pending) > _MOST_PENDING:
            step = self._pending.popleft()
            self.recorder.drop(len(step.pushes) + len(step.pulls) + 1)

    def closed(self, update: tuple[Any, Any] | None) -> None:
        """Take the optimizer's step that closed the last step, where that is not said otherwise."""
        if update is not None and self._last is not None:
            self._pending.append(Step(number=self._last, closing=update, whole=False))

    def finish(self, *, wait: bool) -> None:
        """Record the steps that are still open.

        Args:
            wait: for what is on its way. Otherwise a step of which something is, is left out: it is
                as if there were no listener, and does not count as dropped.

        Raises:
            CollectiveError: a rank is lost or late; only where it waits.
        """
        if wait:
            self._clock.finish()
            for step in self._pending:
                for sent in (*step.pushes, *step.pulls):
                    sent.handle.wait()
        while self._pending:
            step = self._pending.popleft()
            if self._is_over(step):
                self._put(step)

    def _is_over(self, step: Step) -> bool:
        last = step.closing[1] if step.closing else step.end
        sent = (*step.pushes, *step.pulls)
        return self._clock.reached(last) and all(one.handle.done() for one in sent)

    def _put(self, step: Step) -> None:
        events = list(self._events(step)) if step.whole else []
        if step.closing is not None and self._updated < step.number:
            events.append(self._between("update", step, *step.closing))
            self._updated = step.number
        self.recorder.add(events)

    def _events(self, step: Step) -> Iterator[Event]:
        passes: Sequence[tuple[Any, Any, Any]] = (
            *step.earlier,
            (step.forward_start, step.backward_start, step.backward_end),
        )
        for forward_start, backward_start, backward_end in passes:
            if forward_start is not None:
                yield self._between("forward", step, forward_start, backward_start)
            yield self._between("backward", step, backward_start, backward_end)
        waited = step.closing[0] if step.closing else step.end
        yield self._between("wait", step, step.backward_end, waited)
        for bucket, start_s, end_s in step.waits:
            yield Event("wait", start_s, end_s, step.number, bucket, model=self._model)
        for bucket, start_s, end_s in step.updates:
            yield Event("update", start_s, end_s, step.number, bucket, model=self._model)
        for lane, collectives in (("push", step.pushes), ("pull", step.pulls)):
            for sent in collectives:
                handle, recipe = sent.handle, sent.recipe
                start_s, end_s = handle.started_s, handle.finished_s
                if not end_s >= start_s:
                    continue  # it failed, and its end is not known
                ready_s = _UNKNOWN_S if sent.ready is None else self._host_s(sent.ready)
                yield Event(
                    lane, start_s, end_s, step.number, sent.bucket, recipe.channel, sent.nbytes,
                    recipe.algorithm, handle.launched_s, ready_s, self._model,
                )  # fmt: skip
        # A clock that was compared long ago has drifted, and a long time has few digits left.
        self._anchor, self._anchor_s = step.end, self._host_s(step.end)

    def _between(self, lane: str, step: Step, start: Any, end: Any) -> Event:
        start_s, end_s = self._host_s(start), self._host_s(end)
        return Event(lane, start_s, max(start_s, end_s), step.number, model=self._model)

    def _host_s(self, stamp: Any) -> float:
        return self._anchor_s + self._clock.between_s(self._anchor, stamp)
