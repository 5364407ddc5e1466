"""Recorded ranks: the files that ``syncopate record`` writes, one of each rank."""

from __future__ import annotations

from typing import Any, ClassVar

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
        flight_recorder: what torch's flight recorder holds, as torch writes it.
    """

    KIND: ClassVar[str] = "recorded rank"

    rank: int
    world_size: int
    host: str
    torch: str
    steps: tuple[Step, ...]
    flight_recorder: dict[str, Any]
