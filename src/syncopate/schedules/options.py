"""Options: what an algorithm may be told besides the world size, checked and made comparable.

==========  ====================================  ===============================================
option      value                                 meaning
==========  ====================================  ===============================================
blocks      integer >= 1                          pieces that move down a pipeline one by one
factors     integers >= 1, product p              ranks per level, innermost first
stages      ``"ring"`` or ``"recursive"`` each    the algorithm of every level
pipelines   integer >= 1                          message chunks in different stages at once
order       permutation of the ranks              who plays the algorithm's rank 0, 1, .., p - 1
==========  ====================================  ===============================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import ORDER
from syncopate.schedules.compose import require_order

Option = int | Sequence[int | str]
"""Value of an option; lists are as good as tuples."""

Options = tuple[tuple[str, Any], ...]
"""Options by name, sorted, with tuples for sequences: equal when they mean the same."""


_KINDS: dict[str, type] = {"factors": int, ORDER: int, "stages": str}


def checked(
    known: Sequence[str], world_size: int, options: Mapping[str, Option], scope: str
) -> Options:
    """Return ``options`` as :data:`Options`, without an order that changes nothing.

    Args:
        known: the options that the algorithm takes besides the order.
        world_size: number of ranks.
        options: as the caller gave them.
        scope: the algorithm, for messages.

    Raises:
        UnknownNameError: an option that the algorithm does not take.
        InvalidValueError: a value of the wrong kind, or an order that is no permutation.
    """
    found = []
    for name, value in sorted(options.items()):
        if name not in (*known, ORDER):
            raise UnknownNameError("option", name, (*known, ORDER), scope)
        plain = _plain(name, value)
        if name == ORDER:
            require_order(world_size, plain)
            if plain == tuple(range(world_size)):
                continue
        found.append((name, plain))
    return tuple(found)


def _plain(name: str, value: Any) -> Any:
    kind = _KINDS.get(name)
    if kind is None:
        if not _is(value, int):
            raise InvalidValueError(name, value, "an integer >= 1")
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidValueError(name, value, "a tuple or list, one entry per level or rank")
    if not all(_is(item, kind) for item in value):
        raise InvalidValueError(name, value, f"a tuple or list of {kind.__name__}")
    return tuple(value)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
