"""Faults: for tests, messages between workers and servers that are dropped, doubled or late."""

from __future__ import annotations

import random
from collections.abc import Mapping

from syncopate.errors import InvalidValueError, UnknownNameError

VARIABLE = "SYNCOPATE_PS_FAULTS"
"""Environment variable, such as ``drop=0.05,duplicate=0.05,delay=0.02,seed=1``; off where unset."""

_KNOBS = ("drop", "duplicate", "delay", "seed")


class Faults:
    """What happens to each message that is sent.

    Args:
        drop: the share that is lost.
        duplicate: the share that is sent twice.
        delay: seconds by which a message is late at most.
        seed: of the random numbers.
    """

    def __init__(
        self, drop: float = 0.0, duplicate: float = 0.0, delay: float = 0.0, seed: int = 0
    ) -> None:
        for what, value, most in (
            ("drop", drop, 0.9),
            ("duplicate", duplicate, 1),
            ("delay", delay, 60),
        ):
            if not 0 <= value <= most:
                raise InvalidValueError(what, value, f"from 0 to {most}")
        self._drop, self._duplicate, self._delay = drop, duplicate, delay
        self._random = random.Random(seed)

    def delays(self) -> list[float]:
        """Return by how many seconds each copy of the next message is late; none: it is lost."""
        if self._random.random() < self._drop:
            return []
        copies = 2 if self._random.random() < self._duplicate else 1
        return [self._random.random() * self._delay for _ in range(copies)]


def faults_from(environment: Mapping[str, str]) -> Faults | None:
    """Return the faults that ``environment`` asks for; None where it asks for none.

    Raises:
        UnknownNameError, InvalidValueError: not what the variable may say.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    given: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        if name not in _KNOBS:
            raise UnknownNameError("fault", name, _KNOBS, VARIABLE)
        try:
            given[name] = float(value)
        except ValueError:
            raise InvalidValueError(VARIABLE, item, f"{name}=NUMBER") from None
    seed = int(given.pop("seed", 0))
    return Faults(seed=seed, **given)
