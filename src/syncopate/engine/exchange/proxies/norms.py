"""Norms: the norm of gradients of which every rank holds a part, agreed on when it is looked at.

``clip_grad_norm_`` takes the norm of every gradient, and then the norm of these norms. A norm of a
part says nothing yet, and a message for each would cost a hundred messages a step. So the norm of a
gradient is a :class:`PartialNorm`, which knows what this rank's part gives; several are stacked
into one; and their norm is one small message to all. Every rank computes the result from the same
numbers in the same order, so that all clip by the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from syncopate.engine.exchange.proxies.weights import WITHOUT_VALUES, tensors_in, with_plain
from syncopate.engine.torch_compat import without_overrides


class Ranks(Protocol):
    """The ranks among which gradients are spread."""

    def everyone(self, values: Tensor) -> Tensor:
        """Return every rank's ``values``, one-dimensional, one rank a row; all ranks call it."""


class _Part(NamedTuple):
    """What one entry of a norm is made of.

    Attributes:
        spread: per group of ranks the norm of what this rank holds.
        here: the norms of what every rank holds whole.
    """

    spread: dict[int, tuple[Ranks, Tensor]]
    here: list[Tensor]


class PartialNorm(Tensor):
    """A norm over all ranks, or several, that was not looked at yet.

    Attributes:
        order: which norm.
        parts: one for a norm, as many as there are for a stack of norms.
        found: the norms, once they were looked at.
    """

    order: float
    parts: list[_Part]
    found: Tensor | None

    @classmethod
    def of(
        cls,
        whole: Tensor,
        own: Sequence[Tensor],
        order: float,
        dtype: torch.dtype | None,
        owner: Ranks | None,
    ) -> PartialNorm:
        """Return the norm of ``whole``, of which ``own`` is here.

        Where it is not spread (``owner`` is None), that is all of it, on every rank.
        """
        wide = _wide(whole.dtype)
        values = [torch.linalg.vector_norm(each, order, dtype=wide) for each in own]
        value = values[0] if values else torch.zeros((), dtype=wide, device=whole.device)
        if len(values) > 1:
            value = torch.linalg.vector_norm(torch.stack(values), order)
        form = torch.empty((), dtype=dtype or whole.dtype, device=whole.device)
        part = _Part({}, [value]) if owner is None else _Part({id(owner): (owner, value)}, [])
        return cls._made(form, order, [part])

    @classmethod
    def _made(cls, form: Tensor, order: float, parts: list[_Part]) -> PartialNorm:
        made: PartialNorm = torch.full_like(form, math.nan).as_subclass(cls)
        made.order, made.parts, made.found = order, parts, None
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WITHOUT_VALUES:
            with without_overrides():
                return func(*args, **kwargs)
        lazily = _LAZY.get(func)
        result = None if lazily is None else lazily(func, *args, **kwargs)
        if result is not None:
            return result
        args, kwargs = with_plain((args, kwargs), PartialNorm, PartialNorm.look)
        return func(*args, **kwargs)

    def look(self) -> Tensor:
        """Return the norms, which the first look asks all ranks for."""
        if self.found is None:
            with torch.no_grad():
                flat = _agree(self.parts, self.order)
            self.found = flat.to(self.device, self.dtype).reshape(self.shape)
        return self.found


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return what a norm is computed in: sums of squares of 16 bits overflow or lose."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _agree(parts: Sequence[_Part], order: float) -> Tensor:
    """Return the norms that all ranks have together: one message to each group of ranks."""
    groups: dict[int, tuple[Ranks, Tensor]] = {}
    for part in parts:
        groups.update(part.spread)
    rows: list[Tensor] = []
    for key, (ranks, like) in groups.items():
        zero = torch.zeros_like(like)
        own = [part.spread[key][1] if key in part.spread else zero for part in parts]
        rows.append(ranks.everyone(torch.stack(own)))
    rows = [row.to("cpu", torch.float64) for row in rows]
    # What is whole here is one more row.
    rows.append(torch.stack([_norm(part.here, order) for part in parts]).view(1, -1))
    found: Tensor = torch.linalg.vector_norm(torch.cat(rows), order, dim=0)
    return found


def _norm(values: Sequence[Tensor], order: float) -> Tensor:
    """Return the norm of some norms, wherever they are; 0 of none."""
    wide = [torch.zeros((), dtype=torch.float64), *(v.to("cpu", torch.float64) for v in values)]
    found: Tensor = torch.linalg.vector_norm(torch.stack(wide), order)
    return found


# -- what a norm may be asked without looking ---------------------------------------------------


def asked_of(func: Any, *args: Any, **kwargs: Any) -> tuple[float, torch.dtype | None] | None:
    """Return order and dtype of the norm of all elements that ``func`` is asked for; else None."""
    names = _ARGUMENTS[func]
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("dim") is not None or given.get("keepdim") or given.get("out") is not None:
        return None
    order = given.get(names[0])
    order = 2.0 if order is None or order == "fro" else order
    if not isinstance(order, int | float) or not order > 0:
        return None
    return float(order), given.get("dtype")


def one_by_one(
    gradients: Sequence[Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return the norm of each of several gradients; takes the place of ``torch._foreach_norm``."""
    return [torch.linalg.vector_norm(gradient, ord, dtype=dtype) for gradient in gradients]


_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    torch.linalg.vector_norm: ("ord", "dim", "keepdim"),
    torch.norm: ("p", "dim", "keepdim", "out", "dtype"),
    Tensor.norm: ("p", "dim", "keepdim", "dtype"),
}

FUNCTIONS = tuple(_ARGUMENTS)
"""Functions of torch that take a norm of all elements of a tensor."""


def _norm_of_norms(func: Any, norm: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """Return the norm of a stack of norms of the same order, at the cost of one message.

    It is no longer partial: one rank alone may print it.
    """
    assert isinstance(norm, PartialNorm)
    asked = asked_of(func, *args, **kwargs)
    if norm.found is not None or asked is None or asked[0] != norm.order:
        return None
    spread: dict[int, tuple[Ranks, list[Tensor]]] = {}
    for part in norm.parts:
        for key, (ranks, value) in part.spread.items():
            spread.setdefault(key, (ranks, []))[1].append(value)
    together = {
        key: (ranks, torch.linalg.vector_norm(torch.stack(values), norm.order))
        for key, (ranks, values) in spread.items()
    }
    here = [value for part in norm.parts for value in part.here]
    form = torch.empty((), dtype=asked[1] or norm.dtype, device=norm.device)
    return PartialNorm._made(form, norm.order, [_Part(together, here)]).look()


def _stack(func: Any, tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    partial = [norm for norm in tensors if isinstance(norm, PartialNorm)]
    order = partial[0].order
    if any(n.found is not None or n.order != order for n in partial) or any(
        tensor.dim() for tensor in tensors
    ):
        return None
    parts = [
        norm.parts[0] if isinstance(norm, PartialNorm) else _Part({}, [norm]) for norm in tensors
    ]
    dtype = partial[0].dtype
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    form = torch.empty(len(tensors), dtype=dtype, device=partial[0].device)
    return PartialNorm._made(form, order, parts)


def _to(func: Any, norm: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    assert isinstance(norm, PartialNorm)
    if norm.found is not None or any(isinstance(t, Tensor) for t in tensors_in((args, kwargs))):
        return None
    form = torch.empty(norm.shape, dtype=norm.dtype, device=norm.device).to(*args, **kwargs)
    return PartialNorm._made(form, norm.order, norm.parts)


_LAZY: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(FUNCTIONS, _norm_of_norms),
    torch.stack: _stack,
    Tensor.to: _to,
}
"""Function of torch -> the same of partial norms, or None where they must be looked at."""
