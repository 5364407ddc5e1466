"""Status: how a job stands, asked of its scheduler by a process that is no member."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.text import Text

from syncopate.errors import ParameterServerError
from syncopate.paramserver.job import Job
from syncopate.paramserver.wire.security import load_key
from syncopate.paramserver.wire.sockets import Wire
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.figures import NodeStanding
from syncopate.protocol.limits import Limits
from syncopate.shown import Row, Shown

ANSWER_S = 5.0
"""How long a scheduler is waited for."""

_QUIET_BEATS = 4
"""A node is silent when so many signs of life are missing."""

_POLL_S = 0.1


@dataclass(frozen=True, repr=False)
class JobStatus(Shown):
    """How a job stands.

    Attributes:
        address: of the scheduler.
        name: of the job.
        standing: what the scheduler said.
    """

    address: str
    name: str
    standing: msg.Standing

    def summary(self) -> tuple[str, ...]:
        """Return how many came, in a line."""
        said = self.standing
        counts = []
        for role, wanted in ((msg.SERVER, said.servers), (msg.WORKER, said.workers)):
            here = sum(one.role == role and one.state == "here" for one in said.nodes)
            counts.append(f"{here} of {wanted} {role}s here")
        state = "all came" if said.complete else "waiting for the others"
        return (f"job {self.name} at {self.address}: {', '.join(counts)}; {state}",)

    def rows(self) -> list[Row]:
        """Return a row for each node, servers first."""
        return [
            {
                "node": f"{one.role} {one.rank}" if one.rank >= 0 else f"{one.role}, no rank yet",
                "state": _state(one),
                "step": one.figures.step,
                "slices": one.figures.slices if one.role == msg.SERVER else None,
                "nbytes": one.figures.nbytes if one.role == msg.SERVER else None,
                "queued": one.figures.queued,
                "refused": one.figures.refused,
                "address": one.address or None,
            }
            for one in self.standing.nodes
        ]

    def report(self) -> RenderableType:
        """Return everything for a terminal, to be printed by rich."""
        return Text(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as ``syncopate ps status --json`` prints it."""
        said = self.standing
        return {
            "address": self.address,
            "job": self.name,
            "complete": said.complete,
            "servers": said.servers,
            "workers": said.workers,
            "nodes": [_told(one) for one in said.nodes],
        }


def status(job: Job, answer_s: float = ANSWER_S) -> JobStatus:
    """Ask the scheduler of a job how it stands.

    Args:
        job: where the scheduler is, the job's name and its key.
        answer_s: how long to wait for its answer.

    Raises:
        InvalidValueError: the address is not local, and there is no key.
        ArtifactError: the key cannot be read.
        ParameterServerError: no scheduler answered, or it refused.
    """
    job = job.require_valid()
    wire = Wire(load_key(job.key), Limits(), Tap(SCHEDULER))
    try:
        wire.connect(SCHEDULER, job.scheduler)
        wire.send(SCHEDULER, msg.Status(job.name))
        until_s = time.monotonic() + answer_s
        while time.monotonic() < until_s:
            for _, said in wire.heard(codec.FromScheduler, _POLL_S):
                if isinstance(said, msg.Standing):
                    return JobStatus(job.scheduler, job.name, said)
                if isinstance(said, msg.Refused):
                    reason = f"the scheduler at {job.scheduler} refused: {said.reason}"
                    raise ParameterServerError(reason)
    finally:
        wire.close(0)
    raise ParameterServerError(
        f"no scheduler answered at {job.scheduler} within {answer_s:g} s: is it there, and is the "
        "key that of its job?"
    )


def _told(one: NodeStanding) -> dict[str, Any]:
    """Return what is known of a node, and behind it its figures."""
    told = msgspec.structs.asdict(one)
    return told | msgspec.structs.asdict(told.pop("figures"))


def _state(one: NodeStanding) -> str:
    if one.state == "here" and one.silent_s > _QUIET_BEATS * Limits().heartbeat_s:
        return f"silent for {one.silent_s:.1f} s"
    return "alive" if one.state == "here" else one.state
