"""Memoized: an analysis of a timeline is kept with the timeline, which never changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from syncopate.artifacts.timeline import Timeline

Found = TypeVar("Found")


def memoized(function: Callable[[Timeline], Found]) -> Callable[[Timeline], Found]:
    """Have a function of a timeline called once for each, and keep its answer as long."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(timeline: Timeline) -> Found:
        memory = timeline.__dict__
        if name not in memory:
            memory[name] = function(timeline)
        found: Found = memory[name]
        return found

    return kept
