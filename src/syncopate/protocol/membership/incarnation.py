"""Incarnation: how often a run went on after all its workers were gone, and from which step."""

from __future__ import annotations

import msgspec

NOTHING = -1
"""The step of a run of which no server has anything: workers give the first values."""

GOING = 1
"""What stands for the step where updates are asynchronous: each server goes on from what it has."""


class Incarnation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which incarnation of its run a job is.

    Attributes:
        number: how often the run went on after all its workers were gone.
        step: the step that it went on from; :data:`NOTHING`: it began.
        origin: the step at which the job came from other servers; :data:`NOTHING`: it began here.
            Pushes are counted from there.
    """

    number: int = 0
    step: int = NOTHING
    origin: int = NOTHING

    @property
    def resumed(self) -> bool:
        """Whether servers had weights when it began."""
        return self.step != NOTHING

    def taken(self, *, synchronous: bool, pushed: int = 0) -> int:
        """Return how many synchronous steps were taken, the first ``pushed`` of them here.

        Those before this incarnation are taken in any case. 0 where updates are asynchronous.
        """
        here = max(self.first_push(synchronous=synchronous), pushed, 0)
        return max(self.origin, 0) + here if synchronous else 0

    def first_push(self, *, synchronous: bool) -> int:
        """Return which push of a worker counts as done when it begins; -1: not the first value."""
        return self.step if synchronous or not self.resumed else 0


FIRST_LIFE = Incarnation()
"""That of a run whose workers were never gone."""
