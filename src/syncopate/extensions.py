"""Extensions: what installed packages add to a registry, found by their entry points.

A package names what it brings in its metadata, such as in its ``pyproject.toml``::

    [project.entry-points."syncopate.algorithms"]
    "all_reduce.star" = "star_and_halves:STAR"

[Note: used where it is named] Packages are looked through when a name is used that the registry
does not have, and only the package that brings the name is imported. So a package that is installed
but not named changes no plan, slows no start, and breaks nothing where it is broken. It also cannot
make ranks choose differently where only some of them have it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from syncopate.errors import ExtensionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger("syncopate")

Row = TypeVar("Row")


@dataclass(frozen=True)
class Extensions(Generic[Row]):
    """The rows that installed packages bring for one registry.

    Attributes:
        group: of their entry points, such as ``"syncopate.policies"``.
        kind: the class of a row.
        named: a row to the name that its entry point must have.
        taken: names that entry points cannot have.
    """

    group: str
    kind: type[Row]
    named: Callable[[Row], str]
    taken: frozenset[str]

    def names(self) -> tuple[str, ...]:
        """Return the names that installed packages bring; nothing is imported."""
        return tuple(self._found)

    def load(self, name: str) -> Row | None:
        """Import the row called ``name``; None where no installed package brings one.

        Raises:
            ExtensionError: its package cannot be imported, has something else there, or is not the
                only one with this name.
        """
        found = self._found.get(name, [])
        if not found:
            return None
        point = f"entry point {name!r} of {self.group}"
        if len(found) > 1:
            both = " and ".join(sorted(distribution for _, distribution in found))
            raise ExtensionError(f"{point}: {both} both have it; uninstall all but one")
        ((entry, distribution),) = found
        where = f"{point}, {entry.value!r} in {distribution}, cannot be used"
        mend = "mend that package or uninstall it"
        try:
            row = entry.load()
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ExtensionError(f"{where}: {reason}; {mend}") from error
        if not isinstance(row, self.kind):
            rule = f"it is a {type(row).__name__} and must be a syncopate {self.kind.__name__}"
            raise ExtensionError(f"{where}: {rule}; {mend}")
        if self.named(row) != name:
            rule = f"what is there is named {self.named(row)!r}, and both names must be the same"
            raise ExtensionError(f"{where}: {rule}; {mend}")
        return row

    @cached_property
    def _found(self) -> dict[str, list[tuple[EntryPoint, str]]]:
        """Name -> its entry points, each with its distribution; looked for once in a process."""
        found: dict[str, list[tuple[EntryPoint, str]]] = {}
        for point, distribution in _entry_points(self.group):
            if point.name in self.taken:
                _log.warning(
                    "entry point %r of %s in %s is left out: the name is taken",
                    *(point.name, self.group, distribution),
                )
            else:
                found.setdefault(point.name, []).append((point, distribution))
        return found


def _entry_points(group: str) -> Iterable[tuple[EntryPoint, str]]:
    """Yield the entry points of a group, each with its distribution: ``"star-and-halves 0.1"``.

    Files that do not name the group are not parsed: a damaged one belongs to another package.
    """
    from importlib.metadata import distributions  # noqa: PLC0415, loaded where a name is unknown

    seen = set()
    for distribution in distributions():
        text = distribution.read_text("entry_points.txt")
        if text is None or f"[{group}]" not in text:
            continue
        name = distribution.metadata["Name"]
        if name in seen:  # the first on the path is the one that is imported
            continue
        seen.add(name)
        label = f"{name} {distribution.version}"
        try:
            points = tuple(distribution.entry_points.select(group=group))
        except Exception as error:
            _log.warning("the entry points of %s cannot be read: %s", label, error)
            continue
        yield from ((point, label) for point in points)
