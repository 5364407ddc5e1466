"""BlueConnect: one reduce-scatter and one all-gather per level of the network.

With p = p0 p1 .. pk, innermost first, rank r has the coordinates c0 = r mod p0, c1 = (r / p0) mod
p1, and so on. Stage i is a reduce-scatter among the p_i ranks that differ in c_i alone, p / p_i of
them at once, on the n / (p0 .. p_{i-1}) bytes that the stages before have left; after the last
every rank owns the sum of one chunk, and all-gathers in reverse order bring it back. Four ranks as
2 x 2, the share of the buffer that each message carries::

    stage 0     0 <-> 1   2 <-> 3     1/2    reduce    in the host
    stage 1     0 <-> 2   1 <-> 3     1/4    reduce    across hosts
    stage 1     0 <-> 2   1 <-> 3     1/4    copy
    stage 0     0 <-> 1   2 <-> 3     1/2    copy

Each stage is a ring (p_i - 1 rounds) or recursive (ceil(log2 p_i) rounds, any p_i), which the
network of that level may decide.

Steps and bytes: 2 sum over stages of rounds; 2(p - 1)/p n bytes sent by each rank, of which only
1 / (p0 .. p_{i-1}) reaches level i. That saves bytes where it counts when outer links are shared by
the ranks within; when all links are equally fast, a ring in the order of the topology crosses the
outer ones less often still.

Pipelines. Cut into m message chunks, the buffer has its first chunk in stage 1 while the second is
in stage 0, so that the links of different levels work at the same time. Stages advance together,
round by round: it pays when their rounds take about as long. Reduce-scatters share rounds with
reduce-scatters alone, and all-gathers with all-gathers, so that in any round a rank has one message
at a level at most, and all ranks do the same.

The reduce-scatter and the all-gather by levels are the first and the second half, except that rank
r must own shard r, so that the messages of inner stages consist of every p_i-th shard.

Source: BlueConnect (Cho et al. 2019), Sections 2 and 3, Fig. 2 and Eqs. 5 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules.algorithms import halving_doubling, ring
from syncopate.schedules.base import Schedule, Table, Transfers, mirrored, rounds_of, stacked
from syncopate.schedules.compose import IntArray, embedded, in_turn, shifted
from syncopate.schedules.factors import default_factors, require_factors

STAGES = {"ring": ring.reduce_scatter, "recursive": halving_doubling.reduce_scatter}
"""What a stage may be; the all-gather is its mirror."""


def all_reduce(
    world_size: int,
    *,
    factors: Sequence[int] | None = None,
    stages: Sequence[str] | None = None,
    pipelines: int = 1,
) -> Schedule:
    """Return BlueConnect's all-reduce; p chunks per pipeline.

    Args:
        world_size: number of ranks p.
        factors: ranks per level, innermost first; any factorisation of p.
        stages: ``"ring"`` or ``"recursive"`` per factor; all recursive when left out.
        pipelines: message chunks that are in different stages at the same time.
    """
    if pipelines < 1:
        raise InvalidValueError("pipelines", pipelines, "an integer >= 1")
    down = _stages(world_size, factors, stages, nested=True)
    every = [*down, *(mirrored(stage) for stage in reversed(down))]
    table = _pipelined(every, pipelines, world_size)
    chunks = world_size * pipelines
    return Schedule("all_reduce", "blueconnect", world_size, chunks, Transfers(table))


def reduce_scatter(
    world_size: int, *, factors: Sequence[int] | None = None, stages: Sequence[str] | None = None
) -> Schedule:
    """Return the reduce-scatter by levels, innermost first; rank r ends with the sum of chunk r."""
    table = in_turn(_stages(world_size, factors, stages, nested=False))
    return Schedule("reduce_scatter", "hierarchical", world_size, world_size, Transfers(table))


def all_gather(
    world_size: int, *, factors: Sequence[int] | None = None, stages: Sequence[str] | None = None
) -> Schedule:
    """Return the all-gather by levels, outermost first; rank r starts with chunk r."""
    table = mirrored(in_turn(_stages(world_size, factors, stages, nested=False)))
    return Schedule("all_gather", "hierarchical", world_size, world_size, Transfers(table))


def _stages(
    world_size: int,
    factors: Sequence[int] | None,
    stages: Sequence[str] | None,
    *,
    nested: bool,
) -> list[Table]:
    """Return the reduce-scatter of every stage, the rounds of each counted from 0.

    Args:
        world_size: number of ranks p.
        factors: as for :func:`all_reduce`.
        stages: as for :func:`all_reduce`.
        nested: number chunks so that what a stage leaves to a rank is one range; otherwise rank
            r's chunk is r.
    """
    if factors is None:
        factors = default_factors(world_size)
    require_factors(world_size, factors)
    if stages is None:
        stages = ["recursive"] * len(factors)
    if len(stages) != len(factors):
        raise InvalidValueError(
            "stages", tuple(stages), f"one per factor of {tuple(factors)}: {' or '.join(STAGES)}"
        )
    for name in stages:
        if name not in STAGES:
            raise UnknownNameError("stage", name, STAGES, "blueconnect")
    inner = [math.prod(factors[:i]) for i in range(len(factors))]
    outer = [world_size // (below * size) for below, size in zip(inner, factors, strict=True)]
    weights = outer if nested else inner
    tables = []
    for i, (name, size) in enumerate(zip(stages, factors, strict=True)):
        member = np.arange(size) * inner[i]
        low, high = np.arange(inner[i]), np.arange(outer[i])
        ranks = high[:, None, None] * inner[i] * size + low[:, None] + member
        kept = _combinations(factors[:i], weights[:i])
        free = _combinations(factors[i + 1 :], weights[i + 1 :])
        chunks = kept[:, None, None] + np.arange(size)[:, None] * weights[i] + free
        everywhere = np.broadcast_to(chunks, (outer[i], *chunks.shape))
        scatter = STAGES[name](size).table.table
        tables.append(
            embedded(scatter, ranks.reshape(-1, size), everywhere.reshape(-1, *chunks.shape[1:]))
        )
    return tables


def _combinations(sizes: Sequence[int], weights: Sequence[int]) -> IntArray:
    """Return the weighted sum of every combination of digits below ``sizes``, first fastest."""
    found = np.zeros(1, np.int64)
    for size, weight in zip(sizes, weights, strict=True):
        found = (np.arange(size)[:, None] * weight + found).ravel()
    return found


def _pipelined(stages: Sequence[Table], pipelines: int, chunks: int) -> Table:
    """Return the stages for every message chunk, each one stage behind the chunk before it.

    Args:
        stages: their rounds counted from 0.
        pipelines: number of message chunks.
        chunks: chunks of the schedule per message chunk.
    """
    tables = []
    first = 0
    lengths = [rounds_of(stage) for stage in stages]
    for active in together(lengths, pipelines):
        for stage, chunk, late in active:
            tables.append(shifted(stages[stage], first + late, chunk * chunks))
        first += max(lengths[stage] for stage, _, _ in active)
    return stacked(tables)


def together(rounds: Sequence[int], pipelines: int) -> list[list[tuple[int, int, int]]]:
    """Return which stages work at the same time, one after another.

    All-gathers end together, as reduce-scatters begin together: so their longest messages, the
    first of a reduce-scatter and the last of an all-gather, meet those of other levels.

    Args:
        rounds: of each stage of reduction and distribution; the second half are all-gathers.
        pipelines: number of message chunks.

    Returns:
        For each time the stages, each with the message chunk that is in it, and how many rounds
        later than the first it begins.
    """
    found = []
    count = len(rounds)
    for slot in range(count + pipelines - 1):
        active = range(max(0, slot - pipelines + 1), min(slot + 1, count))
        for back, half in enumerate((range(count // 2), range(count // 2, count))):
            working = [stage for stage in active if stage in half]
            longest = max((rounds[stage] for stage in working), default=0)
            each = [(s, slot - s, back * (longest - rounds[s])) for s in working]
            if each:
                found.append(each)
    return found
