"""Progress: how long measurements say how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with what is going on and how much of the whole is done, 0 to 1."""


def say(progress: Progress | None, what: str, done: float) -> None:
    """Call ``progress`` if there is one, ``done`` brought into [0, 1]."""
    if progress is not None:
        progress(what, min(max(done, 0.0), 1.0))


def part(progress: Progress | None, begin: float, end: float) -> Progress:
    """Return a progress for one stage, which takes the whole from ``begin`` to ``end``."""
    return lambda what, done: say(progress, what, begin + (end - begin) * done)
