"""Timelines made by hand: a data-parallel training whose every time is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from syncopate.artifacts.timeline import LANES, Span, Timeline


@dataclass(frozen=True)
class Doing:
    """What one rank does in one iteration, in seconds.

    Undisturbed it takes 2 + 4 + 2 + 1 = 9: bucket 0 travels beside backward, bucket 1 after it.
    A pause is the end of backward; ``before`` names what the time before forward is.
    """

    input_s: float = 0.0
    forward_s: float = 2.0
    backward_s: float = 4.0
    update_s: float = 1.0
    ready: tuple[float, ...] = (0.5, 1.0)
    transfers_s: tuple[float, ...] = (1.0, 2.0)
    tail_s: float = 0.0
    pause: tuple[str, float] = ("", 0.0)
    before: str = ""


UNDISTURBED_S = 9.0

Change = Callable[[int, int], dict[str, object]]
"""From rank and iteration to the fields of :class:`Doing` that differ."""


def made(
    world_size: int = 4,
    iterations: int = 1,
    change: Change = lambda rank, iteration: {},
    *,
    nbytes: tuple[int, ...] = (100, 200),
    updates: bool = True,
) -> Timeline:
    """Return what a training does: all-reduces on one channel begin when all ranks are there."""
    spans: list[Span] = []
    ends_s = [0.0] * world_size
    for iteration in range(iterations):
        doings = [replace(Doing(), **change(r, iteration)) for r in range(world_size)]  # type: ignore[arg-type]
        ready, computed_s = [], []
        for rank, doing in enumerate(doings):
            start_s = ends_s[rank] + doing.input_s
            middle_s = start_s + doing.forward_s
            end_s = middle_s + doing.backward_s
            name, paused_s = doing.pause
            stretches = {"forward": (start_s, middle_s), "backward": (middle_s, end_s)}
            stretches |= {doing.before: (ends_s[rank], start_s)} if doing.before else {}
            stretches |= {name: (end_s - paused_s, end_s)} if name else {}
            spans += [_span(n, rank, iteration, between) for n, between in stretches.items()]
            ready.append([middle_s + share * doing.backward_s for share in doing.ready])
            computed_s.append(end_s)
        free_s = [0.0] * world_size
        for bucket, size in enumerate(nbytes):
            starts_s = [max(mine[bucket], free) for mine, free in zip(ready, free_s, strict=True)]
            free_s = [max(starts_s) + d.transfers_s[bucket] + d.tail_s for d in doings]
            for rank, between in enumerate(zip(starts_s, free_s, strict=True)):
                spans.append(_span(f"bucket {bucket}", rank, iteration, between, size))
        for rank, doing in enumerate(doings):
            there_s = max(free_s[rank], computed_s[rank])
            ends_s[rank] = there_s + doing.update_s * updates
            if updates:
                spans.append(_span("update", rank, iteration, (there_s, ends_s[rank])))
    return Timeline(
        name="made", source="measured", world_size=world_size, spans=tuple(spans), metadata={}
    )


def _span(
    name: str, rank: int, iteration: int, between: tuple[float, float], nbytes: int = 0
) -> Span:
    lane = name if name in LANES else "push" if name.startswith("bucket") else "wait"
    return Span(
        name=name,
        lane=lane,
        rank=rank,
        start_s=between[0],
        end_s=between[1],
        iteration=iteration,
        nbytes=nbytes,
    )
