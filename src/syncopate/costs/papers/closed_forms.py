"""Closed forms: what the algorithms cost on a network of one level, as formulas.

Every algorithm here costs ``T(n) = α A + n (β B + γ C)`` for a buffer of n bytes on p ranks, with
counts A, B, C that depend on p alone. For powers of two they are MG-WFBP's Table II::

    all-reduce                      A               B               C
    binary tree                     2 log2 p        2 log2 p        log2 p
    recursive doubling              log2 p          log2 p          log2 p
    recursive halving and doubling  2 log2 p        2 (p - 1)/p     (p - 1)/p
    ring                            2 (p - 1)       2 (p - 1)/p     (p - 1)/p

Other p. The formulas are exact for *every* p of the schedules in :mod:`syncopate.schedules`, and
tests hold them against the price of the schedule:

* ring: as printed;
* binary tree, halving and doubling: ceil(log2 p) in place of log2 p;
* recursive doubling: folding the ranks beyond a power of two costs two rounds, so A = B =
  floor(log2 p) + 2 = ceil(log2 p) + 1, and C = ceil(log2 p), since the last round only copies.

Reduce-scatter is the first half of the ring or of halving and doubling, all-gather the second:
half of A and B each, and C belongs to the reduce-scatter.

The rest are sums of such parts, exact for every p, number of blocks and factorisation too: minimum
spanning tree, bidirectional exchange and linear pipeline (LP, Table 1, with what
``reproduce/formulas/linear_pipeline.py`` puts right); two levels and BlueConnect on a network of
one level (``reproduce/formulas/blueconnect.py`` has several).

Networks of several levels have formulas of their own (:mod:`syncopate.costs.papers.levels`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from syncopate.artifacts.cluster import Cluster, LinearFit
from syncopate.costs.papers.levels import level_lines
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import ORDER
from syncopate.schedules.algorithms.linear_pipeline import DEFAULT_BLOCKS
from syncopate.schedules.compose import topology_order
from syncopate.schedules.conditions import conditions
from syncopate.schedules.factors import default_factors, require_factors
from syncopate.schedules.options import Option, checked
from syncopate.schedules.registry import ALGORITHMS


class Terms(NamedTuple):
    """How often α, β and γ count in ``T(n) = α A + n (β B + γ C)``.

    Attributes:
        startups: A, messages one after the other.
        wire: B, buffers sent one after the other.
        additions: C, buffers added one after the other.
    """

    startups: float
    wire: float
    additions: float

    def seconds(
        self, nbytes: float, latency_s: float, byte_time_s: float, reduction_s_per_byte: float = 0.0
    ) -> float:
        """Return ``α A + n (β B + γ C)`` for a buffer of n bytes."""
        per_byte = self.wire * byte_time_s + self.additions * reduction_s_per_byte
        return self.startups * latency_s + nbytes * per_byte


def _log2_ceil(p: int) -> int:
    return (p - 1).bit_length()


def _recursive_doubling(p: int) -> Terms:
    rounds = _log2_ceil(p) + (1 if p & (p - 1) else 0)
    return Terms(rounds, rounds, _log2_ceil(p))


def _ring_scatter(p: int) -> Terms:
    return Terms(p - 1, (p - 1) / p, (p - 1) / p)


def _recursive_scatter(p: int) -> Terms:
    return Terms(_log2_ceil(p), (p - 1) / p, (p - 1) / p)


def _tree(p: int) -> Terms:
    return Terms(_log2_ceil(p), _log2_ceil(p), _log2_ceil(p))


def _flat_tree(p: int) -> Terms:
    return Terms(p - 1, p - 1, p - 1)


def _there_and_back(scatter: Terms) -> Terms:
    return Terms(2 * scatter.startups, 2 * scatter.wire, scatter.additions)


def _copies(reduction: Terms) -> Terms:
    return reduction._replace(additions=0.0)


def _chain(p: int, blocks: int = DEFAULT_BLOCKS) -> Terms:
    steps = p - 2 + blocks if p > 1 else 0
    return Terms(steps, steps / blocks, steps / blocks)


def _chain_all_reduce(p: int, blocks: int = DEFAULT_BLOCKS) -> Terms:
    overlaps = p > 2 and blocks > 1
    steps = 2 * (p - 2 + blocks) - 1 if overlaps else (p - 1) * (blocks + 1)
    return Terms(steps, steps / blocks, _chain(p, blocks).additions)


def _hierarchical_scatter(
    p: int, factors: Sequence[int] | None = None, stages: Sequence[str] | None = None
) -> Terms:
    factors = factors or default_factors(p)
    require_factors(p, factors)
    startups, share = 0.0, 1.0
    for index, size in enumerate(factors):
        ring = stages is not None and stages[index] == "ring"
        startups += (_ring_scatter if ring else _recursive_scatter)(size).startups
        share /= size
    return Terms(startups, 1 - share, 1 - share)


def _two_level(p: int, factors: Sequence[int] | None = None) -> Terms:
    factors = factors or default_factors(p)
    require_factors(p, factors)
    node = factors[0] if len(factors) > 1 else 1
    inside, across = _recursive_scatter(node), _there_and_back(_ring_scatter(p // node))
    return Terms(
        4 * inside.startups + across.startups,
        4 * inside.wire + across.wire,
        inside.additions + across.additions,
    )


def _blueconnect(
    p: int,
    factors: Sequence[int] | None = None,
    stages: Sequence[str] | None = None,
    pipelines: int = 1,
) -> Terms:
    # On one level every stage occupies the same ports, and message chunks only queue for them.
    if pipelines != 1:
        raise InvalidValueError("pipelines", pipelines, "1 for a closed form; price the schedule")
    return _there_and_back(_hierarchical_scatter(p, factors, stages))


CLOSED_FORMS: dict[tuple[str, str], Callable[..., Terms]] = {
    ("all_reduce", "ring"): lambda p: _there_and_back(_ring_scatter(p)),
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_reduce", "halving_doubling"): lambda p: _there_and_back(_recursive_scatter(p)),
    ("all_reduce", "binary_tree"): lambda p: _there_and_back(_tree(p)),
    ("all_reduce", "mst"): lambda p: _there_and_back(_tree(p)),
    ("all_reduce", "be"): lambda p: _there_and_back(_recursive_scatter(p)),
    ("all_reduce", "flat_tree"): lambda p: _there_and_back(_flat_tree(p)),
    ("all_reduce", "lp"): _chain_all_reduce,
    ("all_reduce", "two_level"): _two_level,
    ("all_reduce", "blueconnect"): _blueconnect,
    ("reduce_scatter", "ring"): _ring_scatter,
    ("reduce_scatter", "recursive"): _recursive_scatter,
    ("reduce_scatter", "hierarchical"): _hierarchical_scatter,
    ("all_gather", "ring"): lambda p: _copies(_ring_scatter(p)),
    ("all_gather", "recursive"): lambda p: _copies(_recursive_scatter(p)),
    ("all_gather", "hierarchical"): lambda p, **options: _copies(
        _hierarchical_scatter(p, **options)
    ),
    ("broadcast", "mst"): lambda p: _copies(_tree(p)),
    ("broadcast", "flat_tree"): lambda p: _copies(_flat_tree(p)),
    ("broadcast", "be"): lambda p: _copies(_there_and_back(_recursive_scatter(p))),
    ("broadcast", "lp"): lambda p, **options: _copies(_chain(p, **options)),
    ("reduce", "mst"): _tree,
    ("reduce", "flat_tree"): _flat_tree,
    ("reduce", "be"): lambda p: _there_and_back(_recursive_scatter(p)),
    ("reduce", "lp"): _chain,
}
"""(collective, algorithm) -> its terms as a function of the world size and the options."""


def closed_form(collective: str, algorithm: str, world_size: int, **options: Option) -> Terms:
    """Return how often α, β and γ count for an algorithm on ``world_size`` ranks.

    Args:
        collective: such as ``"all_reduce"``.
        algorithm: a name from the registry.
        world_size: number of ranks p.
        options: as for :func:`syncopate.schedules.registry.build`; defaults are the same.

    Raises:
        UnknownNameError: no closed form for this collective and algorithm, or no such option.
        InvalidValueError: ``world_size`` is below 1, or a value of an option that does not fit.
    """
    if world_size < 1:
        raise InvalidValueError("world_size", world_size, "an integer >= 1")
    key = (collective, algorithm)
    if key not in CLOSED_FORMS:
        known = [name for found, name in CLOSED_FORMS if found == collective]
        if not known:
            raise UnknownNameError(
                "collective", collective, dict.fromkeys(found for found, _ in CLOSED_FORMS)
            )
        raise UnknownNameError("algorithm", algorithm, known, collective)
    scope = f"{collective} ({algorithm})"
    values = dict(checked(ALGORITHMS[key].options, world_size, options, scope))
    values.pop("order", None)
    return CLOSED_FORMS[key](world_size, **values)


def closed_lines(
    cluster: Cluster, collective: str, algorithm: str, options: Mapping[str, Any]
) -> tuple[LinearFit, ...]:
    """Return the lines whose maximum an algorithm costs on a cluster, where a formula says it.

    The formulas are the prices of the schedules (:mod:`syncopate.costs.schedule.price`), in
    microseconds for any number of ranks, where a table of a ring has two transfers for each pair
    of them.

    Args:
        cluster: the machines; their levels alone count.
        collective: such as ``"all_reduce"``.
        algorithm: a name from the registry.
        options: as for :func:`syncopate.schedules.registry.build`.

    Returns:
        No line where there is no formula: for an algorithm of one's own, and on several levels
        where it does not fit them or its ranks are not in their order.

    Raises:
        UnknownNameError: no such option.
        InvalidValueError: a value of an option that does not fit.
    """
    joining = cluster.joining
    if (collective, algorithm) not in CLOSED_FORMS:
        return ()
    if len(joining) > 1:
        scope = f"{collective} ({algorithm})"
        known = ALGORITHMS[collective, algorithm].options
        values = dict(checked(known, cluster.world_size, options, scope))
        order = values.pop(ORDER, None) or tuple(range(cluster.world_size))
        if order != topology_order(cluster):
            return ()
        # An all-reduce begins and ends at the first of the order, whichever rank that is.
        root = order.index(0) if conditions(collective).rooted else 0
        return level_lines(cluster, collective, algorithm, values, root)
    if options.get("pipelines", 1) != 1:
        return ()
    terms = closed_form(collective, algorithm, cluster.world_size, **options)
    byte_time_s = sum(level.byte_time_s for level in joining)
    per_byte_s = terms.seconds(1.0, 0.0, byte_time_s, cluster.reduction_s_per_byte)
    startup_s = terms.startups * sum(level.latency_s for level in joining)
    return (LinearFit(a_s=startup_s, b_s_per_byte=per_byte_s),)
