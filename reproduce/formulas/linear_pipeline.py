"""Linear pipeline: LP's Table 1 as printed, and where it is not what its algorithms cost.

For p ranks, n bytes and blocks of b bytes the paper prints::

    broadcast     BE    (log p + p-1) α + 2 (p-1)/p n β
                  MST   log p (α + n β)
                  LP    (p-1 + n/b) α + (b (p-1) + n) β
    reduce        BE    2 log p α + 2 (p-1)/p n β + (p-1)/p n γ
                  MST   log p (α + n β + n γ)
                  LP    (p-1 + n/b) α + (b p - b + n) (β + γ)
    all-reduce    BE    2 log p α + 2 (p-1)/p n β + (p-1)/p n γ
                  MST   log p (2 α + 2 n β + n γ)
                  LP    2 (p-1 + n/b) α + (b p - b + n) (2 β + γ)

With log p rounded up, MST and BE cost exactly that (:mod:`syncopate.costs.papers.closed_forms`,
tested equal to the prices of the schedules), except for these:

* A chain of p ranks has p - 1 links, so n/b blocks are through after p - 2 + n/b steps, as the
  paper's own Fig. 2 shows (3 ranks, 4 blocks, 5 steps). The table has one step more.
* The all-reduce fills the pipe while the reduction drains: 2 (p - 2 + n/b) - 1 steps, 9 in Fig. 2.
  The table has the 2 (p - 1 + n/b) of two separate passes.
* BE's broadcast counts the p - 1 start-ups of a ring all-gather. Recursive doubling, which the
  table assumes in the rows below, needs log p.

Source: Wang, Wu, Bosilca, Vuduc and Xu, "Efficient communications in training large scale neural
networks" (2017), Section 3.2 and Table 1.
"""

from __future__ import annotations

from collections.abc import Callable

from syncopate.costs.papers.closed_forms import Terms
from syncopate.errors import InvalidValueError, UnknownNameError


def _mst(p: int) -> Terms:
    log = (p - 1).bit_length()
    return Terms(log, log, log)


def _be(p: int) -> Terms:
    return Terms(2 * (p - 1).bit_length(), 2 * (p - 1) / p, (p - 1) / p)


def _lp(p: int, blocks: float) -> Terms:
    steps = p - 1 + blocks
    return Terms(steps, steps / blocks, steps / blocks)


TABLE_1: dict[tuple[str, str], Callable[[int, float], Terms]] = {
    ("broadcast", "be"): lambda p, _: Terms((p - 1).bit_length() + p - 1, 2 * (p - 1) / p, 0.0),
    ("broadcast", "mst"): lambda p, _: _mst(p)._replace(additions=0.0),
    ("broadcast", "lp"): lambda p, blocks: _lp(p, blocks)._replace(additions=0.0),
    ("reduce", "be"): lambda p, _: _be(p),
    ("reduce", "mst"): lambda p, _: _mst(p),
    ("reduce", "lp"): _lp,
    ("all_reduce", "be"): lambda p, _: _be(p),
    ("all_reduce", "mst"): lambda p, _: Terms(2 * _mst(p).startups, 2 * _mst(p).wire, _mst(p)[2]),
    ("all_reduce", "lp"): lambda p, blocks: Terms(
        2 * _lp(p, blocks).startups, 2 * _lp(p, blocks).wire, _lp(p, blocks).additions
    ),
}
"""(collective, algorithm) -> counts of α, n β and n γ from p and n/b, logarithms rounded up."""


def table_1(collective: str, algorithm: str, world_size: int, blocks: float = 1.0) -> Terms:
    """Return how often α, β and γ count by LP's Table 1, as printed.

    Args:
        collective: ``"broadcast"``, ``"reduce"`` or ``"all_reduce"``.
        algorithm: ``"be"``, ``"mst"`` or ``"lp"``.
        world_size: number of ranks p; >= 2, since the paper's pipeline has a step even for one.
        blocks: n/b; LP alone depends on it.

    Raises:
        UnknownNameError: no such entry.
        InvalidValueError: fewer than two ranks, or less than one block.
    """
    if (collective, algorithm) not in TABLE_1:
        known = (f"{found} ({name})" for found, name in TABLE_1)
        raise UnknownNameError("entry of Table 1", f"{collective} ({algorithm})", known)
    if world_size < 2:
        raise InvalidValueError("world_size", world_size, "an integer >= 2")
    if not blocks >= 1:
        raise InvalidValueError("blocks", blocks, "a number >= 1")
    return TABLE_1[collective, algorithm](world_size, blocks)
