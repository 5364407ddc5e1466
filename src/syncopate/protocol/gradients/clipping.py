"""Clipping: servers agree on the norm of a step's gradient before they update with it.

[Note: clipping] A step is the update of every slice to the same version. The norm is that of the
mean gradient over all tensors, of which each server has some. So a server that has the gradients of
all workers for all its slices does not update yet: it tells the workers its share, the sum of
squares. A worker that has the shares of all servers tells them the norm, and a server updates with
the first that it hears of; all workers say the same. So all slices of a server take the step at
once, and are always at one version.

A message that is lost costs time, and nothing else. A worker asks what became of its push, as it
does of any, and a server that waits for a norm sends its share again with the answer. A worker that
knows the norm of a step answers a share with it. It remembers those of the last steps, for a server
may have lost as many updates as a worker has pushes under way.

Without a worker a norm might be known to no other, so a lost worker ends the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Send
from syncopate.protocol.messages import SOON
from syncopate.protocol.placement.bundle import Cut


def _total(squares: Iterable[float]) -> float:
    """Return a sum that does not depend on an order."""
    try:
        return math.fsum(squares)
    except OverflowError:
        return math.inf


class StepNorm:
    """What one server knows of the norm of the step that it is to take next.

    Attributes:
        share: of this server in the step that waits for its norm; None: none waits.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self.share: msg.Share | None = None
        self._squares: dict[int, float] = {}
        self._norm: msg.Norm | None = None

    def of(self, version: int) -> float | None:
        """Return the norm of the step to ``version``; None where it is not known."""
        known = self._norm
        return known.norm if known is not None and known.version == version else None

    def measured(self, key: int, squares: float, version: int, slices: int) -> bool:
        """Take in the sum of squares of a slice; say whether those of all are here now.

        Args:
            key: of the slice.
            squares: of the mean gradient.
            version: to which it is the step.
            slices: how many there are.
        """
        self._squares[key] = squares
        if len(self._squares) < slices:
            return False
        self.share = msg.Share(version, _total(self._squares.values()))
        self._squares = {}
        return True

    def take(self, norm: msg.Norm) -> bool:
        """Take in the norm of a step; say whether it is the one that is waited for."""
        if self.share is None or norm.version != self.share.version:
            return False  # another worker said it before
        self.share, self._norm = None, norm
        return True

    def split(self, cut: Cut) -> None:
        """Let the parts of a bundle count by themselves."""
        if cut.key in self._squares:
            first, *others = cut.parts
            self._squares[first.key] = self._squares.pop(cut.key)
            self._squares |= {part.key: 0.0 for part in others}


class Norms:
    """What one worker knows of the norms of steps.

    Attributes:
        last: that of the newest step of which it is known; None: of none.
    """

    def __init__(self, servers: Iterable[int], window: int) -> None:
        """Know nothing.

        Args:
            servers: those that have a share.
            window: how many pushes may be under way.
        """
        self.last: float | None = None
        self._servers = sorted(servers)
        self._most = window + 1
        self._shares: dict[int, dict[int, float]] = {}
        self._known: dict[int, msg.Norm] = {}

    def take(self, server: int, share: msg.Share) -> list[Send]:
        """Take in the share of a server; tell the norm where it is known."""
        version = share.version
        if version in self._known:
            return [Send(server, self._known[version], SOON)]
        if self._known and version < min(self._known):
            return []  # it came twice: each server has taken the step
        shares = self._shares.setdefault(version, {})
        shares[server] = share.squares
        if len(shares) < len(self._servers):
            return []
        self.last = math.sqrt(_total(self._shares.pop(version).values()))
        self._known[version] = norm = msg.Norm(version, self.last)
        if len(self._known) > self._most:
            del self._known[min(self._known)]
        return [Send(each, norm, SOON) for each in self._servers]
