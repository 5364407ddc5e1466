"""Request: what a caller asks of a communicator, checked: schedule, tensor, bounds of shards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from syncopate.collectives.shards import Form
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import NARROWED, NATIVE, ORDER, WIRE_DTYPES, Recipe
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule, checked_bounds
from syncopate.schedules.conditions import CONDITIONS, conditions
from syncopate.units import DTYPE_BYTES

DTYPES = {getattr(torch, name): name for name in DTYPE_BYTES}
"""The element types that collectives carry, and their names."""


def schedule_of(recipe: Recipe, world_size: int) -> Schedule | None:
    """Return the schedule to run, or None for the backend's own algorithm.

    Raises:
        UnknownNameError: no such algorithm, or an option that it does not take.
        InvalidValueError: no such root or value of an option.
    """
    _require_known(recipe)
    scope = f"{recipe.collective} ({recipe.algorithm})"
    if recipe.algorithm == NATIVE:
        if recipe.options:
            raise UnknownNameError("option", next(iter(recipe.options)), ("none",), scope)
        return None
    row = registry.ALGORITHMS[recipe.collective, recipe.algorithm]
    for name in recipe.options:
        # Before the call: an option called "root" would otherwise be taken for the argument.
        if name not in (*row.options, ORDER):
            raise UnknownNameError("option", name, (*row.options, ORDER), scope)
    return registry.build(
        recipe.collective, recipe.algorithm, world_size, root=recipe.root, **recipe.options
    )


def require_recipe(recipe: Recipe, world_size: int) -> None:
    """Refuse what :func:`schedule_of` would refuse, for a collective that moves nothing.

    Raises:
        UnknownNameError: no such algorithm, or an option that it does not take.
        InvalidValueError: no such value of an option.
    """
    if recipe.options:
        schedule_of(recipe, world_size)
    else:
        _require_known(recipe)


def _require_known(recipe: Recipe) -> None:
    conditions(recipe.collective)
    if recipe.algorithm != NATIVE and not registry.has(recipe.collective, recipe.algorithm):
        known = (NATIVE, *registry.names(recipe.collective), registry.AUTO)
        raise UnknownNameError("algorithm", recipe.algorithm, known, recipe.collective)


def form_of(
    collective: str,
    tensor: torch.Tensor,
    world_size: int,
    bounds: Sequence[int] | None = None,
    wire_dtype: torch.dtype | None = None,
) -> Form:
    """Return what ``collective`` is to make of ``tensor``.

    Raises:
        UnknownNameError: no such collective.
        InvalidValueError: the tensor is not fit, or the bounds or the wire_dtype for it.
    """
    _require_tensor(collective, tensor)
    narrow = _known_wire_dtype(collective, tensor.dtype, wire_dtype)
    if bounds is not None:
        bounds = _known_bounds(collective, bounds, tensor.numel(), world_size)
    return Form(bounds, narrow)


def _known_bounds(
    collective: str, bounds: Sequence[int], numel: int, world_size: int
) -> tuple[int, ...] | None:
    if not conditions(collective).sharded:
        sharded = ", ".join(name for name, found in CONDITIONS.items() if found.sharded)
        rule = f"None: only collectives with shards have bounds ({sharded})"
        raise InvalidValueError(f"bounds of {collective}", bounds, rule)
    return checked_bounds(bounds, numel, world_size)


def _require_tensor(collective: str, tensor: torch.Tensor) -> None:
    what = "tensor of " + collective
    if not isinstance(tensor, torch.Tensor):
        raise InvalidValueError(what, type(tensor).__name__, "a torch.Tensor")
    if tensor.dtype not in DTYPES:
        raise InvalidValueError(what, tensor.dtype, f"one of {', '.join(DTYPE_BYTES)}")
    if not tensor.is_contiguous():
        shape = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        raise InvalidValueError(what, shape, "contiguous; pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        rule = "in memory as it reads; pass tensor.resolve_conj().resolve_neg()"
        raise InvalidValueError(what, "a lazy conjugate or negative", rule)
    if tensor.requires_grad:
        raise InvalidValueError(
            what, "part of autograd", "without requires_grad; pass tensor.detach()"
        )


def _known_wire_dtype(
    collective: str, dtype: torch.dtype, wire_dtype: torch.dtype | None
) -> torch.dtype | None:
    """Return what elements of ``dtype`` travel as; None where that is what they are."""
    if wire_dtype is None or wire_dtype == dtype:
        return None
    if DTYPES.get(wire_dtype) not in WIRE_DTYPES:
        rule = f"None, or one of {', '.join(f'torch.{name}' for name in WIRE_DTYPES)}"
        raise InvalidValueError(f"wire_dtype of {collective}", wire_dtype, rule)
    if not conditions(collective).reduces:
        sums = ", ".join(name for name, found in CONDITIONS.items() if found.reduces)
        rule = f"None: copies travel in their own type; only sums are narrowed ({sums})"
        raise InvalidValueError(f"wire_dtype of {collective}", wire_dtype, rule)
    if DTYPES[dtype] not in NARROWED:
        rule = f"None for a tensor of {dtype}: only {', '.join(NARROWED)} are narrowed"
        raise InvalidValueError(f"wire_dtype of {collective}", wire_dtype, rule)
    return wire_dtype
