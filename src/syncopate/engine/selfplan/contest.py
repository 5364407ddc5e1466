"""Contest: several plans take turns in the training, and the fastest beyond noise stays.

[Note: rounds] In every round each plan trains for a turn of some steps, of which the first two are
not counted: in them the memory of the plan before goes and that of this one comes. After each round
the slower half drops out, and what is far behind; turns become longer. The defender never drops
out: the winner has to beat it beyond noise, by the rule of ``costs/decisions``, or it stays. That
is the plan before, where a training plans again, or else DDP's buckets.

[Note: one figure per step] Ranks leave a step one after the other, and a rank that is late in one
is early in the next. The mean over ranks of a step's duration does not lean to either side, and the
steps of a turn add up to its time.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from syncopate.artifacts.cluster import robust_mean
from syncopate.artifacts.plan import Plan
from syncopate.costs.decide.noise import longer_beyond_noise
from syncopate.engine.selfplan.ddp_buckets import DDP

BEFORE = "the plan before"
"""What the plan is called that a training went by until it planned again."""

IDEAL = "ideal overlap"
"""The plan that the interference is read off."""

ROUNDS = ((1, 2), (2, 2), (3, 3))
"""Turns of each plan and counted steps of a turn, round by round."""

HOPELESS = 0.1
"""Slower than the best by this share, a plan does not take another turn."""

HOPELESS_AT_FIRST = 0.3
"""The same after one turn: what disturbs a machine for seconds disturbs all steps of a turn."""

MOST = 7
"""Plans that compete with DDP's buckets."""

UNCOUNTED = 2
"""Steps at the beginning of every turn that do not count; see [Note: rounds]."""


class Contender(Struct, forbid_unknown_fields=True):
    """A plan that competes.

    Attributes:
        name: what it is.
        plan: the plan, with its prediction before its first turn, or after overlap was measured.
        samples_s: its counted steps so far, in seconds.
    """

    name: str
    plan: Plan
    samples_s: list[float]

    @property
    def step_s(self) -> float:
        """What a step is expected to take, by its samples."""
        return robust_mean(self.samples_s)


@dataclass(frozen=True)
class Ability:
    """The ways of updating that the model's optimizers allow.

    Attributes:
        defers: steps may be left to the next forward, parameter by parameter.
        shards: a step may be spread over the ranks.
    """

    defers: bool = False
    shards: bool = False


def alike(one: Plan, other: Plan) -> bool:
    """Say whether two plans send the same messages in the same order."""
    kinds = [(plan.exchange, plan.channels, plan.pull_order) for plan in (one, other)]
    return kinds[0] == kinds[1] and _messages(one) == _messages(other)


def _messages(plan: Plan) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for bucket in plan.buckets:
        recipes = [recipe.in_order(plan.order) for _, recipe in bucket.recipes]
        found.append((set(bucket.tensors), bucket.elements, recipes))
    return found


def defender(contenders: Sequence[Contender]) -> Contender:
    """Return the plan that stays unless another is faster; see [Note: rounds]."""
    by_name = {one.name: one for one in contenders}
    return by_name.get(BEFORE) or by_name[DDP]


def faster_half(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the defender and the faster half of the others, rounded up, one at least.

    Of that half go those that are far slower than the best and beyond noise.
    """
    defends = defender(contenders)
    others = sorted((one for one in contenders if one is not defends), key=lambda one: one.step_s)
    half = others[: (len(others) + 1) // 2]
    kept = [one for one in half if not _hopeless(one, half[0])]
    return [one for one in contenders if one is defends or one in kept]


def _hopeless(one: Contender, best: Contender) -> bool:
    one_turn = len(one.samples_s) <= ROUNDS[0][1]
    limit = HOPELESS_AT_FIRST if one_turn else HOPELESS
    far = one.step_s > (1 + limit) * best.step_s
    return far and longer_beyond_noise(one.samples_s, best.samples_s)


def winner(contenders: Sequence[Contender], exchange: str | None = None) -> Contender:
    """Return the fastest contender that beats the defender beyond noise, or the defender.

    Args:
        contenders: the defender among them.
        exchange: the one to train by, where the user wants one; None for whichever is fastest.
    """
    defends = defender(contenders)
    wanted = [one for one in contenders if one.plan.exchange == exchange]
    best = min(wanted or contenders, key=lambda one: one.step_s)
    if wanted and defends not in wanted:
        return best
    return best if longer_beyond_noise(defends.samples_s, best.samples_s) else defends


def steps_of(contenders: int) -> int:
    """Return how many steps a contest of so many takes, as long as no contender joins."""
    total, others = 0, contenders - 1
    for turns, counted in ROUNDS:
        total += (1 + others) * turns * (UNCOUNTED + counted)
        others = (others + 1) // 2
    return total
