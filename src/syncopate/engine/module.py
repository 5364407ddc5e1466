"""Module: the class that a distributed model becomes.

The model stays the object it was: its class is exchanged for a subclass, as FSDP2 does it, so that
``isinstance``, attributes, ``state_dict`` keys and everything else are untouched, and there is no
wrapper to reach through.
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from syncopate.errors import EngineError

if TYPE_CHECKING:
    from syncopate.engine.engine import Engine

_ENGINE = "_syncopate_engine"
_classes: dict[type, type] = {}


class DistributedModule:
    """Mixed into the class of a distributed model."""

    @property
    def syncopate(self) -> Engine:
        """The engine that exchanges this model's gradients."""
        engine: Engine = self.__dict__[_ENGINE]
        return engine

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate locally in forwards, and their backwards, of this block.

        The first forward and backward outside exchange the sum, as with DDP.
        """
        with self.syncopate.paused():
            yield

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy as the model it was, without the engine."""
        original = original_class(type(self))
        plain: Any = object.__new__(original)
        plain.__dict__.update(self.__dict__)
        del plain.__dict__[_ENGINE]
        reduced = plain.__reduce_ex__(protocol)
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # Pickle insists that what __newobj__ makes has the class of what is pickled.
            make = copyreg._reconstructor  # type: ignore[attr-defined]
            return (make, (original, object, None), *reduced[2:])
        return reduced


def attach(model: nn.Module, engine: Engine) -> None:
    """Make ``model`` a distributed module with ``engine``.

    Raises:
        EngineError: its class cannot be extended (TorchScript).
    """
    original = type(model)
    if original not in _classes:
        try:
            _classes[original] = _extend(original)
        except (TypeError, RuntimeError) as error:
            raise _not_extensible(original, error) from None
    try:
        model.__class__ = _classes[original]
    except TypeError as error:
        raise _not_extensible(original, error) from None
    model.__dict__[_ENGINE] = engine


def _extend(original: type) -> type:
    """Return the class that distributed models of class ``original`` get."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original.__call__(self, *args, **kwargs)
        engine = self.__dict__[_ENGINE]
        outermost = engine.forward_begins(self.training)
        try:
            output = original.__call__(self, *args, **kwargs)
            if outermost:
                engine.forward_ends(output)
        finally:
            if outermost:
                engine.forward_leaves()
        return output

    # torch.compile leaves this frame alone and compiles what it calls: the model's own forward.
    body = {
        "__call__": torch.compiler.disable(call, recursive=False),  # type: ignore[no-untyped-call]
        "__module__": original.__module__,
        "__doc__": original.__doc__,
    }
    return type(f"Syncopate{original.__name__}", (DistributedModule, original), body)


def detach(model: nn.Module) -> None:
    """Make ``model`` again what it was."""
    if model.__dict__.pop(_ENGINE, None) is not None:
        model.__class__ = original_class(type(model))


def original_class(cls: type) -> type:
    """Return the class that a distributed model had before."""
    return cls.__mro__[2]


def _not_extensible(original: type, error: Exception) -> EngineError:
    return EngineError(
        f"a {original.__name__} cannot be distributed, its class does not allow it ({error}); "
        "distribute the eager module"
    )


def output_tensors(output: Any) -> list[Tensor]:
    """Return the tensors in what a model returned, however nested, each once."""
    if isinstance(output, Tensor):
        return [output]
    found: list[Tensor] = []
    seen: set[int] = set()
    pending = [output]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
        else:
            pending.extend(_parts(value))
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, nn.Module | type):
        return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, item.name, None) for item in dataclasses.fields(value)]
    # Any other object that bundles tensors, such as a torch.distributions.Distribution.
    return list(vars(value).values()) if hasattr(value, "__dict__") else []
