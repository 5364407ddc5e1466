"""Steps: how often a worker pushed each tensor, and with which learning rates it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

from syncopate.errors import InvalidValueError
from syncopate.protocol.rules import Rules


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


Gradients = Mapping[str, Tensor | None]
"""By name; None: this worker has none."""


class Rates:
    """Learning rates of tensors, by name."""

    def __init__(self) -> None:
        """Begin with those of the servers' rules."""
        self._of_all: float | None = None
        self._of_some: dict[str, float] = {}

    def set(self, lr: float, keys: Iterable[str] | None) -> None:
        """Use ``lr`` for every push from now on; of the tensors ``keys``, or of all.

        Raises:
            InvalidValueError: less than 0, or no number.
        """
        if not lr >= 0:
            raise InvalidValueError("lr", lr, "at least 0")
        if keys is None:
            self._of_all = float(lr)
            self._of_some.clear()
        else:
            self._of_some |= dict.fromkeys(keys, float(lr))

    def alike(self, tensors: Gradients, rules: Rules) -> Iterable[tuple[float | None, Gradients]]:
        """Return learning rates, with tensors of them that all have a gradient, or none of them.

        Raises:
            InvalidValueError: one has none where updates wait for no other worker.
        """
        skips = any(tensor is None for tensor in tensors.values())
        if skips and not rules.synchronous:
            rule = f"left out in mode {rules.mode!r}, where updates wait for no other worker"
            raise InvalidValueError("a gradient", None, rule)
        if not tensors or not (self._of_some or skips):
            return [(self._of_all, tensors)]
        found: dict[tuple[float | None, bool], dict[str, Tensor | None]] = {}
        for name, tensor in tensors.items():
            alike = self._of_some.get(name, self._of_all), tensor is None
            found.setdefault(alike, {})[name] = tensor
        return [(lr, some) for (lr, _), some in found.items()]
