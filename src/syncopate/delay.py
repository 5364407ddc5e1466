"""Delay: weights that come late, and what ranks train on in between.

There are two ways. With a :class:`Delay` weights are pulled every so many steps; with
:class:`LocalSGD` each rank trains by itself, and weights are averaged every so many steps.

SSD-SGD (Xu et al. 2021). Gradients are pushed in every step and update the *global* weights. Every
k-th step ranks pull these; the pull overlaps the whole next iteration. Meanwhile each rank trains
on weights of its own, which a *local rule* updates with its own gradient. All of it begins after a
*warm-up*, which is synchronous training. Hyper-parameters have the paper's names and values.

[Note: a delay of one step] ``k=1`` is no synchronous training: weights are pulled after every step,
and arrive one iteration late. Without a local rule there is nothing to train on meanwhile, so that
forward waits for the weights; with ``k=1`` that is synchronous training, to the last bit.
"""

from __future__ import annotations

import math
from typing import ClassVar

from syncopate.artifacts.artifact import Record
from syncopate.errors import InvalidValueError, UnknownNameError

GLU, SGD, DC_ASGD_A, NONE = "glu", "sgd", "dc-asgd-a", "none"

LOCAL_RULES = (GLU, SGD, DC_ASGD_A, NONE)
"""How ranks update their own weights between pulls."""

LEAST_WARM_UP = 500
"""Iterations of the default warm-up, at least (Section 4.2)."""

GLU_LR = 4.0
"""GLU's learning rate is so many times the global one (Section 4.1)."""


class Delay(Record, frozen=True, kw_only=True):
    """How weights are pulled late; see the module.

    Attributes:
        EXCHANGES: those that it goes with; it asks for the first.
        k: pull the weights every so many iterations; >= 1.
        warm_up: ``wp`` of Algorithm 1: iterations 0 .. wp are synchronous, and ``(1 + wp) % k`` is
            0; None for the smallest such one from 500 on.
        local_update: the local rule, one of ``LOCAL_RULES``: ``"glu"`` (Algorithm 2), ``"sgd"``,
            ``"dc-asgd-a"`` (Zheng et al. 2017, on each rank's own weights), or ``"none"``.
        loc_lr: learning rate of the local rule; None for four times that of the parameter's group
            with GLU, and for that of the group with the others, as it is in each step.
        alpha: GLU's weight of the rank's own gradient, >= 0.
        beta: GLU's weight of the recovered global gradient, >= 0.
        lambda_0: strength of the compensation of DC-ASGD-a, >= 0.
        square_decay: what DC-ASGD-a keeps of the mean square of gradients in a step, in [0, 1).
    """

    EXCHANGES: ClassVar[tuple[str, ...]] = ("sharded", "served")

    k: int
    warm_up: int | None = None
    local_update: str = GLU
    loc_lr: float | None = None
    alpha: float = 2.0
    beta: float = 0.5
    lambda_0: float = 2.0
    square_decay: float = 0.95

    def __post_init__(self) -> None:
        if not _is_int(self.k) or self.k < 1:
            raise InvalidValueError("k of a delay", self.k, "an integer >= 1")
        wp = self.warm_up
        if wp is not None and (not _is_int(wp) or wp < 0 or (1 + wp) % self.k):
            rule = f"an integer >= 0 of which (1 + warm_up) % k is 0, with k = {self.k}"
            raise InvalidValueError("warm_up of a delay", wp, rule)
        if self.local_update not in LOCAL_RULES:
            raise UnknownNameError("local update", self.local_update, LOCAL_RULES)
        for what in ("alpha", "beta", "lambda_0", "loc_lr"):
            value = getattr(self, what)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidValueError(f"{what} of a delay", value, "a finite number >= 0")
        if not 0 <= self.square_decay < 1:
            rule = "a number in [0, 1)"
            raise InvalidValueError("square_decay of a delay", self.square_decay, rule)

    def require_beside(self, exchange: str, weight_sync_period: int) -> None:
        """Refuse an exchange of a plan that pulls no weights late; those that do broadcast none.

        Raises:
            InvalidValueError: it pulls no weights late.
        """
        if exchange not in self.EXCHANGES:
            rule = f"none with the {exchange} exchange; only {' and '.join(self.EXCHANGES)} pull "
            raise InvalidValueError("delay", f"one of k = {self.k}", f"{rule}weights late")

    @property
    def wp(self) -> int:
        """The last iteration of the warm-up, counted from 0.

        Example:
            >>> Delay(k=4).wp, Delay(k=5).wp, Delay(k=4, warm_up=7).wp
            (503, 504, 7)
        """
        if self.warm_up is not None:
            return self.warm_up
        return LEAST_WARM_UP + -(1 + LEAST_WARM_UP) % self.k

    @property
    def runs_ahead(self) -> bool:
        """Whether ranks train on weights of their own while others are on their way."""
        return self.local_update != NONE

    @property
    def has_slack(self) -> bool:
        """Whether what is pulled may still be under way when the step after it ends."""
        return self.runs_ahead and self.k > 1

    @property
    def is_late(self) -> bool:
        """Whether it is anything but synchronous training."""
        return self.runs_ahead or self.k > 1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class LocalSGD(Record, frozen=True, kw_only=True):
    """Post-local SGD (Lin et al. 2020): synchronous steps, then each rank's own, and averages.

    The first ``warm_up`` steps are synchronous training. From then on no gradient is exchanged:
    every rank steps with its own, and each ``period``-th step ends with the average of all ranks'
    weights. With a warm-up of 0 it is local SGD from the start.

    Attributes:
        EXCHANGES: those that it goes with; it asks for the first.
        period: ``H``: average the weights every so many steps; >= 1.
        warm_up: how many steps are synchronous before; >= 0.
    """

    EXCHANGES: ClassVar[tuple[str, ...]] = ("allreduce",)

    period: int
    warm_up: int = 0

    def __post_init__(self) -> None:
        if not _is_int(self.period) or self.period < 1:
            raise InvalidValueError("period of LocalSGD", self.period, "an integer >= 1")
        if not _is_int(self.warm_up) or self.warm_up < 0:
            raise InvalidValueError("warm_up of LocalSGD", self.warm_up, "an integer >= 0")

    def is_local(self, taken: int) -> bool:
        """Say whether each rank trains by itself in the step after ``taken`` steps."""
        return taken >= self.warm_up

    def averages_after(self, taken: int) -> bool:
        """Say whether weights are averaged as soon as ``taken`` steps were taken.

        Example:
            >>> method = LocalSGD(period=3, warm_up=2)
            >>> [taken for taken in range(10) if method.averages_after(taken)]
            [5, 8]
        """
        own = taken - self.warm_up
        return own > 0 and own % self.period == 0

    def require_beside(self, exchange: str, weight_sync_period: int) -> None:
        """Refuse to go with an exchange of a plan.

        Raises:
            InvalidValueError: it is another one than ``allreduce``, or weights are broadcast, too.
        """
        if exchange not in self.EXCHANGES:
            rule = f"none with the {exchange} exchange; ranks that step by themselves have all "
            rule += "weights, as with allreduce"
            raise InvalidValueError("local_sgd", f"one of period = {self.period}", rule)
        if weight_sync_period:
            rule = "0 with local_sgd, which averages the weights"
            raise InvalidValueError("weight_sync_period", weight_sync_period, rule)


def delay_of(given: Delay | LocalSGD | int | None) -> Delay | LocalSGD | None:
    """Return a delay or local SGD as given, or the delay of so many steps.

    Raises:
        InvalidValueError: it is neither, or below one step.
    """
    if given is None or isinstance(given, Delay | LocalSGD):
        return given
    if not _is_int(given):
        rule = "a syncopate.Delay or LocalSGD, or how many steps apart weights are pulled"
        raise InvalidValueError("delay", given, rule)
    return Delay(k=given)
