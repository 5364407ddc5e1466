"""Findings: what :func:`~syncopate.engine.checks.lint.check` says, each with its remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from syncopate.shown import Row, Shown

REFUSED, WAITS, DIFFERS, COSTS = "refused", "waits", "differs", "costs"
"""Effects: ``distribute`` or the first step raises; something does not overlap that could; it is
not as under DDP; it costs bytes or messages that train nothing."""

EFFECTS = (REFUSED, WAITS, DIFFERS, COSTS)
"""In the order in which findings are shown."""

_NAMED = 4
"""So many names of a finding are printed."""


@dataclass(frozen=True)
class Finding:
    """One thing that :func:`~syncopate.engine.checks.lint.check` found.

    Attributes:
        effect: ``"refused"``, ``"waits"``, ``"differs"`` or ``"costs"`` (:data:`REFUSED`, ...).
        what: the kind of thing.
        where: names of the modules, parameters, buffers or optimizers.
        happens: what comes of it.
        do: what helps.
    """

    effect: str
    what: str
    where: tuple[str, ...]
    happens: str
    do: str

    @property
    def place(self) -> str:
        """The first names, and how many others there are."""
        more = len(self.where) - _NAMED
        return ", ".join(self.where[:_NAMED]) + (f" and {more} others" if more > 0 else "")

    def __str__(self) -> str:
        return f"{self.effect}: {self.what} ({self.place}). {_sentence(self.happens)}; {self.do}"


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """What :func:`~syncopate.engine.checks.lint.check` found.

    Attributes:
        name: the classes of model and optimizers.
        findings: what is refused first, then what waits, differs and costs.
    """

    name: str
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What ``distribute`` or the first step raises."""
        return tuple(each for each in self.findings if each.effect == REFUSED)

    def summary(self) -> tuple[str, ...]:
        """Return how many findings there are, and each in a sentence."""
        counts = [
            f"{count} {effect}"
            for effect in EFFECTS
            if (count := sum(each.effect == effect for each in self.findings))
        ]
        return (f"{self.name}: {', '.join(counts) or 'nothing found'}", *map(str, self.findings))

    def rows(self) -> list[Row]:
        """Return the effect, kind and place of each finding."""
        return [
            {"effect": each.effect, "what": each.what, "where": each.place}
            for each in self.findings
        ]

    def frame(self) -> list[Row]:
        """Return every finding with all names and both sentences."""
        return [asdict(each) | {"where": ", ".join(each.where)} for each in self.findings]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
