"""Published: figures of a training while it runs: to Prometheus, and to TensorBoard.

Each rank says what it knows by itself, off the stamps that its steps have anyway. Every so many
steps it takes its figures, which costs less than a millisecond, in the thread of training.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import nn

from syncopate.analysis.phases import stalling
from syncopate.analysis.ranks.by_rank import RankFigures, by_rank
from syncopate.artifacts.timeline import Timeline
from syncopate.engine.step import Step, StepRecorder
from syncopate.errors import InvalidValueError
from syncopate.metrics.endpoint import Endpoint, endpoint, local_rank, wanted
from syncopate.metrics.place import place_of
from syncopate.metrics.prometheus import Metric, Sample
from syncopate.tracing.recorder import Recorder, Records, spans_of

if TYPE_CHECKING:
    from syncopate.engine.engine import Engine

EVERY = 10
"""Steps from one time that figures are taken to the next."""

_CAPACITY = 1 << 16
_TAG = "syncopate"
_log = logging.getLogger("syncopate")


class Writer(Protocol):
    """What scalars are written to, such as ``torch.utils.tensorboard.SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any) -> Any:
        """Note the value of ``tag`` at a step."""


class Published:
    """The figures of one training, as they are published by this rank: see :func:`publish`.

    Attributes:
        address: the URL or file of the metrics; empty: there is none.
    """

    def __init__(
        self, engine: Engine, writer: Writer | None, where: Endpoint | None, every: int
    ) -> None:
        self.address = "" if where is None else where.address
        self._engine = engine
        self._writer = writer
        self._where = where
        self._every = every
        self._recorder = Recorder(_CAPACITY)
        self._steps = StepRecorder(self._recorder, engine.readiness.clock)
        self._held: Records | None = None
        self._figures: RankFigures | None = None
        self._totals = dict.fromkeys(("steps", "waiting_s", "exposed_s", "nbytes"), 0.0)
        engine.readiness.listeners.append(self._step)
        engine.recording.ending.append(self.close)
        if where is not None:
            where.add(self.metrics)

    def close(self) -> None:
        """Publish no more of this training."""
        if self._step in self._engine.readiness.listeners:
            self._engine.readiness.listeners.remove(self._step)
        if self._where is not None:
            self._where.remove(self.metrics)

    def metrics(self) -> Iterator[Metric]:
        """Yield what is known now; any thread may call it."""
        labels = {"rank": str(self._engine.communicator.rank), "model": self._engine.model_name}
        plan = self._engine.plan
        told = {"policy": plan.policy, "exchange": plan.exchange, "buckets": str(len(plan.buckets))}
        yield Metric(
            "syncopate_plan", "gauge", "The plan that is in use.", [Sample(1, labels | told)]
        )
        for name, key, what in _COUNTED:
            yield Metric(name, "counter", what, [Sample(self._totals[key], labels)])
        found = self._figures
        if found is None:
            return
        last = (
            ("iteration", found.iteration, "The last iteration that is counted here."),
            ("step_seconds", found.step_s, "From one iteration to the next, in the median."),
            ("bus_bytes_per_second", found.bus_bytes_per_s, "Bus bandwidth of its messages."),
        )
        for name, value, what in last:
            if value is not None:
                yield Metric(f"syncopate_{name}", "gauge", what, [Sample(value, labels)])

    def _step(self, step: Step) -> None:
        self._steps(step)
        if step.number % self._every:
            return
        try:
            self._take()
        except Exception as error:  # the training matters more
            _log.warning("figures are published no more: %s: %s", type(error).__name__, error)
            self.close()

    def _take(self) -> None:
        """Take the figures of the iterations that are over."""
        new = self._recorder.take()
        records = new if self._held is None else np.concatenate([self._held, new])
        newest = records["iteration"].max(initial=-1)
        over = records["iteration"] < newest
        self._held = records[~over]
        if not over.any():
            return
        rank, size = self._engine.communicator.rank, self._engine.communicator.world_size
        spans = spans_of(records[over], self._recorder.texts, rank)
        said = {"exchange": self._engine.plan.exchange}
        timeline = Timeline(
            name="published", source="measured", world_size=size, spans=spans, metadata=said
        )
        (found,) = by_rank(timeline)
        count = len(np.unique(spans.iteration))
        waits = stalling(spans)
        waiting_s = float((spans.end_s[waits] - spans.start_s[waits]).sum())
        self._totals["steps"] += count
        self._totals["waiting_s"] += waiting_s
        self._totals["exposed_s"] += found.exposed_s * count
        self._totals["nbytes"] += found.nbytes * count
        self._figures = found
        if self._writer is not None:
            self._write(self._writer, found, waiting_s / count)

    def _write(self, writer: Writer, found: RankFigures, waiting_s: float) -> None:
        values = {
            "step_s": found.step_s,
            "waiting_s": waiting_s,
            "exposed_s": found.exposed_s,
            "nbytes": found.nbytes,
            "busbw_bytes_per_s": found.bus_bytes_per_s,
        }
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"{_TAG}/{name}", value, found.iteration)


_COUNTED = (
    ("syncopate_steps_total", "steps", "Steps that are counted here."),
    (
        "syncopate_waiting_seconds_total",
        "waiting_s",
        "Time from the end of backward until averages were there, and waits for weights.",
    ),
    (
        "syncopate_exposed_seconds_total",
        "exposed_s",
        "Time in which messages were under way and nothing was computed.",
    ),
    ("syncopate_communicated_bytes_total", "nbytes", "Bytes pushed and pulled."),
)


def publish(
    model: nn.Module,
    *,
    writer: Writer | None = None,
    metrics: str | int | os.PathLike[str] | None = None,
    every: int = EVERY,
) -> Published:
    """Publish figures of a training while it runs; each rank says what it knows by itself.

    Args:
        model: that ``distribute`` was called with.
        writer: gets scalars, such as ``torch.utils.tensorboard.SummaryWriter``; mostly on rank 0.
        metrics: gets Prometheus metrics: a port of this machine, to which the rank's number on its
            host is added; ``"0.0.0.0:9464"``, a port of all addresses; or a directory, for a file
            of each rank. ``SYNCOPATE_METRICS`` says the same without touching the script.
        every: so many steps are summed up in one value.

    Returns:
        What publishes them, until ``close()``; ``address`` says where metrics are.

    Raises:
        InvalidValueError: the model is not distributed, nothing is to get them, or no such place.
        ArtifactError: the directory cannot be written to.

    Example:
        >>> syncopate.publish(model, writer=SummaryWriter("runs/a"))  # doctest: +SKIP
    """
    engine: Engine | None = getattr(model, "syncopate", None)
    if engine is None:
        rule = "one that syncopate.distribute was called with; of others `syncopate watch` tells"
        raise InvalidValueError("model", type(model).__name__, rule)
    if writer is None and metrics is None:
        raise InvalidValueError("writer", writer, "given, or metrics, or both")
    if writer is not None and not callable(getattr(writer, "add_scalar", None)):
        rule = "one with add_scalar(), as torch.utils.tensorboard.SummaryWriter has"
        raise InvalidValueError("writer", writer, rule)
    if not isinstance(every, int) or every < 1:
        raise InvalidValueError("every", every, "an integer >= 1")
    where = None
    if metrics is not None:
        place = place_of(metrics, shift=local_rank(os.environ))
        where = endpoint(place, f"rank-{engine.communicator.rank}")
    return Published(engine, writer, where, every)


def publish_if_asked(engine: Engine) -> None:
    """Publish metrics where the environment says so."""
    where = wanted(os.environ, f"rank-{engine.communicator.rank}")
    if where is not None:
        Published(engine, None, where, EVERY)
