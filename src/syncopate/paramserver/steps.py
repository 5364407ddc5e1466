"""Steps: how often a worker pushed each tensor, where servers take a step of all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from syncopate.errors import InvalidValueError


class Steps:
    """How often each tensor was pushed.

    Servers that clip update no tensor before all were pushed. A worker that has not pushed all of
    them as often must not wait for one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Begin with no pushes of the tensors ``names``."""
        self._pushes = dict.fromkeys(names, 0)
        self._counts = Counter(self._pushes.values())

    def push(self, names: Iterable[str]) -> None:
        """Count a push of each tensor."""
        for name in names:
            count = self._pushes[name]
            self._pushes[name] = count + 1
            self._counts[count + 1] += 1
            self._counts[count] -= 1
            if not self._counts[count]:
                del self._counts[count]

    def require_whole(self) -> None:
        """Refuse to wait for a step of which some tensors were not pushed.

        Raises:
            InvalidValueError: it names one.
        """
        if len(self._counts) > 1:
            fewest = min(self._pushes, key=self._pushes.__getitem__)
            most = max(self._pushes.values())
            rule = (
                f"{most}, as of another tensor, before anything is waited for: with clip_norm a "
                "step is a push of every tensor, of None where there is no gradient"
            )
            raise InvalidValueError(f"the number of pushes of {fewest!r}", min(self._counts), rule)
