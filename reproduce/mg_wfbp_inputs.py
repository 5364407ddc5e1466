"""How far MG-WFBP's simulated speed-ups hang on their inputs; ``mg_wfbp.py`` prints it.

Each input is scaled alone, the others held. Three things are looked for: the speed-ups at a given
change, the nearest change at which Algorithm 1 merges otherwise or the order of the methods turns,
and the change that would give a figure of the paper. The last two are walked to from the given
value in ``STEPS`` steps up to twice and down to half of it, and then found by bisection; what turns
and turns back within one step is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.cluster import LinearFit
from syncopate.costs.model.functions import LinearCost
from syncopate.planning.policies.mg_wfbp import mg_wfbp
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.policies.single import single
from syncopate.planning.policies.wfbp import wfbp
from syncopate.planning.problem import Partition, Problem

STEPS = 100
FREE = ("forward", "bandwidth")
"""The inputs that the paper does not print."""

_PRECISION = 1e-9
_BEYOND = 1e-6
_NEWTON_STEPS = 30


@dataclass(frozen=True)
class Setting:
    """What the speed-ups on one number of nodes are computed from.

    Attributes:
        forward_s: of the whole network.
        backward_s: shape (L,); of each layer, in backward order.
        nbytes: shape (L,); of each layer's gradients.
        startup_s: a of the all-reduce.
        byte_time_s: b of the all-reduce, per byte.
    """

    forward_s: float
    backward_s: tuple[float, ...]
    nbytes: tuple[int, ...]
    startup_s: float
    byte_time_s: float

    @property
    def problem(self) -> Problem:
        """The planning problem; its times count from the start of backward."""
        cost = LinearCost(LinearFit(a_s=self.startup_s, b_s_per_byte=self.byte_time_s))
        return Problem(tuple(accumulate(self.backward_s)), self.nbytes, cost)


@dataclass(frozen=True)
class Outcome:
    """What a setting comes to.

    Attributes:
        merged: the buckets' ends that Algorithm 1 chooses.
        iteration_s: method -> seconds of an iteration: ``"wfbp"``, ``"single"``, ``"mg-wfbp"``.
    """

    merged: Partition
    iteration_s: Mapping[str, float]

    @property
    def over_wfbp(self) -> float:
        """Speed-up of MG-WFBP over WFBP."""
        return self.iteration_s["wfbp"] / self.iteration_s["mg-wfbp"]

    @property
    def over_single(self) -> float:
        """Speed-up of MG-WFBP over one bucket of everything, which is SyncEASGD."""
        return self.iteration_s["single"] / self.iteration_s["mg-wfbp"]

    @property
    def order(self) -> tuple[str, ...]:
        """The methods, fastest first."""
        return tuple(sorted(self.iteration_s, key=self.iteration_s.__getitem__))


Input = Callable[[Setting, float], Setting]
Figure = Callable[[Outcome], float]


def _startup(setting: Setting, factor: float) -> Setting:
    return replace(setting, startup_s=setting.startup_s * factor)


def _bandwidth(setting: Setting, factor: float) -> Setting:
    return replace(setting, byte_time_s=setting.byte_time_s / factor)


def _backward(setting: Setting, factor: float) -> Setting:
    return replace(setting, backward_s=tuple(each * factor for each in setting.backward_s))


def _forward(setting: Setting, factor: float) -> Setting:
    return replace(setting, forward_s=setting.forward_s * factor)


def _batch(setting: Setting, factor: float) -> Setting:
    return _backward(_forward(setting, factor), factor)


INPUTS: Mapping[str, Input] = {
    "start-up": _startup,
    "bandwidth": _bandwidth,
    "backward": _backward,
    "forward": _forward,
    "batch": _batch,
}
"""Start-up time a; bandwidth 1/b; all backward times; forward time; and all computation at once."""


@lru_cache(maxsize=4096)
def outcome(setting: Setting) -> Outcome:
    """Return what MG-WFBP's Algorithm 1, WFBP and SyncEASGD take."""
    problem = setting.problem
    merged = mg_wfbp(problem)
    partitions = {"wfbp": wfbp(problem), "single": single(problem), "mg-wfbp": merged}
    return Outcome(
        merged=merged,
        iteration_s={
            name: setting.forward_s + problem.finish_s(ends) for name, ends in partitions.items()
        },
    )


def best_s(setting: Setting) -> float:
    """Return the iteration with the best partition there is."""
    problem = setting.problem
    return setting.forward_s + problem.finish_s(optimal(problem))


def turning_point(
    setting: Setting, scaled: Input, what: Callable[[Outcome], Hashable], *, up: bool
) -> float | None:
    """Return the factor of an input nearest to 1 beyond which something is no longer as it was.

    Args:
        setting: as given.
        scaled: one of ``INPUTS``.
        what: is compared with what it was.
        up: whether the input grows, up to twice; or shrinks, down to half.

    Returns:
        The factor, or None where nothing changes on that side.
    """
    was = what(outcome(setting))

    def same(factor: float) -> bool:
        return what(outcome(scaled(setting, factor))) == was

    for near, far in pairwise(_walk(up)):
        if not same(far):
            return _bisect(same, near, far)
    return None


def needed(setting: Setting, scaled: Input, figure: Figure, value: float) -> float | None:
    """Return the factor of an input nearest to 1 that gives a figure a value.

    Where the figure jumps over the value, it does not have it.

    Args:
        setting: as given.
        scaled: one of ``INPUTS``.
        figure: such as ``Outcome.over_wfbp``.
        value: to have.

    Returns:
        The factor, between half and twice; or None where no factor gives the value.
    """

    def above(factor: float) -> bool:
        return figure(outcome(scaled(setting, factor))) > value

    def below(factor: float) -> bool:
        return not above(factor)

    found = []
    for up in (True, False):
        for near, far in pairwise(_walk(up)):
            if above(near) == above(far):
                continue
            factor = _bisect(above if above(near) else below, near, far)
            if abs(figure(outcome(scaled(setting, factor))) - value) < 1e-6:
                found.append(factor)
                break
    return min(found, key=lambda factor: max(factor, 1 / factor), default=None)


def needed_together(
    setting: Setting, pair: tuple[Input, Input], over_wfbp: float, over_single: float
) -> tuple[float, float] | None:
    """Return the factors of two inputs that give both speed-ups of MG-WFBP, by Newton's method.

    Returns:
        A factor for each, between half and twice; or None where none are found.
    """

    def missed(factors: Sequence[float]) -> NDArray[np.float64]:
        changed = setting
        for scaled, factor in zip(pair, factors, strict=True):
            changed = scaled(changed, factor)
        found = outcome(changed)
        return np.array([found.over_wfbp - over_wfbp, found.over_single - over_single])

    at, nearby = np.ones(2), 1e-6 * np.eye(2)
    for _ in range(_NEWTON_STEPS):
        miss = missed(at.tolist())
        if abs(miss).max() < _PRECISION:
            return float(at[0]), float(at[1])
        slopes = np.stack([missed((at + step).tolist()) - miss for step in nearby], axis=1) / 1e-6
        if abs(np.linalg.det(slopes)) < _PRECISION:
            return None
        at = at - np.linalg.solve(slopes, miss)
        if at.min() < 0.5 or at.max() > 2:
            return None
    return None


def _walk(up: bool) -> Iterator[float]:
    sign = 1 if up else -1
    return (2.0 ** (sign * step / STEPS) for step in range(STEPS + 1))


def _bisect(holds: Callable[[float], bool], near: float, far: float) -> float:
    """Return where what holds at ``near`` and not at ``far`` ends."""
    while abs(far - near) > _PRECISION:
        middle = (near + far) / 2
        if holds(middle):
            near = middle
        else:
            far = middle
    return near


@dataclass(frozen=True)
class Cause:
    """Where the difference to the paper's figures on one number of nodes is from.

    Attributes:
        wfbp_s: an iteration of WFBP here.
        wfbp_needed_s: the one that would give the paper's speed-up over WFBP.
        startups: the start-ups of all-reduces that are between the two.
        alone: input -> the change of it alone that gives the paper's speed-up over WFBP; None where
            there is none between half and twice.
        over_single: input -> the speed-up over SyncEASGD at that change.
        together: the changes of ``FREE`` that give both speed-ups; None where there are none.
    """

    wfbp_s: float
    wfbp_needed_s: float
    startups: float
    alone: dict[str, float | None]
    over_single: dict[str, float | None]
    together: tuple[float, float] | None


def cause(setting: Setting, over_wfbp: float, over_single: float) -> Cause:
    """Return where the difference to the paper's two speed-ups is from."""
    seconds = outcome(setting).iteration_s
    needed_s = seconds["mg-wfbp"] * over_wfbp
    alone: dict[str, float | None] = {}
    beside: dict[str, float | None] = {}
    for name, scaled in INPUTS.items():
        factor = needed(setting, scaled, lambda found: found.over_wfbp, over_wfbp)
        alone[name] = None if factor is None else factor - 1
        beside[name] = None if factor is None else outcome(scaled(setting, factor)).over_single
    first, second = (INPUTS[name] for name in FREE)
    both = needed_together(setting, (first, second), over_wfbp, over_single)
    return Cause(
        wfbp_s=seconds["wfbp"],
        wfbp_needed_s=needed_s,
        startups=(needed_s - seconds["wfbp"]) / setting.startup_s,
        alone=alone,
        over_single=beside,
        together=None if both is None else (both[0] - 1, both[1] - 1),
    )


@dataclass(frozen=True)
class Turn:
    """Where something turns as one input changes.

    Attributes:
        change: of the input, -0.01 for 1% less.
        beyond: what it comes to right beyond it.
    """

    change: float
    beyond: Outcome


TURNING: Mapping[str, Callable[[Outcome], Hashable]] = {
    "merged": lambda found: found.merged,
    "order": lambda found: found.order,
}
"""What may turn: what Algorithm 1 merges, and which method is faster than which."""


def turns(setting: Setting, name: str, what: str) -> list[Turn]:
    """Return the nearest turn of an input on either side, where there is one.

    Args:
        setting: as given.
        name: one of ``INPUTS``.
        what: one of ``TURNING``.
    """
    found, scaled = [], INPUTS[name]
    for up in (False, True):
        factor = turning_point(setting, scaled, TURNING[what], up=up)
        if factor is not None:
            beyond = outcome(scaled(setting, factor + (_BEYOND if up else -_BEYOND)))
            found.append(Turn(change=factor - 1, beyond=beyond))
    return found


@dataclass(frozen=True)
class Logged:
    """What the layer times of one log come to on 64 nodes.

    Attributes:
        log: its name.
        backward_ms: of all layers.
        buckets: of Algorithm 1.
        over_wfbp: of MG-WFBP.
        over_single: of MG-WFBP over SyncEASGD.
        optimal_over_wfbp: of the best partition.
        startup_change: of the start-up time, the nearest at which Algorithm 1 merges otherwise;
            0.01 for 1% more. None where there is none between half and twice.
    """

    log: str
    backward_ms: float
    buckets: int
    over_wfbp: float
    over_single: float
    optimal_over_wfbp: float
    startup_change: float | None


def logged(name: str, setting: Setting) -> Logged:
    """Return what the layer times of one log come to."""
    found = outcome(setting)
    changes = [turn.change for turn in turns(setting, "start-up", "merged")]
    return Logged(
        log=name,
        backward_ms=sum(setting.backward_s) * 1e3,
        buckets=len(found.merged),
        over_wfbp=found.over_wfbp,
        over_single=found.over_single,
        optimal_over_wfbp=found.iteration_s["wfbp"] / best_s(setting),
        startup_change=min(changes, key=abs, default=None),
    )
