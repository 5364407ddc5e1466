"""Recording: what is noted of an engine's steps, when it is asked for, and for the run's trace."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import SERVED, Plan
from syncopate.artifacts.timeline import OWN_CLUSTER, Timeline, about_servers
from syncopate.collectives import Communicator
from syncopate.engine.exchange.serving.servers import Servers
from syncopate.engine.readiness import Readiness
from syncopate.engine.step import StepRecorder
from syncopate.errors import EngineError
from syncopate.tracing import capture as captures
from syncopate.tracing.merge import ClockOffset, merge
from syncopate.tracing.offsets import clock_offsets
from syncopate.tracing.recorder import Recorder, spans_of


class Told(NamedTuple):
    """What a rank tells the others, for the files of a run.

    Attributes:
        host: where it is.
        token: random; rank 0's becomes the name of the run.
        traced: whether it captures.
    """

    host: str
    token: str
    traced: bool


def tell(host: str) -> Told:
    """Return this rank's entry."""
    return Told(host, secrets.token_hex(8), captures.wanted())


class Recording:
    """Notes the steps of one engine.

    Attributes:
        member: who this process is in the run; known after :meth:`enrol`.
        ending: called when the training is over.
    """

    member: captures.Member

    def __init__(self, readiness: Readiness, communicator: Communicator) -> None:
        self._readiness = readiness
        self._communicator = communicator
        self._own: StepRecorder | None = None
        self._on = False
        self._capture: captures.Capture | None = None
        self._traced: StepRecorder | None = None
        self._model = 0
        self._plan: Plan | None = None
        self._ran_on: dict[str, str] = {}
        self._servers: dict[str, str] = {}
        self.ending: list[Callable[[], None]] = []

    # -- for a reader -----------------------------------------------------------------------

    def record(self, on: bool) -> None:
        """Start or stop noting steps; a new start forgets the old record."""
        if on and not self._on:
            self._own = StepRecorder(Recorder(), self._readiness.clock)
            self._readiness.listeners.append(self._own)
        elif not on and self._on and self._own is not None:
            self._remove(self._own)
        self._on = on

    def timeline(self, name: str) -> Timeline:
        """Return what was noted, every rank on rank 0's clock; every rank calls it.

        Raises:
            EngineError: nothing was ever noted.
            CollectiveError: a rank is lost or late.
        """
        if self._own is None or self._plan is None:
            raise EngineError("there is no record; call record() before the steps to look at")
        if self._on:
            self._own.closed(self._readiness.step.update)
        self._own.finish(wait=True)
        recorder = self._own.recorder
        records = recorder.records()
        if len(records):
            records["iteration"] -= records["iteration"].min()
        spans = spans_of(records, recorder.texts, self._communicator.rank)
        offsets = clock_offsets(self._communicator)
        everyone = self._communicator.all_gather_object(spans)
        return merge(
            everyone,
            name=name,
            offsets_s=[offset.seconds for offset in offsets],
            metadata=described(self._plan, recorder.dropped) | self._ran_on | self._servers,
        )

    # -- for the run's trace --------------------------------------------------------------------

    def enrol(self, told: list[Told]) -> None:
        """Let a capture know of this engine; every rank calls it, with what every rank told.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        rank, size = dist.get_rank(), dist.get_world_size()
        offset: ClockOffset | None = None
        if len(told) == size:
            if all(one.traced for one in told):
                offset = clock_offsets(self._communicator)[rank]
            elif told[rank].host == told[0].host:
                offset = ClockOffset(0.0, 0.0)
        self.member = captures.Member(told[0].token, rank, size, offset)
        captures.enrol(self)

    def begin_trace(self, capture: captures.Capture, model: int) -> None:
        """Note steps for ``capture``, as those of the ``model``-th model of this process."""
        self._capture, self._model = capture, model
        self._traced = StepRecorder(capture.recorder, self._readiness.clock, model)
        self._readiness.listeners.append(self._traced)
        self._note_plan()
        self.sample()

    def sample(self) -> None:
        """Note what the connections of this rank have carried so far; for any thread."""
        capture, detector = self._capture, self._communicator.detector
        if capture is not None and detector is not None:
            entry = msgspec.to_builtins(detector.entry)
            capture.note({"links": entry, "iteration": self._readiness.step.number})

    def end_trace(self) -> None:
        """Record finished steps, and stop."""
        self.sample()
        traced, self._traced, self._capture = self._traced, None, None
        if traced is not None:
            self._remove(traced)
            traced.finish(wait=False)

    def _remove(self, listener: StepRecorder) -> None:
        """Let a recorder listen no more; the step that is open may have ended its last one."""
        if listener in self._readiness.listeners:
            self._readiness.listeners.remove(listener)
        listener.closed(self._readiness.step.update)

    def adopted(self, plan: Plan, servers: Servers | None) -> None:
        """Note that the engine trains by ``plan`` from now on, with ``servers`` if any."""
        self._plan = plan
        if servers is not None:
            count = servers.store.num_servers
            self._servers = about_servers(count, synchronous=servers.synchronous)
        self._note_plan()

    def ran_on(self, cluster: Cluster) -> None:
        """Record the cluster of the training, for ``syncopate replay``."""
        bare = msgspec.structs.replace(cluster, curves=(), probes=(), warnings=())
        self._ran_on = {OWN_CLUSTER: bare.to_json().decode()}
        self._note_plan()

    def _note_plan(self) -> None:
        if self._capture is None or self._plan is None:
            return
        digest = hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(self._plan))).hexdigest()
        note: dict[str, Any] = {
            "plan": digest[:16],
            "number": self._model,
            "iteration": self._readiness.step.number,
        }
        if self._plan.exchange == SERVED:  # servers know tensors, and nothing of buckets
            note["tensors"] = [bucket.tensors for bucket in self._plan.buckets]
        self._capture.note(described(self._plan, 0) | self._ran_on | self._servers | note)

    def close(self) -> None:
        """Stop recording."""
        captures.dismiss(self)
        for end in self.ending:
            end()


def described(plan: Plan, dropped: int) -> dict[str, str]:
    """Return the metadata of spans that were measured under ``plan``."""
    return {
        "model": plan.model,
        "policy": plan.policy,
        "exchange": plan.exchange,
        "buckets": str(len(plan.buckets)),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    } | ({"dropped": str(dropped)} if dropped else {})
