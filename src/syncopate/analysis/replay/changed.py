"""Changed: a replay of which something is being removed."""

from __future__ import annotations

from collections import defaultdict

from syncopate.analysis.replay.played import Durations
from syncopate.artifacts.timelines.spans import Times


class Changed:
    """A replay of which something is being removed.

    Args:
        parts_s: seconds by rank, iteration and part.
        durations: as recorded.

    Attributes:
        parts_s: what is left.
        without: names of pauses, and the places of ranks that no longer have them.
        even_tasks: whether the tasks of a rank and lane in an iteration are equally long.
        shaped: place of a rank and a part -> ranks; its tasks have the shape that theirs have.
        durations: transfers and shares are changed here; tasks and gaps follow from the rest.
    """

    def __init__(self, parts_s: Times, durations: Durations) -> None:
        self.parts_s, self.durations = parts_s.copy(), durations.copy()
        self.even_tasks = False
        self.shaped: dict[tuple[int, int], list[int]] = {}
        self.without: dict[str, set[int]] = defaultdict(set)
