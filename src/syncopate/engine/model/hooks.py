"""Hooks: what torch calls for one rank's model, and not for copies of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class ModelHook:
    """A hook of a module; torch's copies of it, however made, have one that does nothing."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        # torch.compile has no business in it.
        self._function: Any = torch.compiler.disable(function) if function else None  # type: ignore

    def __call__(self, *args: Any) -> Any:
        """Call the function, if there is one."""
        return None if self._function is None else self._function(*args)

    def __deepcopy__(self, memo: Any) -> ModelHook:
        return ModelHook()

    def __reduce__(self) -> Any:
        return ModelHook, ()


def on_loading(model: nn.Module, loaded: Callable[[], None]) -> RemovableHandle:
    """Call a method when weights were loaded into ``model``, by it or a module around it.

    The method's object is held weakly.
    """
    known = weakref.WeakMethod(loaded)

    def tell(*_: object) -> None:
        if (call := known()) is not None:
            call()

    # A TorchScript module refuses its own method, and calls such hooks all the same.
    register: Any = nn.Module.register_load_state_dict_post_hook
    handle: RemovableHandle = register(model, ModelHook(tell))
    return handle
