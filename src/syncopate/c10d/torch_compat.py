"""torch's inside: all that this room takes of torch beyond its documented interface.

One place, so that a new torch is tried by one file of tests (``test_torch_compat.py``), which fails
where a name is gone or does something else. Tried with torch 2.13.0. What each is for:

* ``ProcessGroup`` and ``Work``: the classes whose methods torch calls, from Python and, through
  pybind11, from C++ (DDP, functional collectives).
* ``Reduction``: a ``ReduceOp`` taken apart.
* ``follow``: a future that raises in C++, too. ``Future.set_exception`` only makes Python raise.
* ``uncompiled``: a class whose methods torch.compile does not look into. To it a process group is
  an opaque object, whose attributes it may not read; so it has to call the methods as they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo

_Kind = TypeVar("_Kind", bound=type)

ProcessGroup: Any = dist.ProcessGroup
Work: Any = dist.Work


class Reduction(NamedTuple):
    """A ``ReduceOp``.

    Attributes:
        name: such as ``"SUM"``.
        factor: what ``PREMUL_SUM`` multiplies by; None for the others.
    """

    name: str
    factor: Any = None


def reduction_of(op: Any) -> Reduction:
    """Take a ``ReduceOp``, or one of its enumeration, apart."""
    name = getattr(op, "op", op).name
    return Reduction(name, op.factor if name == "PREMUL_SUM" else None)


def follow(source: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
    """Return a future with the value of ``source``, which raises in C++ what that one raises."""
    value: Callable[[Any], Any] = torch.futures.Future.value
    return source.then(value)


def uncompiled(kind: _Kind) -> _Kind:
    """Keep torch.compile out of all methods that a class has of its own; a decorator.

    A compiled function ends its graph at a call of one, and goes on behind it.
    """
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("__"):
            setattr(kind, name, _called_as_it_is(method))
    return kind


def _called_as_it_is(method: Callable[..., Any]) -> Callable[..., Any]:
    kept_out = _disable_dynamo(method)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        # The first call of the other one loads the compiler, which takes seconds: that is for
        # programs that have loaded it themselves.
        return (kept_out if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return called
