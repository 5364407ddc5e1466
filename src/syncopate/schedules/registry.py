"""Registry: the one table of collective algorithms.

A new algorithm is one file and one row: a module with a function from world size to
:class:`~syncopate.schedules.base.Schedule` (world size and root for a rooted collective), and an
:class:`Algorithm` in ``_ROWS`` below. Planner, calibration, executor, command line and generated
documents read the table, and the conformance tests fail until the row is listed there.

An algorithm of one's own can also be added from outside, by the same function::

    register(Algorithm("all_reduce", "star", star_all_reduce, "everyone to rank 0 and back", "me"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules import binary_tree, halving_doubling, recursive_doubling, ring
from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions

NATIVE = "native"
"""The backend's own algorithm: a name plans may use, but no schedule."""


@dataclass(frozen=True)
class Algorithm:
    """One row: an algorithm of a collective.

    Attributes:
        collective: a name in :data:`syncopate.schedules.conditions.CONDITIONS`.
        name: how plans and users call it.
        build: world size to schedule; world size and root for a rooted collective.
        summary: one line: rounds and bytes per rank.
        source: where it comes from.
    """

    collective: str
    name: str
    build: Callable[..., Schedule]
    summary: str
    source: str


ALGORITHMS: dict[tuple[str, str], Algorithm] = {}
"""(collective, name) -> row, in the order of registration; filled by :func:`register` alone."""


def register(algorithm: Algorithm) -> None:
    """Add a row to the table.

    Raises:
        InvalidValueError: the name is taken, or is the backend's own.
        UnknownNameError: the collective has no conditions to prove it against.
    """
    conditions(algorithm.collective)
    key = (algorithm.collective, algorithm.name)
    if key in ALGORITHMS or algorithm.name == NATIVE:
        taken = ", ".join((NATIVE, *algorithms(algorithm.collective)))
        raise InvalidValueError("algorithm name", algorithm.name, f"none of those taken: {taken}")
    ALGORITHMS[key] = algorithm


def collectives() -> tuple[str, ...]:
    """Return the collectives that have an algorithm."""
    return tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))


def algorithms(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms of ``collective``, without the backend's own.

    Raises:
        UnknownNameError: no such collective.
    """
    conditions(collective)
    return tuple(name for found, name in ALGORITHMS if found == collective)


def require(collective: str, name: str, *, allow_native: bool = False) -> None:
    """Refuse a name that is no algorithm of ``collective``.

    Args:
        collective: where to look.
        name: what was asked for.
        allow_native: whether the backend's own algorithm will do.

    Raises:
        UnknownNameError: no such collective or algorithm; lists those there are.
    """
    known = ((NATIVE,) if allow_native else ()) + algorithms(collective)
    if name not in known:
        raise UnknownNameError("algorithm", name, known, collective)


def build(collective: str, name: str, world_size: int, root: int = 0) -> Schedule:
    """Return the schedule of an algorithm; the same object for the same question.

    Args:
        collective: such as ``"all_reduce"``.
        name: a registered algorithm of it.
        world_size: number of ranks; >= 1.
        root: the root of a rooted collective; 0 for the others.

    Raises:
        UnknownNameError: no such collective or algorithm.
        InvalidValueError: no such world size or root.
    """
    require(collective, name)
    if world_size < 1:
        raise InvalidValueError("world_size", world_size, "an integer >= 1")
    if not 0 <= root < (world_size if conditions(collective).rooted else 1):
        rule = f"a rank in 0..{world_size - 1}, and 0 for {collective}, which has no root"
        if conditions(collective).rooted:
            rule = f"a rank in 0..{world_size - 1}"
        raise InvalidValueError("root", root, rule)
    return _built(ALGORITHMS[collective, name], world_size, root)


@lru_cache(maxsize=64)
def _built(algorithm: Algorithm, world_size: int, root: int) -> Schedule:
    if conditions(algorithm.collective).rooted:
        return algorithm.build(world_size, root)
    return algorithm.build(world_size)


_PATARASUK = "Patarasuk and Yuan 2009"
_RABENSEIFNER = "Rabenseifner 2004; Träff 2024"
_THAKUR = "Thakur, Rabenseifner and Gropp 2005"

_ROWS = (
    Algorithm(
        "all_reduce",
        "ring",
        ring.all_reduce,
        "2(p-1) rounds, 2(p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "all_reduce",
        "recursive_doubling",
        recursive_doubling.all_reduce,
        "log2 p rounds of n bytes; ceil(log2 p) + 1 when p is no power of two",
        _THAKUR,
    ),
    Algorithm(
        "all_reduce",
        "halving_doubling",
        halving_doubling.all_reduce,
        "2 ceil(log2 p) rounds, 2(p-1)/p n bytes",
        _RABENSEIFNER,
    ),
    Algorithm(
        "all_reduce",
        "binary_tree",
        binary_tree.all_reduce,
        "2 ceil(log2 p) rounds of n bytes",
        _THAKUR,
    ),
    Algorithm(
        "reduce_scatter",
        "ring",
        ring.reduce_scatter,
        "p-1 rounds, (p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "reduce_scatter",
        "recursive",
        halving_doubling.reduce_scatter,
        "ceil(log2 p) rounds, (p-1)/p n bytes",
        _RABENSEIFNER,
    ),
    Algorithm(
        "all_gather",
        "ring",
        ring.all_gather,
        "p-1 rounds, (p-1)/p n bytes",
        _PATARASUK,
    ),
    Algorithm(
        "all_gather",
        "recursive",
        halving_doubling.all_gather,
        "ceil(log2 p) rounds, (p-1)/p n bytes",
        "Bruck et al. 1997; Träff 2024",
    ),
)
for _row in _ROWS:
    register(_row)
