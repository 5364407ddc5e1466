"""Registry: the one table of collective algorithms.

A new algorithm is one file and one row: a module with a function from world size to
:class:`~syncopate.schedules.base.Schedule` (world size and root for a rooted collective), and an
:class:`~syncopate.schedules.catalogue.Algorithm` in
:data:`~syncopate.schedules.catalogue.ROWS`. Planner, calibration, executor, command line and
generated documents read the table, and the conformance tests fail until the row is listed there.

An algorithm may take options, such as the number of blocks in a pipeline. Its row names them, its
function has a default for each, and every algorithm takes ``order``, the ranks in the order that it
should follow. :func:`fitted` gives the options that suit a cluster.

An algorithm of one's own can also be added from outside, by the same function::

    register(Algorithm("all_reduce", "star", star_all_reduce, "everyone to rank 0 and back", "me"))

and an installed package brings its own by an entry point of :data:`GROUP`. It is registered when
its name is used (:mod:`syncopate.extensions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from syncopate.artifacts.cluster import Cluster
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.extensions import Extensions
from syncopate.recipe import NATIVE as _NATIVE
from syncopate.recipe import ORDER
from syncopate.schedules.base import Schedule
from syncopate.schedules.catalogue import ROWS, Algorithm
from syncopate.schedules.checker import check
from syncopate.schedules.compose import relabelled, require_order, topology_order
from syncopate.schedules.conditions import conditions
from syncopate.schedules.factors import cluster_factors
from syncopate.schedules.options import Option, Options, checked

NATIVE = _NATIVE
"""The backend's own algorithm: a name plans may use, but no schedule."""

AUTO = "auto"
"""In the place of an algorithm's name: the communicator chooses the algorithm."""


GROUP = "syncopate.algorithms"
"""The entry points of packages that bring algorithms, each named ``collective.algorithm``."""

_FEW_RANKS = 8
"""As many ranks show whether an algorithm keeps its peers."""

_CHECKED_RANKS = 128
"""Schedules from outside are proved for so many ranks."""

ALGORITHMS: dict[tuple[str, str], Algorithm] = {}
"""(collective, name) -> row, in the order of registration; filled by :func:`register` alone."""


def register(algorithm: Algorithm) -> None:
    """Add a row to the table.

    Raises:
        InvalidValueError: the name is taken, is the backend's own, or means a choice.
        UnknownNameError: the collective has no conditions to prove it against.
    """
    conditions(algorithm.collective)
    key = (algorithm.collective, algorithm.name)
    if key in ALGORITHMS or algorithm.name in (NATIVE, AUTO):
        taken = ", ".join((NATIVE, *algorithms(algorithm.collective), AUTO))
        raise InvalidValueError("algorithm name", algorithm.name, f"none of those taken: {taken}")
    ALGORITHMS[key] = algorithm


def collectives() -> tuple[str, ...]:
    """Return the collectives that have an algorithm."""
    return tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))


def algorithms(collective: str, asked: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of the algorithms of ``collective``, without the backend's own.

    Args:
        collective: such as ``"all_reduce"``.
        asked: names that were asked for; those that packages bring are registered now.

    Raises:
        UnknownNameError: no such collective.
        ExtensionError: a package brings one that was asked for, and it cannot be used.
    """
    conditions(collective)
    for name in asked:
        has(collective, name)
    return tuple(name for found, name in ALGORITHMS if found == collective)


def has(collective: str, name: str) -> bool:
    """Say whether an algorithm is registered; one that a package brings is registered now.

    Raises:
        ExtensionError: a package brings it, and it cannot be used.
    """
    if (collective, name) not in ALGORITHMS and name not in (NATIVE, AUTO):
        row = _EXTENSIONS.load(f"{collective}.{name}")
        # Not again where the package has registered it by itself.
        if row is not None and (collective, name) not in ALGORITHMS:
            register(row)
    return (collective, name) in ALGORITHMS


def names(collective: str) -> tuple[str, ...]:
    """Return the names that can be asked for: :func:`algorithms`, and those that packages bring.

    Raises:
        UnknownNameError: no such collective.
    """
    brought = (name.partition(".") for name in _EXTENSIONS.names())
    found = (name for place, _, name in brought if place == collective)
    return tuple(dict.fromkeys((*algorithms(collective), *found)))


def require(collective: str, name: str, *, allow_native: bool = False) -> None:
    """Refuse a name that is no algorithm of ``collective``.

    Args:
        collective: where to look.
        name: what was asked for.
        allow_native: whether the backend's own algorithm will do.

    Raises:
        UnknownNameError: no such collective or algorithm; lists those there are.
    """
    conditions(collective)
    if not has(collective, name) and not (allow_native and name == NATIVE):
        known = ((NATIVE,) if allow_native else ()) + names(collective)
        raise UnknownNameError("algorithm", name, known, collective)


def require_curves(cluster: Cluster) -> None:
    """Refuse a cluster with measured curves of what is registered nowhere.

    Raises:
        UnknownNameError: no such collective, algorithm or option; lists those there are.
        InvalidValueError: no such value of an option.
    """
    for curve in cluster.curves:
        require(curve.collective, curve.algorithm, allow_native=True)
        row = ALGORITHMS.get((curve.collective, curve.algorithm))
        scope = f"{curve.collective} ({curve.algorithm})"
        for point in curve.points:
            checked(row.options if row else (), cluster.world_size, point.options, scope)
        if curve.order:
            require_order(cluster.world_size, curve.order)


def candidates(collective: str, cluster: Cluster) -> tuple[str, ...]:
    """Return the algorithms worth measuring or pricing on ``cluster``.

    Left out are twins, which cost what another algorithm costs, and hierarchical algorithms where
    there is no hierarchy.

    Raises:
        UnknownNameError: no such collective.
    """
    found = (ALGORITHMS[collective, name] for name in algorithms(collective))
    return tuple(row.name for row in found if not row.twin and row.applies(cluster))


def fitted(collective: str, name: str, cluster: Cluster) -> dict[str, Any]:
    """Return the options with which an algorithm fits ``cluster``, for :func:`build`.

    Those are ``order``, where ranks are not placed in the order of their numbers, and ``factors``
    where the algorithm takes them. How many blocks or pipelines are best depends on the size of the
    message too (:mod:`syncopate.costs.decide.options`).

    Raises:
        UnknownNameError: no such collective or algorithm.
    """
    require(collective, name)
    options: dict[str, Any] = {}
    order = topology_order(cluster)
    if order != tuple(range(cluster.world_size)):
        options[ORDER] = order
    if "factors" in ALGORITHMS[collective, name].options:
        options["factors"] = cluster_factors(cluster)
    return options


def build(
    collective: str, name: str, world_size: int, root: int = 0, **options: Option
) -> Schedule:
    """Return the schedule of an algorithm; the same object for the same question.

    Args:
        collective: such as ``"all_reduce"``.
        name: a registered algorithm of it.
        world_size: number of ranks; >= 1.
        root: the root of a rooted collective; 0 for the others.
        options: those of the algorithm's row, and ``order``: the rank that plays each of the
            algorithm's 0, 1, .., p - 1, in which neighbours are near.

    Raises:
        UnknownNameError: no such collective, algorithm or option.
        InvalidValueError: no such world size, root or value of an option.
        ScheduleError: an algorithm from outside that is wrong, as far as ranks are few.

    Example:
        >>> build("broadcast", "lp", 4, root=2, blocks=8).rounds
        10
    """
    require(collective, name)
    row = ALGORITHMS[collective, name]
    if world_size < 1:
        raise InvalidValueError("world_size", world_size, "an integer >= 1")
    if not 0 <= root < (world_size if conditions(collective).rooted else 1):
        rule = f"a rank in 0..{world_size - 1}, and 0 for {collective}, which has no root"
        if conditions(collective).rooted:
            rule = f"a rank in 0..{world_size - 1}"
        raise InvalidValueError("root", root, rule)
    known = checked(row.options, world_size, options, f"{collective} ({name})")
    return _built(row, world_size, root, known)


@lru_cache(maxsize=256)
def keeps_its_peers(collective: str, name: str, world_size: int) -> bool:
    """Say whether every rank sends to one other alone throughout, as along a ring.

    Looked at on a few ranks, where there are many. What is not registered counts as such.

    Args:
        collective: such as ``"all_reduce"``.
        name: an algorithm of it, or the backend's own.
        world_size: number of ranks; >= 1.

    Example:
        >>> [keeps_its_peers("all_gather", name, 4) for name in ("ring", "recursive")]
        [True, False]
    """
    if not has(collective, name):
        return True
    table = build(collective, name, min(world_size, _FEW_RANKS)).table
    ways = set(zip(table.src.tolist(), table.dst.tolist(), strict=True))
    return len(ways) == len({src for src, _ in ways})


@lru_cache(maxsize=128)
def _built(algorithm: Algorithm, world_size: int, root: int, options: Options) -> Schedule:
    values = dict(options)
    order = values.pop(ORDER, None)
    where = root if order is None else order.index(root)
    if conditions(algorithm.collective).rooted:
        schedule = algorithm.build(world_size, where, **values)
    else:
        schedule = algorithm.build(world_size, **values)
    if algorithm not in ROWS and world_size <= _CHECKED_RANKS:
        check(schedule)
    return schedule if order is None else relabelled(schedule, order)


for _row in ROWS:
    register(_row)

_EXTENSIONS = Extensions(
    GROUP,
    Algorithm,
    lambda row: f"{row.collective}.{row.name}",
    frozenset(
        f"{collective}.{name}"
        for collective in collectives()
        for name in (NATIVE, *algorithms(collective), AUTO)
    ),
)
