"""Launch: how often a worker's launcher has started it, and whether it does so again."""

from __future__ import annotations

import msgspec

from syncopate.protocol.scalars import Number


class Launch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a launcher such as torchrun tells a worker that it starts.

    Attributes:
        restart: how often it had started its workers again when it started this one.
        most: how often it does so at most.
    """

    restart: Number = 0
    most: Number = 0

    @property
    def returns(self) -> bool:
        """Whether a worker that dies is started again."""
        return self.restart < self.most


ONCE = Launch()
"""That of a worker that is not started again."""
