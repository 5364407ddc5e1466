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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from syncopate.cluster import LinearFit, require_time
from syncopate.errors import InvalidValueError, UnknownNameError


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


def _log2_ceil(p: int) -> int:
    return (p - 1).bit_length()


def _recursive_doubling(p: int) -> Terms:
    rounds = _log2_ceil(p) + (1 if p & (p - 1) else 0)
    return Terms(rounds, rounds, _log2_ceil(p))


def _binary_tree(p: int) -> Terms:
    return Terms(2 * _log2_ceil(p), 2 * _log2_ceil(p), _log2_ceil(p))


CLOSED_FORMS: dict[tuple[str, str], Callable[[int], Terms]] = {
    ("all_reduce", "ring"): lambda p: Terms(2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p),
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_reduce", "halving_doubling"): (
        lambda p: Terms(2 * _log2_ceil(p), 2 * (p - 1) / p, (p - 1) / p)
    ),
    ("all_reduce", "binary_tree"): _binary_tree,
    ("reduce_scatter", "ring"): lambda p: Terms(p - 1, (p - 1) / p, (p - 1) / p),
    ("reduce_scatter", "recursive"): lambda p: Terms(_log2_ceil(p), (p - 1) / p, (p - 1) / p),
    ("all_gather", "ring"): lambda p: Terms(p - 1, (p - 1) / p, 0.0),
    ("all_gather", "recursive"): lambda p: Terms(_log2_ceil(p), (p - 1) / p, 0.0),
}
"""(collective, algorithm) -> its terms as a function of the world size."""


def closed_form(collective: str, algorithm: str, world_size: int) -> Terms:
    """Return how often α, β and γ count for an algorithm on ``world_size`` ranks.

    Raises:
        UnknownNameError: no closed form for this collective and algorithm.
        InvalidValueError: ``world_size`` is below 1.
    """
    if world_size < 1:
        raise InvalidValueError("world_size", world_size, "an integer >= 1")
    if (collective, algorithm) not in CLOSED_FORMS:
        known = [name for found, name in CLOSED_FORMS if found == collective]
        if not known:
            raise UnknownNameError(
                "collective", collective, dict.fromkeys(found for found, _ in CLOSED_FORMS)
            )
        raise UnknownNameError("algorithm", algorithm, known, collective)
    return CLOSED_FORMS[collective, algorithm](world_size)


def all_reduce_linear(
    algorithm: str,
    world_size: int,
    latency_s: float,
    byte_time_s: float,
    reduction_s_per_byte: float = 0.0,
) -> LinearFit:
    """Return ``T(n) = a + b n`` of an all-reduce on one level: MG-WFBP, Table II.

    Args:
        algorithm: a name from the registry of all-reduce schedules.
        world_size: number of ranks, any p >= 1; see the module for other than powers of two.
        latency_s: α.
        byte_time_s: β.
        reduction_s_per_byte: γ.

    Raises:
        UnknownNameError: no such algorithm.
        InvalidValueError: a negative parameter, or no rank.
    """
    for what, value in (
        ("latency_s", latency_s),
        ("byte_time_s", byte_time_s),
        ("reduction_s_per_byte", reduction_s_per_byte),
    ):
        require_time(what, value)
    terms = closed_form("all_reduce", algorithm, world_size)
    return LinearFit(
        a_s=terms.startups * latency_s,
        b_s_per_byte=terms.wire * byte_time_s + terms.additions * reduction_s_per_byte,
    )
