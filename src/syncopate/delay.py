"""Delay: weights that are pulled every so many steps, and what ranks train on in between.

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

from syncopate.artifacts import Record
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
    def is_late(self) -> bool:
        """Whether it is anything but synchronous training."""
        return self.runs_ahead or self.k > 1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def delay_of(given: Delay | int | None) -> Delay | None:
    """Return a delay, or the one of so many steps.

    Raises:
        InvalidValueError: it is neither, or below one step.
    """
    if given is None or isinstance(given, Delay):
        return given
    if not _is_int(given):
        rule = "a syncopate.Delay, or how many steps apart weights are pulled"
        raise InvalidValueError("delay", given, rule)
    return Delay(k=given)
