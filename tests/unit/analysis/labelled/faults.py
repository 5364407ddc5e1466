"""Faults: what is wrong with a training, whose fault it is, and how explain may call it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import NamedTuple


class Pause(NamedTuple):
    """A rank does something else, noted as such or not."""

    kind: str
    lasts_s: float
    noted: bool


def _as_long(rank: int, iteration: int, lane: str, micro: int) -> float:
    return 1.0


def _at_once(rank: int, iteration: int) -> float:
    return 0.0


def _none(rank: int, iteration: int, place: str) -> Pause | None:
    return None


def _as_fast(kind: str, ranks: Sequence[int], iteration: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        title: in words.
        kinds: what explain may call it.
        ranks: whose it is; empty: of none, or of all.
        anywhere: whether it comes now on one rank and now on another, and nothing says why: then
            explain may abstain for that reason.
        factor: how many times as long computation takes, by rank, iteration, lane, micro-batch.
        input_s: how much later input is, by rank and iteration.
        pause: what a rank does else at a place of an iteration: ``"input"``, ``"backward"`` or
            ``"end"``.
        mended: the same as ``factor`` when the fault is mended: what is unequal is equal then.
        carried: how many times as long a message takes, by kind, ranks and iteration.
        tail: how many times as long as all of it a rank takes after the others, by rank, iteration.
    """

    title: str
    kinds: frozenset[str]
    ranks: frozenset[int] = frozenset()
    anywhere: bool = False
    factor: Callable[[int, int, str, int], float] = _as_long
    mended: Callable[[int, int, str, int], float] = _as_long
    input_s: Callable[[int, int], float] = _at_once
    pause: Callable[[int, int, str], Pause | None] = _none
    carried: Callable[[str, Sequence[int], int], float] = _as_fast
    tail: Callable[[int, int], float] = _at_once


def _luck(*key: object) -> random.Random:
    return random.Random(" ".join(map(str, key)))


def slow(ranks: Sequence[int], by: float, lanes: Sequence[str] = ()) -> Fault:
    """Ranks compute longer, in some lanes or in all."""
    return Fault(
        f"ranks {list(ranks)} compute {by:.2f}x as long in {list(lanes) or 'all'}",
        frozenset({"compute"}),
        frozenset(ranks),
        factor=lambda r, i, lane, m: by if r in ranks and (not lanes or lane in lanes) else 1.0,
    )


def now_and_then(rank: int, by: float, every: int) -> Fault:
    """A rank computes longer in each ``every``-th iteration."""
    return Fault(
        f"rank {rank} computes {by:.2f}x as long in each {every}th iteration",
        frozenset({"pause", "compute"}),
        frozenset({rank}),
        factor=lambda r, i, lane, m: by if r == rank and i % every == 1 else 1.0,
    )


def since(rank: int, by: float, begin: int) -> Fault:
    """A rank computes longer from an iteration on."""
    return Fault(
        f"rank {rank} computes {by:.2f}x as long from iteration {begin} on",
        frozenset({"pause", "compute"}),
        frozenset({rank}),
        factor=lambda r, i, lane, m: by if r == rank and i >= begin else 1.0,
    )


def stalls(rank: int, lasts_s: float, every: int) -> Fault:
    """A rank's input comes later in each ``every``-th iteration."""
    return Fault(
        f"input of rank {rank} is {lasts_s * 1e3:.0f} ms late in each {every}th iteration",
        frozenset({"pause", "input"}),
        frozenset({rank}),
        input_s=lambda r, i: lasts_s if r == rank and i % every == 3 else 0.0,
    )


def wandering(count: int, by: float) -> Fault:
    """Another rank is slow in each iteration."""
    return Fault(
        f"one rank after the other computes {by:.2f}x as long",
        frozenset({"batches", "pause"}),
        anywhere=True,
        factor=lambda r, i, lane, m: by if (i * 7 + 3) % count == r else 1.0,
        mended=lambda r, i, lane, m: 1 + (by - 1) / count,
    )


def late_input(ranks: Sequence[int], by_s: float) -> Fault:
    """Ranks wait for input; none: all of them."""
    return Fault(
        f"input of {list(ranks) or 'all'} is {by_s * 1e3:.1f} ms late",
        frozenset({"input"}),
        frozenset(ranks),
        input_s=lambda r, i: by_s if r in ranks or not ranks else 0.0,
    )


def checkpoints(rank: int, lasts_s: float, every: int, noted: bool) -> Fault:
    """A rank saves after each ``every``-th iteration."""
    what = Pause("checkpoint", lasts_s, noted)
    return Fault(
        f"rank {rank} saves for {lasts_s * 1e3:.0f} ms in each {every}th iteration"
        + ("" if noted else ", unnoted"),
        frozenset({"checkpoint"} if noted else {"pause", "input"}),
        frozenset({rank}),
        pause=lambda r, i, at: what if at == "end" and r == rank and i % every == 2 else None,
    )


def evaluations(lasts_s: float, every: int) -> Fault:
    """All ranks evaluate after each ``every``-th iteration; nothing notes it."""
    what = Pause("evaluation", lasts_s, noted=False)
    return Fault(
        f"all evaluate for {lasts_s * 1e3:.0f} ms in each {every}th iteration",
        frozenset({"pause", "input"}),
        pause=lambda r, i, at: what if at == "end" and i % every == 2 else None,
    )


def collections(lasts_s: float, chance: float, noted: bool, seed: int) -> Fault:
    """Ranks collect garbage, each for itself by chance."""
    what = Pause("gc", lasts_s, noted)

    def pause(r: int, i: int, at: str) -> Pause | None:
        here = at == "backward" and _luck("gc", seed, r, i).random() < chance
        return what if here else None

    return Fault(
        f"ranks collect garbage for {lasts_s * 1e3:.0f} ms in {chance:.0%} of iterations"
        + ("" if noted else ", unnoted"),
        frozenset({"garbage collection"} if noted else {"pause", "batches"}),
        anywhere=not noted,
        pause=pause,
    )


def unequal(
    spread: float, seed: int, replica: Callable[[int], int], replicas: int, micro_batches: int
) -> Fault:
    """Each micro-batch of each replica has a length of its own; mended, an iteration's are even."""

    def long(replica: int, i: int, m: int) -> float:
        return max(1 + spread * _luck("batch", seed, replica, i, m).gauss(0, 1), 0.3)

    @cache
    def even(i: int) -> float:
        return fmean(long(r, i, m) for r in range(replicas) for m in range(micro_batches))

    return Fault(
        f"batches differ by {spread:.0%}",
        frozenset({"batches"}),
        factor=lambda r, i, lane, m: 1.0 if lane == "update" else long(replica(r), i, m),
        mended=lambda r, i, lane, m: 1.0 if lane == "update" else even(i),
    )


def long_stage(ranks: Sequence[int], by: float, stages: int) -> Fault:
    """All ranks of one stage compute longer; the work stays when stages are even."""
    return Fault(
        f"the stage of {list(ranks)} computes {by:.2f}x as long",
        frozenset({"stages"}),
        factor=lambda r, i, lane, m: by if r in ranks and lane != "update" else 1.0,
        mended=lambda r, i, lane, m: 1.0 if lane == "update" else 1 + (by - 1) / stages,
    )


def slow_end(rank: int, by: float) -> Fault:
    """A rank has its messages later than the others."""
    return Fault(
        f"messages take {1 + by:.1f}x as long on rank {rank}",
        frozenset({"link"}),
        frozenset({rank}),
        carried=lambda k, of, i: 1 + by if k in ("send", "recv") and rank in of else 1.0,
        tail=lambda r, i: by if r == rank else 0.0,
    )


def slow_group(ranks: Sequence[int], by: float, kind: str) -> Fault:
    """The messages of one group take longer than those of the groups like it."""
    mine = frozenset(ranks)
    return Fault(
        f"{kind} among {list(ranks)} takes {by:.1f}x as long",
        frozenset({"link", "transfers"}),
        mine,
        carried=lambda k, of, i: by if frozenset(of) == mine and k == kind else 1.0,
    )


def congestion(by: float, chance: float, seed: int) -> Fault:
    """All messages of some iterations take longer."""
    return Fault(
        f"messages take {by:.1f}x as long in {chance:.0%} of iterations",
        frozenset({"congestion"}),
        carried=lambda k, of, i: by if _luck("net", seed, i).random() < chance else 1.0,
    )
