"""Request: which collective by which algorithm, with which root and options; on which tensors."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import torch

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.schedules import registry
from syncopate.schedules.base import Schedule
from syncopate.schedules.conditions import conditions
from syncopate.schedules.options import ORDER
from syncopate.units import DTYPE_BYTES

DTYPES = {getattr(torch, name): name for name in DTYPE_BYTES}
"""The element types that collectives carry, and their names."""

_SHOWN = 40
"""Characters of an option in a label; the order of many ranks is shown by its checksum."""


class Request(NamedTuple):
    """What the caller of a collective asked for, before anything is checked.

    Attributes:
        collective: such as ``"broadcast"``.
        algorithm: a registered one, or ``"native"``; ``"auto"`` before it is decided.
        root: the root of a rooted collective; 0 for the others.
        options: the algorithm's options; None or empty for its defaults.
    """

    collective: str
    algorithm: str = registry.NATIVE
    root: int = 0
    options: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """The request for people, and for comparing the ranks: ``"reduce (lp, root 2)"``."""
        parts = [self.algorithm]
        if conditions(self.collective).rooted:
            parts.append(f"root {self.root}")
        for name, value in sorted((self.options or {}).items()):
            text = str(value)
            if len(text) > _SHOWN:
                text = f"{text[:16]}... (checksum {zlib.crc32(text.encode()):08x})"
            parts.append(f"{name}={text}")
        return f"{self.collective} ({', '.join(parts)})"

    @property
    def key(self) -> Hashable:
        """What tells requests apart; lists are as good as tuples."""
        if not self.options:
            return self[:3]
        return (
            *self[:3],
            *sorted(
                (name, tuple(value) if isinstance(value, list) else value)
                for name, value in self.options.items()
            ),
        )

    def schedule(self, world_size: int) -> Schedule | None:
        """Return the schedule to run, or None for the backend's own algorithm.

        Raises:
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such root or value of an option.
        """
        options = self.options or {}
        self._require_known()
        if self.algorithm == registry.NATIVE:
            if options:
                scope = f"{self.collective} (native)"
                raise UnknownNameError("option", next(iter(options)), ("none",), scope)
            return None
        row = registry.ALGORITHMS[self.collective, self.algorithm]
        for name in options:
            # Before the call: an option called "root" would otherwise be taken for the argument.
            if name not in (*row.options, ORDER):
                scope = f"{self.collective} ({self.algorithm})"
                raise UnknownNameError("option", name, (*row.options, ORDER), scope)
        return registry.build(
            self.collective, self.algorithm, world_size, root=self.root, **options
        )

    def require(self, world_size: int) -> None:
        """Refuse what :meth:`schedule` would refuse, for a collective that moves nothing.

        Raises:
            UnknownNameError: no such algorithm, or an option that it does not take.
            InvalidValueError: no such value of an option.
        """
        if self.options:
            self.schedule(world_size)
        else:
            self._require_known()

    def _require_known(self) -> None:
        known = (registry.NATIVE, *registry.algorithms(self.collective), registry.AUTO)
        if self.algorithm not in known[:-1]:
            raise UnknownNameError("algorithm", self.algorithm, known, self.collective)


def require_tensor(collective: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that no collective can work on in place.

    Raises:
        InvalidValueError: its type, element type or layout is not fit, or autograd follows it.
    """
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
