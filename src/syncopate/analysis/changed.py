"""Changed: what is being removed from a replay, and the links that are known to be slow."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from syncopate.analysis.replay import Durations
from syncopate.spans import Times


class SlowLinks(NamedTuple):
    """Ranks whose hosts have slow links.

    Attributes:
        ranks: which.
        bytes_per_s: what the slowest of these links carried.
        expected_bytes_per_s: what it should.
    """

    ranks: tuple[int, ...] = ()
    bytes_per_s: float = 1.0
    expected_bytes_per_s: float = 1.0


class Changed:
    """A replay of which something is being removed.

    Args:
        parts_s: seconds by rank, iteration and part.
        durations: as recorded.

    Attributes:
        parts_s: what is left.
        without: names of pauses, and the places of ranks that no longer have them.
        durations: transfers and shares are changed here; tasks and gaps follow from the rest.
    """

    def __init__(self, parts_s: Times, durations: Durations) -> None:
        self.parts_s, self.durations = parts_s.copy(), durations.copy()
        self.without: dict[str, set[int]] = defaultdict(set)
