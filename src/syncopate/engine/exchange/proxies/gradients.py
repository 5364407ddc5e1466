"""Gradients: what ``parameter.grad`` is where every rank holds the average of a part of it.

It has the parameter's shape and, as memory, this rank's part of the average; the rest is what
the collective left there. What changes every element by itself is done to this rank's part, and
all ranks together change the whole. What sums over elements, a norm or the check of a scaler, is
agreed on by all ranks. For anything else they first gather the whole, which every rank then has
until gradients change. So all ranks ask alike; one that asks alone is told so within seconds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.buckets import FlatBuffer, Trainable
from syncopate.engine.exchange.layout import Layout, nothing
from syncopate.engine.exchange.notes import Ranks
from syncopate.engine.exchange.proxies import norms
from syncopate.engine.exchange.proxies.weights import (
    WITHOUT_VALUES,
    for_each,
    tensors_in,
    with_plain,
)
from syncopate.engine.exchange.shares import Shares
from syncopate.engine.torch_compat import unscale, without_overrides
from syncopate.errors import EngineError


class PartialGradient(Tensor):
    """The gradient of one parameter, of which this rank holds the average of a part.

    Attributes:
        parameter_name: as in ``model.named_parameters()``.
        whole: the gradient's memory as a plain tensor of the parameter's shape.
        own: this rank's part of it: ranges, one-dimensional, in the order of memory.
        replicated: whether every rank holds all of it.
        owner: the exchange, weakly.
        beside: what changes element by element as this does, of the same shape; None where nothing.
    """

    parameter_name: str
    whole: Tensor
    own: tuple[Tensor, ...]
    replicated: bool
    owner: weakref.ref[Partial]
    beside: Tensor | None

    @classmethod
    def of(
        cls, name: str, whole: Tensor, own: tuple[Tensor, ...], owner: Partial
    ) -> PartialGradient:
        """Return ``whole`` as a partial gradient; shares its memory."""
        made: PartialGradient = whole.as_subclass(cls)
        made.parameter_name, made.whole = name, whole
        made.own, made.owner = own, weakref.ref(owner)
        made.replicated, made.beside = False, None
        return made

    def is_place_of(self, other: object) -> bool:
        """Say whether ``other`` is this gradient, by the same or another name."""
        return isinstance(other, PartialGradient) and other.whole is self.whole

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WITHOUT_VALUES or func is Tensor.untyped_storage:
            with without_overrides():
                return func(*args, **kwargs)
        if func in DESCRIPTIONS:
            return _describe(args[0])
        partial = [g for g in tensors_in((args, kwargs)) if isinstance(g, PartialGradient)]
        if func in LIKE and len(partial) == 1:
            return func(args[0].whole, *args[1:], **kwargs)
        if func in _MOVING:
            return _move(func, *args)
        for gradient in partial:
            if (owner := gradient.owner()) is None:
                raise EngineError(
                    f"the model of {gradient.parameter_name!r}, which had this gradient, has been "
                    "freed; keep the model as long as its gradients"
                )
            owner.complete()
        handler = _HANDLERS.get(func)
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        return _of_wholes(func, args, kwargs) if result is NotImplemented else result


class Partial:
    """The partial gradients of an exchange, and what is known of them.

    The sets hold gradients by the identity of :attr:`PartialGradient.whole`.

    Attributes:
        everyone: see :meth:`Ranks.everyone`.
        averaged: whether gradients are averages now, not contributions of this rank to the next.
        carried: those whose contributions began with the average.
        gathered: those that are here whole.
        zeroed: those that are zero throughout.
        absent: indices of the parameters that this rank's last backward did not reach.
        settle: waits until a gradient may change that is on its way to servers.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self.everyone = layout, layout.shared(Ranks).everyone
        self.averaged = False
        self.zeroed, self.carried, self.gathered, self.absent = (set[int]() for _ in range(4))
        self.settle: Callable[[PartialGradient], None] = nothing
        self._around: dict[int, FlatBuffer] = {}

    def make(self, kind: type[PartialGradient]) -> None:
        """Let what ``parameter.grad`` becomes be of this ``kind``, in every bucket."""
        shares = self._layout.shared(Shares)
        for part in self._layout.parts:
            for place, trainable in enumerate(part.trainables):
                ranges = shares.of_parameter(trainable.index)
                own = tuple(part.gradients[start:stop] for start, stop in ranges)
                gradient = kind.of(trainable.name, part.views[place], own, self)
                gradient.replicated = part.replicated
                part.grads[place] = self._layout.grads[trainable.index] = gradient
                self._around[id(gradient.whole)] = part

    def at(self, index: int) -> PartialGradient:
        """Return what the gradient of a parameter becomes."""
        gradient = self._layout.grads[index]
        assert isinstance(gradient, PartialGradient)
        return gradient

    def all(self) -> Iterator[tuple[Trainable, PartialGradient]]:
        """Yield the parameters, each with what its gradient becomes."""
        for trainable in self._layout.trainables:
            yield trainable, self.at(trainable.index)

    def around(self, gradient: PartialGradient) -> FlatBuffer:
        """Return the flat buffer in which a gradient lies."""
        return self._around[id(gradient.whole)]

    def complete(self) -> None:
        """Wait until the averages are there."""
        self._layout.complete()

    def make_whole(self, gradient: PartialGradient) -> None:
        """Bring the averages of a flat buffer here from their owners; all ranks call it.

        Args:
            gradient: one that lies in it.

        Raises:
            CollectiveError: a rank is lost or late, or did not ask.
        """
        if id(gradient.whole) in self.gathered:
            return
        part = self.around(gradient)
        self._layout.gather(part, part.gradients)
        self.gathered.update(map(id, part.views))


def _of_wholes(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what ``func`` gives with whole gradients in the place of partial ones."""
    for gradient in tensors_in((args, kwargs)):
        if isinstance(gradient, PartialGradient):
            owner = gradient.owner()
            assert owner is not None
            if owner.averaged:
                owner.make_whole(gradient)
            elif id(gradient.whole) in owner.carried:
                raise _carried(func, gradient)
    result = func(*_plain(args), **_plain(kwargs))
    # In place on a gradient: what was given is what is returned.
    target = next(tensors_in(args), None)
    changed = isinstance(target, PartialGradient) and result is target.whole
    return target if changed else result


def _name(func: Any) -> str:
    return getattr(func, "__name__", str(func))


def _carried(func: Any, gradient: PartialGradient) -> EngineError:
    return EngineError(
        f"{_name(func)} was asked of the gradient of {gradient.parameter_name!r} while it "
        "accumulates under no_sync() onto an average; ask after the backward that averages, or "
        "call zero_grad() before"
    )


def _move(func: Any, gradient: Tensor, value: Any = None, *_: Any) -> None:
    """Do what would give a gradient other memory where its memory can stay: ``grad.data = value``.

    Raises:
        EngineError: it cannot.
    """
    if func == _SET_DATA and not isinstance(gradient, PartialGradient):
        func(gradient, _plain(value))
        return
    assert isinstance(gradient, PartialGradient)
    name, whole = gradient.parameter_name, gradient.whole
    if func != _SET_DATA:
        raise EngineError(
            f"{_name(func)} would give the gradient of {name!r} other memory, and the plan "
            "exchanges what is in this one; copy_() into it instead"
        )
    if (value.dtype, value.device) != (whole.dtype, whole.device):
        raise EngineError(
            f"the gradient of {name!r} is {whole.dtype} on {whole.device} and was to become "
            f"{value.dtype} on {value.device}, which does not fit its bucket; call "
            "model.syncopate.detach() before converting or moving the model, and distribute again"
        )
    if value.shape != whole.shape:
        raise EngineError(
            f"the gradient of {name!r} has shape {tuple(whole.shape)} and was to become "
            f"{tuple(value.shape)}; give it a gradient of the parameter's shape"
        )
    if not gradient.is_place_of(value):  # as after ``grad.data /= n``
        gradient.copy_(value)


def _describe(gradient: PartialGradient) -> str:
    before = gradient.whole.storage_offset()
    starts = [own.storage_offset() - before for own in gradient.own]
    ranges = [f"{a}:{a + own.numel()}" for a, own in zip(starts, gradient.own, strict=True)]
    return (
        f"PartialGradient({gradient.parameter_name!r}, shape={tuple(gradient.whole.shape)}, "
        f"dtype={gradient.whole.dtype}; this rank holds elements "
        f"{', '.join(ranges) or '0:0'} of {gradient.whole.numel()})"
    )


DESCRIPTIONS = (Tensor.__repr__, Tensor.__format__)
"""Functions that tell a gradient's form in words."""

LIKE = frozenset(
    getattr(torch, f"{name}_like") for name in ("zeros", "ones", "empty", "full", "rand", "randn")
)
"""Functions that make another tensor of the same form; values do not matter."""

Handler = Callable[..., Any]


# -- element by element -------------------------------------------------------------------------

_IN_PLACE = (
    "zero_", "fill_", "copy_", "mul_", "multiply_", "div_", "divide_", "true_divide_", "add_",
    "sub_", "subtract_", "neg_", "abs_", "sign_", "clamp_", "clip_", "clamp_min_", "clamp_max_",
    "nan_to_num_", "masked_fill_", "addcmul_", "addcdiv_", "lerp_",
)  # fmt: skip
"""Methods that change every element by itself."""


def _each_by_itself(name: str) -> Handler:
    """Return what does the method ``name`` to this rank's part of a gradient."""

    def handler(gradient: Tensor, *args: Any, **kwargs: Any) -> Any:
        others = list(tensors_in((args, kwargs)))
        if not isinstance(gradient, PartialGradient) or not all(
            gradient.is_place_of(other) for other in others if isinstance(other, PartialGradient)
        ):
            return NotImplemented
        owner = gradient.owner()
        assert owner is not None
        if name == "zero_":
            owner.zeroed.add(id(gradient.whole))
            owner.carried.discard(id(gradient.whole))
        else:
            owner.zeroed.discard(id(gradient.whole))
        # A contribution counts with all its elements; another tensor has the parameter's shape.
        whole = not owner.averaged or name == "zero_" or any(other.dim() for other in others)
        whole = whole or id(gradient.whole) in owner.gathered
        args, kwargs = _plain((args, kwargs))
        targets = [gradient.whole] if whole else list(gradient.own)
        if owner.averaged and gradient.beside is not None:
            targets.append(gradient.beside)
        for target in targets:
            getattr(target, name)(*args, **kwargs)
        return gradient

    return handler


def _plain(value: Any) -> Any:
    """Return arguments with the memory of partial gradients in the place of these."""
    return with_plain(value, PartialGradient, lambda gradient: gradient.whole)


def _alias(gradient: PartialGradient) -> PartialGradient:
    owner = gradient.owner()
    assert owner is not None
    made = type(gradient).of(gradient.parameter_name, gradient.whole, gradient.own, owner)
    made.replicated, made.beside = gradient.replicated, gradient.beside
    return made


# -- over all elements --------------------------------------------------------------------------


def _norm(func: Any) -> Handler:
    """Return a handler of ``func`` for a partial gradient: its norm, computed when it is read."""

    def handler(gradient: PartialGradient, *args: Any, **kwargs: Any) -> Any:
        asked = norms.asked_of(func, *args, **kwargs)
        owner = gradient.owner()
        assert owner is not None
        if asked is None or not owner.averaged:
            return NotImplemented
        spread = None if gradient.replicated else owner
        return norms.PartialNorm.of(gradient.whole, gradient.own, *asked, spread)

    return handler


def _unscale(gradients: Sequence[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> Any:
    """Unscale what is here, and let all ranks know whether anything was infinite anywhere."""
    owners: dict[int, Partial] = {}
    parts: list[Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, PartialGradient):
            owner = gradient.owner()
            assert owner is not None
            if not owner.averaged:
                return NotImplemented
            owners[id(owner)] = owner
            # Where the whole is here, every rank unscales it.
            here = id(gradient.whole) in owner.gathered
            parts += [gradient.whole] if here else gradient.own
            parts += [] if gradient.beside is None else [gradient.beside]
        else:
            parts.append(gradient)
    # What is empty has nothing to say.
    unscale([part for part in parts if part.numel()], found_inf, inverse_scale)
    for owner in owners.values():
        found_inf.copy_(owner.everyone(found_inf.view(1)).amax().view_as(found_inf))
    return None


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_MOVING = (_SET_DATA, Tensor.resize_, Tensor.resize_as_)
"""Functions after which a gradient lies elsewhere."""

_HANDLERS: dict[Any, Handler] = {
    **{getattr(Tensor, name): _each_by_itself(name) for name in _IN_PLACE},
    **for_each(_IN_PLACE),
    **{func: _norm(func) for func in norms.FUNCTIONS},
    torch._foreach_norm: norms.one_by_one,
    unscale: _unscale,
    Tensor.data.__get__: _alias,  # type: ignore[attr-defined]
    Tensor.detach: _alias,
    Tensor.detach_: lambda gradient: gradient,
}
"""Function of torch -> how it is done on partial gradients, unless it answers NotImplemented."""
