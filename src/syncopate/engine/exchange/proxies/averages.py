"""Averages: what ``parameter.grad`` is while the average is on its way to every rank.

A look waits for it, on this rank alone (``weights.py``). What training loops do in every step does
not look: to scale gradients, which clipping does, and a scaler as it unscales; to zero them; and to
take their 2-norms, which every rank knows from the note behind the backward. Scaling and zeroing
are done when the average has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from syncopate.engine.exchange.proxies import norms, weights
from syncopate.engine.exchange.pull.flights import Flights
from syncopate.engine.torch_compat import unscale, without_overrides

Handler = Callable[..., Any]


class AwaitedAverage(weights.Pending):
    """Mixed into the class of a gradient whose average is on its way."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        if func not in weights.WITHOUT_VALUES:
            for tensor in weights.tensors_in((args, kwargs or {})):
                if (found := _on_its_way(tensor)) is not None:
                    found[0].heed()
        return super().__torch_function__(func, types, args, kwargs)


def _on_its_way(tensor: Any) -> tuple[Flights, int] | None:
    """Return the flights that bring this gradient's average, and its index; None once it came."""
    if not isinstance(tensor, AwaitedAverage):
        return None
    waiter: Any = weights.waiter_of(tensor)  # type: ignore[arg-type]
    if waiter is None:
        return None
    flights: Flights = waiter.flights
    index = flights.index_of(tensor)  # type: ignore[arg-type]
    return None if index is None else (flights, index)


def _changing(name: str, takes: int) -> Handler:
    """Return what calls a method that ``takes`` so many numbers when a gradient has arrived."""

    def handler(gradient: Any, *args: Any, **kwargs: Any) -> Any:
        found = _on_its_way(gradient)
        if found is None or kwargs or len(args) != takes or not all(map(_is_number, args)):
            return NotImplemented
        flights, index = found
        now = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
        flights.later(index, partial(getattr(flights.memory_of(index), name), *now))
        return gradient

    return handler


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not isinstance(value, weights.Pending) and value.dim() == 0
    return isinstance(value, int | float)


def _norm(func: Any) -> Handler:
    """Return what takes the 2-norm of a gradient from its sum of squares."""

    def handler(gradient: Any, *args: Any, **kwargs: Any) -> Any:
        found = _on_its_way(gradient)
        asked = norms.asked_of(func, *args, **kwargs)
        if found is None or asked is None or asked[0] != 2.0:
            return NotImplemented
        square = found[0].square_of(found[1])
        if square is None:
            return NotImplemented
        with without_overrides():
            dtype = asked[1] or gradient.dtype.to_real()
        return square.sqrt().to(dtype)

    return handler


def _unscale(gradients: Sequence[Any], found_inf: Tensor, inverse_scale: Tensor) -> Any:
    """Unscale averages when they arrive; a finite sum of squares proves that all are finite."""
    by, here = inverse_scale.clone(), []
    for gradient in gradients:
        found = _on_its_way(gradient)
        if found is None or found[0].square_of(found[1]) is None:
            here.append(weights.current(gradient))
            continue
        flights, index = found
        scratch = torch.zeros_like(found_inf)
        flights.later(index, partial(unscale, [flights.memory_of(index)], scratch, by))
    if here:
        unscale(here, found_inf, inverse_scale)
    return None


_SCALING = ("mul_", "multiply_", "div_", "divide_", "true_divide_")

_HANDLERS: dict[Any, Handler] = {
    **{getattr(Tensor, name): _changing(name, 1) for name in _SCALING},
    Tensor.zero_: _changing("zero_", 0),
    **weights.for_each((*_SCALING, "zero_")),
    Tensor.detach_: lambda gradient: gradient,
    **{func: _norm(func) for func in norms.FUNCTIONS},
    torch._foreach_norm: norms.one_by_one,
    unscale: _unscale,
}
"""Function of torch -> how it is done without a look, unless it answers NotImplemented."""
