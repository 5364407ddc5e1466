"""Local rules: how a rank updates its own weights between pulls, from its own gradient.

Weights descend, contrary to the signs of the paper's equations. Every rule goes element by element,
so that it runs on flat memory, and block by block where memory is a CPU's: what a block's several
operations touch stays in its caches, and a block is large enough that starting operations does not
count. `benchmarks/local_update.py` compares them with torch's own SGD.

[Note: in place] Rules are written as few operations in place: weights times a factor, plus what
else there is times a factor each. So no memory is made that has to be filled first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from syncopate.delay import DC_ASGD_A, GLU, GLU_LR, SGD, Delay
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.optimizers import updates_as
from syncopate.errors import EngineError

_BLOCK_BYTES = 1 << 20
_EPSILON = 1e-7
"""Keeps DC-ASGD-a's compensation finite where gradients have been zero."""


@dataclass(frozen=True)
class Hyper:
    """The hyper-parameters of one group, for one step of a rule.

    Attributes:
        delay: its constants.
        loc_lr: learning rate of the local rule.
        weight_decay: the group's.
        toward: of ``w' - pre_weight``, the part by which GLU's recovered gradient moves weights:
            ``loc_lr * beta * (1 - m) / (lr * k)``.
        ascends: whether the optimizer maximizes.
    """

    delay: Delay
    loc_lr: float
    weight_decay: float = 0.0
    toward: float = 0.0
    ascends: bool = False


def hyper_of(delay: Delay, group: Mapping[str, Any]) -> Hyper:
    """Return the hyper-parameters for the rule of ``delay``, from a parameter group as it is now.

    Raises:
        EngineError: the group has no learning rate, and the delay neither.
    """
    if "lr" not in group and delay.loc_lr is None:
        raise EngineError(
            "the optimizer's groups have no learning rate that local updates could go by; give "
            "Delay(loc_lr=...)"
        )
    lr = float(group.get("lr", 0.0))
    times = GLU_LR if delay.local_update == GLU else 1.0
    loc_lr = times * lr if delay.loc_lr is None else delay.loc_lr
    toward = 0.0
    if delay.local_update == GLU:
        # With loc_lr in proportion to lr neither a zero nor its schedule matters.
        ratio = times if delay.loc_lr is None else (loc_lr / lr if lr else 0.0)
        toward = ratio * delay.beta * _share_of_step(group) / delay.k
    return Hyper(
        delay,
        loc_lr,
        float(group.get("weight_decay") or 0.0),
        toward,
        bool(group.get("maximize", False)),
    )


def _share_of_step(group: Mapping[str, Any]) -> float:
    """Return the share of one gradient in a steady step of momentum SGD: ``1 - m``."""
    momentum = float(group.get("momentum") or 0.0)
    return (1 - momentum) / (1 - float(group.get("dampening") or 0.0)) if momentum else 1.0


def require_rule(delay: Delay, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse a local rule that does not fit the optimizer of the global weights.

    Raises:
        EngineError: GLU beside another optimizer than SGD; or a parameter of several optimizers.
    """
    trained: set[int] = set()
    for optimizer in optimizers:
        if delay.local_update == GLU and not updates_as(type(optimizer), torch.optim.SGD):
            raise EngineError(
                f"GLU recovers the mean gradient from how far the weights went in k steps of SGD, "
                f"which a step of {type(optimizer).__name__} does not tell. Take "
                f"Delay(local_update={SGD!r}) or Delay(local_update={DC_ASGD_A!r}), or train with "
                "torch.optim.SGD"
            )
        own = groups.trained_ids(optimizer)
        if own & trained:
            raise EngineError(
                "a parameter has two optimizers, whose local updates would both count; with a "
                "delay each parameter has one"
            )
        trained |= own


class Flat(NamedTuple):
    """Flat memory that a rule works on, all of one length; or a range of it.

    Attributes:
        weights: the rank's own, changed in place.
        gradient: the rank's own.
        before: ``pre_weight``, the global weights as they were pulled before; empty for rules that
            do not look at it.
        squares: the running mean square of gradients, changed in place; empty likewise.
        begun: what the weights are to be before the rule; None where they are.
    """

    weights: Tensor
    gradient: Tensor
    before: Tensor
    squares: Tensor
    begun: Tensor | None = None

    def cut(self, start: int, stop: int) -> Flat:
        """Return the range from ``start`` to ``stop``, which shares memory."""
        return Flat._make(
            each[start:stop] if each is not None and each.numel() else each for each in self
        )

    def begin(self) -> None:
        """Set the weights to the values that the rule starts from."""
        if self.begun is not None:
            self.weights.copy_(self.begun)

    def blocks(self) -> Iterator[Flat]:
        """Yield it in blocks of a size for caches; as it is on a device."""
        count, length = self.weights.numel(), _BLOCK_BYTES // self.weights.element_size()
        if not self.weights.is_cpu or count <= length:
            yield self
            return
        for start in range(0, count, length):
            yield self.cut(start, min(start + length, count))


@torch.no_grad()
def apply(flat: Flat, runs: Sequence[tuple[int, int, Hyper]]) -> None:
    """Update ranges of flat memory, in ascending order, each by the rule that it names."""
    reached = 0
    for start, stop, hyper in runs:
        flat.cut(reached, start).begin()
        rule, reached = RULES[hyper.delay.local_update], stop
        for block in flat.cut(start, stop).blocks():
            block.begin()
            rule(block, hyper)
    flat.cut(reached, flat.weights.numel()).begin()


def glu(flat: Flat, hyper: Hyper) -> None:
    """Update by GLU (Algorithm 2): ``w' -= loc_lr (alpha g + wd w' + beta grad_sync)``.

    With ``grad_sync = (pre_weight - w') (1 - m) / (lr k)``, the mean gradient as SGD's last k steps
    show it.
    """
    if hyper.toward and hyper.weight_decay:
        flat.weights.mul_(1 + hyper.toward - hyper.loc_lr * hyper.weight_decay)
        flat.weights.add_(flat.before, alpha=-hyper.toward)
    elif hyper.toward:
        flat.weights.lerp_(flat.before, -hyper.toward)
    else:
        _decay(flat, hyper)
    _descend(flat, hyper, hyper.delay.alpha)


def sgd(flat: Flat, hyper: Hyper) -> None:
    """Update by plain SGD: ``w' -= loc_lr (g + wd w')``."""
    _decay(flat, hyper)
    _descend(flat, hyper, 1.0)


def dc_asgd_a(flat: Flat, hyper: Hyper) -> None:
    """Update by DC-ASGD-a: ``w' -= loc_lr (g + lambda g g (w' - pre_weight) + wd w')``.

    With ``lambda = lambda_0 / sqrt(mean square of g + 1e-7)``, element by element (Zheng et al.
    2017, Section 4.2).
    """
    delay, gradient = hyper.delay, flat.gradient
    square = gradient * gradient
    flat.squares.lerp_(square, 1 - delay.square_decay)
    compensation = (flat.squares + _EPSILON).rsqrt_().mul_(square)
    away = torch.sub(flat.weights, flat.before, out=square)
    _decay(flat, hyper)
    _descend(flat, hyper, 1.0)
    flat.weights.addcmul_(compensation, away, value=-hyper.loc_lr * delay.lambda_0)


def _decay(flat: Flat, hyper: Hyper) -> None:
    if hyper.weight_decay:
        flat.weights.mul_(1 - hyper.loc_lr * hyper.weight_decay)


def _descend(flat: Flat, hyper: Hyper, factor: float) -> None:
    """Subtract ``loc_lr * factor * gradient`` from the weights, or add it where they ascend."""
    step = hyper.loc_lr * factor
    flat.weights.add_(flat.gradient, alpha=step if hyper.ascends else -step)


RULES: dict[str, Callable[[Flat, Hyper], None]] = {GLU: glu, SGD: sgd, DC_ASGD_A: dc_asgd_a}
"""Name in ``delay.LOCAL_RULES`` -> what updates flat memory in place."""
