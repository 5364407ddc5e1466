"""Request: which collective by which algorithm, from or to which root, with which options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from syncopate.errors import UnknownNameError
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions
from syncopate.schedules.options import ORDER


class Request(NamedTuple):
    """What the caller of a collective asked for, before anything is checked.

    Attributes:
        collective: such as ``"broadcast"``.
        algorithm: a registered one, or ``"native"``.
        root: the root of a rooted collective; 0 for the others.
        options: the algorithm's options; None or empty for its defaults.
    """

    collective: str
    algorithm: str = registry.NATIVE
    root: int = 0
    options: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """The request for people, and for comparing the ranks: ``"reduce (lp, root 2)"``."""
        parts = [self.algorithm]
        if conditions(self.collective).rooted:
            parts.append(f"root {self.root}")
        parts += [f"{name}={value}" for name, value in sorted((self.options or {}).items())]
        return f"{self.collective} ({', '.join(parts)})"

    def schedule(self, world_size: int) -> Schedule | None:
        """Return the schedule to run, or None for the backend's own algorithm.

        Raises:
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such root or value of an option.
        """
        options = self.options or {}
        registry.require(self.collective, self.algorithm, allow_native=True)
        if self.algorithm == registry.NATIVE:
            if options:
                scope = f"{self.collective} (native)"
                raise UnknownNameError("option", next(iter(options)), ("none",), scope)
            return None
        row = registry.ALGORITHMS[self.collective, self.algorithm]
        for name in options:
            # Before the call: an option called "root" would otherwise be taken for the argument.
            if name not in (*row.options, ORDER):
                scope = f"{self.collective} ({self.algorithm})"
                raise UnknownNameError("option", name, (*row.options, ORDER), scope)
        return registry.build(
            self.collective, self.algorithm, world_size, root=self.root, **options
        )

    def require(self, world_size: int) -> None:
        """Refuse what :meth:`schedule` would refuse, for a collective that moves nothing.

        Raises:
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such value of an option.
        """
        if self.options:
            self.schedule(world_size)
        else:
            registry.require(self.collective, self.algorithm, allow_native=True)
