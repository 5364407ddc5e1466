"""Random planning problems, and the best of all partitions by brute force."""

from __future__ import annotations

import numpy as np

from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.model.functions import (
    CostFunction,
    CurveCost,
    Envelope,
    LinearCost,
    VariantCost,
)
from syncopate.costs.model.pieces import FloatArray, Pieces
from syncopate.planning.problem import Problem

COSTS = ("linear", "steps", "curve", "envelope", "jumps", "options")


def linear(a: float, b: float) -> LinearCost:
    return LinearCost(LinearFit(a_s=a, b_s_per_byte=b))


def random_cost(rng: np.random.Generator, kind: str) -> CostFunction:
    if kind == "linear":
        return linear(rng.choice([0.0, 0.5, 1.0, 3.0]), rng.choice([0.0, 0.1, 1.0]))
    if kind == "steps":
        return steps(rng)
    if kind == "jumps":
        return jumps(rng)
    if kind == "curve":
        return curve(rng)
    if kind == "options":
        return Envelope({name: options(rng) for name in ("one", "another")})
    parts = [random_cost(rng, k) for k in rng.choice(["linear", "steps", "curve", "jumps"], 3)]
    return Envelope({f"algorithm {i}": part for i, part in enumerate(parts)})


def options(rng: np.random.Generator) -> VariantCost:
    """An algorithm that is told in how many blocks to cut: fewer start-ups, or fewer bytes."""
    costs = [
        linear(rng.uniform(0, 3) * blocks, rng.uniform(0.05, 1) / blocks) for blocks in (1, 2, 4)
    ]
    return VariantCost(
        [({"blocks": blocks}, cost) for blocks, cost in zip((1, 2, 4), costs, strict=True)],
        lambda options: costs[(1, 2, 4).index(options["blocks"])],
    )


def steps(rng: np.random.Generator) -> CostFunction:
    """A staircase: whole packets, whatever their filling."""
    count = rng.integers(1, 6)
    uppers = np.sort(rng.choice(np.arange(1, 60), count, replace=False)).astype(float)
    return CostFunction(Pieces.of(uppers, np.sort(rng.uniform(0, 9, count)), np.zeros(count)))


def jumps(rng: np.random.Generator) -> CostFunction:
    """Lines of any slope with jumps upwards between them, as at a change of protocol."""
    count = int(rng.integers(1, 6))
    uppers = np.sort(rng.choice(np.arange(1, 60), count, replace=False)).astype(float)
    slopes = rng.uniform(0, 1, count) * rng.integers(0, 2, count)
    intercepts, level = [], rng.uniform(0, 2)
    for low, high, slope in zip([0.0, *uppers[:-1]], uppers, slopes, strict=True):
        intercepts.append(level - slope * low)
        level += slope * (high - low) + rng.choice([0.0, 1.0])
    return CostFunction(Pieces.of(uppers, intercepts, slopes))


def curve(rng: np.random.Generator) -> CurveCost:
    """A noisy measured curve, whose medians may decrease."""
    points = tuple(
        CurvePoint(nbytes=int(n), samples_s=tuple((1 + 0.1 * n) * rng.lognormal(0, 0.3, 3)))
        for n in np.unique(rng.integers(0, 60, 7))
    )
    fit = LinearFit(a_s=1.0, b_s_per_byte=0.1)
    return CurveCost(
        CollectiveCurve(collective="all_reduce", algorithm="ring", points=points, fit=fit)
    )


def random_problem(
    rng: np.random.Generator, length: int, kind: str = "linear", dtypes: int = 1
) -> Problem:
    """Small integers, so that ties, zero-byte tensors and equal ready times are common."""
    scale = rng.choice([0.0, 0.3, 1.0, 5.0])
    gaps = (
        rng.exponential(scale, length) * rng.integers(0, 2, length) if scale else np.zeros(length)
    )
    sizes = rng.integers(0, 12, length) * rng.integers(0, 2, length) + rng.integers(0, 3, length)
    dtype = rng.integers(0, dtypes, length)
    nbytes = np.where(np.arange(dtypes)[:, None] == dtype, sizes, 0)
    return Problem(np.cumsum(gaps), nbytes, random_cost(rng, kind))


def bucket_costs(problem: Problem) -> FloatArray:
    """Cost of every bucket ``[start, stop)``, shape (L+1, L+1), straight from the definition."""
    sizes = np.maximum(problem.offsets[:, None, :] - problem.offsets[:, :, None], 0.0)
    if isinstance(problem.cost, Envelope):
        fixed = [
            cost.fixed(told)
            for cost in problem.cost.costs.values()
            for told in ({"blocks": blocks} for blocks in (1, 2, 4))
        ]
        of_algorithms = [cost(sizes).sum(axis=0) for cost in fixed]
        return np.min(of_algorithms, axis=0)
    return problem.cost(sizes).sum(axis=0)


def brute_force_s(problem: Problem) -> float:
    """The earliest end over all 2^(L-1) partitions; bit i of a mask cuts after gradient i."""
    length, ready = problem.length, problem.ready_s
    costs = bucket_costs(problem)
    masks = np.arange(1 << (length - 1))
    start = np.zeros(len(masks), np.int64)
    end = np.zeros(len(masks))
    for stop in range(1, length + 1):
        cut = (masks >> (stop - 1)) & 1 == 1 if stop < length else np.ones(len(masks), bool)
        ends_here = np.maximum(end, ready[stop - 1]) + costs[start, stop]
        end = np.where(cut, ends_here, end)
        start = np.where(cut, stop, start)
    return float(end.min())


def reference_s(problem: Problem) -> float:
    """The recurrence of ``optimal`` taken literally, in O(L^2)."""
    costs = bucket_costs(problem)
    finish = np.zeros(problem.length + 1)
    for stop in range(1, problem.length + 1):
        starts = np.maximum(finish[:stop], problem.ready_s[stop - 1])
        finish[stop] = (starts + costs[:stop, stop]).min()
    return float(finish[-1])
