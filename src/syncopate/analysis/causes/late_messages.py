"""Late messages: which ranks have their messages later than the others, and what if they had not.

A message ends on a rank so long after the last rank came to it. Where a link is slow, its rank has
most of its messages later than the others. Where other work slows down a rank's processors, the
messages that they handle take longer there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncopate.analysis.ranks.arrivals import of_others
from syncopate.analysis.replay import Changed, Replay
from syncopate.analysis.sweep import groups
from syncopate.artifacts.timeline import HOSTS
from syncopate.artifacts.timelines.spans import Times

_LATER, _MOSTLY = 1.1, 0.75
"""A link is slow where more than this part of its transfers takes this many times the others'."""

_HANDLED = 1.25
"""Processors handle messages late where these take so many times as long in all as elsewhere."""


class LateMessages:
    """The messages of ranks beside those of the other ranks.

    Args:
        replay: of a timeline.
        ranks: those that computed.

    Attributes:
        of: rank -> its parts of messages.
        linked: the ranks that usually have their messages later than the other ranks.
    """

    def __init__(self, replay: Replay, ranks: Sequence[int]) -> None:
        self._replay = replay
        sent, none = dict(groups(replay.parts.rank)), np.zeros(0, np.int64)
        self.of = {rank: sent.get(rank, none) for rank in ranks}
        self._others_s = self._of_others()
        self.linked = self._found_linked()

    def on_time(self, changed: Changed, rank: int) -> None:
        """Let a rank have its messages when the others have them."""
        moved_s = changed.durations.transfers_s
        mine = self.of[rank]
        mine = mine[~np.isnan(self._others_s[mine])]
        moved_s[mine] = np.minimum(moved_s[mine], self._others_s[mine])

    def handled_on_time(self, changed: Changed, rank: int) -> None:
        """Let a rank whose processors are slow have its messages when the others have them.

        That is, where all together take longer there, but not nearly all: these have a slow link,
        which is a cause of its own, or a clock that is off.
        """
        mine = self.of[rank]
        mine = mine[(self._replay.parts.task[mine] >= 0) & ~np.isnan(self._others_s[mine])]
        own_s, others_s = self._replay.recorded.transfers_s[mine], self._others_s[mine]
        if own_s.sum() > _HANDLED * others_s.sum() and (own_s > others_s).mean() <= _MOSTLY:
            self.on_time(changed, rank)

    def _of_others(self) -> Times:
        """Return the other ranks' median for each part of a message; NaN where no other has it."""
        moved_s, found = self._replay.recorded.transfers_s, self._replay.messages
        others_s = np.full(len(moved_s), np.nan)
        for size in np.unique(found.sizes).tolist():
            if size > 1:  # but two stages are done with a message at once
                first = found.first[(found.sizes == size) & ~found.between_two]
                rows = first[:, None] + np.arange(size)
                others_s[rows] = of_others(moved_s[rows])
        return others_s

    def _found_linked(self) -> list[int]:
        """Find ranks whose messages usually end later than those of the others.

        Of two hosts either may have the slow link, so no rank is blamed: in a ring the rank before
        the link ends a round later, and that rank may be on the other host.
        """
        if self._replay.timeline.metadata.get(HOSTS) == "2":
            return []
        moved_s, others_s = self._replay.recorded.transfers_s, self._others_s
        known = ~np.isnan(others_s)
        later = moved_s > np.maximum(
            _LATER * others_s, others_s + self._replay.clocks_off_s, where=known, out=moved_s + 0.0
        )
        by_rank = ((rank, mine[known[mine]]) for rank, mine in self.of.items())
        return [rank for rank, mine in by_rank if len(mine) and later[mine].mean() > _MOSTLY]
