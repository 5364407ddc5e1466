"""Remembered: what was worked out for a cluster is kept, by the identity of the cluster.

A cluster is frozen but holds a dictionary, so it cannot be a key; the object itself can, as long as
it is held. Equal clusters read from a file twice are worked out twice, and no more is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

from syncopate.artifacts.cluster import Cluster

P = ParamSpec("P")
T = TypeVar("T")


class _Same:
    """A cluster as a key; equal to another key of the very same object alone."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __hash__(self) -> int:
        return id(self.cluster)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.cluster is self.cluster


def remembered(
    function: Callable[Concatenate[Cluster, P], T],
) -> Callable[Concatenate[Cluster, P], T]:
    """Decorate a function of a cluster and hashable arguments to work out every answer once.

    The last 128 answers are kept. They are shared, so they must not be changed.
    """

    @lru_cache(maxsize=128)
    def kept(key: _Same, /, *args: Hashable, **kwargs: Hashable) -> T:
        return function(key.cluster, *args, **kwargs)  # type: ignore[arg-type]

    @wraps(function)
    def asked(cluster: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kept(_Same(cluster), *args, **kwargs)  # type: ignore[arg-type]

    return asked
