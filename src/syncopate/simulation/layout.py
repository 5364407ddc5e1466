"""Layout: where one iteration lies among the pieces and the collectives of a run, and its end."""

from __future__ import annotations

from dataclasses import dataclass

from syncopate.simulation.fluid import Collective

Closing = tuple[Collective, ...]
"""Collectives that end an iteration, ready as it ends, for which every rank waits before it goes
on; their pieces are not looked at."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one iteration lies.

    Attributes:
        pieces: from its first piece of forward to its update.
        bases_s: the progress of the iteration at which each of them but the update begins.
        computed_s: forward and backward together.
        pushes: the collectives of each bucket's push.
        pulls: those of each pull of the update before it, in the order of their buckets.
        behind: of them, the progress of the next forward that waits for each, and the collective
            whose end it waits for, where this iteration's own forward does not.
        again: the collectives of weights that are gathered again for backward.
        across: those of the all-reduces between groups of ranks.
    """

    pieces: range
    bases_s: tuple[float, ...]
    computed_s: float
    pushes: tuple[range, ...]
    pulls: tuple[range, ...]
    behind: tuple[tuple[float, int], ...] = ()
    again: range = range(0)
    across: range = range(0)


def alone(collectives: range) -> tuple[range, ...]:
    """Return each of some collectives as the only one of its bucket."""
    return tuple(range(index, index + 1) for index in collectives)
