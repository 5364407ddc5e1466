"""Recorded ranks: what is written of a training of plain torch, one file of each rank."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from syncopate.artifacts import Artifact, Record


class Step(Record, frozen=True, kw_only=True):
    """One step of an optimizer.

    Attributes:
        optimizer: which, in the order of their first steps.
        name: its class, such as ``"SGD"``.
        number: how many steps it had made before.
        start_ns: since 1970, on the clock of the host.
        end_ns: likewise.
    """

    optimizer: int
    name: str
    number: int
    start_ns: int
    end_ns: int


class RecordedRank(Artifact, frozen=True, kw_only=True):
    """What one rank did.

    Attributes:
        rank: which.
        world_size: number of ranks.
        host: the name of its host.
        torch: the version of torch.
        steps: of all optimizers, in order; the last ones only, where there were too many.
        forwards: ``(begin, end)`` of each, likewise; empty: not known.
        backwards: when each came to the first output of its forward, likewise.
        began_ns: when the recording began.
        written_ns: when this was written; 0: not known.
        flight_recorder: what torch's flight recorder holds, as torch writes it.
    """

    KIND: ClassVar[str] = "recorded rank"

    rank: int
    world_size: int
    host: str
    torch: str
    steps: tuple[Step, ...]
    forwards: tuple[tuple[int, int], ...] = ()
    backwards: tuple[int, ...] = ()
    began_ns: int = 0
    written_ns: int = 0
    flight_recorder: dict[str, Any]


def recorded_json(about: RecordedRank, dump: bytes) -> bytes:
    """Return a rank as JSON, with what torch wrote in it as it is: it may have megabytes.

    Args:
        about: the rest.
        dump: the JSON of the flight recorder.
    """
    header = {"kind": about.KIND, "schema_version": about.SCHEMA_VERSION}
    fields: dict[str, Any] = msgspec.to_builtins(about)
    return msgspec.json.encode(header | fields | {"flight_recorder": msgspec.Raw(dump)}) + b"\n"
