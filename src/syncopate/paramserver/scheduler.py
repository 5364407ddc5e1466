"""Scheduler: lets the processes of a job find each other, and notices who is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from syncopate.errors import ArtifactError, ParameterServerError
from syncopate.paramserver.job import Job
from syncopate.paramserver.membership import TICK_S
from syncopate.paramserver.node import new_token
from syncopate.paramserver.storage.durable import AGAIN_S, Run, RunFile, is_full
from syncopate.paramserver.wire.security import load_key
from syncopate.paramserver.wire.sockets import RefusalLog, Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import actions as act
from syncopate.protocol import codec
from syncopate.protocol.actions import SCHEDULER, Action
from syncopate.protocol.limits import CONTROL_BYTES, Limits
from syncopate.protocol.membership.awake import AwakeClock
from syncopate.protocol.membership.scheduler import SchedulerMachine
from syncopate.protocol.messages import Heartbeat, Refusal

_log = logging.getLogger("syncopate")
_DRAIN_S = 2.0
Progress = Callable[[dict[str, int], bool], None]
"""Called with how many servers and workers are here, and whether that is all."""


class Scheduler:
    """The scheduler of one run of a job."""

    def __init__(
        self, job: Job, limits: Limits | None = None, *, state: Path | None = None
    ) -> None:
        """Listen, and read what is on disk.

        Args:
            job: where to listen, and how many take part.
            limits: times and sizes.
            state: a folder to keep the run in, so that this process may be killed and started
                again; None: in memory alone.

        Raises:
            ParameterServerError: it cannot listen.
            ArtifactError: the key cannot be read, or the state not be trusted.
        """
        self._limits = (limits or Limits()).require_valid()
        job = job.require_valid()
        run = Run(job=job.name, run=new_token(), servers=job.servers, workers=job.workers)
        self._file = RunFile(state, run) if state is not None else None
        run = self._file.run if self._file is not None else run
        self._machine = SchedulerMachine(
            job.name,
            run.run,
            job.servers,
            job.workers,
            self._limits,
            seated=run.members if self._file is not None else None,
            incarnation=run.incarnation,
            finished=run.over,
        )
        self._kept_changes = 0
        tap = Tap(SCHEDULER, lambda: self.refused)
        self._wire = Wire(load_key(job.key), self._limits, tap)
        try:
            self._wire.listen(job.uri, job.port, CONTROL_BYTES)
        except BaseException:
            self._wire.close(0)
            raise
        tap.counters.queued = self._wire.queued
        tap.counters.here = lambda: self._machine.here
        tap.joined(run.run, 0, job.workers, job.servers)
        self._failure: ParameterServerError | None = None

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        return dict(self._machine.refused) | self._wire.turned_away

    def run(self, progress: Progress | None = None) -> None:
        """Schedule until the job is over.

        Args:
            progress: called when a node comes or goes.

        Raises:
            ParameterServerError: a node was lost or failed; the message names it.
        """
        shown: dict[str, int] = {}
        clock = AwakeClock()
        refusals = RefusalLog("the scheduler")
        if self._machine.over:
            _log.warning("this job is over; members that have not heard it yet are told")
        try:
            while not self._machine.settled:
                for arrival in self._wire.receive(TICK_S):
                    try:
                        message, _ = self._wire.opened(codec.ToScheduler, arrival)
                    except Refusal as refusal:
                        self._do(self._machine.refuse(arrival.peer, refusal))
                        continue
                    now_s = clock.at(time.monotonic())
                    found = self._machine.receive(arrival.peer, message, now_s)
                    if not self._machine.is_stranger(message):
                        self._wire.admit(arrival)
                    self._do(found)
                now_s = clock.at(time.monotonic())
                self._do(self._machine.tick(now_s, self._wire.reaches))
                refusals.note(self.refused)
                if progress is not None and shown != self._machine.here:
                    shown = self._machine.here
                    progress(shown, self._machine.complete)
        except KeyboardInterrupt:
            self._do(self._machine.abort("the scheduler was interrupted"))
            raise
        finally:
            refusals.note(self.refused, last=True)
            self._wire.drain(_DRAIN_S)
            self._wire.close()
        if self._failure is not None:
            raise self._failure

    def _do(self, actions: list[Action]) -> None:
        machine = self._machine
        if self._file is not None and machine.changes != self._kept_changes:
            self._kept_changes = machine.changes
            self._keep(self._file)  # before anybody hears of it
        for action in actions:
            if isinstance(action, act.Send):
                self._wire.send(action.to, action.message, action.priority)
            elif isinstance(action, act.Remark):
                _log.warning("%s", action.text)
            elif isinstance(action, act.Fail):
                self._failure = ParameterServerError(action.reason, action.ranks)

    def _keep(self, file: RunFile) -> None:
        """Write what became of the run; while the disk is full wait, and write it then."""
        machine, waited = self._machine, False
        while True:
            try:
                file.keep(machine.seated, machine.finished, machine.incarnation, machine.settled)
            except ArtifactError as error:
                if not is_full(error):
                    raise
                if machine.over and not machine.finished:
                    return  # all are to hear why; one that comes back goes on from what was before
                if not waited:
                    _log.warning("%s; the job stays as it is until there is room", error)
                waited = True
                self._say_alive(AGAIN_S)
            else:
                if waited:
                    _log.warning("%s: there is room again", file.path)
                return

    def _say_alive(self, for_s: float) -> None:
        """Answer no more than heartbeats for a while; what else members say they say again."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            for peer, message in self._wire.heard(codec.ToScheduler, TICK_S):
                if isinstance(message, Heartbeat) and not self._machine.is_stranger(message):
                    self._wire.send(peer, Heartbeat(""))
